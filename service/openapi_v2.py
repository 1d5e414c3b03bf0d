"""What /openapi.json and /docs say of the Open Inference Protocol's routes."""

from typing import Any

from pydantic import BaseModel, Field

from model.checkpoint.load import LoadedModel
from service.openapi import BINARY, refusals, schema_of
from service.wire.v2_answer import MODEL_VERSION
from service.wire.v2_request import LENGTH_HEADER, InferBody

_JSON, _BYTES = "application/json", "application/octet-stream"


class ErrorBody(BaseModel):
    """A refusal in the protocol's form."""

    error: str


class ServerBody(BaseModel):
    """The server metadata."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    """An input or output; -1 stands for N, the rows of the input."""

    name: str
    datatype: str
    shape: list[int]


class ModelBody(BaseModel):
    """The model metadata; a request has exactly one of the inputs."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class HealthBody(BaseModel):
    """That the server lives, or takes requests."""

    live: bool | None = Field(None, description="from /v2/health/live")
    ready: bool | None = Field(None, description="from /v2/health/ready")


class ModelReadyBody(BaseModel):
    """That the model takes requests."""

    name: str
    ready: bool


class InferredTensor(TensorMetadata):
    """One tensor of an answer: flat data, or `binary_data_size` bytes behind the JSON; -inf in data is null."""

    data: list[Any] | None = None
    parameters: dict[str, Any] | None = None


class InferredBody(BaseModel):
    """The answer to an inference request."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[InferredTensor]


def _parameter(where: str, name: str, description: str, example: str | None = None) -> dict[str, Any]:
    shown = {} if example is None else {"example": example}
    schema = {"schema": {"type": "string"}}
    return {"name": name, "in": where, "required": where == "path", "description": description, **schema, **shown}


_NAME = _parameter("path", "name", "the served name")
_OF_VERSION = _parameter("path", "version", "the model's version", MODEL_VERSION)
_LENGTH = _parameter("header", LENGTH_HEADER, "bytes of JSON at the start of the body, where tensors are behind it")


def _route(
    answer: type[BaseModel], description: str, *parameters: dict[str, Any], refused: list[int]
) -> dict[str, Any]:
    return {
        "response_model": None,
        "responses": {
            200: {"description": description, "content": {_JSON: schema_of(answer)}},
            **refusals(*refused, content_type=_JSON, body=ErrorBody),
        },
        "openapi_extra": {"parameters": list(parameters)},
    }


def _infer(*parameters: dict[str, Any]) -> dict[str, Any]:
    refused = [400, 401, 404, 408, 413, 415, 422, 429, 500, 503, 504]
    route = _route(InferredBody, "The outputs asked for", *parameters, _LENGTH, refused=refused)
    route["responses"][200]["content"][_BYTES] = BINARY
    route["openapi_extra"]["requestBody"] = {
        "required": True,
        "content": {_JSON: schema_of(InferBody), _BYTES: BINARY},
    }
    return route


SERVER = _route(ServerBody, "The server metadata", refused=[500])
HEALTH = _route(HealthBody, "It does", refused=[500, 503])
READY = _route(ModelReadyBody, "It does", _NAME, refused=[404, 500, 503])
READY_VERSION = _route(ModelReadyBody, "It does", _NAME, _OF_VERSION, refused=[404, 500, 503])
METADATA = _route(ModelBody, "The model metadata", _NAME, refused=[404, 500])
METADATA_VERSION = _route(ModelBody, "The model metadata", _NAME, _OF_VERSION, refused=[404, 500])
INFER = _infer(_NAME)
INFER_VERSION = _infer(_NAME, _OF_VERSION)
SCHEMAS = (InferBody, InferredBody, ServerBody, ModelBody, ModelReadyBody, HealthBody, ErrorBody)


def example_infer(model: LoadedModel) -> dict[str, Any]:
    """A small inference request that runs as it stands on this model."""
    config = model.config
    if config.vocab_size:
        ids = [t % config.vocab_size for t in (2, 3, 5, 7)]
        tensor: dict[str, Any] = {"name": "tokens", "shape": [4], "datatype": "INT64", "data": ids}
    else:
        numbers = [round((5 * i % 7 - 3) / 4, 2) for i in range(3 * config.d_model)]
        tensor = {"name": "x", "shape": [3, config.d_model], "datatype": "FP32", "data": numbers}
    outputs = [
        {"name": f"layers.{config.n_layers - 1}.resid_post", "parameters": {"rows": "[-1]"}},
        {"name": "layers.0.attn_probs", "parameters": {"heads": "[0]"}},
    ]
    return {"inputs": [tensor], "outputs": outputs}


def fill_examples(document: dict[str, Any], model: LoadedModel) -> None:
    """Put the model's name and a request that it runs into the protocol's routes."""
    for path, operations in document["paths"].items():
        if not path.startswith("/v2/models/"):
            continue
        for operation in operations.values():
            for parameter in operation["parameters"]:
                if parameter["name"] == "name":
                    parameter["example"] = model.name
            if "requestBody" in operation:
                operation["requestBody"]["content"][_JSON]["example"] = example_infer(model)
