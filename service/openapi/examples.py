"""Examples of POST /forward, made for the loaded model; what refusals and dry runs say is asked of the door."""

import io
import json
from typing import Any

import numpy as np
from safetensors.numpy import save

from model.checkpoint.load import LoadedModel
from model.config import StackConfig
from model.points import named_points
from service.door import fit
from service.dry_run import estimate
from service.errors import ServiceError
from service.openapi.example import Example
from service.problem import problem_body, status_of
from service.settings import Settings
from service.wire.decode import decode
from service.wire.formats import CONTENT_TYPES

_JSON = CONTENT_TYPES["json"]
_NPY_FIELDS = {"outputs": [{"name": "layers.0.attn_probs", "heads": [0]}]}


def stream(config: StackConfig, rows: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Rows of a residual stream [rows, d] that no model made, in few digits."""
    numbers = [[((3 * i + 5 * j) % 7 - 3) / 4 for j in range(config.d_model)] for i in range(rows)]
    return np.array(numbers, np.float32)


def token_ids(config: StackConfig) -> list[int]:
    """Four token ids; the model must have a vocabulary."""
    return [t % config.vocab_size for t in (2, 3, 5, 7)]


def forward_examples(model: LoadedModel, settings: Settings) -> list[Example]:
    """What POST /forward can do, an example each, and what it says to some mistakes."""
    config, last = model.config, model.config.n_layers - 1
    input_kind, given = _input(model)
    made = [
        _json(
            input_kind,
            "the mean of what leaves the last layer, and a head's attention map",
            given
            | {
                "outputs": [
                    {"name": f"layers.{last}.resid_post", "pool": "mean", "as": "mean"},
                    {"name": "layers.0.attn_probs", "heads": [0]},
                ]
            },
        ),
        _json(
            "part_of_a_map",
            "where the last row looks among the first two, in the heads of every layer, before and after the softmax",
            given
            | {
                "outputs": [
                    {"name": f"layers.*.{map_}", "rows": [-1], "keys": {"start": 0, "stop": 2}}
                    for map_ in ("attn_scores", "attn_probs")
                ]
            },
        ),
        _json("largest", "the largest of each row", given | {"outputs": _largest(config)}),
        _json(
            "every_layer",
            "what leaves each layer at the last row, in half the bytes, within half a minute",
            given
            | {"outputs": [{"name": "layers.*.resid_post", "rows": [-1], "dtype": "bfloat16"}], "timeout_ms": 30_000},
        ),
        _json(
            "from_the_last_layer",
            "a residual stream of one's own, sent through the last layer alone",
            {
                "x": stream(config, 1).tolist(),
                "start": last,
                "outputs": [f"layers.{last}.{kind}" for kind in ("attn_probs", "resid_post")],
            },
        ),
        _json(
            "several",
            "two sequences of different lengths in one call",
            {"inputs": [given, {"x": stream(config, 1).tolist()}], "outputs": [f"layers.{last}.resid_post"]},
        ),
        _dry_run(model, settings),
        Example(
            "safetensors",
            "a residual stream in binary, with the other fields in its metadata: /docs/examples/input.safetensors",
            CONTENT_TYPES["safetensors"],
            file="input.safetensors",
        ),
        Example(
            "npy",
            "an array in binary, with the other fields in the query: /docs/examples/input.npy",
            CONTENT_TYPES["npy"],
            file="input.npy",
            parameters={"request": json.dumps(_NPY_FIELDS)},
        ),
    ]
    wrong = {
        "unknown_point": ("a point that this model does not have", given | {"outputs": ["layers.0.attn_prob"]}),
        "row_out_of_range": (
            "a row that is not there",
            given | {"outputs": [{"name": "layers.0.attn_probs", "rows": [100_000]}]},
        ),
        "wrong_width": ("rows that are not as wide as the model", {"x": [[0.5] * (config.d_model + 1)]}),
    }
    return made + [_refused(name, summary, body, model, settings) for name, (summary, body) in wrong.items()]


def forward_files(model: LoadedModel) -> dict[str, bytes]:
    """The bodies in binary, by the names of their files."""
    config = model.config
    fields = {"outputs": [{"name": f"layers.{config.n_layers - 1}.resid_post", "rows": [-1]}]}
    array = io.BytesIO()
    np.save(array, np.array(token_ids(config)) if config.vocab_size else stream(config, 3))
    return {
        "input.safetensors": save({"x": stream(config, 3)}, {"request": json.dumps(fields)}),
        "input.npy": array.getvalue(),
    }


def _input(model: LoadedModel) -> tuple[str, dict[str, Any]]:
    if model.tokenizer is not None:
        return "text", {"text": "The river begins here."}
    if model.config.vocab_size:
        return "tokens", {"tokens": token_ids(model.config)}
    return "x", {"x": stream(model.config, 3).tolist()}


def _largest(config: StackConfig) -> list[dict[str, Any]]:
    outputs: list[dict[str, Any]] = [{"name": "layers.0.attn_probs", "heads": [0], "top_k": 2}]
    if "logits" in named_points(config):
        outputs.append({"name": "logits", "rows": [-1], "top_k": 3, "as": "next"})
    return outputs


def _json(name: str, summary: str, value: dict[str, Any]) -> Example:
    return Example(name, summary, _JSON, value)


def _dry_run(model: LoadedModel, settings: Settings) -> Example:
    rows = min(100, model.config.max_positions or 100)
    value = {"n": rows, "outputs": [{"name": "layers.0.attn_probs", "heads": [0]}]}
    summary = f"what a head's map of {rows} rows would cost, without those rows"
    answer = estimate(decode(_bytes(value), "json", None), "json", model, settings)
    return Example("dry_run", summary, _JSON, value, parameters={"dry_run": "true"}, answer=answer)


def _refused(name: str, summary: str, value: dict[str, Any], model: LoadedModel, settings: Settings) -> Example:
    try:
        fit(decode(_bytes(value), "json", None), "json", model, settings)
    except ServiceError as error:
        return Example(name, summary, _JSON, value, status=status_of(error), answer=problem_body(error))
    raise AssertionError(f"the example {name} is not refused")


def _bytes(value: dict[str, Any]) -> bytearray:
    return bytearray(json.dumps(value).encode())
