#!/usr/bin/env python3
"""Writes the reference fixtures of the model tests from Hugging Face Transformers. Runs offline.

    python make_reference.py tiny                           # tiny random models, LoRA adapters
    python make_reference.py families                       # every family's variants, GGUF forms
    python make_reference.py kquant                         # a GGUF of block-quantised tensors
    python make_reference.py smollm2 --gguf FILE --text FILE
    python make_reference.py smollm2-lora --gguf FILE --text FILE

Needs torch, transformers, peft, safetensors and gguf. A reference is a pair NAME.json (index:
tensor name -> dtype, shape, byte offset; plus scalars) and NAME.bin (raw little-endian values).
"""
import argparse
import json
import pathlib
import shutil

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE.parent
torch.set_grad_enabled(False)


class Reference:
    """Collects tensors and scalars; writes them as NAME.json + NAME.bin."""

    def __init__(self):
        self.tensors, self.scalars, self.blob = {}, {}, bytearray()

    def add(self, name, value):
        a = np.asarray(value)
        a = np.ascontiguousarray(a, dtype="<i4" if np.issubdtype(a.dtype, np.integer) else "<f4")
        self.tensors[name] = {"dtype": "i32" if a.dtype.kind == "i" else "f32",
                              "shape": list(a.shape), "offset": len(self.blob)}
        self.blob += a.tobytes()

    def write(self, stem):
        self.scalars["versions"] = {"torch": torch.__version__,
                                    "transformers": transformers.__version__}
        index = {"scalars": self.scalars, "tensors": self.tensors}
        stem.with_suffix(".json").write_text(json.dumps(index, indent=1) + "\n")
        stem.with_suffix(".bin").write_bytes(bytes(self.blob))
        print(stem, len(self.blob), "bytes")


def surprisal(logits, tokens):
    """-log p(token[t + 1] | tokens[..t]) for every t but the last."""
    logp = torch.log_softmax(logits[:-1].double(), -1)
    return -logp.gather(1, tokens[1:, None])[:, 0]


def capture(model, tokens, layers):
    """Logits, and K before RoPE, V and normalised pre-gamma input of the named layers."""
    seen, handles = {}, []

    def keep(name):
        return lambda _m, _i, out: seen.__setitem__(name, out[0].float().clone())

    for i in layers:
        layer = model.model.layers[i]
        attn = layer.self_attn
        norm = getattr(attn, "k_norm", None)
        handles.append(attn.v_proj.register_forward_hook(keep(f"v.{i}")))
        if norm is None:
            handles.append(attn.k_proj.register_forward_hook(keep(f"k_pre_rope.{i}")))
        else:
            handles.append(norm.register_forward_hook(
                lambda _m, _i, out, i=i: seen.__setitem__(
                    f"k_pre_rope.{i}", out[0].float().flatten(1).clone())))

        def pre(m, args, i=i):
            x = args[0][0].float()
            seen[f"h_in.{i}"] = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)
                                                + m.variance_epsilon)
        handles.append(layer.input_layernorm.register_forward_pre_hook(pre))
    logits = model(tokens[None]).logits[0].float()
    for h in handles:
        h.remove()
    return logits, seen


def greedy(model, prompt, n):
    """n greedy tokens and, at each step, the gap between the two largest logits."""
    cache, ids, out, gaps = None, prompt[None], [], []
    for _ in range(n):
        r = model(ids, past_key_values=cache, use_cache=True)
        cache = r.past_key_values
        top = r.logits[0, -1].float().topk(2)
        out.append(int(top.indices[0]))
        gaps.append(float(top.values[0] - top.values[1]))
        ids = torch.tensor([[out[-1]]])
    return out, gaps


def set_attention(model, kind):
    model.set_attn_implementation(kind)
    return model


# ---------------------------------------------------------------- tiny random models

