"""A data folder with a few rows of every kind, for tests that need no downloads."""
import itertools
import json
import pathlib

SYLLABLES = ("ba", "de", "ki", "lo", "mu", "na", "pe", "ri", "so", "tu")


def made_up(n, ending):
    return ["".join(s) + ending for s in itertools.islice(itertools.product(SYLLABLES, repeat=2), n)]


def write(folder):
    folder = pathlib.Path(folder)
    (folder / "qa_train").mkdir(parents=True)
    (folder / "wordlists").mkdir()
    (folder / "wordlists" / "nouns.txt").write_text("\n".join(made_up(100, "n")))
    (folder / "wordlists" / "adjectives.txt").write_text("\n".join(made_up(100, "y")))
    names = ("tydiqa_en_train", "nq_short", "fairytaleqa_train", "covidqa_windows", "tydiqa_en_heldout",
             "fairytaleqa_heldout")
    for k, name in enumerate(names):
        with open(folder / "qa_train" / f"{name}.jsonl", "w", encoding="utf-8") as f:
            for row in range(4):
                context = " ".join(f"Sentence {s} of text {row} in source {k} says nothing much." for s in range(12))
                f.write(json.dumps({"id": f"{name}-{row}", "context": context, "question": f"What {row}?",
                                    "answers": ["nothing", "nothing much"]}) + "\n")
    return folder
