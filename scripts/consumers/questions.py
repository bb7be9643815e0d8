"""Writes the held-out questions of a consumer's task for `baton eval scd --questions`.

    python -m consumers.questions --consumer skills --out questions.jsonl [--examples N]

One JSON object per question: context, question, answer, references, skill, exact. They come from the
held-out side of the generators (other contexts, words and seed than training's; `consumers.disjoint`
checks it), in the form that `consumers.evaluate` scores.
"""
import argparse
import json
import pathlib

from . import options, tasks

SOURCES = {"skills": tasks.skill_examples, "qa": tasks.qa_examples, "xquad": tasks.xquad_examples}


def rows(consumer, data, count):
    """One row per question; those on one context follow each other."""
    for example in SOURCES[consumer](data, count):
        for question in example.questions:
            yield {"context": example.context.strip(), "question": question.text.strip(),
                   "answer": question.answer.strip(), "references": list(question.references),
                   "skill": question.skill, "exact": question.skill == "json"}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--consumer", choices=sorted(SOURCES), required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--examples", type=int, default=120, help="contexts")
    parser.add_argument("--data", default=options.data_default())
    o = parser.parse_args(argv)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows(o.consumer, o.data, o.examples)]
    pathlib.Path(o.out).write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    main()
