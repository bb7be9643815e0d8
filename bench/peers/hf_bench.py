#!/usr/bin/env python3
"""Hugging Face Transformers' tokens per second on a GGUF: the counterpart of model_bench.

Prints one JSON object per line, as bench/model_bench.cc does. Needs torch, transformers, gguf.
"""
import argparse
import json
import pathlib
import time

import torch
from transformers import AutoModelForCausalLM


def tokens(n, vocab, seed):
    return torch.tensor([[(1000003 * (i + 1) + 7919 * seed) % vocab for i in range(n)]])


def prefill(model, n):
    ids = tokens(n, model.config.vocab_size, 1)
    start = time.perf_counter()
    model(ids, use_cache=True, logits_to_keep=1)
    return n / (time.perf_counter() - start)


def decode(model, batch, context, steps):
    ids = torch.cat([tokens(context, model.config.vocab_size, b) for b in range(batch)])
    out = model(ids, use_cache=True, logits_to_keep=1)
    cache, nxt = out.past_key_values, out.logits[:, -1:].argmax(-1)
    start = time.perf_counter()
    for _ in range(steps):
        out = model(nxt, past_key_values=cache, use_cache=True)
        cache, nxt = out.past_key_values, out.logits[:, -1:].argmax(-1)
    return batch * steps / (time.perf_counter() - start)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("model", help="GGUF file or Hugging Face folder")
    p.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    p.add_argument("--attention", default="sdpa", choices=["sdpa", "eager"])
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--prefill", default="512,2048")
    p.add_argument("--decode", default="1,8")
    p.add_argument("--context", type=int, default=512)
    p.add_argument("--tokens", type=int, default=64)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.set_grad_enabled(False)
    path = pathlib.Path(a.model)
    where = (dict(pretrained_model_name_or_path=path.parent, gguf_file=path.name)
             if path.is_file() else dict(pretrained_model_name_or_path=path))
    dtype = torch.float32 if a.dtype == "fp32" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(
        **where, dtype=dtype, attn_implementation=a.attention).eval()
    prefill(model, 64)

    def report(what, size, rates):
        print(json.dumps({"engine": f"hf-{a.attention}", "dtype": a.dtype, "what": what,
                          "size": size, "tokens_per_s": rates}), flush=True)

    for n in filter(None, a.prefill.split(",")):
        report("prefill", int(n), [prefill(model, int(n)) for _ in range(a.repeat)])
    for b in filter(None, a.decode.split(",")):
        report("decode", int(b),
               [decode(model, int(b), a.context, a.tokens) for _ in range(a.repeat)])


if __name__ == "__main__":
    main()
