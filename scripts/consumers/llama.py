"""A compact Llama for training LoRA: frozen weights, packed documents, attention per document.

Linear layers see all tokens of a micro-batch at once, attention sees one document at a time, so no
product is spent on padding. Frozen products go through `gemm`, forward and backward; their weights
never get gradients. Equal to transformers' LlamaForCausalLM (tests/consumers).
"""
import torch
from torch.nn import functional

from . import gemm

# Linear layers that share an input are one product.
GROUPS = {"qkv": ("q_proj", "k_proj", "v_proj"), "o": ("o_proj",),
          "gate_up": ("gate_proj", "up_proj"), "down": ("down_proj",)}
BLOCK = {"q_proj": "self_attn", "k_proj": "self_attn", "v_proj": "self_attn", "o_proj": "self_attn",
         "gate_proj": "mlp", "up_proj": "mlp", "down_proj": "mlp"}


class _AdaptedLinear(torch.autograd.Function):
    """y = x W^T + scale * concat_i((x A_i^T) B_i^T) of a group; gradients of x, A_i and B_i."""

    @staticmethod
    def forward(ctx, x, frozen, scale, *pairs):
        kind, weight, transposed = frozen
        a, bs = torch.cat(pairs[::2]), pairs[1::2]
        low = functional.linear(x, a)  # [n, sum of ranks]
        y = gemm.multiply(kind, x, weight)
        row = rank = 0
        for b in bs:
            out, r = b.shape
            y[:, row:row + out].addmm_(low[:, rank:rank + r], b.t(), alpha=scale)
            row, rank = row + out, rank + r
        ctx.save_for_backward(x, low, a, *bs)
        ctx.frozen = kind, transposed, scale
        return y

    @staticmethod
    def backward(ctx, dy):
        x, low, a, *bs = ctx.saved_tensors
        kind, transposed, scale = ctx.frozen
        dy = dy.contiguous()
        dlow = torch.empty_like(low)
        grads, row, rank = [], 0, 0
        for b in bs:
            out, r = b.shape
            part = dy[:, row:row + out]
            dlow[:, rank:rank + r] = scale * (part @ b)
            grads.append(scale * (part.t() @ low[:, rank:rank + r]))
            row, rank = row + out, rank + r
        da = (dlow.t() @ x).split([b.shape[1] for b in bs])
        dx = None
        if ctx.needs_input_grad[0]:
            dx = gemm.multiply(kind, dy, transposed).addmm_(dlow, a)
        return (dx, None, None, *(g for pair in zip(da, grads) for g in pair))


class _HeadLoss(torch.autograd.Function):
    """Sum of cross-entropies of h [n, hidden] against labels [n]; the frozen head needs no gradient,
    so h's is made on the way and no more than `chunk` rows of logits ever exist."""

    @staticmethod
    def forward(ctx, h, frozen, labels, chunk):
        kind, weight, transposed = frozen
        total, grads = 0.0, []
        for rows, label in zip(h.split(chunk), labels.split(chunk)):
            logits = gemm.multiply(kind, rows, weight)
            log_z = logits.logsumexp(1, keepdim=True)
            total += float((log_z[:, 0] - logits.gather(1, label[:, None])[:, 0]).double().sum())
            p = (logits - log_z).exp_()
            p[torch.arange(len(label)), label] -= 1
            grads.append(gemm.multiply(kind, p, transposed))
        ctx.save_for_backward(torch.cat(grads))
        return h.new_tensor(total)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None, None, None


def rms_norm(x, weight, epsilon):
    return functional.rms_norm(x, (x.shape[-1],), weight, epsilon)


