"""LoRA adapters as PEFT saves them: adapter_config.json beside adapter_model.safetensors."""
import json
import os
import pathlib

import safetensors.torch
import torch

from .llama import BLOCK
from .options import BASE_NAME

RANK, ALPHA = 16, 32


def _key(layer, name, side):
    return f"base_model.model.model.layers.{layer}.{BLOCK[name]}.{name}.lora_{side}.weight"


class Adapter:
    """A [rank, in] and B [out, rank] of every linear layer of every block, float32."""

    def __init__(self, tensors, scale):
        self.tensors = tensors
        self.scale = scale

    @classmethod
    def fresh(cls, config, seed, rank=RANK, alpha=ALPHA):
        """A uniform as PEFT starts it (Kaiming with a = sqrt 5), B zero: the base, to begin with."""
        g = torch.Generator().manual_seed(seed)
        tensors = {}
        for i in range(config.layers):
            for name, (out, inner) in config.linears.items():
                a = (torch.rand(rank, inner, generator=g) * 2 - 1) / inner ** 0.5
                tensors[_key(i, name, "A")] = a.requires_grad_()
                tensors[_key(i, name, "B")] = torch.zeros(out, rank, requires_grad=True)
        return cls(tensors, alpha / rank)

    def pair(self, layer, name):
        return self.tensors[_key(layer, name, "A")], self.tensors[_key(layer, name, "B")]

    def parameters(self):
        return list(self.tensors.values())


def save(adapter, folder, dtype=torch.bfloat16):
    """Writes both files, each at once: a reader never sees half of one."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rank = next(iter(adapter.tensors.values())).shape[0]
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": BASE_NAME,
              "r": rank, "lora_alpha": round(adapter.scale * rank), "lora_dropout": 0.0, "bias": "none",
              "target_modules": list(BLOCK), "inference_mode": True}
    text = json.dumps(config, indent=2) + "\n"
    tensors = {k: t.detach().to(dtype).contiguous() for k, t in adapter.tensors.items()}
    for name, write in (("adapter_config.json", lambda p: pathlib.Path(p).write_text(text, "utf-8")),
                        ("adapter_model.safetensors",
                         lambda p: safetensors.torch.save_file(tensors, p, {"format": "pt"}))):
        part = folder / (name + ".part")
        write(str(part))
        part.chmod(0o644)  # safetensors makes files that only their owner can read
        os.replace(part, folder / name)


def load(folder):
    folder = pathlib.Path(folder)
    config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    tensors = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    return Adapter({k: t.float() for k, t in tensors.items()}, config["lora_alpha"] / config["r"])
