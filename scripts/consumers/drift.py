"""How far a consumer has moved from its base, checkpoint by checkpoint.

    python -m consumers.drift --run DIR [--json FILE] [--examples N] [--consumer skills]

For every adapter under DIR/steps, over prefixes of held-out documents of its own task:
- state error of keys (after the rotation, which changes no norm) and values per layer, Frobenius
  norm of the difference to the base's over that of the consumer's own, without the first SINKS
  positions, which a consumer always prefills itself;
- what a hand-off without alignment costs: the consumer's answers on the base's keys and values of
  the prefix (`raw`) beside its own (`own`): KL(own || raw) and negative log-likelihood per answer
  token, and `exact`, the share of answers that greedy decoding would give letter for letter.
"""
import argparse
import json
import pathlib

import torch

from . import adapter as lora
from . import llama, recipes, tasks, text
from .evaluate import common_options, open_model, prefill, write_result
from .scoring import Means

SINKS = 4
CONTINUATION = 128  # tokens of plain text that follow the prefix


def split_documents(consumer, data, tokenizer, count, code_root=None):
    """Documents with a prefix and branches; plain text is cut in a prefix and what follows."""
    if consumer == "code":
        return [_cut(w) for w in tasks.code_windows(tokenizer, count, code_root)]
    examples = tasks.skill_examples(data, count) if consumer == "skills" else tasks.qa_examples(data, count)
    return [text.chat_document(tokenizer, e) for e in examples]


def _cut(ids):
    d = text.plain_document(ids)
    n = len(d) - CONTINUATION
    d.segments = [0] * n + [1] * CONTINUATION
    d.labels = [text.NO_LABEL] * n + d.labels[n:]
    d.skills = ["code"]
    return d


def mixed_state(own, other):
    """The other model's keys and values with the first SINKS positions of one's own."""
    state = llama.State(len(own.keys))
    state.segments = list(own.segments)
    for layer in range(len(own.keys)):
        for mine, theirs, out in ((own.keys, other.keys, state.keys), (own.values, other.values, state.values)):
            out[layer] = torch.cat((mine[layer][:, :SINKS], theirs[layer][:, SINKS:]), 1)
    return state


def state_errors(own, other):
    """Per layer: (squared difference, squared norm) of keys and of values."""
    def sums(a, b):
        a, b = a[:, SINKS:].double(), b[:, SINKS:].double()
        return torch.stack(((a - b).square().sum(), a.square().sum()))
    keys = torch.stack([sums(a, b) for a, b in zip(own.keys, other.keys)])
    values = torch.stack([sums(a, b) for a, b in zip(own.values, other.values)])
    return torch.stack((keys, values))  # [2, layers, 2]


def branch_log_probabilities(model, adapter, document, state):
    """[labels, vocab] of the branches behind a prefix state, which stays as it is."""
    n = document.prefix_tokens
    h = model.hidden([(document.ids[n:], document.positions[n:], document.segments[n:], state.copy())], adapter)
    at = [i - n for i, label in enumerate(document.labels) if label >= 0]
    return model.logits(h[at]).log_softmax(1)


def compare(document, own, raw):
    """Per branch (skill, values for Means) from log-probabilities [labels, vocab]."""
    at = [i for i, label in enumerate(document.labels) if label >= 0]
    labels = torch.tensor([document.labels[i] for i in at])
    branch = torch.tensor([document.segments[i] for i in at])
    kl = (own.exp() * (own - raw)).sum(1)
    rows = torch.arange(len(at))
    for b, skill in enumerate(document.skills, start=1):
        mine = branch == b
        n = int(mine.sum())
        values = {"kl": (kl[mine].sum().item(), n)}
        for name, log_p in (("own", own), ("raw", raw)):
            values[f"nll_{name}"] = -log_p[rows, labels][mine].sum().item(), n
            values[f"exact_{name}"] = float((log_p.argmax(1) == labels)[mine].all())
        yield skill, values


def drift(model, adapter, documents):
    """The report of one adapter: {"state_error_k": [...], "state_error_v": [...], "quality": table}."""
    errors, means = 0, Means()
    for d in documents:
        prefix = d.ids[:d.prefix_tokens]
        own, other = prefill(model, adapter, prefix), prefill(model, None, prefix)
        errors = errors + state_errors(own, other)
        log_own = branch_log_probabilities(model, adapter, d, own)
        log_raw = branch_log_probabilities(model, adapter, d, mixed_state(own, other))
        for skill, values in compare(d, log_own, log_raw):
            means.add(skill, **values)
    relative = (errors[..., 0] / errors[..., 1]).sqrt()
    return {"state_error_k": [round(x, 4) for x in relative[0].tolist()],
            "state_error_v": [round(x, 4) for x in relative[1].tolist()],
            "quality": means.table()}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", required=True, help="folder of consumers.train")
    parser.add_argument("--consumer", choices=sorted(recipes.RECIPES), help="task (default: the run's own)")
    parser.add_argument("--examples", type=int, default=20)
    parser.add_argument("--code-root")
    common_options(parser)
    o = parser.parse_args(argv)
    run = pathlib.Path(o.run)
    tokens = {}
    for line in (run / "log.jsonl").read_text("utf-8").split("\n")[:-1]:
        row = json.loads(line)
        tokens[row["step"]] = row["tokens"]
    consumer = o.consumer or torch.load(run / "checkpoint.pt", weights_only=True)["identity"]["consumer"]
    tokenizer, model = open_model(o)
    documents = split_documents(consumer, o.data, tokenizer, o.examples, o.code_root)
    curve = []
    with torch.inference_mode():
        for folder in sorted((run / "steps").iterdir()):
            step = int(folder.name)
            curve.append({"step": step, "tokens": tokens[step], **drift(model, lora.load(folder), documents)})
    write_result(o, {"consumer": consumer, "examples": o.examples, "sinks": SINKS, "curve": curve})


if __name__ == "__main__":
    main()
