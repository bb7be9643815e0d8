#!/usr/bin/env python3
"""Writes kvpress_expected.json: the KV positions that kvpress keeps on small random tensors.

    pip install kvpress==0.5.5 && python make_fixtures.py

Tensors come from splitmix64(seed), 24 bits a value in [-2, 2), queries first, so that C++ repeats them.
"""
import json
import pathlib
import types

import torch
from kvpress import (AdaKVPress, ChunkKVPress, ObservedAttentionPress, PyramidKVPress, SnapKVPress,
                     StreamingLLMPress)

MASK = (1 << 64) - 1


class Generator:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return ((z ^ (z >> 31)) >> 40) / (1 << 22) - 2

    def tensor(self, *shape):
        return torch.tensor([self.next() for _ in range(torch.Size(shape).numel())]).view(shape)


def layer(heads, kv_heads, dim):
    """What a press asks of an attention module; queries are the hidden states as they are."""
    config = types.SimpleNamespace(num_attention_heads=heads, num_key_value_heads=kv_heads,
                                   num_hidden_layers=1, _attn_implementation="sdpa")
    return types.SimpleNamespace(config=config, head_dim=dim, q_proj=lambda x: x, layer_idx=0)


def kept(press, module, queries, keys, attentions):
    n, dim = keys.shape[1:]
    hidden = queries.permute(1, 0, 2).reshape(1, n, -1)
    rope = (torch.ones(1, n, dim), torch.zeros(1, n, dim))
    # Values carry their position, so that what is left names what was kept.
    values = torch.arange(n, dtype=torch.float32).view(1, 1, n, 1).expand(1, keys.shape[0], n, dim)
    _, left = press.compress(module, hidden, keys[None], values.contiguous(), attentions,
                             {"position_embeddings": rope})
    if isinstance(press, AdaKVPress):
        _, heads, positions = module.masked_key_indices
        gone = set(zip(heads.tolist(), positions.tolist()))
        return [[t for t in range(n) if (h, t) not in gone] for h in range(keys.shape[0])]
    return [sorted(int(t) for t in head[:, 0]) for head in left[0]]


def causal(queries, keys):
    keys = keys.repeat_interleave(queries.shape[0] // keys.shape[0], 0)
    logits = queries @ keys.transpose(1, 2) / queries.shape[2] ** 0.5
    return (logits + torch.full_like(logits[0], float("-inf")).triu(1)).softmax(-1)[None]


def cuts_window(name, n, ratio, window):
    """All tokens of the window score the same: which of them topk keeps is arbitrary."""
    if name in ("snapkv", "adakv"):
        return int(n * (1 - ratio)) < window
    in_window = sum(start >= n - window for start in range(0, n, 20))
    return name == "chunkkv" and max(1, int(-(-n // 20) * (1 - ratio))) < in_window


def main():
    cases = []
    for seed, (heads, kv_heads, n, dim) in enumerate([(4, 2, 97, 16), (6, 2, 160, 8), (3, 3, 121, 16)]):
        gen = Generator(seed)
        queries, keys = gen.tensor(heads, n, dim), gen.tensor(kv_heads, n, dim)
        for ratio in (0.25, 0.5, 0.8):
            for window, kernel in ((32, 5), (8, 7), (64, 5)):
                snap = SnapKVPress(ratio, window_size=window, kernel_size=kernel)
                presses = {"snapkv": snap, "adakv": AdaKVPress(snap), "chunkkv": ChunkKVPress(snap)}
                if window == 32:
                    presses |= {"streaming": StreamingLLMPress(ratio), "observed": ObservedAttentionPress(ratio)}
                for name, press in presses.items():
                    if cuts_window(name, n, ratio, window):
                        continue
                    attentions = causal(queries, keys) if name == "observed" else None
                    cases.append({"press": name, "seed": seed, "heads": heads, "kv_heads": kv_heads, "tokens": n,
                                  "head_dim": dim, "ratio": ratio, "window": window, "kernel": kernel,
                                  "kept": kept(press, layer(heads, kv_heads, dim), queries, keys, attentions)})
    pyramid = []
    for layers, n, ratio in ((32, 4000, 0.75), (30, 2001, 0.6), (7, 3000, 0.5), (12, 5000, 0.8)):
        press, module = PyramidKVPress(ratio, window_size=8, beta=4), layer(1, 1, 1)
        module.config.num_hidden_layers = layers
        budgets = []
        for module.layer_idx in range(layers):
            budgets.append(press.get_layer_budget(module, n))
        pyramid.append({"layers": layers, "tokens": n, "ratio": ratio, "beta": 4, "budgets": budgets})
    path = pathlib.Path(__file__).with_name("kvpress_expected.json")
    path.write_text(json.dumps({"cases": cases, "pyramid": pyramid}, separators=(",", ":")) + "\n")
    print(len(cases), "cases")


if __name__ == "__main__":
    main()