TINY = dict(vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
            rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
LINEAR = dict(rope_type="linear", factor=4.0)
EVERYTHING = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def randomise(model, seed):
    """Weights large enough that attention and logits are far from uniform."""
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if name.endswith("norm.weight"):
            p.copy_(1 + 0.3 * torch.randn(p.shape, generator=g))
        elif name.endswith("bias"):
            p.copy_(0.3 * torch.randn(p.shape, generator=g))
        else:
            fan_in = 1 if "embed" in name else p.shape[1]
            p.copy_(torch.randn(p.shape, generator=g) * fan_in ** -0.5)
    return model.eval()


def classic_config(config, theta, scaling, extra=()):
    """config.json as published models have it (rope_theta and rope_scaling at the top level)."""
    d = json.loads(config.to_json_string(use_diff=False))
    keep = ["architectures", "attention_bias", "bos_token_id", "eos_token_id", "head_dim",
            "hidden_act", "hidden_size", "intermediate_size", "max_position_embeddings",
            "model_type", "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
            "rms_norm_eps", "tie_word_embeddings", "vocab_size", *extra]
    out = {k: d[k] for k in keep if d.get(k) is not None}
    out.update(rope_theta=theta, rope_scaling=scaling, torch_dtype="float32")
    return json.dumps(out, indent=1) + "\n"


def build(cls, config_cls, seed, scaling=None, extra=(), **kw):
    theta = 10000.0
    rope = dict(rope_theta=theta, **(scaling or dict(rope_type="default")))
    config = config_cls(**{**TINY, **kw}, rope_parameters=rope)
    config._attn_implementation = "eager"
    model = randomise(cls(config).float(), seed)
    model.config.architectures = [cls.__name__]
    return model, classic_config(model.config, theta, scaling, extra)


def save(model, config_json, folder, **kw):
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, **kw)
    for extra in ("generation_config.json",):
        (folder / extra).unlink(missing_ok=True)
    (folder / "config.json").write_text(config_json)
    for path in folder.iterdir():
        path.chmod(0o644)


def add_model(ref, prefix, model, tokens, every=4):
    layers = range(model.config.num_hidden_layers)
    logits, seen = capture(model, tokens, layers)
    sdpa = set_attention(model, "sdpa")(tokens[None]).logits[0]
    set_attention(model, "eager")
    ref.scalars[prefix + "eager_vs_sdpa"] = float((logits - sdpa).abs().max())
    ref.add(prefix + "logits", logits[::every])
    ref.add(prefix + "surprisal", surprisal(logits, tokens))
    out, gaps = greedy(model, tokens[:16], 64)
    ref.add(prefix + "greedy", out)
    ref.add(prefix + "greedy_gap", gaps)
    for name, value in seen.items():
        ref.add(prefix + name, value)


def save_adapter(peft, folder, base, seed, scale):
    """Gives the adapter random weights and writes it as PEFT does."""
    g = torch.Generator().manual_seed(seed)
    for n, p in peft.named_parameters():
        if "lora_" in n:
            p.copy_(scale * torch.randn(p.shape, generator=g))
    shutil.rmtree(folder, ignore_errors=True)
    peft.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    fields = json.loads(path.read_text())
    fields["base_model_name_or_path"] = base
    fields["target_modules"] = sorted(fields["target_modules"])
    path.write_text(json.dumps(fields, indent=1) + "\n")
    for path in folder.iterdir():
        path.chmod(0o644)


