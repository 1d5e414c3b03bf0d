"""Examples of the Open Inference Protocol's routes, made for the loaded model."""

import json
from typing import Any

from model.checkpoint.load import LoadedModel
from service.errors import ServiceError
from service.infer import admit_infer, check_served
from service.openapi.example import Example
from service.openapi.examples import stream, token_ids
from service.problem import status_of
from service.settings import Settings
from service.wire.v2_answer import MODEL_VERSION
from service.wire.v2_request import LENGTH_HEADER, decode

_JSON, _BYTES = "application/json", "application/octet-stream"
NO_MODEL, NO_VERSION = "no-such-model", "2"
FILE = "infer.bin"


def infer_examples(model: LoadedModel, settings: Settings, *, of_version: bool) -> list[Example]:
    """What an inference request can do, an example each, and what it is told after some mistakes."""
    right = _request(model)
    head, _ = _binary_request(model)
    wrong = right | {"outputs": [{"name": "layers.0.attn_prob"}]}
    made = [
        Example(right["inputs"][0]["name"], "the last row of the last layer, and a head's map", _JSON, right),
        Example(
            "binary",
            f"a residual stream in binary behind the JSON, and so the answer: /docs/examples/{FILE}",
            _BYTES,
            file=FILE,
            parameters={LENGTH_HEADER: str(len(head))},
        ),
        _refused("unknown_point", "a point that this model does not have", wrong, model, settings),
        _refused("unknown_model", "a model that is not served here", right, model, settings, name=NO_MODEL),
    ]
    if of_version:
        summary = "a version that the model does not have"
        made.append(_refused("unknown_version", summary, right, model, settings, version=NO_VERSION))
    return made


def infer_files(model: LoadedModel) -> dict[str, bytes]:
    """The bodies in binary, by the names of their files."""
    return {FILE: b"".join(_binary_request(model))}


def served(model: LoadedModel) -> dict[str, str]:
    """The parameters of a path to the loaded model."""
    return {"name": model.name, "version": MODEL_VERSION}


def _request(model: LoadedModel) -> dict[str, Any]:
    config = model.config
    if config.vocab_size:
        tensor: dict[str, Any] = {"name": "tokens", "shape": [4], "datatype": "INT64", "data": token_ids(config)}
    else:
        numbers = stream(config, 3).tolist()
        tensor = {"name": "x", "shape": [3, config.d_model], "datatype": "FP32", "data": numbers}
    outputs = [
        {"name": f"layers.{config.n_layers - 1}.resid_post", "parameters": {"rows": "[-1]"}},
        {"name": "layers.0.attn_probs", "parameters": {"heads": "[0]"}},
    ]
    return {"inputs": [tensor], "outputs": outputs}


def _binary_request(model: LoadedModel) -> tuple[bytes, bytes]:
    """The JSON of a request, and the bytes behind it."""
    behind = stream(model.config, 3)
    request = {
        "inputs": [
            {
                "name": "x",
                "shape": list(behind.shape),
                "datatype": "FP32",
                "parameters": {"binary_data_size": behind.nbytes},
            }
        ],
        "outputs": [{"name": "layers.0.attn_probs", "parameters": {"heads": "[0]", "binary_data": True}}],
    }
    return json.dumps(request).encode(), behind.astype("<f4").tobytes()


def _refused(
    label: str, summary: str, value: dict[str, Any], model: LoadedModel, settings: Settings, **path: str
) -> Example:
    try:
        check_served(model, **served(model) | path)
        admit_infer(decode(json.dumps(value).encode(), None), model, settings)
    except ServiceError as error:
        answer = {"error": error.detail}
        return Example(label, summary, _JSON, value, parameters=path, status=status_of(error), answer=answer)
    raise AssertionError(f"the example {label} is not refused")
