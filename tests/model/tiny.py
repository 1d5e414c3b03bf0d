"""Small models of every family, with every parameter random."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedConfig

from model.checkpoint.initialise import initialise

L, V, POSITIONS = 3, 41, 43


def gpt2(**keys: Any) -> GPT2Config:
    sizes = {"n_layer": L, "n_embd": 33, "n_head": 3, "n_positions": POSITIONS, "vocab_size": V}
    return GPT2Config(**sizes | {"bos_token_id": 1, "eos_token_id": 2} | keys)


def llama(**keys: Any) -> LlamaConfig:
    sizes = {"num_hidden_layers": L, "hidden_size": 30, "num_attention_heads": 3, "intermediate_size": 37}
    return LlamaConfig(**sizes | {"vocab_size": V, "max_position_embeddings": POSITIONS} | keys)


def saved(directory: Path, config: PreTrainedConfig, *, head: bool = True) -> nn.Module:
    """Such a transformers model, written down. As transformers makes it, biases would be 0 and norms do nothing."""
    kind = AutoModelForCausalLM if head else AutoModel
    model = kind.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(29)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator) + (p == 1).float())
    model.save_pretrained(directory)
    return model


def textbook(directory: Path, **keys: Any) -> None:
    sizes = {"n_layers": L, "d_model": 31, "n_heads": 3, "d_k": 5, "d_v": 11, "d_ff": 37}
    initialise(directory, seed=3, **sizes | {"vocab_size": V, "max_positions": POSITIONS} | keys)


def every_family(folder: Path) -> dict[str, Path]:
    """A directory of each kind of stack that there is."""
    textbook(folder / "textbook")
    textbook(folder / "bidirectional", causal=False)
    saved(folder / "gpt2", gpt2())
    saved(folder / "llama", llama(num_attention_heads=6, num_key_value_heads=2, head_dim=10))
    return {name: folder / name for name in FAMILIES}


FAMILIES = ("textbook", "bidirectional", "gpt2", "llama")