def _rotate(x, cos, sin):
    """x [n, heads, d]; cos and sin [n, 1, d]."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def visible(segments, past_segments=()):
    """Boolean mask [n, past + n]: a token sees the prefix (segment 0) and its own branch up to
    itself. None where plain causal attention says the same."""
    if not past_segments and not any(segments):
        return None
    q, k = torch.tensor(segments), torch.tensor([*past_segments, *segments])
    order = torch.arange(len(k))
    causal = order[None, :] <= order[len(past_segments):, None]
    return causal & ((k[None, :] == 0) | (k[None, :] == q[:, None]))


class State:
    """Keys and values of one sequence in every layer, [kv heads, n, d], after the rotation, and the
    segment of each token."""

    def __init__(self, layers):
        self.keys, self.values = [None] * layers, [None] * layers
        self.segments = []

    def copy(self):
        other = State(0)
        other.keys, other.values = list(self.keys), list(self.values)
        other.segments = list(self.segments)
        return other

    def extend(self, layer, k, v):
        if self.keys[layer] is not None:
            k = torch.cat((self.keys[layer], k), 1)
            v = torch.cat((self.values[layer], v), 1)
        self.keys[layer], self.values[layer] = k, v
        return k, v


class Llama:
    def __init__(self, base, kind="mkl", train=True):
        """`kind` of gemm.KINDS. Without `train` the transposed copies are left out."""
        self.config = c = base.config
        t = base.tensors

        def frozen(w):
            return kind, gemm.prepare(kind, w), gemm.prepare(kind, w.t()) if train else None
        self.embedding = t["embed_tokens.weight"]
        self.head = frozen(self.embedding)
        self.norm = t["norm.weight"]
        self.layers = []
        for i in range(c.layers):
            at = f"layers.{i}."
            layer = {g: frozen(torch.cat([t[f"{at}{BLOCK[n]}.{n}.weight"] for n in names]))
                     for g, names in GROUPS.items()}
            layer["norm1"] = t[at + "input_layernorm.weight"]
            layer["norm2"] = t[at + "post_attention_layernorm.weight"]
            self.layers.append(layer)
        half = torch.arange(0, c.head_dim, 2, dtype=torch.float32) / c.head_dim
        self._frequencies = 1.0 / c.rope_theta ** half

    def _linear(self, x, i, group, adapter):
        frozen = self.layers[i][group]
        if adapter is None:
            return gemm.multiply(frozen[0], x, frozen[1])
        pairs = [side for name in GROUPS[group] for side in adapter.pair(i, name)]
        return _AdaptedLinear.apply(x, frozen, adapter.scale, *pairs)

    def _attention(self, i, q, k, v, spans):
        c, out = self.config, []
        for start, end, mask, state in spans:
            keys, values = k[start:end].transpose(0, 1), v[start:end].transpose(0, 1)
            if state is not None:
                keys, values = state.extend(i, keys, values)
            group = c.heads // c.kv_heads
            attended = functional.scaled_dot_product_attention(
                q[None, start:end].transpose(1, 2), keys.repeat_interleave(group, 0)[None],
                values.repeat_interleave(group, 0)[None], attn_mask=mask, is_causal=mask is None)
            out.append(attended[0].transpose(0, 1).reshape(end - start, -1))
        return torch.cat(out)

    def hidden(self, sequences, adapter=None):
        """Last hidden states after the final norm, [n, hidden], of sequences one after the other.

        A sequence is (ids, positions, segments, state or None); a state is read and extended.
        """
        c = self.config
        ids = torch.tensor([i for s in sequences for i in s[0]])
        positions = torch.tensor([p for s in sequences for p in s[1]], dtype=torch.float32)
        angles = positions[:, None, None] * self._frequencies
        cos, sin = angles.cos().repeat(1, 1, 2), angles.sin().repeat(1, 1, 2)
        spans, start = [], 0
        for s_ids, _, segments, state in sequences:
            past = state.segments if state is not None else []
            spans.append((start, start + len(s_ids), visible(segments, past), state))
            start += len(s_ids)
        x = self.embedding[ids]
        n, q_size, kv_size = len(ids), c.heads * c.head_dim, c.kv_heads * c.head_dim
        for i, layer in enumerate(self.layers):
            qkv = self._linear(rms_norm(x, layer["norm1"], c.epsilon), i, "qkv", adapter)
            q, k, v = (t.view(n, -1, c.head_dim) for t in qkv.split([q_size, kv_size, kv_size], 1))
            attended = self._attention(i, _rotate(q, cos, sin), _rotate(k, cos, sin), v, spans)
            x = x + self._linear(attended, i, "o", adapter)
            gate_up = self._linear(rms_norm(x, layer["norm2"], c.epsilon), i, "gate_up", adapter)
            gate, up = gate_up.split(c.ffn, 1)
            x = x + self._linear(functional.silu(gate) * up, i, "down", adapter)
        for _, _, segments, state in sequences:
            if state is not None:
                state.segments += segments
        return rms_norm(x, self.norm, c.epsilon)

    def logits(self, h):
        return gemm.multiply(self.head[0], h, self.head[1])

    def loss(self, documents, adapter, chunk=256):
        """(sum of cross-entropies with gradient, number of labels) of a micro-batch."""
        h = self.hidden([(d.ids, d.positions, d.segments, None) for d in documents], adapter)
        labels = torch.tensor([label for d in documents for label in d.labels])
        at = (labels >= 0).nonzero()[:, 0]
        return _HeadLoss.apply(h[at], self.head, labels[at], chunk), len(at)
