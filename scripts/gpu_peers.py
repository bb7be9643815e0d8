#!/usr/bin/env python3
"""What LibTorch reaches on this GPU: scripts/gpu_peers.py OUT.json

Products (the limit of scd_encode and scd_decode) and scaled dot product attention (the peer of
prefill attention), median of ten runs each.
"""
import json
import statistics
import sys

import torch
import torch.nn.functional as F


def seconds(run):
    times = []
    for i in range(12):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        if i >= 2:
            times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def main():
    rows = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        n = 8192 if dtype != torch.float32 else 4096
        a, b = (torch.randn(n, n, device="cuda", dtype=dtype) for _ in range(2))
        s = seconds(lambda: a @ b)
        rows.append({"op": "matmul", "dtype": str(dtype), "sizes": f"{n}^3", "us": s * 1e6, "tflops": 2 * n**3 / s * 1e-12})
    for dtype in (torch.bfloat16, torch.float16):
        heads, n, dim = 32, 4096, 128
        q, k, v = (torch.randn(1, heads, n, dim, device="cuda", dtype=dtype) for _ in range(3))
        s = seconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        flops = 2 * 2 * heads * n * n * dim / 2
        rows.append({"op": "sdpa causal", "dtype": str(dtype), "sizes": f"{heads} x {n} x {dim}", "us": s * 1e6,
                     "tflops": flops / s * 1e-12})
    for r in rows:
        print(f"{r['op']:<12} {r['dtype']:<15} {r['sizes']:<18} {r['us']:10.1f} us {r['tflops']:8.1f} TFLOP/s")
    with open(sys.argv[1], "w") as f:
        json.dump({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "peers": rows}, f, indent=1)


if __name__ == "__main__":
    main()
