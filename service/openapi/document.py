"""/openapi.json, made once for the loaded model: routes, bodies, headers, refusals, and examples that run on it."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from model.checkpoint.load import LoadedModel
from service.errors import NotFound
from service.infer import check_served
from service.openapi import bodies, model_body, v2_bodies
from service.openapi.example import put_answer, put_value
from service.openapi.examples import forward_examples, forward_files
from service.openapi.headers import KEY
from service.openapi.routes import TAGS
from service.openapi.v2_examples import NO_MODEL, infer_examples, infer_files, served
from service.settings import Settings
from service.wire.v2_request import InferBody

_BODIES: tuple[type[BaseModel], ...] = (
    bodies.ForwardBody,
    bodies.AnswerBody,
    bodies.DryRunBody,
    bodies.ProblemBody,
    model_body.LoadedModelBody,
    model_body.ProbeBody,
    InferBody,
    v2_bodies.InferredBody,
    v2_bodies.ServerBody,
    v2_bodies.ModelBody,
    v2_bodies.LiveBody,
    v2_bodies.ReadyBody,
    v2_bodies.ModelReadyBody,
    v2_bodies.ErrorBody,
)
_ABOUT = """\
Post a matrix of tokens (or ids, or text) to `/forward`, and it returns the output of any layer and the attention map of
any head of the loaded model. `GET /model` lists the points that can be asked for.

**Examples.** Each runs as it stands on the model that is loaded here. What has one name in an operation belongs
together: the body, the parameters of the path (where one has none of that name, its first), and the answer; the body's
`x-parameters` are those of the query and the head that it needs. An example that stands under a refusal is answered by
just that refusal, every other one with 200. Bodies in binary are files under `/docs/examples/`.

**Refusals** are `application/problem+json` (RFC 9457), under `/v2` `{"error": ...}`. `code` is what a program should
look at. A refusal concerns its own request alone.
"""


def document(app: FastAPI, model: LoadedModel, settings: Settings, *, keyed: bool) -> dict[str, Any]:
    """The OpenAPI document of the app. `keyed` says that calls need an API key."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title, version=app.version, summary=app.summary, description=_ABOUT, routes=app.routes, tags=TAGS
        )
        components = schema.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        for body in _BODIES:
            of_body = body.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= of_body.pop("$defs", {})
            schemas[body.__name__] = of_body
        _put_examples(schema["paths"], model, settings)
        components["securitySchemes"] = {"key": KEY}
        if keyed:
            schema["security"] = [{"key": []}]
        app.openapi_schema = schema
    return app.openapi_schema


def example_files(model: LoadedModel) -> dict[str, bytes]:
    """The bodies in binary that examples send, by their names under /docs/examples/."""
    return forward_files(model) | infer_files(model)


_YES = {
    "/livez": {"status": "alive"},
    "/startedz": {"status": "started"},
    "/readyz": {"status": "ready"},
    "/v2/health/live": {"live": True},
    "/v2/health/ready": {"ready": True},
}


def _put_examples(paths: dict[str, Any], model: LoadedModel, settings: Settings) -> None:
    for path, answer in _YES.items():
        put_answer(paths[path]["get"], 200, "yes", "the only answer with this status", answer)
    for example in forward_examples(model, settings):
        example.put_into(paths["/forward"]["post"])
    here = served(model)
    for path, operations in paths.items():
        if not path.startswith("/v2/models/"):
            continue
        (operation,) = operations.values()
        in_path = {one["name"]: one for one in operation["parameters"] if one["in"] == "path"}
        for name, parameter in in_path.items():
            put_value(parameter, "served", "what is served here", here[name])
        if "requestBody" in operation:
            for example in infer_examples(model, settings, of_version="version" in in_path):
                example.put_into(operation)
            continue
        summary = "a model that is not served here"
        put_value(in_path["name"], "unknown_model", summary, NO_MODEL)
        try:
            check_served(model, NO_MODEL)
        except NotFound as error:
            put_answer(operation, 404, "unknown_model", summary, {"error": error.detail})
