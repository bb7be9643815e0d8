"""Short-answer questions on a paragraph: TyDi QA, Natural Questions, FairytaleQA, COVID-QA."""
import collections
import json
import pathlib

from .text import Example, Question

TRAIN = ("tydiqa_en_train", "nq_short", "fairytaleqa_train", "covidqa_windows")
HELD_OUT = ("tydiqa_en_heldout", "fairytaleqa_heldout")
INSTRUCTION = "Answer in a few words taken from the text."
SOURCES = """\
Training text: `qa_train` of the project's data folder: TyDi QA gold passages, English (Apache-2.0, Wikipedia
text CC BY-SA 3.0), Natural Questions short answers (CC BY-SA 3.0), FairytaleQA (Apache-2.0) and COVID-QA
windows of CC BY articles (Apache-2.0)."""


def rows(data, name):
    with open(pathlib.Path(data) / "qa_train" / f"{name}.jsonl", encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def examples(data, names=TRAIN):
    """One example per context with all of its questions, in the order of the files."""
    by_context = collections.OrderedDict()
    for name in names:
        for row in rows(data, name):
            question = Question(f"Question: {row['question']}\n{INSTRUCTION}", row["answers"][0],
                                tuple(row["answers"]), name.split("_")[0])
            by_context.setdefault(row["context"], []).append(question)
    return [Example(context, tuple(questions)) for context, questions in by_context.items()]
