"""Makes the fine-tuned consumers that Baton ships: rank-16 LoRA adapters of SmolLM2-135M-Instruct."""
