"""Checks that no evaluation text occurs in training text.

    python -m consumers.disjoint --data ../../shared/data

Texts are compared as words (lower case, letters and digits only). A run of `RUN` words that both
sides have is an overlap; so is an equal question. Code is compared the same way against HumanEval.
"""
import argparse
import json
import pathlib
import re
import sys

from . import data_code, data_qa, skills
from .options import data_default

RUN = 12
_WORD = re.compile(r"[^\W_]+")


def words(text):
    return _WORD.findall(text.lower())


def runs(text):
    """Hashes of every run of RUN words. A text of fewer words has none."""
    w = words(text)
    return {hash(" ".join(w[i:i + RUN])) for i in range(len(w) - RUN + 1)}


def _strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from _strings(v)
    elif isinstance(value, list):
        # Sentences of one paragraph belong together, or short ones would have no runs.
        if value and all(isinstance(v, str) for v in value):
            yield " ".join(value)
        else:
            for v in value:
                yield from _strings(v)


EVALUATION_FILES = ("wikitext2/valid.txt", "wikitext2/test.txt", "hotpotqa/distractor_100.jsonl",
                    "hotpotqa/fullwiki_gold_in_context.jsonl", "cmrc2018/dev_350.jsonl", "xquad/en.jsonl",
                    "xquad/zh.jsonl", "xquad/paragraphs_12_languages.jsonl", "public_domain_book/moby_dick.txt",
                    "qmsum_product/meetings_5.jsonl", "gsm8k/test_500.jsonl", "humaneval/humaneval.jsonl",
                    "mt_bench/questions.jsonl", "system_prompts/system_prompts.jsonl")


def evaluation_texts(data):
    """(name, text) of every evaluation set."""
    for name in EVALUATION_FILES:
        path = pathlib.Path(data) / name
        content = path.read_text(encoding="utf-8")
        if path.suffix != ".jsonl":
            yield name, content
            continue
        for line in content.split("\n"):
            for text in _strings(json.loads(line)) if line.strip() else ():
                yield name, text


def overlaps(training, evaluation):
    """[(training name, evaluation name, number of runs)] over iterables of (name, text)."""
    seen = {}
    for name, text in evaluation:
        for run in runs(text):
            seen.setdefault(run, name)
    found = {}
    for name, text in training:
        for run in runs(text):
            if run in seen:
                key = (name, seen[run])
                found[key] = found.get(key, 0) + 1
    return [(*key, n) for key, n in sorted(found.items())]


def _qa_texts(data, names, tag):
    for name in names:
        for row in data_qa.rows(data, name):
            yield f"{tag} {name}", row["context"]
            yield f"{tag} {name}", row["question"]


def check(data, code_root=None, skill_examples=300):
    """Every overlap between what consumers train on and what anything is evaluated on."""
    code = data_code.files(code_root)
    generator = skills.Generator(data)
    held = skills.Generator(data, evaluation=True)
    training = [*_qa_texts(data, data_qa.TRAIN, "qa"),
                *((f"code {name}", t) for name, t in code.items() if not data_code.is_held_out(name)),
                *(("skills", generator.example(i).context) for i in range(skill_examples))]
    # A held-out module may repeat a licence text or a docstring of another, so the code's own
    # held-out files are judged by file, not by run.
    evaluation = [*evaluation_texts(data), *_qa_texts(data, data_qa.HELD_OUT, "held-out"),
                  *(("held-out skills", held.example(i).context) for i in range(skill_examples))]
    return overlaps(training, evaluation)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default=data_default(), help="the project's data folder")
    parser.add_argument("--code-root", help="folder of Python source (default: Debian's standard library)")
    options = parser.parse_args()
    found = check(options.data, options.code_root)
    for training, evaluation, n in found:
        print(f"{training} shares {n} runs of {RUN} words with {evaluation}")
    print(f"{len(found)} overlaps")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
