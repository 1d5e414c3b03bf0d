"""The OpenAPI document: nothing in it without a word on what it is, and every example answered as it says."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from model.checkpoint.initialise import initialise
from service.errors import CODES, STATUS
from service.openapi.refusals import MEANINGS
from tests.conftest import TINY
from tests.server import Server, serving
from tests.service.calls import JSON
from tests.service.openapi_document import document, examples, operations, undescribed, untold

MODELS = ("tiny", "mgm_client", "smollm2_client", "minilm_client", "headless_client")
PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def minilm_client(minilm_server: Server) -> Iterator[httpx.Client]:
    """A client of a BERT: post-norm, a tokenizer, maps without a mask."""
    with minilm_server.client() as client:
        yield client


@pytest.fixture(scope="module")
def headless_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a stack without a vocabulary, whose name has a space and a slash."""
    directory = tmp_path_factory.mktemp("models") / "headless"
    initialise(directory, seed=3, **TINY | {"vocab_size": 0, "max_positions": 0})
    with serving(directory, "--threads", "1", "--name", "a stack/2") as server, server.client() as client:
        yield client


@pytest.fixture(params=MODELS)
def client(request: pytest.FixtureRequest) -> httpx.Client:
    found: httpx.Client = request.getfixturevalue(request.param)
    return found


def test_everything_in_the_document_is_described(tiny: httpx.Client) -> None:
    assert not undescribed(document(tiny))


def test_what_is_not_described_would_be_found() -> None:
    """The walk sees each kind of gap; else the test above could not fail."""
    whole: dict[str, Any] = {
        "tags": [{"name": "t"}],
        "components": {
            "schemas": {"S": {"properties": {"a": {"anyOf": [{"items": {"properties": {"b": {}}}}]}}}},
            "securitySchemes": {"key": {}},
        },
        "paths": {
            "/p": {
                "post": {
                    "tags": ["u"],
                    "parameters": [{"name": "q", "schema": {}, "examples": {"e": {}}}],
                    "requestBody": {"content": {"c": {"schema": {"format": "binary"}}}},
                    "responses": {"200": {"description": "Successful Response", "headers": {"H": {}}}},
                }
            }
        },
    }
    of_schema = ["#/components/schemas/S" + rest for rest in ("", "/properties/a")]
    of_schema.append("#/components/schemas/S/properties/a/anyOf/0/items/properties/b")
    gaps = "summary, description, tag u, parameter q, parameter q: example e, body, body, binary, response 200"
    gaps = gaps.replace("body, binary", "body; binary")
    of_operation = [f"post /p: {gap.replace(';', ',')}" for gap in gaps.split(", ")]
    expected = ["tag t", *of_schema, "scheme key", *of_operation, "post /p: header H of 200"]
    assert sorted(undescribed(whole)) == sorted(expected)


def test_every_example_is_answered_with_the_status_that_it_stands_under(client: httpx.Client) -> None:
    whole = document(client)
    wrong = []
    for sent in examples(whole, client):
        response = client.request(sent.method, sent.path, **sent.request)
        if response.status_code != sent.status:
            wrong.append(f"{sent.where}: {response.status_code}, not {sent.status}: {response.text[:300]}")
        elif sent.answer is not None and response.json() != sent.answer:
            wrong.append(f"{sent.where}: the document says {sent.answer}, and {response.text[:300]} came")
    assert not wrong, "\n".join(wrong)


def test_there_are_examples_of_every_way_to_call(client: httpx.Client) -> None:
    whole = document(client)
    for path in ("/forward", "/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer"):
        for media, content in whole["paths"][path]["post"]["requestBody"]["content"].items():
            assert content["examples"], f"{path} {media}"
    of_forward = [one for one in examples(whole, client) if one.path == "/forward"]
    keys = {
        key
        for sent in of_forward
        for output in sent.request.get("json", {}).get("outputs", [])
        if isinstance(output, dict)
        for key in output
    }
    assert keys == {"name", "as", "heads", "rows", "keys", "top_k", "pool", "dtype"}
    fields = {field for sent in of_forward for field in sent.request.get("json", {})}
    assert {"x", "inputs", "n", "start", "outputs", "timeout_ms"} <= fields
    assert {sent.status for sent in of_forward} == {200, 422}


