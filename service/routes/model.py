"""`GET /model`: what is loaded, what it can return, and the limits in force."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from model.points import named_points
from service.manifest import describe
from service.openapi.routes import MODEL
from service.parts import PartsDep

router = APIRouter()
_LIMITS = (
    "max_tokens",
    "max_inputs",
    "max_text_bytes",
    "max_body_bytes",
    "max_answer_bytes",
    "max_json_bytes",
    "deadline_seconds",
)


@router.get("/model", summary="The loaded model, its points, and the limits in force", **MODEL)
def model(parts: PartsDep) -> dict[str, Any]:
    """The shape of the loaded model, each point that can be asked for, and the limits in force.

    `max_positions` is the N limit of tokens, text and inputs_embeds; null where there is none. x has no such limit.
    """
    loaded, config, settings = parts.model, parts.model.config, parts.settings
    return {
        "name": loaded.name,
        "family": config.family,
        "layers": config.n_layers,
        "d_model": config.d_model,
        "heads": config.n_heads,
        "kv_heads": config.n_kv_heads,
        "d_k": config.d_k,
        "d_v": config.d_v,
        "d_ff": config.d_ff,
        "vocab_size": config.vocab_size or None,
        "max_positions": config.max_positions or None,
        "causal": config.causal,
        "tokenizer": loaded.tokenizer is not None,
        "dtype": str(loaded.stack.dtype).removeprefix("torch."),
        "device": str(loaded.stack.device),
        "parameters": loaded.parameters,
        "weights_sha256": loaded.weights_sha256,
        "limits": {name: getattr(settings, name) for name in _LIMITS} | asdict(parts.limits),
        "points": {name: describe(point, loaded) for name, point in named_points(config).items()},
    }
