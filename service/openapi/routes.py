"""What /openapi.json says of each route but those of the Open Inference Protocol; of FastAPI's making is the rest."""

from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from service.openapi.bodies import AnswerBody, DryRunBody, ForwardBody
from service.openapi.headers import OF_EVERY_ROUTE, SERVER_TIMING, X_MANIFEST, parameter, response_headers
from service.openapi.model_body import LoadedModelBody, ProbeBody
from service.openapi.refusals import OF_CALLS, refusals
from service.wire.formats import CONTENT_TYPES

_JSON = CONTENT_TYPES["json"]
OPEN: list[dict[str, Any]] = []
"""The `security` of a route that needs no key."""


def schema_of(*models: type[BaseModel]) -> dict[str, Any]:
    """A reference to the schema of a body, or to those of several that may come; `document` must be given them."""
    refs = [{"$ref": f"#/components/schemas/{model.__name__}"} for model in models]
    return {"schema": refs[0] if len(refs) == 1 else {"anyOf": refs}}


def binary(description: str) -> dict[str, Any]:
    """The schema of a body of bytes."""
    return {"schema": {"type": "string", "format": "binary", "description": description}}


_DRY_RUN = parameter(
    "query",
    "dry_run",
    "true: run nothing, and say in JSON whether the call would be admitted and what it would cost",
    type="boolean",
    default=False,
)
_REQUEST = parameter("query", "request", "with an npy body alone: the other fields, as a JSON object")
FORWARD: dict[str, Any] = {
    "tags": ["layers"],
    "response_model": None,
    "responses": {
        200: {
            "description": "The points asked for, in the format that Accept prefers, JSON if it says nothing; with "
            "`dry_run` what the call would cost. A safetensors answer over `stream_above_bytes` is streamed while it "
            "is made.",
            "headers": response_headers(SERVER_TIMING, X_MANIFEST),
            "content": {
                _JSON: schema_of(AnswerBody, DryRunBody),
                CONTENT_TYPES["safetensors"]: binary(
                    "a tensor for each result, exact to the bit; the metadata has `model`, and as JSON `usage`, "
                    "`tokens` and `manifest`"
                ),
                CONTENT_TYPES["npy"]: binary(
                    "the one result, in float32, float16 or int32; its manifest is in the header X-Manifest. Otherwise "
                    "it is a 406"
                ),
            },
        },
        **refusals(*OF_CALLS, "not_acceptable"),
    },
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "description": "One sequence or several, and what is wanted of them. The Content-Type says in which of "
            "three formats; a body may be packed, `Content-Encoding: zstd`, `gzip` or `deflate`.",
            "content": {
                _JSON: schema_of(ForwardBody),
                CONTENT_TYPES["safetensors"]: binary(
                    "the tensor `x`, `inputs_embeds` or `tokens` (of several sequences `0.x`, `1.tokens`, ...) in "
                    "float16, bfloat16, float32 or float64, for tokens in any integer type; the other fields as JSON "
                    "in the metadata key `request`"
                ),
                CONTENT_TYPES["npy"]: binary(
                    "one array: `x` if it is floating point, `tokens` if it holds integers; the other fields as JSON "
                    "in the query parameter `request`"
                ),
            },
        },
        "parameters": [_DRY_RUN, _REQUEST, *OF_EVERY_ROUTE],
    },
}


def _get(answer: type[BaseModel], description: str, *codes: str, tag: str, without_key: bool = False) -> dict[str, Any]:
    return {
        "tags": [tag],
        "response_model": None,
        "responses": {
            200: {"description": description, "headers": response_headers(), "content": {_JSON: schema_of(answer)}},
            **refusals(*codes),
        },
        "openapi_extra": {"parameters": list(OF_EVERY_ROUTE)} | ({"security": OPEN} if without_key else {}),
    }


MODEL = _get(LoadedModelBody, "The loaded model", "unauthorized", "not_ready", tag="layers")
LIVE = _get(ProbeBody, "It lives", "not_alive", tag="watching", without_key=True)
STARTED = _get(ProbeBody, "It has been loaded", "not_ready", "not_alive", tag="watching", without_key=True)
READY = _get(ProbeBody, "They should", "not_ready", "not_alive", tag="watching", without_key=True)
_EXPOSITION = {"schema": {"type": "string", "description": "a line for each series"}}
METRICS: dict[str, Any] = {
    "tags": ["watching"],
    "response_class": Response,  # a text, whose content types are these
    "responses": {
        200: {
            "description": "Prometheus' text format, or OpenMetrics where Accept prefers it",
            "headers": response_headers(),
            "content": {"text/plain": _EXPOSITION, "application/openmetrics-text": _EXPOSITION},
        },
        **refusals("unauthorized"),
    },
    "openapi_extra": {"parameters": list(OF_EVERY_ROUTE)},
}
TAGS = [
    {"name": "layers", "description": "Any point of any layer, and what is loaded."},
    {"name": "Open Inference Protocol", "description": "The same calls, as KServe, Triton and their clients speak."},
    {"name": "watching", "description": "Probes and metrics."},
]
