"""The reference for the families of `test_families.py` and `test_bert.py`: transformers, opened up by hooks.

Everything is found from where its modules stand, so nothing here knows how ours are built.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedConfig

from model.checkpoint.load import LoadedModel, load_model
from model.errors import NonFiniteResult
from model.points import Point, expand, points_of
from model.run import run
from model.selection import Wanted
from model.sequence import Sequence

TOLERANCE = 5e-5  # of a row's largest magnitude; float32 on CPU on both sides
COMPANY = 2e-5  # likewise, between a run in company and the same alone

Auto = type[AutoModel] | type[AutoModelForCausalLM] | type[AutoModelForMaskedLM]


def saved(directory: Path, config: PreTrainedConfig, kind: Auto = AutoModelForCausalLM, seed: int = 31) -> nn.Module:
    """Such a model, written down. As transformers makes it, biases would be 0 and norms would do nothing."""
    model = kind.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator) + (p == 1).float())
    model.save_pretrained(directory)
    return model


@dataclass(frozen=True)
class Layout:
    """Where the parts of a transformers model are: paths below the base model, and below a layer."""

    layers: str
    q: str  # or the fused projection, with `split`
    o: str
    ln1: str
    ln2: str
    mlp: str  # what FFN's last product is, whose output is the FFN's
    final_norm: str | None = None
    k: str = ""
    v: str = ""
    split: Callable[[Tensor, int], tuple[Tensor, ...]] | None = None


def _by_head(fused: Tensor, heads: int) -> tuple[Tensor, ...]:
    """GPT-NeoX: q, k and v of the first head, then those of the second, ..."""
    return tuple(x.flatten(-2) for x in fused.unflatten(-1, (heads, -1)).chunk(3, dim=-1))


_LLAMA = Layout(
    "layers", "self_attn.q_proj", "self_attn.o_proj", "input_layernorm", "post_attention_layernorm", "mlp",
    "norm", "self_attn.k_proj", "self_attn.v_proj",
)  # fmt: skip
LAYOUTS = {
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "gpt_neox": Layout(
        "layers", "attention.query_key_value", "attention.dense", "input_layernorm", "post_attention_layernorm",
        "mlp", "final_layer_norm", split=_by_head,
    ),
    "opt": Layout(
        "decoder.layers", "self_attn.q_proj", "self_attn.out_proj", "self_attn_layer_norm", "final_layer_norm", "fc2",
        "decoder.final_layer_norm", "self_attn.k_proj", "self_attn.v_proj",
    ),
    "gpt_neo": Layout(
        "h", "attn.attention.q_proj", "attn.attention.out_proj", "ln_1", "ln_2", "mlp",
        "ln_f", "attn.attention.k_proj", "attn.attention.v_proj",
    ),
    "bert": Layout(
        "encoder.layer", "attention.self.query", "attention.output.dense", "attention.output.LayerNorm",
        "output.LayerNorm", "output.dense", None, "attention.self.key", "attention.self.value",
    ),
}  # fmt: skip


def reference(model: nn.Module, ids: list[int], positions: list[int] | None = None) -> dict[str, np.ndarray]:
    """Every point that hooks on a transformers model reach, and `hidden_states.k`.

    Of q and k only where no rotation comes after the projection.
    """
    base, seen, handles = model.base_model, {}, []
    layout = LAYOUTS[model.config.model_type]
    layers = base.get_submodule(layout.layers)
    options: dict[str, Any] = {} if positions is None else {"position_ids": torch.tensor([positions])}

    def watch(module: nn.Module, name: str) -> None:
        def keep(_: nn.Module, args: tuple[Any, ...], out: Any) -> None:
            if args:
                seen[f"{name}.in"] = args[0].flatten(0, -2)
            seen[name] = (out[0] if isinstance(out, tuple) else out).flatten(0, -2)

        handles.append(module.register_forward_hook(keep))

    for i, layer in enumerate(layers):
        watch(layer, f"{i}.post")
        for name in ("q", "k", "v", "o", "ln1", "ln2", "mlp"):
            if path := getattr(layout, name):
                watch(layer.get_submodule(path), f"{i}.{name}")
    if layout.final_norm and not getattr(model.config, "_remove_final_layer_norm", False):
        watch(base.get_submodule(layout.final_norm), "final_norm")
    with torch.inference_mode():
        out = model(torch.tensor([ids]), output_attentions=True, output_hidden_states=True, **options)
    for handle in handles:
        handle.remove()
    assert len(out.attentions) == len(layers) == len(out.hidden_states) - 1

    found: dict[str, Tensor] = {f"hidden_states.{k}": x[0] for k, x in enumerate(out.hidden_states)}
    found["embeddings"] = out.hidden_states[0][0]
    if "final_norm" in seen:
        found["final_norm"] = seen["final_norm"]
    if getattr(out, "logits", None) is not None:
        found["logits"] = out.logits[0]
    for i in range(len(layers)):
        of_layer = _points_of_layer(model, layout, i, seen)
        of_layer |= {"resid_pre": out.hidden_states[i][0], "attn_probs": out.attentions[i][0]}
        found |= {f"layers.{i}.{kind}": x for kind, x in of_layer.items()}
    return {name: x.numpy() for name, x in found.items()}


def _points_of_layer(model: nn.Module, layout: Layout, i: int, seen: dict[str, Tensor]) -> dict[str, Tensor]:
    config = model.config
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads

    def by_head(x: Tensor, count: int) -> Tensor:
        return x.unflatten(-1, (count, -1)).transpose(0, 1)

    if layout.split:
        q, k, v = layout.split(seen[f"{i}.q"], heads)
    else:
        q, k, v = (seen[f"{i}.{name}"] for name in "qkv")
    points = {
        "v": by_head(v, kv_heads),
        "z": by_head(seen[f"{i}.o.in"], heads),
        "attn_out": seen[f"{i}.o"],
        "ln1": seen[f"{i}.ln1"],
        "ln2": seen[f"{i}.ln2"],
        "mlp_out": seen[f"{i}.mlp"],
        "resid_post": seen[f"{i}.post"],
    }
    if config.model_type == "bert":
        points["resid_mid"] = seen[f"{i}.ln1.in"]
    elif not getattr(config, "use_parallel_residual", False):
        points["resid_mid"] = seen[f"{i}.ln2.in"]
    if not hasattr(config, "rope_parameters"):
        points |= {"q": by_head(q, heads), "k": by_head(k, kv_heads)}
    return points


class _Keeps:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.found: dict[str, np.ndarray] = {}

    takes_parts = False

    def put(self, wanted: Wanted, tensors: tuple[Tensor, ...]) -> None:
        assert wanted.name not in self.found
        self.found[wanted.name] = tensors[0].numpy()

    def fail(self, error: NonFiniteResult) -> None:
        raise error


def ours(
    loaded: LoadedModel,
    rows: Any,
    names: list[str] | None = None,
    *,
    kind: str = "tokens",
    start: int = 0,
    positions: list[int] | None = None,
) -> dict[str, np.ndarray]:
    """The points of these names, or all, that our stack has of one sequence."""
    (found,) = together(loaded, [rows], names, kind=kind, start=start, positions=positions)
    return found


def together(
    loaded: LoadedModel,
    inputs: list[Any],
    names: list[str] | None = None,
    *,
    kind: str = "tokens",
    start: int = 0,
    positions: list[int] | None = None,
) -> list[dict[str, np.ndarray]]:
    """The same of several sequences in one run."""
    config = loaded.config
    points: list[tuple[str, Point]] = [(point.name, point) for point in points_of(config)]
    if names is not None:
        points = [pair for name in names for pair in expand(name, config, start)]
    wanted = tuple(Wanted(name, point) for name, point in points)
    stop = max(point.depth(config.n_layers) for _, point in points)
    given = None if positions is None else np.array(positions)
    sequences = [
        Sequence(kind, np.asarray(rows, np.int64 if kind == "tokens" else np.float32), start, stop, wanted, given)  # type: ignore[arg-type]
        for rows in inputs
    ]
    sinks = [_Keeps() for _ in inputs]
    run(loaded.stack, sequences, list(sinks))
    return [sink.found for sink in sinks]


def row_error(found: np.ndarray, expected: np.ndarray) -> float:
    """The worst row's max|difference| / max|expected|, a row being the last axis."""
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    difference, size = np.abs(found - expected).max(axis=-1), np.abs(expected).max(axis=-1)
    return float(np.where(difference == 0, 0, difference / np.where(size == 0, np.nan, size)).max())