def test_no_answer_has_a_field_that_the_document_does_not_tell_of(client: httpx.Client) -> None:
    whole = document(client)
    seen = set()
    for sent in examples(whole, client):
        response = client.request(sent.method, sent.path, **sent.request)
        media = response.headers["content-type"].partition(";")[0]
        if media not in (JSON, PROBLEM):
            continue
        (operation,) = [
            one
            for path, method, one in operations(whole)
            if f"{method} {path}:" == sent.where.rpartition(": ")[0] + ":"
        ]
        schema = operation["responses"][str(sent.status)]["content"][media]["schema"]
        schema = next((one for one in schema.get("allOf", []) if "$ref" in one), schema)
        assert not untold(response.json(), schema, whole), sent.where
        seen.add(media)
    assert seen == {JSON, PROBLEM}


def test_every_answer_has_the_headers_that_the_document_tells_of(tiny: httpx.Client) -> None:
    whole = document(tiny)
    may_lack = {"X-Manifest", "Inference-Header-Content-Length", "Content-Encoding"}
    for sent in examples(whole, tiny):
        response = tiny.request(sent.method, sent.path, **sent.request)
        path = sent.where.partition(" ")[2].rpartition(": ")[0]
        told = set(whole["paths"][path][sent.method]["responses"][str(sent.status)]["headers"])
        if "dry_run" in sent.request["params"]:
            may_lack = may_lack | {"Server-Timing"}
        assert {name for name in told - may_lack if name not in response.headers} == set(), sent.where


def test_an_answer_in_npy_has_its_manifest_in_the_header_that_the_document_names(tiny: httpx.Client) -> None:
    (sent,) = [one for one in examples(document(tiny), tiny) if one.where == "post /forward: npy"]
    sent.request["headers"]["Accept"] = "application/x-npy"
    response = tiny.request(sent.method, sent.path, **sent.request)
    assert response.headers["Content-Type"] == "application/x-npy"
    assert "layers.0.attn_probs" in response.headers["X-Manifest"]


def test_every_code_is_explained_under_its_own_status() -> None:
    assert set(MEANINGS) == set(STATUS.values()) - {499}  # a caller who left reads nothing
    told = [code for meanings in MEANINGS.values() for code in meanings]
    assert len(told) == len(set(told))
    assert set(told) == CODES - {"caller_left"}
    for kind, status in STATUS.items():
        if status != 499:
            assert kind.code in MEANINGS[status]


def test_refusals_of_calls_name_every_code_that_they_may_have(tiny: httpx.Client) -> None:
    responses = document(tiny)["paths"]["/forward"]["post"]["responses"]
    codes = set()
    for status, response in responses.items():
        if int(status) < 400:
            continue
        ((media, content),) = response["content"].items()
        assert media == PROBLEM
        problem, narrowed = content["schema"]["allOf"]
        assert problem == {"$ref": "#/components/schemas/ProblemBody"}
        assert narrowed["properties"]["status"]["const"] == int(status)
        codes |= set(narrowed["properties"]["code"]["enum"])
    assert codes == CODES - {"caller_left", "not_found", "method_not_allowed", "not_alive"}


def test_429_and_503_tell_of_retry_after_and_401_of_the_scheme(tiny: httpx.Client) -> None:
    responses = document(tiny)["paths"]["/forward"]["post"]["responses"]
    for status, header in (("429", "Retry-After"), ("503", "Retry-After"), ("401", "WWW-Authenticate")):
        assert header in responses[status]["headers"]


def test_an_example_that_is_not_there_is_a_404(tiny: httpx.Client) -> None:
    response = tiny.get("/docs/examples/other.npy")
    assert response.status_code == 404
    assert "input.npy" in response.json()["detail"]