def tiny():
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokens = torch.randint(3, 192, (40,), generator=torch.Generator().manual_seed(7))
    ref = Reference()
    ref.add("tokens", tokens)
    ref.scalars["logits_every"] = 4

    # a: tied head, plain RoPE; the same weights with linear and llama3 scaling (config swapped).
    model, config = build(LlamaForCausalLM, LlamaConfig, 1, tie_word_embeddings=True)
    folder = DATA / "tiny_llama"
    save(model, config, folder)
    add_model(ref, "tiny_llama/", model, tokens)
    for name, scaling in (("linear", LINEAR), ("llama3", LLAMA3)):
        scaled, scaled_config = build(LlamaForCausalLM, LlamaConfig, 1, scaling,
                                      tie_word_embeddings=True)
        (folder / f"config.{name}.json").write_text(scaled_config)
        logits, _ = capture(scaled, tokens, [])
        ref.add(f"tiny_llama.{name}/logits", logits[::4])
        ref.add(f"tiny_llama.{name}/inv_freq", scaled.model.rotary_emb.inv_freq)

    # What HF itself loses in a narrow type.
    fp32 = model(tokens[None]).logits[0][::4]
    for dtype in (torch.bfloat16, torch.float16):
        narrow, _ = build(LlamaForCausalLM, LlamaConfig, 1, tie_word_embeddings=True)
        diff = narrow.to(dtype)(tokens[None]).logits[0].float()[::4] - fp32
        name = "bf16" if dtype == torch.bfloat16 else "fp16"
        ref.scalars[f"tiny_llama/hf_{name}_rms_error"] = float(
            diff.double().pow(2).mean().sqrt())

    # LoRA adapters on a.
    for name, cfg in (
            ("all", dict(r=4, lora_alpha=8, target_modules=EVERYTHING)),
            ("qv", dict(r=2, lora_alpha=3, use_rslora=True, target_modules=["q_proj", "v_proj"]))):
        base, _ = build(LlamaForCausalLM, LlamaConfig, 1, tie_word_embeddings=True)
        peft = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **cfg)).eval()
        save_adapter(peft, DATA / f"tiny_llama_lora_{name}", "tiny_llama", len(name), 0.25)
        logits = peft(tokens[None]).logits[0]
        merged = peft.merge_and_unload()(tokens[None]).logits[0]
        ref.add(f"tiny_llama_lora_{name}/logits", logits[::4])
        ref.scalars[f"tiny_llama_lora_{name}/merged_vs_adapter"] = float(
            (logits - merged).abs().max())

    # b: untied head, llama3 scaling, head_dim != hidden / heads, sharded.
    model, config = build(LlamaForCausalLM, LlamaConfig, 2, LLAMA3, tie_word_embeddings=False,
                          head_dim=16, num_hidden_layers=2, vocab_size=192, intermediate_size=48)
    save(model, config, DATA / "tiny_llama_sharded", max_shard_size="64KB")
    add_model(ref, "tiny_llama_sharded/", model, tokens)

    # QKV bias (Qwen2) and q/k norm (Qwen3).
    small = dict(tie_word_embeddings=True, num_hidden_layers=2, hidden_size=24, vocab_size=192,
                 intermediate_size=32, num_attention_heads=3, num_key_value_heads=1)
    model, config = build(Qwen2ForCausalLM, Qwen2Config, 3, **small)
    save(model, config, DATA / "tiny_qwen2")
    add_model(ref, "tiny_qwen2/", model, tokens)
    model, config = build(Qwen3ForCausalLM, Qwen3Config, 4, head_dim=16, **small)
    save(model, config, DATA / "tiny_qwen3")
    add_model(ref, "tiny_qwen3/", model, tokens)
    ref.write(HERE / "tiny")


# ---------------------------------------------------------------- families

LONG = 200  # tokens: many windows and original contexts
WINDOW = 16
SMALL = dict(num_hidden_layers=2, hidden_size=24, vocab_size=192, intermediate_size=32,
             num_attention_heads=3, num_key_value_heads=1, tie_word_embeddings=True)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
# Other ways to ask for it; only the frequencies and the factor are recorded.
YARN_FORMS = [
    dict(),
    dict(beta_fast=16, beta_slow=2),
    dict(truncate=False),
    dict(attention_factor=0.8),
    dict(mscale=0.707, mscale_all_dim=1.2),
    dict(factor=40.0, mscale=1.0, mscale_all_dim=1.0),
    dict(factor=1.0),
    dict(beta_fast=1.001, beta_slow=1.0),  # a range of one dimension
]


