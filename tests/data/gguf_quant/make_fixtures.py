"""Block-quantised rows and what the `gguf` package decodes them to, bit for bit.

    python make_fixtures.py      # needs gguf and numpy; writes blocks.json and quantized.json
"""
import json
import pathlib

import gguf
import numpy as np

Q = gguf.GGMLQuantizationType


def hex_of(array):
    return np.ascontiguousarray(array).tobytes().hex()


def write(name, rows):
    path = pathlib.Path(__file__).parent / name
    path.write_text(json.dumps(rows, indent=0) + "\n")


def quantized():
    """fp32 rows and the blocks that the package makes of them."""
    rng = np.random.default_rng(4)
    rows = []
    for kind in (Q.Q8_0, Q.Q4_1):
        values = rng.normal(0, 0.02, (1, 32 * 16)).astype(np.float32)
        values[0, :32] = 0
        values[0, 32:64] = 0.37  # one value: no range
        values[0, 64:96] = np.linspace(-1, 1, 32)  # halves between two codes
        values[0, 96:128] = np.arange(32) - 16
        values[0, 128:160] *= 1e-6  # subnormal scale
        values[0, 160:192] *= 1e5
        values[0, 192:224] = np.abs(values[0, 192:224])
        values[0, 230] = 40  # an outlier
        rows.append({"type": kind.name, "fp32": hex_of(values),
                     "bytes": hex_of(gguf.quantize(values, kind))})
    return rows


def main():
    rng = np.random.default_rng(3)
    rows = []
    for kind in (Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1):
        values = rng.normal(0, 1, (1, 32 * 6)).astype(np.float32)
        values[0, :32] *= 1e-6  # subnormal scale
        values[0, 32:64] *= 1000
        values[0, 64:96] = 0
        packed = gguf.quantize(values, kind)
        rows.append((kind.name, packed, gguf.dequantize(packed, kind)))
        # Any bytes are a block; keep those whose scales are finite.
        raw = rng.integers(0, 256, packed.shape, dtype=np.uint8)
        decoded = gguf.dequantize(raw, kind)
        if np.isfinite(decoded).all():
            rows.append((kind.name, raw, decoded))
    # The package cannot write these: random bytes, every fp16 scale made finite.
    for kind, scales_at in ((Q.Q4_K, (0, 2)), (Q.Q5_K, (0, 2)), (Q.Q6_K, (208,))):
        size = gguf.GGML_QUANT_SIZES[kind][1]
        raw = rng.integers(0, 256, (1, size * 3), dtype=np.uint8)
        for block, scale in enumerate((0.01, -3.5, 3e-7)):  # the last one is subnormal
            for at in scales_at:
                half = np.float16(scale * (1 + rng.random()))
                raw[0, block * size + at:block * size + at + 2] = half.reshape(1).view(np.uint8)
        rows.append((kind.name, raw, gguf.dequantize(raw, kind)))
    halves = np.concatenate([np.arange(0, 0x7C00, 97), np.arange(0x8000, 0xFC00, 101)])
    halves = np.concatenate([halves, [0x7C00, 0xFC00]]).astype(np.uint16)
    rows.append(("F16", halves, halves.view(np.float16).astype(np.float32)))
    bf16 = rng.normal(0, 1, 96).astype(np.float32)
    packed = gguf.quantize(bf16.reshape(1, -1), Q.BF16)
    rows.append(("BF16", packed, gguf.dequantize(packed, Q.BF16)))
    floats = rng.normal(0, 1, 9).astype(np.float32)
    rows.append(("F32", floats, floats))
    out = [
        {"type": kind, "bytes": hex_of(packed), "fp32": hex_of(values.astype(np.float32))}
        for kind, packed, values in rows
    ]
    write("blocks.json", out)
    write("quantized.json", quantized())


if __name__ == "__main__":
    main()
