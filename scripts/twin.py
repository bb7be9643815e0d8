#!/usr/bin/env python3
"""Writes a twin of a Llama: other numbers everywhere, the same function.

    twin.py MODEL OUT [--seed N]

MODEL is a Hugging Face folder (safetensors) or a .gguf file, OUT a new folder or file of the same kind. A twin is SYNTHETIC:
nobody trains such a model. It is the hardest case for handing over K/V: a base's raw K/V are noise to its twin, although the twin's
own K/V are a linear map of the base's states. What changes, with every answer the same up to rounding:

- norms: gamma goes into the matrices that read the norm, and becomes 1; the head is a matrix of its own;
- the residual stream is turned by a random orthogonal matrix;
- each frequency of a KV head's keys is turned and scaled by one random complex number, its queries by the inverse of it;
- values of a KV head go through a random well-conditioned matrix, the output projection takes it back.

Weights are written as F32. Needs numpy; safetensors for folders, gguf for files.
"""
import argparse
import json
import pathlib
import shutil
import sys

import numpy as np

SUPPORTED = ("llama", "mistral")


def random_orthogonal(rng, n):
    q, r = np.linalg.qr(rng.standard_normal((n, n)))
    return q * np.sign(np.diag(r))


def rotation(rng, head_dim):
    """One random complex factor for each pair (i, i + head_dim / 2): (matrix, inverse of its transpose)."""
    half = head_dim // 2
    angle, scale = rng.uniform(0, 2 * np.pi, half), rng.uniform(0.5, 2, half)
    m = np.zeros((head_dim, head_dim))
    i = np.arange(half)
    m[i, i] = m[i + half, i + half] = np.cos(angle) * scale
    m[i, i + half], m[i + half, i] = -np.sin(angle) * scale, np.sin(angle) * scale
    return m, np.linalg.inv(m).T


def conditioned(rng, n):
    """A random matrix whose singular values lie between 1/2 and 2, and its inverse."""
    u, v, s = random_orthogonal(rng, n), random_orthogonal(rng, n), rng.uniform(0.5, 2, n)
    return (u * s) @ v, v.T @ (u / s).T


