"""Writes conversations of a consumer's training side for `baton calibrate --data`.

    python -m consumers.traffic --consumer skills --out traffic.jsonl [--examples N] [--held-out]

One JSON object per context: messages of one question (another kind of question each time) and its
answer, as the consumer is asked. For `code`, one text per window of source. Nothing held out is in it;
with --held-out nothing else is, for `baton eval scd --data`.
"""
import pathlib

from . import data_code, data_qa, options, skills, text


def conversation(context, question):
    return {"messages": [{"role": "user", "content": f"{context.strip()}\n\n{question.text.strip()}"},
                         {"role": "assistant", "content": question.answer.strip()}]}


def skill_rows(data, count, held_out):
    generator = skills.Generator(data, evaluation=True) if held_out else skills.Generator(data, seed=skills.TRAIN_SEED)
    for i in range(count):
        example = generator.example(i)
        yield conversation(example.context, example.questions[i % len(example.questions)])


def qa_rows(data, count, held_out):
    examples = data_qa.examples(data, data_qa.HELD_OUT) if held_out else data_qa.examples(data)
    for i, example in enumerate(examples[::max(len(examples) // count, 1)][:count]):
        yield conversation(example.context, example.questions[i % len(example.questions)])


def code_rows(data, count, held_out):
    tokenizer = text.Tokenizer(pathlib.Path(data) / "tokenizers" / "smollm2_tokenizer.json")
    windows = data_code.windows(tokenizer, data_code.files(None), held_out=held_out)
    for ids in windows[::max(len(windows) // count, 1)][:count]:
        yield {"text": tokenizer.decode(ids)}


ROWS = {"skills": skill_rows, "qa": qa_rows, "code": code_rows}


def main(argv=None):
    options.write_rows(__doc__, ROWS, 320, "contexts, or windows of source", argv, sides=True)


if __name__ == "__main__":
    main()
