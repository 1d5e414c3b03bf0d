"""What /openapi.json says of the Open Inference Protocol's routes."""

from typing import Any

from pydantic import BaseModel

from service.openapi.headers import (
    CONTENT_ENCODING,
    JSON_LENGTH,
    JSON_LENGTH_SENT,
    OF_EVERY_ROUTE,
    SERVER_TIMING,
    parameter,
    response_headers,
)
from service.openapi.refusals import OF_CALLS, v2_refusals
from service.openapi.routes import OPEN, binary, schema_of
from service.openapi.v2_bodies import (
    ErrorBody,
    InferredBody,
    LiveBody,
    ModelBody,
    ModelReadyBody,
    ReadyBody,
    ServerBody,
)
from service.wire.v2_request import InferBody

_JSON, _BYTES = "application/json", "application/octet-stream"
_NAME = parameter("path", "name", "the served name, as GET /model has it; it may hold slashes", required=True)
_OF_VERSION = parameter("path", "version", 'the model\'s version, of which there is one: "1"', required=True)
_LOADED = ("unauthorized", "not_ready")


def _route(
    answer: type[BaseModel], description: str, *parameters: dict[str, Any], codes: tuple[str, ...], open_: bool = False
) -> dict[str, Any]:
    return {
        "tags": ["Open Inference Protocol"],
        "response_model": None,
        "responses": {
            200: {"description": description, "headers": response_headers(), "content": {_JSON: schema_of(answer)}},
            **v2_refusals(ErrorBody, *codes),
        },
        "openapi_extra": {"parameters": [*parameters, *OF_EVERY_ROUTE]} | ({"security": OPEN} if open_ else {}),
    }


def _infer(*parameters: dict[str, Any]) -> dict[str, Any]:
    description = "The outputs asked for, in JSON, or with the bytes of some or all behind it"
    route = _route(InferredBody, description, *parameters, JSON_LENGTH_SENT, codes=(*OF_CALLS, "not_found"))
    route["responses"][200]["headers"] = response_headers(SERVER_TIMING, JSON_LENGTH, CONTENT_ENCODING)
    route["responses"][200]["content"][_BYTES] = binary("the answer's JSON, and the tensors' bytes behind it")
    route["openapi_extra"]["requestBody"] = {
        "required": True,
        "description": "An inference request, in JSON or with bytes behind it; the Content-Type is not looked at. It "
        "may be packed, `Content-Encoding: zstd`, `gzip` or `deflate`.",
        "content": {
            _JSON: schema_of(InferBody),
            _BYTES: binary("the request's JSON, and behind it the bytes of the inputs with a `binary_data_size`"),
        },
    }
    return route


SERVER = _route(ServerBody, "The server metadata", codes=_LOADED)
LIVE = _route(LiveBody, "It lives", codes=("not_alive",), open_=True)
READY = _route(ReadyBody, "They should", codes=("not_ready", "not_alive"), open_=True)
_MODEL_READY = ("not_found", "not_ready", "not_alive")
MODEL_READY = _route(ModelReadyBody, "It does", _NAME, codes=_MODEL_READY, open_=True)
MODEL_READY_VERSION = _route(ModelReadyBody, "It does", _NAME, _OF_VERSION, codes=_MODEL_READY, open_=True)
METADATA = _route(ModelBody, "The model metadata", _NAME, codes=(*_LOADED, "not_found"))
METADATA_VERSION = _route(ModelBody, "The model metadata", _NAME, _OF_VERSION, codes=(*_LOADED, "not_found"))
INFER = _infer(_NAME)
INFER_VERSION = _infer(_NAME, _OF_VERSION)
