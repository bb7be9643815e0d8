#!/usr/bin/env python3
"""Writes a small random codec, states, their codes and the K/V decoded from them, by NumPy alone.

    tests/data/codec/make_fixtures.py

codec.safetensors is what the product loads; expected.safetensors holds, per layer: rows [64, hidden], codes (bytes of a block
with the first 4 rows left out), kv (all components) and kv_cut (the components that CUT bytes a token keep), for rows at
positions 128..191. No row lies within 1e-4 of a threshold, so codes have one right answer in any arithmetic.

patch.safetensors has the same codes with patched layers (layer 0 with the MLP, layer 1 without) and patch_expected.safetensors
what they become: kv and kv_cut, by a consumer whose weights are there too (gamma [hidden], w and bias of [K | V], k_norm
[head_dim], eps 1e-5).
"""
import json
import pathlib
import struct

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
LAYERS, HIDDEN, KV_HEADS, HEAD_DIM = 2, 24, 2, 8
BITS = [[8, 6, 4, 3, 2, 1], [4, 4, 1, 1]]
SINKS, FIRST_POSITION, THETA, CUT, EPS = 4, 128, 10000.0, 3, 1e-5


def write(path, tensors, metadata=None):
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, array in tensors.items():
        dtype = {"float32": "F32", "uint8": "U8"}[str(array.dtype)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def rotate(k):
    """RoPE, half-split: k [64, KV_HEADS, HEAD_DIM]."""
    half = HEAD_DIM // 2
    angle = np.outer(np.arange(FIRST_POSITION, FIRST_POSITION + 64), THETA ** (-np.arange(half) / half))[:, None, :]
    a, b = k[..., :half], k[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def kept(importance):
    """Components per layer for CUT bytes a token: the first of each layer, then by importance until one does not fit."""
    count = [1] * LAYERS
    left = CUT * 8 - sum(bits[0] for bits in BITS)
    order = sorted((-importance[layer][i], layer, i) for layer in range(LAYERS) for i in range(1, len(BITS[layer])))
    for _, layer, i in order:
        if BITS[layer][i] > left:
            break
        left -= BITS[layer][i]
        count[layer] += 1
    return count


def patched_kv(approx, layer, consumer):
    """What a consumer makes of the attention input that codes decode to: K rotated, then V."""
    z = approx.astype(np.float64)
    h = z @ layer["decoder"].T.astype(np.float64) + layer["offset"]
    if "mlp_in" in layer:
        y = z @ layer["mlp_in"].T.astype(np.float64)
        h = h + (y / (1 + np.exp(-y))) @ layer["mlp_out"].T.astype(np.float64)
    h = h / np.sqrt((h * h).mean(-1, keepdims=True) + EPS) * consumer["gamma"]
    kv = h @ consumer["w"].T.astype(np.float64) + consumer["bias"]
    kv_dim = KV_HEADS * HEAD_DIM
    k = kv[:, :kv_dim].reshape(64, KV_HEADS, HEAD_DIM)
    k = rotate(k / np.sqrt((k * k).mean(-1, keepdims=True) + EPS) * consumer["k_norm"]).reshape(64, kv_dim)
    return np.concatenate([k, kv[:, kv_dim:]], 1).astype(np.float32)


def write_patch(codec, approximations, metadata):
    rng = np.random.default_rng(4)
    kv_dim = KV_HEADS * HEAD_DIM
    patch, expected = dict(codec), {}
    for layer, bits in enumerate(BITS):
        rank = len(bits)
        mine = {"decoder": rng.normal(0, 0.4, (HIDDEN, rank)).astype(np.float32),
                "offset": rng.normal(0, 0.3, HIDDEN).astype(np.float32)}
        if layer == 0:
            mine |= {"mlp_in": rng.normal(0, 0.5, (2 * rank, rank)).astype(np.float32),
                     "mlp_out": rng.normal(0, 0.3, (HIDDEN, 2 * rank)).astype(np.float32)}
        patch |= {f"layers.{layer}.{name}": array for name, array in mine.items()}
        consumer = {"gamma": rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32),
                    "w": rng.normal(0, 0.3, (2 * kv_dim, HIDDEN)).astype(np.float32),
                    "bias": rng.normal(0, 0.2, 2 * kv_dim).astype(np.float32),
                    "k_norm": rng.uniform(0.5, 1.5, HEAD_DIM).astype(np.float32)}
        expected |= {f"{layer}.{name}": array for name, array in consumer.items()}
        for name in ("kv", "kv_cut"):
            expected[f"{layer}.{name}"] = patched_kv(approximations[layer][name], mine, consumer)
    write(HERE / "patch.safetensors", patch, metadata | {"format_version": "2", "patch_layers": "0,1"})
    write(HERE / "patch_expected.safetensors", expected)


def main():
    rng = np.random.default_rng(3)
    kv_dim = KV_HEADS * HEAD_DIM
    codec, expected, approximations = {}, {}, []
    importance = [np.sort(rng.uniform(0.1, 9, len(b)).astype(np.float32))[::-1] for b in BITS]
    for layer, bits in enumerate(BITS):
        rank = len(bits)
        mean = rng.normal(0, 0.2, HIDDEN).astype(np.float32)
        encoder = rng.normal(0, 0.3, (rank, HIDDEN)).astype(np.float32)
        levels = [np.sort(rng.normal(0, 1.5, 1 << b)).astype(np.float32) for b in bits]
        decoder = rng.normal(0, 0.4, (2 * kv_dim, rank)).astype(np.float32)
        offset = rng.normal(0, 0.3, 2 * kv_dim).astype(np.float32)
        codec |= {f"layers.{layer}.{name}": array for name, array in {
            "bits": np.array(bits, np.uint8), "mean": mean, "encoder": encoder, "levels": np.concatenate(levels),
            "importance": importance[layer].copy(), "offset": offset, "decoder": decoder}.items()}

        middles = [(lv[1:].astype(np.float64) + lv[:-1]) / 2 for lv in levels]
        rows = np.zeros((64, HIDDEN), np.float32)
        for r in range(64):
            while True:
                rows[r] = rng.normal(0, 1, HIDDEN)
                z = (rows[r].astype(np.float64) - mean) @ encoder.T.astype(np.float64)
                if all(np.abs(m - v).min() > 1e-4 for m, v in zip(middles, z)):
                    break
        z = (rows.astype(np.float64) - mean) @ encoder.T.astype(np.float64)
        codes = np.stack([np.searchsorted(m, z[:, i], side="right") for i, m in enumerate(middles)], 1)
        codes[:SINKS] = 0
        planes = [np.packbits(codes[:, i] >> p & 1, bitorder="little") for i in range(rank) for p in range(bits[i])]
        expected |= {f"{layer}.rows": rows, f"{layer}.codes": np.concatenate(planes)}
        approximations.append({})
        for name, components in (("kv", rank), ("kv_cut", kept(importance)[layer])):
            approx = np.stack([levels[i][codes[:, i]] if i < components else np.zeros(64) for i in range(rank)], 1)
            approximations[layer][name] = approx
            kv = approx @ decoder.T.astype(np.float64) + offset
            k = rotate(kv[:, :kv_dim].reshape(64, KV_HEADS, HEAD_DIM)).reshape(64, kv_dim)
            expected[f"{layer}.{name}"] = np.concatenate([k, kv[:, kv_dim:]], 1).astype(np.float32)
    metadata = {
        "format": "baton-codec", "format_version": "1", "producer_weights": "p", "consumer_weights": "c", "tokenizer": "t",
        "source": "h", "layers": str(LAYERS), "hidden": str(HIDDEN), "kv_heads": str(KV_HEADS), "head_dim": str(HEAD_DIM),
        "report": "{}"}
    write(HERE / "codec.safetensors", codec, metadata)
    write(HERE / "expected.safetensors", expected)
    write_patch(codec, approximations, metadata)


if __name__ == "__main__":
    main()
