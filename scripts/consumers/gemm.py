"""Products with frozen weights, by whichever implementation is fastest on this processor.

PyTorch's own choice for float32 (MKL) reaches two thirds of oneDNN's speed on AMD processors; bf16
pays only where the processor has instructions for it.
"""
import time

import torch
from torch.nn import functional

KINDS = ("mkl", "onednn", "bf16")


def prepare(kind, weight):
    """A weight [out, in] as `multiply` wants it."""
    return weight.to(torch.bfloat16).contiguous() if kind == "bf16" else weight.contiguous()


def multiply(kind, x, weight):
    """x [n, in] float32 times a prepared weight [out, in], transposed -> [n, out] float32."""
    if kind == "onednn":
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    if kind == "bf16":
        return functional.linear(x.to(torch.bfloat16), weight).float()
    return functional.linear(x, weight)


def _has_bf16():
    try:
        with open("/proc/cpuinfo", encoding="ascii") as f:
            flags = next(line for line in f if line.startswith("flags")).split()
    except (OSError, StopIteration):
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def candidates():
    kinds = ["mkl"]
    if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        kinds.append("onednn")
    if _has_bf16():
        kinds.append("bf16")
    return kinds


def fastest(rows=1024, inner=576, outer=3072, rounds=5):
    """(kind, {kind: GFLOP per second of processor time}), the best of a few rounds each."""
    x, w = torch.randn(rows, inner), torch.randn(outer, inner)
    speed = {}
    for kind in candidates():
        prepared = prepare(kind, w)
        multiply(kind, x, prepared)
        best = float("inf")
        for _ in range(rounds):
            start = time.process_time()
            multiply(kind, x, prepared)
            best = min(best, time.process_time() - start)
        speed[kind] = 2 * rows * inner * outer / best / 1e9 * torch.get_num_threads()
    return max(speed, key=speed.get), speed