def twin(tensors, layers, heads, kv_heads, head_dim, seed):
    """Float64 tensors under Hugging Face's names to the twin's; rows of Q and K in Hugging Face's order."""
    rng = np.random.default_rng(seed)
    t = {name: np.asarray(w, np.float64) for name, w in tensors.items()}
    hidden = t["model.norm.weight"].size
    turn = random_orthogonal(rng, hidden)
    out = {"model.embed_tokens.weight": t["model.embed_tokens.weight"] @ turn, "model.norm.weight": np.ones(hidden)}
    head = t.get("lm_head.weight", t["model.embed_tokens.weight"])
    out["lm_head.weight"] = head * t["model.norm.weight"] @ turn
    for i in range(layers):
        p = f"model.layers.{i}."

        def reads(name, norm):
            return t[p + name + ".weight"] * t[p + norm + ".weight"] @ turn

        def by_head(w, count):
            return w.reshape(count, head_dim, -1)
        q = by_head(reads("self_attn.q_proj", "input_layernorm"), heads)
        k = by_head(reads("self_attn.k_proj", "input_layernorm"), kv_heads)
        v = by_head(reads("self_attn.v_proj", "input_layernorm"), kv_heads)
        o = (turn.T @ t[p + "self_attn.o_proj.weight"]).reshape(hidden, heads, head_dim)
        bias = {name: t.get(p + f"self_attn.{name}.bias") for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
        for kv in range(kv_heads):
            to_k, to_q = rotation(rng, head_dim)
            to_v, back = conditioned(rng, head_dim)
            group = range(kv * heads // kv_heads, (kv + 1) * heads // kv_heads)
            k[kv], v[kv] = to_k @ k[kv], to_v @ v[kv]
            rows = slice(kv * head_dim, (kv + 1) * head_dim)
            for name, m in (("k_proj", to_k), ("v_proj", to_v)):
                if bias[name] is not None:
                    bias[name][rows] = m @ bias[name][rows]
            for h in group:
                q[h], o[:, h] = to_q @ q[h], o[:, h] @ back
                if bias["q_proj"] is not None:
                    rows = slice(h * head_dim, (h + 1) * head_dim)
                    bias["q_proj"][rows] = to_q @ bias["q_proj"][rows]
        if bias["o_proj"] is not None:
            bias["o_proj"] = turn.T @ bias["o_proj"]
        out |= {p + f"self_attn.{name}.bias": b for name, b in bias.items() if b is not None}
        out |= {p + "self_attn.q_proj.weight": q.reshape(-1, hidden), p + "self_attn.k_proj.weight": k.reshape(-1, hidden),
                p + "self_attn.v_proj.weight": v.reshape(-1, hidden), p + "self_attn.o_proj.weight": o.reshape(hidden, -1),
                p + "mlp.gate_proj.weight": reads("mlp.gate_proj", "post_attention_layernorm"),
                p + "mlp.up_proj.weight": reads("mlp.up_proj", "post_attention_layernorm"),
                p + "mlp.down_proj.weight": turn.T @ t[p + "mlp.down_proj.weight"],
                p + "input_layernorm.weight": np.ones(hidden), p + "post_attention_layernorm.weight": np.ones(hidden)}
    if left := set(t) - set(out):
        raise ValueError(f"tensors that a twin does not know: {sorted(left)[:3]}")
    return {name: np.ascontiguousarray(w, np.float32) for name, w in out.items()}


def twin_folder(model, out, seed):
    from safetensors.numpy import load_file, save_file
    config = json.loads((model / "config.json").read_text())
    if config.get("model_type") not in SUPPORTED:
        raise ValueError(f"{model}: model_type {config.get('model_type')}; supported: {', '.join(SUPPORTED)}")
    tensors = {}
    for f in sorted(model.glob("*.safetensors")):
        tensors |= load_file(f)
    heads = config["num_attention_heads"]
    made = twin(tensors, config["num_hidden_layers"], heads, config.get("num_key_value_heads", heads),
                config.get("head_dim") or config["hidden_size"] // heads, seed)
    out.mkdir(parents=True)
    for f in model.iterdir():
        if f.is_file() and f.suffix in (".json", ".model", ".txt", ".jinja") and not f.name.startswith(("config.", "model.safetensors")):
            shutil.copy(f, out)
    config |= {"tie_word_embeddings": False, "torch_dtype": "float32", "dtype": "float32"}
    (out / "config.json").write_text(json.dumps(config, indent=1))
    (out / "README.md").write_text(f"# Synthetic twin\n\nThe same function as {model.name} in other numbers (seed {seed}). Not a trained model.\n")
    save_file(made, out / "model.safetensors", metadata={"format": "pt", "synthetic": "twin"})


GGUF_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head", "attn_q": "self_attn.q_proj",
              "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
              "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
              "ffn_norm": "post_attention_layernorm"}


def hf_name(name):
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{GGUF_NAMES[parts[2]]}.{parts[3]}"
    return f"{GGUF_NAMES[parts[0]]}.{parts[1]}"


def permute(w, heads, back):
    """GGUF lays the two halves of a rotary pair side by side; Hugging Face keeps halves apart."""
    half = w.shape[0] // heads // 2
    shape = (heads, 2, half) if back else (heads, half, 2)
    return w.reshape(*shape, -1).swapaxes(1, 2).reshape(w.shape)


def twin_gguf(model, out, seed):
    import gguf
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench" / "peers"))
    from make_gguf import copy_metadata
    reader = gguf.GGUFReader(model)

    def field(name):
        return reader.get_field(name).contents()
    if field("general.architecture") != "llama":
        raise ValueError(f"{model}: architecture {field('general.architecture')}; supported: llama")
    heads, kv_heads, hidden = (field("llama." + x) for x in ("attention.head_count", "attention.head_count_kv", "embedding_length"))
    rows = {"attn_q": heads, "attn_k": kv_heads}

    def of(t):
        parts = t.name.split(".")
        return rows.get(parts[2]) if parts[0] == "blk" else None
    tensors = {}
    for t in reader.tensors:
        w = gguf.dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(d) for d in reversed(t.shape)])
        tensors[hf_name(t.name)] = permute(w, of(t), back=False) if of(t) else w
    made = twin(tensors, field("llama.block_count"), heads, kv_heads, hidden // heads, seed)
    writer = gguf.GGUFWriter(out.with_suffix(".part"), "llama")
    copy_metadata(reader, writer, gguf.LlamaFileType.ALL_F32)
    for name in [t.name for t in reader.tensors] + ["output.weight"] * ("lm_head.weight" not in tensors):
        w = made[hf_name(name)]
        parts = name.split(".")
        count = rows.get(parts[2]) if parts[0] == "blk" else None
        writer.add_tensor(name, permute(w, count, back=True) if count else w)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    out.with_suffix(".part").rename(out)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()
    if a.out.exists():
        sys.exit(f"{a.out} is there already")
    try:
        (twin_gguf if a.model.suffix == ".gguf" else twin_folder)(a.model, a.out, a.seed)
    except (ValueError, KeyError, OSError) as e:
        sys.exit(f"twin: {e}")
    print(f"{a.out}: a synthetic twin of {a.model}")


if __name__ == "__main__":
    main()
