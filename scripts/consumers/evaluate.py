"""Scores a consumer beside its base on held-out tasks.

    python -m consumers.evaluate --adapter DIR [--json FILE] [--examples N] [--tasks skills,qa,…]

Skills and QA: greedy answers, exact match and F1 by SQuAD's rules (JSON: exact text), and the mean
negative log-likelihood of the reference per token. Code, HumanEval and WikiText-2: perplexity.
"""
import argparse
import json
import math
import pathlib

import torch

from . import adapter as lora
from . import base as base_model
from . import gemm, llama, options, tasks, text
from .scoring import Means, exact_match, f1

MAX_ANSWER = 64  # tokens


def document_nll(model, adapter, document):
    """[(sum of negative log-likelihoods, labels)] per branch; of plain text, one entry."""
    h = model.hidden([(document.ids, document.positions, document.segments, None)], adapter)
    at = [i for i, label in enumerate(document.labels) if label >= 0]
    log_p = model.logits(h[at]).log_softmax(1)
    nll = -log_p[torch.arange(len(at)), torch.tensor([document.labels[i] for i in at])]
    sums = {}
    for i, value in zip(at, nll.tolist()):
        total, n = sums.get(document.segments[i], (0.0, 0))
        sums[document.segments[i]] = total + value, n + 1
    return [sums[s] for s in sorted(sums)]


def prefill(model, adapter, ids):
    state = llama.State(model.config.layers)
    model.hidden([(ids, list(range(len(ids))), [0] * len(ids), state)], adapter)
    return state


def generate(model, adapter, state, suffixes, limit=MAX_ANSWER):
    """Greedy continuations (ids) of one prefix state by several suffixes, in step with each other."""
    start = len(state.segments)
    rows = [{"state": state.copy(), "next": list(s), "at": start, "out": []} for s in suffixes]
    open_rows = list(rows)
    while open_rows:
        h = model.hidden([(r["next"], list(range(r["at"], r["at"] + len(r["next"]))), [0] * len(r["next"]),
                           r["state"]) for r in open_rows], adapter)
        ends = torch.tensor([len(r["next"]) for r in open_rows]).cumsum(0) - 1
        for row, token in zip(open_rows, model.logits(h[ends]).argmax(1).tolist()):
            row["at"] += len(row["next"])
            row["next"] = [token]
            row["out"].append(token)
        open_rows = [r for r in open_rows if r["out"][-1] != text.IM_END and len(r["out"]) < limit]
    return [r["out"][:-1] if r["out"][-1] == text.IM_END else r["out"] for r in rows]


def score_answers(model, adapter, tokenizer, examples):
    """{skill or source: {exact_match, f1, nll}} of greedy answers."""
    means = Means()
    for example in examples:
        state = prefill(model, adapter, text.prefix_ids(tokenizer, example.context))
        suffixes = [text.question_ids(tokenizer, q.text) for q in example.questions]
        answers = [tokenizer.decode(a).strip() for a in generate(model, adapter, state, suffixes)]
        nll = document_nll(model, adapter, text.chat_document(tokenizer, example))
        for question, answer, likelihood in zip(example.questions, answers, nll):
            exact = (float(answer == question.answer) if question.skill == "json"
                     else exact_match(answer, question.references))
            means.add(question.skill, exact_match=exact, f1=f1(answer, question.references), nll=likelihood)
    return means.table()


def perplexity(model, adapter, windows):
    total, n = 0.0, 0
    for ids in windows:
        (nll, count), = document_nll(model, adapter, text.plain_document(ids))
        total, n = total + nll, n + count
    return {"all": {"perplexity": round(math.exp(total / n), 4), "tokens": n}}


def all_tasks(data, tokenizer, count, code_root=None):
    """{name: function(model, adapter) -> table}; the work is done when one is called."""
    def answers(examples):
        return lambda model, adapter: score_answers(model, adapter, tokenizer, examples(data, count))

    def text_of(windows):
        return lambda model, adapter: perplexity(model, adapter, windows())
    return {
        "skills": answers(tasks.skill_examples),
        "qa": answers(tasks.qa_examples),
        "xquad": answers(tasks.xquad_examples),
        "code": text_of(lambda: tasks.code_windows(tokenizer, count, code_root)),
        "humaneval": text_of(lambda: tasks.humaneval_texts(data, tokenizer, count)),
        "wikitext2": text_of(lambda: tasks.wikitext_windows(data, tokenizer, count)),
    }


def common_options(parser):
    parser.add_argument("--json", help="where the result goes (default: standard output)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--base", default=options.base_default())
    parser.add_argument("--data", default=options.data_default())


def open_model(o):
    """(tokenizer, model for inference)."""
    torch.set_num_threads(o.threads)
    tokenizer = text.Tokenizer(pathlib.Path(o.data) / "tokenizers" / "smollm2_tokenizer.json")
    return tokenizer, llama.Llama(base_model.load_gguf(o.base), gemm.fastest()[0], train=False)


def write_result(o, result):
    content = json.dumps(result, indent=2) + "\n"
    if o.json:
        pathlib.Path(o.json).write_text(content, "utf-8")
    else:
        print(content, end="")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--adapter", required=True)
    parser.add_argument("--examples", type=int, default=60, help="contexts or windows per task")
    parser.add_argument("--tasks", help="of skills,qa,xquad,code,humaneval,wikitext2 (default: all)")
    parser.add_argument("--code-root")
    common_options(parser)
    o = parser.parse_args(argv)
    tokenizer, model = open_model(o)
    consumer = lora.load(o.adapter)
    available = all_tasks(o.data, tokenizer, o.examples, o.code_root)
    result = {"examples": o.examples, "tasks": {}}
    with torch.inference_mode():
        for name in o.tasks.split(",") if o.tasks else available:
            result["tasks"][name] = {"base": available[name](model, None),
                                     "consumer": available[name](model, consumer)}
    write_result(o, result)


if __name__ == "__main__":
    main()
