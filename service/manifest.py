"""What each point of the loaded model is: its axes, what is in it, how it was computed."""

from collections.abc import Iterable
from typing import Any

from model.checkpoint.load import LoadedModel
from model.points import Point, is_normed, textbook
from model.selection import Wanted, result_names

_AXES = {
    "rows": ["row", "d"],
    "heads": ["head", "row", "width"],
    "map": ["head", "query", "key"],
    "vocabulary": ["row", "vocabulary"],
}


def describe(point: Point, model: LoadedModel) -> dict[str, Any]:
    """One point: name, layer, axes, textbook symbol, whether it is normed, whether positions are in it.

    Maps also say whether they are causal, how many keys a row sees (null: no limit), their scale, and the dtype that
    their softmax is computed in.
    """
    config = model.config
    rotated = config.rotary_theta is not None and point.kind in ("q", "k", "attn_scores", "attn_probs")
    about: dict[str, Any] = {
        "point": point.name,
        "layer": point.layer,
        "textbook": textbook(point.kind, config),
        "axes": _AXES[point.axes],
        "normed": is_normed(point, config),
        "positions": config.learned_positions or rotated,
    }
    if point.axes == "map":
        assert point.layer is not None
        about |= {
            "causal": config.causal,
            "window": config.mask(point.layer).window,
            "scale": config.attention_scales[point.layer],
            "softmax_dtype": "float32",
        }
    return about


def manifest(wanted: Iterable[Wanted], model: LoadedModel) -> dict[str, Any]:
    """The manifest of an answer: the model, and each result by its name."""
    return {
        "model": model.name,
        "weights_sha256": model.weights_sha256,
        "compute_dtype": str(model.stack.dtype).removeprefix("torch."),
        "results": {
            name: describe(want.point, model) | {"axes": _axes(want), "dtype": dtype}
            for want in wanted
            for name, dtype in zip(result_names(want), (want.dtype, "int32"), strict=False)
        },
    }


def _axes(wanted: Wanted) -> list[str]:
    """The axes of a result: a mean has no rows, and in a top k the last axis counts from the largest on."""
    axes = _AXES[wanted.point.axes]
    if wanted.pool:
        return axes[1:]
    return axes if wanted.top_k is None else [*axes[:-1], "rank"]