def yarn_forms(ref):
    """inv_freq [forms, 64] and attention factors of a model with Qwen2.5's shape."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    inv_freq, factors, fields = [], [], []
    for form in YARN_FORMS:
        scaling = {"rope_type": "yarn", "factor": 4.0,
                   "original_max_position_embeddings": 32768, **form}
        config = LlamaConfig(hidden_size=512, num_attention_heads=4, max_position_embeddings=32768,
                             rope_parameters=dict(rope_theta=1e6, **scaling))
        frequencies, factor = ROPE_INIT_FUNCTIONS["yarn"](config)
        inv_freq.append(frequencies.numpy())
        factors.append(factor)
        fields.append(scaling)
    ref.add("yarn_forms/inv_freq", np.stack(inv_freq))
    ref.add("yarn_forms/attention_factor", np.array(factors, np.float32))
    ref.scalars["yarn_forms"] = fields


def add_variant(ref, name, model, tokens):
    """Sub-sampled logits of the long text and 64 tokens that follow it."""
    prefix = name + "/"
    logits = model(tokens[None]).logits[0]
    sdpa = set_attention(model, "sdpa")(tokens[None]).logits[0]
    set_attention(model, "eager")
    rows = torch.arange(7, LONG, 16)
    ref.scalars[prefix + "eager_vs_sdpa"] = float((logits - sdpa).abs().max())
    ref.add(prefix + "logits", logits[rows])
    out, gaps = greedy(model, tokens, 64)
    ref.add(prefix + "greedy", out)
    ref.add(prefix + "greedy_gap", gaps)


def write_gguf(model, arch, path, packed=()):
    """The model as llama.cpp's converter writes it, by the `gguf` package: in F32, or as `packed`
    has it (name -> type, rows of bytes)."""
    import gguf
    c = model.config
    arch_id = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[arch]
    names = gguf.get_tensor_name_map(arch_id, c.num_hidden_layers)
    heads, kv_heads = c.num_attention_heads, c.num_key_value_heads
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // heads
    w = gguf.GGUFWriter(path, arch)
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_vocab_size(c.vocab_size)
    w.add_bos_token_id(c.bos_token_id)
    w.add_eos_token_id(c.eos_token_id)
    rope = c.rope_parameters
    w.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    window = getattr(c, "sliding_window", None)
    if window is not None:
        w.add_sliding_window(window)
        if arch != "llama":
            w.add_sliding_window_pattern([t == "sliding_attention" for t in c.layer_types])

    def permute(a, n):  # llama.cpp's: the two halves of a head, interleaved
        return a.reshape(n, 2, a.shape[0] // n // 2, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)

    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        kind, a = packed[name] if name in packed else (None, value.numpy())
        if arch == "llama" and ".q_proj." in name:
            a = permute(a, heads)
        if arch == "llama" and ".k_proj." in name:
            a = permute(a, kv_heads)
        w.add_tensor(names.get_name(name, (".weight", ".bias")), np.ascontiguousarray(a),
                     raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(path, path.stat().st_size, "bytes")


def families():
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    tokens = torch.randint(3, 192, (LONG,), generator=torch.Generator().manual_seed(11))
    ref = Reference()
    ref.add("tokens", tokens)
    yarn_forms(ref)

    # The weights of tiny_llama under other configs.
    llama = DATA / "tiny_llama"
    for name, scaling in (("linear", LINEAR), ("llama3", LLAMA3), ("yarn", YARN)):
        model, config = build(LlamaForCausalLM, LlamaConfig, 1, scaling, tie_word_embeddings=True)
        (llama / f"config.{name}.json").write_text(config)
        add_variant(ref, f"tiny_llama.{name}", model, tokens)

    # Biases on q, k, v and o.
    model, config = build(LlamaForCausalLM, LlamaConfig, 5, attention_bias=True, **SMALL)
    save(model, config, DATA / "tiny_llama_bias")
    add_variant(ref, "tiny_llama_bias", model, tokens)
    write_gguf(model, "llama", DATA / "tiny_llama_bias" / "model.gguf")

    # A window in every layer.
    model, config = build(MistralForCausalLM, MistralConfig, 6, extra=["sliding_window"],
                          sliding_window=WINDOW, **SMALL)
    save(model, config, DATA / "tiny_mistral")
    add_variant(ref, "tiny_mistral", model, tokens)
    write_gguf(model, "llama", DATA / "tiny_mistral" / "model.gguf")

    # The weights of tiny_qwen2 and tiny_qwen3, plain and with a window in the second layer only.
    switch = ["sliding_window", "use_sliding_window", "max_window_layers"]
    for name, cls, config_cls, seed, kw in (
            ("qwen2", Qwen2ForCausalLM, Qwen2Config, 3, dict()),
            ("qwen3", Qwen3ForCausalLM, Qwen3Config, 4, dict(head_dim=16))):
        folder = DATA / f"tiny_{name}"
        model, _ = build(cls, config_cls, seed, **kw, **SMALL)
        add_variant(ref, f"tiny_{name}", model, tokens)
        model, config = build(cls, config_cls, seed, YARN if name == "qwen2" else None,
                              extra=switch, sliding_window=WINDOW, use_sliding_window=True,
                              max_window_layers=1, **kw, **SMALL)
        (folder / "config.window.json").write_text(config)
        # As Transformers 5 saves it: layer_types, rope_parameters.
        model.config.save_pretrained(folder / "v5")
        (folder / "v5" / "config.json").rename(folder / "config.window_v5.json")
        (folder / "v5").rmdir()
        add_variant(ref, f"tiny_{name}.window", model, tokens)
        write_gguf(model, name, folder / "window.gguf")

    # Two patterns that fit the same module: the first in the file applies. PEFT itself writes them
    # sorted, so the file is put in the order that tells.
    alpha = {"q_proj": 3, "layers.1.self_attn.q_proj": 9, "o_proj": 2}
    base, _ = build(LlamaForCausalLM, LlamaConfig, 1, tie_word_embeddings=True)
    peft = get_peft_model(base, LoraConfig(
        task_type="CAUSAL_LM", r=2, lora_alpha=4, target_modules=["q_proj", "o_proj"],
        rank_pattern={"layers.1.self_attn.q_proj": 3}, alpha_pattern=alpha)).eval()
    folder = DATA / "tiny_llama_lora_patterns"
    save_adapter(peft, folder, "tiny_llama", 8, 0.2)
    path = folder / "adapter_config.json"
    fields = json.loads(path.read_text())
    fields["alpha_pattern"] = alpha
    path.write_text(json.dumps(fields, indent=1) + "\n")
    base, _ = build(LlamaForCausalLM, LlamaConfig, 1, tie_word_embeddings=True)
    peft = PeftModel.from_pretrained(base, folder).eval()
    ref.add("tiny_llama_lora_patterns/logits", peft(tokens[None, :40]).logits[0][::4])
    ref.write(HERE / "families")


# ---------------------------------------------------------------- block-quantised GGUF


def random_blocks(kind, shape, rng):
    """Blocks whose values are about as large as a linear layer's weights; the `gguf` package reads
    K-quants but does not write them. [rows, bytes of a row]"""
    import gguf
    quants = gguf.GGMLQuantizationType
    rows, columns = shape
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)

    def put(at, value):
        raw[..., at:at + 2] = np.full(raw.shape[:-1] + (1,), value, np.float16).view(np.uint8)

    if kind == quants.Q6_K:  # d * scale (+-127) * (q - 32)
        put(208, 6e-5)
    else:  # d * scale (63) * q - dmin * min (63): centred when dmin is half of q's range
        half = 7.5 if kind == quants.Q4_K else 15.5
        put(0, 4e-3 / (31 * half))
        put(2, 4e-3 / 31)
    return raw.reshape(rows, -1)


def kquant():
    """Every block type in one llama GGUF, Q and K rows permuted, and what Transformers says with the
    values that the `gguf` package decodes."""
    import gguf
    from transformers import LlamaConfig, LlamaForCausalLM
    quants = gguf.GGMLQuantizationType
    model, _ = build(LlamaForCausalLM, LlamaConfig, 9, tie_word_embeddings=True, hidden_size=256,
                     num_attention_heads=2, num_key_value_heads=1, head_dim=32,
                     intermediate_size=64, vocab_size=192, num_hidden_layers=1)
    kinds = {"q_proj": quants.Q4_K, "k_proj": quants.Q5_K, "v_proj": quants.Q6_K,
             "o_proj": quants.Q5_0, "gate_proj": quants.Q4_K, "up_proj": quants.Q5_K,
             "down_proj": quants.Q5_1, "embed_tokens": quants.Q6_K}
    rng = np.random.default_rng(12)
    packed = {}
    for name, p in model.named_parameters():
        kind = kinds.get(name.split(".")[-2])
        if kind is None:
            continue
        if kind in (quants.Q5_0, quants.Q5_1):
            raw = gguf.quantize(p.numpy(), kind)
        else:
            raw = random_blocks(kind, p.shape, rng)
            if name.endswith("embed_tokens.weight"):
                raw[:, 208::210], raw[:, 209::210] = np.float16(4e-4).reshape(1).view(np.uint8)
        packed[name] = (kind, raw)
        p.copy_(torch.from_numpy(gguf.dequantize(raw, kind)))
    folder = DATA / "tiny_kquant"
    folder.mkdir(exist_ok=True)
    write_gguf(model, "llama", folder / "model.gguf", packed)
    tokens = torch.randint(3, 192, (LONG,), generator=torch.Generator().manual_seed(13))
    ref = Reference()
    ref.add("tokens", tokens)
    add_variant(ref, "tiny_kquant", model, tokens)
    ref.write(HERE / "kquant")


# ---------------------------------------------------------------- SmolLM2-135M

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n",
    "The three laws of thermodynamics state that",
    "<|im_start|>user\nWhat is the largest planet in the solar system?<|im_end|>\n"
    "<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a short poem about autumn.<|im_end|>\n<|im_start|>assistant\n",
]


def smollm2(gguf, text_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer
    gguf = pathlib.Path(gguf)
    load = dict(gguf_file=gguf.name)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **load)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, **load, dtype=torch.float32, attn_implementation="eager").eval()
    text = pathlib.Path(text_path).read_text()
    start = text.index("Call me Ishmael")
    tokens = torch.tensor(tokenizer(text[start:start + 12000], add_special_tokens=False).input_ids)
    tokens = tokens[:1024]
    layers = [0, 15, 29]

    ref = Reference()
    ref.add("tokens", tokens)
    eager, seen = capture(model, tokens, layers)
    vocab = eager.shape[1]
    columns = torch.randperm(vocab, generator=torch.Generator().manual_seed(3))[:128].sort().values
    rows = torch.arange(31, 1024, 32)
    ref.add("rows", rows)
    ref.add("columns", columns)
    ref.add("logits", eager[rows][:, columns])
    ref.add("logsumexp", torch.logsumexp(eager.double(), -1))
    ref.add("argmax", eager.argmax(-1))
    top = eager.topk(2).values
    ref.add("argmax_gap", top[:, 0] - top[:, 1])
    ref.add("surprisal", surprisal(eager, tokens))
    for name, value in seen.items():
        ref.add(name, value[rows])
    sdpa = set_attention(model, "sdpa")(tokens[None]).logits[0]
    ref.scalars["eager_vs_sdpa"] = float((eager - sdpa).abs().max())
    ref.scalars["perplexity"] = float(surprisal(eager, tokens).mean().exp())

    for i, prompt in enumerate(PROMPTS):
        ids = torch.tensor(tokenizer(prompt, add_special_tokens=False).input_ids)
        out, gaps = greedy(model, ids, 64)
        ref.add(f"prompt.{i}", ids)
        ref.add(f"greedy.{i}", out)
        ref.add(f"greedy_gap.{i}", gaps)
        print(repr(prompt), "->", repr(tokenizer.decode(out)), "min gap", min(gaps))
    ref.scalars["prompts"] = PROMPTS

    # A LoRA made on HF weights, for the un-permuted Q and K of the GGUF.
    from peft import LoraConfig, get_peft_model
    peft = get_peft_model(model, LoraConfig(
        task_type="CAUSAL_LM", r=2, lora_alpha=4, target_modules=["q_proj", "k_proj"],
        layers_to_transform=[1, 16])).eval()
    save_adapter(peft, DATA / "smollm2_lora_qk", "SmolLM2-135M-Instruct", 5, 0.2)
    ref.add("lora_qk/logits", peft(tokens[None, :64]).logits[0][31::32][:, columns])
    model = peft.unload()

    # What HF's own bf16 loses against its fp32.
    half = model.to(torch.bfloat16)(tokens[None]).logits[0].float()
    diff = (half - eager).abs()
    ref.scalars["hf_bf16_max_error"] = float(diff.max())
    ref.scalars["hf_bf16_rms_error"] = float(diff.double().pow(2).mean().sqrt())
    ref.scalars["hf_bf16_rms_error_sampled"] = float(
        diff[rows][:, columns].double().pow(2).mean().sqrt())
    print(json.dumps(ref.scalars, indent=1))
    ref.write(HERE / "smollm2_135m")


def smollm2_lora(gguf, text_path):
    """An adapter on all seven kinds of linear layers, made by PEFT on the Hugging Face form."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer
    gguf = pathlib.Path(gguf)
    load = dict(gguf_file=gguf.name)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **load)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, **load, dtype=torch.float32, attn_implementation="eager").eval()
    text = pathlib.Path(text_path).read_text()
    start = text.index("Call me Ishmael")
    tokens = torch.tensor(tokenizer(text[start:start + 1200], add_special_tokens=False).input_ids)
    tokens = tokens[:96]
    ref = Reference()
    ref.add("tokens", tokens)
    columns = torch.randperm(model.config.vocab_size,
                             generator=torch.Generator().manual_seed(4))[:128].sort().values
    ref.add("columns", columns)
    rows = torch.arange(15, 96, 16)
    ref.add("rows", rows)
    ref.add("base/logits", model(tokens[None]).logits[0][rows][:, columns])
    peft = get_peft_model(model, LoraConfig(
        task_type="CAUSAL_LM", r=1, lora_alpha=2, target_modules=EVERYTHING,
        layers_to_transform=[1, 16])).eval()
    save_adapter(peft, DATA / "smollm2_lora_all", "SmolLM2-135M-Instruct", 6, 0.2)
    eager = peft(tokens[None]).logits[0]
    ref.add("lora_all/logits", eager[rows][:, columns])
    out, gaps = greedy(peft, tokens, 64)
    ref.add("lora_all/greedy", out)
    ref.add("lora_all/greedy_gap", gaps)
    sdpa = set_attention(peft, "sdpa")(tokens[None]).logits[0]
    ref.scalars["eager_vs_sdpa"] = float((eager - sdpa).abs().max())
    print(json.dumps(ref.scalars, indent=1))
    ref.write(HERE / "smollm2_lora")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["tiny", "families", "kquant", "smollm2", "smollm2-lora"])
    parser.add_argument("--gguf", help="SmolLM2-135M GGUF file")
    parser.add_argument("--text", help="text of Moby Dick")
    args = parser.parse_args()
    if args.what == "tiny":
        tiny()
    elif args.what == "families":
        families()
    elif args.what == "kquant":
        kquant()
    elif args.what == "smollm2-lora":
        smollm2_lora(args.gguf, args.text)
    else:
        smollm2(args.gguf, args.text)


if __name__ == "__main__":
    main()
