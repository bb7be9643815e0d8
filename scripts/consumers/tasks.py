"""Held-out tasks that consumers and their base are scored on."""
import json
import pathlib
import random

from . import data_code, data_qa, skills
from .text import Example, Question


def skill_examples(data, count):
    generator = skills.Generator(data, evaluation=True)
    return [generator.example(i) for i in range(count)]


def qa_examples(data, count):
    found = data_qa.examples(data, data_qa.HELD_OUT)
    random.Random(7).shuffle(found)
    return found[:count]


def xquad_examples(data, count):
    """Paragraphs of XQuAD with up to three questions each: no consumer trains on its sources."""
    with open(pathlib.Path(data) / "xquad" / "en.jsonl", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f][:count]

    def references(qa):
        return tuple(dict.fromkeys(a["text"] if isinstance(a, dict) else a for a in qa["answers"]))
    return [Example(row["context"], tuple(
        Question(f"Question: {qa['question']}\n{data_qa.INSTRUCTION}", references(qa)[0], references(qa), "xquad")
        for qa in row["qas"][:3])) for row in rows]


def code_windows(tokenizer, count, code_root=None, tokens=768):
    """Windows of held-out modules, spread over all of them."""
    found = data_code.windows(tokenizer, data_code.files(code_root), held_out=True, tokens=tokens)
    found = [w for w in found if len(w) > tokens // 2]
    return found[::max(len(found) // count, 1)][:count]


def wikitext_windows(data, tokenizer, count, tokens=768):
    """Windows of WikiText-2's test text: does a consumer forget how to write?"""
    ids = tokenizer.encode((pathlib.Path(data) / "wikitext2" / "test.txt").read_text("utf-8"))
    found = [ids[i:i + tokens + 1] for i in range(0, len(ids) - tokens, tokens)]
    return found[::max(len(found) // count, 1)][:count]


def humaneval_texts(data, tokenizer, count):
    """Prompt and solution as one text."""
    with open(pathlib.Path(data) / "humaneval" / "humaneval.jsonl", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f][:count]
    return [tokenizer.encode(row["prompt"] + row["canonical_solution"]) for row in rows]
