"""What the README says is true: its commands run as they are written, and its table lists every setting."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from service.settings import Settings
from tests.server import Server

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
HERE = "http://127.0.0.1:8000"


def block(marker: str, language: str = "") -> str:
    """The fenced block behind an HTML comment."""
    found = re.search(rf"<!-- {re.escape(marker)} -->\n```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None, marker
    return found[1]


def rounded(value: Any) -> Any:
    """Numbers to three places, for their last digits differ between processors; times are left out."""
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items() if k not in ("queue_ms", "compute_ms")}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 3) if isinstance(value, float) else value


def test_the_curl_of_the_readme_gives_the_answer_it_shows(smollm2_server: Server) -> None:
    command = block("example: curl").replace(HERE, smollm2_server.url)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found.pop("manifest")["results"]) == set(found["outputs"])  # the README says that it leaves it out
    assert rounded(found) == rounded(json.loads(block("answer: curl", "json")))


def test_the_python_of_the_readme_prints_the_shapes_it_shows(smollm2_server: Server) -> None:
    snippet = block("example: python", "python")
    done = subprocess.run(
        [sys.executable, "-c", snippet.replace(HERE, smollm2_server.url)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    expected = re.findall(r"print\(.*\)  # (\(.*?\))", snippet)
    assert done.stdout.split("\n")[:-1] == expected
    assert len(expected) == 2


def test_the_table_of_settings_is_that_of_the_program() -> None:
    rows = [
        f"| `--{name.replace('_', '-')}` | {shown(field.default)} | {field.description} |"
        for name, field in Settings.model_fields.items()
    ]
    expected = "\n".join(["| option | default | |", "|---|---|---|", *rows])
    found = re.search(r"<!-- settings -->\n(.*?)\n?<!-- /settings -->", README, re.DOTALL)
    assert found is not None
    assert found[1] == expected, f"the table should be:\n{expected}"


def shown(default: Any) -> str:
    return "" if default in (None, ()) else f"`{default}`"


@pytest.mark.parametrize("name", ["embeddings", "layers.0.resid_pre"])
def test_the_embeddings_of_a_text_posted_as_x_give_the_same_layers_back(
    smollm2_client: httpx.Client, name: str
) -> None:
    layers = ["layers.*.resid_post", "final_norm"]
    whole = smollm2_client.post(
        "/forward", json={"text": "Where does a river begin?", "outputs": [name, *layers]}
    ).json()["outputs"]
    again = smollm2_client.post("/forward", json={"x": whole[name]["data"], "outputs": layers}).json()["outputs"]
    assert len(again) == 31
    assert all(again[point] == whole[point] for point in again), "to the last bit, through JSON"


def test_a_middle_layer_posted_as_x_gives_the_last_layer_of_the_whole_run(smollm2_client: httpx.Client) -> None:
    call = {"text": "Where does a river begin?", "outputs": ["layers.9.resid_post", "layers.29.resid_post"]}
    whole = smollm2_client.post("/forward", json=call).json()["outputs"]
    middle = whole["layers.9.resid_post"]["data"]
    rest = smollm2_client.post("/forward", json={"x": middle, "start": 10}).json()["outputs"]
    found, expected = (np.array(of["layers.29.resid_post"]["data"]) for of in (rest, whole))
    np.testing.assert_array_equal(found, expected)