def company_errors(loaded: LoadedModel, inputs: list[list[int]]) -> list[str]:
    """The points that differ between a run together and one of each alone.

    Not the scores, of which a row may be one number that cancels to almost nothing; their softmax is there.
    """
    wrong: list[str] = []
    for ids, found in zip(inputs, together(loaded, inputs), strict=True):
        alone = ours(loaded, ids)
        names = [name for name in alone if not name.endswith("attn_scores")]
        wrong += [name for name in names if not row_error(found[name], alone[name]) <= COMPANY]
    return wrong


def errors(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> dict[str, float]:
    """The points that are further apart than the tolerance, by their errors."""
    wrong = {name: row_error(found[name], expected[name]) for name in expected}
    return {name: error for name, error in wrong.items() if not error <= TOLERANCE}


def check(directory: Path, model: nn.Module, ids: list[int], positions: list[int] | None = None) -> LoadedModel:
    """Hold a directory's points against its transformers model; all but the maps' scores and rotated q and k."""
    loaded = load_model(directory, name="m")
    expected = reference(model, ids, positions)
    assert errors(ours(loaded, ids, list(expected), positions=positions), expected) == {}
    left = {point.name for point in points_of(loaded.config)} - set(expected)
    assert {name.rpartition(".")[2] for name in left} <= {"q", "k", "attn_scores"}
    check_maps(loaded, ours(loaded, ids, positions=positions))
    return loaded


def check_maps(loaded: LoadedModel, points: dict[str, np.ndarray]) -> None:
    """Scores are QK^T in the family's scale where a row may look, -inf elsewhere; probabilities are their softmax."""
    config = loaded.config
    for i in range(config.n_layers):
        q, k, scores, probs = (
            points[f"layers.{i}.{kind}"].astype(np.float64) for kind in ("q", "k", "attn_scores", "attn_probs")
        )
        k = np.repeat(k, len(q) // len(k), axis=0)
        row, key = np.ogrid[: q.shape[1], : q.shape[1]]
        window = config.windows[i] if config.windows else None
        hidden = (key > row) & config.causal | (key <= row - (window or len(row)))
        assert (np.isneginf(scores) == hidden).all()
        assert (probs[:, hidden] == 0).all()
        expected = q @ k.transpose(0, 2, 1) * config.attention_scales[i]
        # Where a row sees one key, its score may cancel to almost nothing; measured is what it is summed from.
        size = np.abs(q) @ np.abs(k).transpose(0, 2, 1) * config.attention_scales[i]
        assert (np.abs(np.where(hidden, 0, scores - expected)) <= TOLERANCE * size).all()
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))
        assert row_error(probs, e / e.sum(axis=-1, keepdims=True)) <= TOLERANCE
