"""Writes the held-out questions of a consumer's task for `baton eval scd --questions`.

    python -m consumers.questions --consumer skills --out questions.jsonl [--examples N]

One JSON object per question: context, question, answer, references, skill, exact. They come from the
held-out side of the generators (other contexts, words and seed than training's; `consumers.disjoint`
checks it), in the form that `consumers.evaluate` scores.
"""
import functools

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
    sources = {name: functools.partial(rows, name) for name in SOURCES}
    options.write_rows(__doc__, sources, 120, "contexts", argv)


if __name__ == "__main__":
    main()
