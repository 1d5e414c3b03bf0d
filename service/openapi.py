"""What /openapi.json and /docs say of each route; the examples are made for the loaded model and run as they stand."""

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field
from starlette.responses import Response

from model.checkpoint.load import LoadedModel
from service.errors import STATUS, ServiceError
from service.problem import CONTENT_TYPE
from service.wire.call import CallFields, InputFields
from service.wire.formats import CONTENT_TYPES

Matrix = list[list[float]]


class InputBody(InputFields):
    """One sequence: exactly one of x, inputs_embeds, tokens, text."""

    x: Matrix | None = Field(None, description="the residual stream [N][d]: enters layer start as it is")
    inputs_embeds: Matrix | None = Field(None, description="token embeddings [N][d]: the model adds positions")
    tokens: list[int] | None = Field(None, description="token ids [N]")
    text: str | None = Field(None, description="a text, for the model's own tokenizer")


class ForwardBody(CallFields, InputBody):
    """One call: exactly one of x, inputs_embeds, tokens, text, or inputs."""

    inputs: list[InputBody] | None = Field(
        None, description="several sequences; names in the answer begin with 0., 1., ..."
    )


class TensorBody(BaseModel):
    """One tensor of an answer; -inf in attn_scores is null."""

    shape: list[int]
    dtype: str
    data: list[Any]


class BatchBody(BaseModel):
    """The batch that a sequence ran in."""

    sequences: int
    tokens: int


class UsageBody(BaseModel):
    """What a sequence cost."""

    tokens: int = Field(description="its rows")
    queue_ms: float
    compute_ms: float
    batch: BatchBody


class TokensBody(BaseModel):
    """Token ids, and what each stands for where the model has a tokenizer."""

    ids: list[int]
    strings: list[str] | None = None


class AnswerBody(BaseModel):
    """The answer to one call; tokens and usage are lists where inputs were given."""

    model: str
    outputs: dict[str, TensorBody]
    tokens: TokensBody | list[TokensBody | None] | None = None
    usage: UsageBody | list[UsageBody]
    manifest: dict[str, Any] = Field(
        description="the model and, under results, what each result is: point, layer, axes, dtype, how it was made"
    )


class FieldErrorBody(BaseModel):
    """A field at fault."""

    pointer: str
    message: str


class ProblemBody(BaseModel):
    """A refusal (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[FieldErrorBody] | None = None


class ResultBody(BaseModel):
    """Shape and dtype of a result."""

    shape: list[int]
    dtype: str


class DryRunBody(BaseModel):
    """What a dry run says: whether the call would be admitted, why not, and its cost where it fits the model."""

    admitted: bool
    code: str | None = Field(description="of the refusal")
    status: int | None = None
    detail: str | None = None
    errors: list[FieldErrorBody] | None = None
    tokens: int | None = None
    layers_run: int | None = None
    flops: int | None = None
    answer_bytes: int | None = None
    results: dict[str, ResultBody] | None = None


_SCHEMAS = (ForwardBody, AnswerBody, DryRunBody, ProblemBody)
BINARY = {"schema": {"type": "string", "format": "binary"}}


def schema_of(*models: type[BaseModel]) -> dict[str, Any]:
    """A reference to the schema of a body, or to those of several that may come; `document` must be given them."""
    refs = [{"$ref": f"#/components/schemas/{model.__name__}"} for model in models]
    return {"schema": refs[0] if len(refs) == 1 else {"anyOf": refs}}


def refusals(
    *statuses: int, content_type: str = CONTENT_TYPE, body: type[BaseModel] = ProblemBody
) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route, from the one table of errors."""
    titles: dict[int, str] = {}
    kind: type[ServiceError]
    for kind, status in STATUS.items():
        titles[status] = kind.title
    return {status: {"description": titles[status], "content": {content_type: schema_of(body)}} for status in statuses}


FORWARD: dict[str, Any] = {
    "response_model": None,
    "responses": {
        200: {
            "description": "The points asked for, in the format that Accept prefers",
            "content": {
                CONTENT_TYPES["json"]: schema_of(AnswerBody, DryRunBody),
                CONTENT_TYPES["safetensors"]: BINARY,
                CONTENT_TYPES["npy"]: BINARY,
            },
        },
        **refusals(400, 401, 406, 408, 413, 415, 422, 429, 500, 503, 504),
    },
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {
                CONTENT_TYPES["json"]: schema_of(ForwardBody),
                CONTENT_TYPES["safetensors"]: BINARY,
                CONTENT_TYPES["npy"]: BINARY,
            },
        },
        "parameters": [
            {
                "name": "dry_run",
                "in": "query",
                "required": False,
                "description": "run nothing, and say what the call would cost",
                "schema": {"type": "boolean", "default": False},
            },
            {
                "name": "request",
                "in": "query",
                "required": False,
                "description": "with an npy body: the other fields, as JSON",
                "schema": {"type": "string"},
            },
        ],
    },
}
MODEL: dict[str, Any] = {"responses": refusals(401, 500, 503)}
PROBE: dict[str, Any] = {"responses": refusals(503)}
METRICS: dict[str, Any] = {
    "response_class": Response,  # a text, whose content types are these
    "responses": {
        200: {
            "description": "Prometheus' text format, or OpenMetrics where Accept prefers it",
            "content": {
                "text/plain": {"schema": {"type": "string"}},
                "application/openmetrics-text": {"schema": {"type": "string"}},
            },
        },
        **refusals(500),
    },
}


def example_request(model: LoadedModel) -> dict[str, Any]:
    """A small call that runs as it stands on this model."""
    config = model.config
    last = config.n_layers - 1
    outputs: list[Any] = [
        {"name": f"layers.{last}.resid_post", "pool": "mean", "as": "mean"},
        {"name": "layers.0.attn_probs", "heads": [0]},
    ]
    if model.tokenizer is not None:
        return {"text": "The river begins here.", "outputs": outputs}
    if config.vocab_size:
        return {"tokens": [t % config.vocab_size for t in (2, 3, 5, 7)], "outputs": outputs}
    rows = [[round(((3 * i + 5 * j) % 7 - 3) / 4, 2) for j in range(config.d_model)] for i in range(3)]
    return {"x": rows, "outputs": outputs}


def document(
    app: FastAPI,
    model: LoadedModel,
    more: Sequence[type[BaseModel]] = (),
    fill: Callable[[dict[str, Any], LoadedModel], None] | None = None,
    *,
    keyed: bool = False,
) -> dict[str, Any]:
    """The OpenAPI document of the app, made once. `more` are bodies of other routes, `fill` puts in their examples.

    `keyed` says that calls need an API key.
    """
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        bodies: list[type[BaseModel]] = [*_SCHEMAS, *more]
        for body in bodies:
            of_body = body.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= of_body.pop("$defs", {})
            schemas[body.__name__] = of_body
        content = schema["paths"]["/forward"]["post"]["requestBody"]["content"]
        content[CONTENT_TYPES["json"]]["example"] = example_request(model)
        if fill is not None:
            fill(schema, model)
        if keyed:
            schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"key": []}]
        app.openapi_schema = schema
    return app.openapi_schema
