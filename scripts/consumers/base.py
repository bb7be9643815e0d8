"""The base model's weights, dequantised from its GGUF file to float32."""
import dataclasses

import numpy as np
import torch


@dataclasses.dataclass(frozen=True)
class Config:
    """`linears` maps a linear layer of a block to its shape (out, in)."""
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rope_theta: float
    epsilon: float

    @property
    def linears(self):
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {"q_proj": (q, self.hidden), "k_proj": (kv, self.hidden), "v_proj": (kv, self.hidden),
                "o_proj": (self.hidden, q), "gate_proj": (self.ffn, self.hidden),
                "up_proj": (self.ffn, self.hidden), "down_proj": (self.hidden, self.ffn)}


@dataclasses.dataclass(frozen=True)
class Base:
    """Tensors under Hugging Face's names of a Llama without the prefix "model.", float32."""
    config: Config
    tensors: dict


_NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
          "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
          "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


def _unpermute(w, heads):
    """GGUF pairs the two halves of a rotary dimension; Hugging Face keeps the halves apart."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def load_gguf(path):
    """A Base of a Llama GGUF with tied embeddings. ValueError for any other architecture."""
    import gguf
    reader = gguf.GGUFReader(str(path))

    def field(name):
        return reader.fields[name].contents()
    if field("general.architecture") != "llama":
        raise ValueError(f"{path}: architecture {field('general.architecture')}, expected llama")
    heads = field("llama.attention.head_count")
    hidden = field("llama.embedding_length")
    kv_heads = field("llama.attention.head_count_kv")
    tensors = {}
    for t in reader.tensors:
        w = np.array(gguf.quants.dequantize(t.data, t.tensor_type), dtype=np.float32)
        w = w.reshape([int(n) for n in reversed(t.shape)])
        if t.name == "token_embd.weight":
            tensors["embed_tokens.weight"] = w
        elif t.name == "output_norm.weight":
            tensors["norm.weight"] = w
        elif t.name.startswith("blk."):
            _, layer, name, _ = t.name.split(".")
            if name in ("attn_q", "attn_k"):
                w = _unpermute(w, heads if name == "attn_q" else kv_heads)
            tensors[f"layers.{layer}.{_NAMES[name]}.weight"] = w
        else:
            raise ValueError(f"{path}: unexpected tensor {t.name}")
    config = Config(layers=field("llama.block_count"), hidden=hidden, ffn=field("llama.feed_forward_length"),
                    heads=heads, kv_heads=kv_heads, head_dim=hidden // heads,
                    vocab=tensors["embed_tokens.weight"].shape[0],
                    rope_theta=field("llama.rope.freq_base"),
                    epsilon=field("llama.attention.layer_norm_rms_epsilon"))
    return Base(config, {name: torch.from_numpy(np.ascontiguousarray(w)) for name, w in tensors.items()})


def random_base(config, seed=0):
    """A model of random weights, for tests."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=g) / shape[-1] ** 0.5
    tensors = {"embed_tokens.weight": normal(config.vocab, config.hidden), "norm.weight": torch.ones(config.hidden)}
    for i in range(config.layers):
        for name, shape in config.linears.items():
            block = "mlp" if name in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            tensors[f"layers.{i}.{block}.{name}.weight"] = normal(*shape)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"layers.{i}.{norm}.weight"] = 1 + 0.1 * normal(config.hidden)
    return Base(config, tensors)
