"""The reference implementation, opened up: every point of a transformers model, by hooks on its own modules."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

CHEAP = ("resid_pre", "resid_mid", "resid_post", "attn_probs")
"""Kinds that are compared at every length; the others cost memory, or follow from these."""

_GPT2 = {"ln1": "ln_1", "qkv": "attn.c_attn", "o": "attn.c_proj", "ln2": "ln_2", "mlp": "mlp"}
_LLAMA = {
    "ln1": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "ln2": "post_attention_layernorm",
    "mlp": "mlp",
}


def pretrained(directory: Path) -> nn.Module:
    """The transformers model of a directory, with maps: other attention implementations give none."""
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def points_of(
    model: nn.Module, ids: list[int], *, every_kind: bool = False, positions: list[int] | None = None
) -> dict[str, np.ndarray]:
    """Points by name, and `hidden_states.k`; of each layer those in CHEAP, or every kind."""
    base = model.base_model
    options: dict[str, Any] = {"output_attentions": True, "output_hidden_states": True}
    if positions is not None:
        options["position_ids"] = torch.tensor([positions])
        # without a mask of its own, transformers takes a jump in the positions for the start of another sequence
        options["attention_mask"] = torch.ones(1, len(ids), dtype=torch.int64)
    with torch.inference_mode(), watched(base) as seen:
        out = model(torch.tensor([ids]), use_cache=False, **options)
    layers = _layers(base)
    assert len(out.attentions) == len(layers) == len(out.hidden_states) - 1
    found: dict[str, Tensor] = {f"hidden_states.{k}": x[0] for k, x in enumerate(out.hidden_states)}
    found |= {"embeddings": out.hidden_states[0][0], "final_norm": seen["final_norm"][0]}
    if hasattr(out, "logits"):
        found["logits"] = out.logits[0]
    for i in range(len(layers)):
        of_layer = {
            "resid_pre": out.hidden_states[i][0],
            "attn_probs": out.attentions[i][0],
            "resid_mid": seen[f"{i}.ln2.in"][0],
            "resid_post": seen[f"{i}.post"][0],
        }
        if every_kind:
            of_layer |= _inner(base, i, seen, positions or list(range(len(ids))))
        found |= {f"layers.{i}.{kind}": x for kind, x in of_layer.items()}
    return {name: x.numpy() for name, x in found.items()}


def _layers(base: nn.Module) -> nn.ModuleList:
    return base.h if hasattr(base, "h") else base.layers


@contextmanager
def watched(base: nn.Module) -> Iterator[dict[str, Tensor]]:
    """What goes into and comes out of the modules that have names in _GPT2 and _LLAMA."""
    seen: dict[str, Tensor] = {}
    handles = []

    def watch(module: nn.Module, name: str) -> None:
        def keep(_module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
            if args:
                seen[f"{name}.in"] = args[0]
            seen[name] = out[0] if isinstance(out, tuple) else out

        handles.append(module.register_forward_hook(keep))

    names = _GPT2 if hasattr(base, "h") else _LLAMA
    watch(base.ln_f if hasattr(base, "h") else base.norm, "final_norm")
    for i, layer in enumerate(_layers(base)):
        watch(layer, f"{i}.post")
        for name, path in names.items():
            watch(layer.get_submodule(path), f"{i}.{name}")
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def queries_keys_values(base: nn.Module, i: int, seen: dict[str, Tensor], positions: list[int]) -> tuple[Tensor, ...]:
    """Q, K and V of layer i, [A, N, d_k], as they enter the products: split, and turned where positions turn."""
    attention = getattr(_layers(base)[i], "attn" if hasattr(base, "h") else "self_attn")
    if hasattr(base, "h"):
        projected = seen[f"{i}.qkv"][0].chunk(3, dim=-1)
    else:
        projected = tuple(seen[f"{i}.{name}"][0] for name in "qkv")
    q, k, v = (x.unflatten(-1, (-1, attention.head_dim)).transpose(0, 1) for x in projected)
    if hasattr(base, "rotary_emb"):
        cos, sin = base.rotary_emb(v, torch.tensor([positions]))
        q, k = (x[0] for x in apply_rotary_pos_emb(q[None], k[None], cos, sin))
    return q, k, v


def scores(q: Tensor, k: Tensor, scale: float, rows: Sequence[int] | None = None) -> Tensor:
    """mask(QK^T * scale) of all rows or some, in float64; a key head serves as many query heads as there are to one."""
    rows_R = torch.arange(q.shape[1]) if rows is None else torch.tensor(rows)
    k = k.repeat_interleave(len(q) // len(k), dim=0)
    whole = q[:, rows_R].double() @ k.double().transpose(1, 2) * scale
    return whole.masked_fill(torch.arange(k.shape[1]) > rows_R[:, None], -torch.inf)


def _inner(base: nn.Module, i: int, seen: dict[str, Tensor], positions: list[int]) -> dict[str, Tensor]:
    q, k, v = queries_keys_values(base, i, seen, positions)
    attention = getattr(_layers(base)[i], "attn" if hasattr(base, "h") else "self_attn")
    return {
        "ln1": seen[f"{i}.ln1"][0],
        "q": q,
        "k": k,
        "v": v,
        "attn_scores": scores(q, k, attention.scaling),
        "z": seen[f"{i}.o.in"][0].unflatten(-1, (len(q), -1)).transpose(0, 1),
        "attn_out": seen[f"{i}.o"][0],
        "ln2": seen[f"{i}.ln2"][0],
        "mlp_out": seen[f"{i}.mlp"][0],
    }
