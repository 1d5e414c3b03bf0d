"""The examples of docs/examples run as they are written, show what they claim, and draw it."""

import runpy
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.checkpoint.packages import packaged_model
from tests.server import Server, serving

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SMOLLM2 = "smollm2-135m-instruct"


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs the `main` of an example with pictures, checks that it draws one, and gives its results."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run(name: str, url: str, **more: Any) -> dict[str, Any]:
        module = runpy.run_path(str(EXAMPLES / f"{name}.py"))
        results: dict[str, Any] = module["main"](url, tmp_path / "pictures", **more)
        (picture,) = (tmp_path / "pictures").iterdir()
        assert picture.name == f"{name}.png"
        content = picture.read_bytes()
        assert content.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", content[16:24])
        assert min(width, height) >= 400
        return results

    return run


@pytest.fixture(scope="module")
def second_server() -> Iterator[Server]:
    """Another service of the same model."""
    with serving(SMOLLM2, "--threads", "1") as server:
        yield server


def test_a_few_heads_look_behind_the_earlier_copy_far_more_than_all_others(
    example: Any, smollm2_server: Server
) -> None:
    found = example("induction_heads", smollm2_server.url)
    scores, ranking = found["scores"], found["ranking"]
    assert scores.shape == (30, 9)
    best = {(layer, head) for layer, head, _ in ranking[:5]}
    assert {(18, 6), (17, 4), (17, 3)} <= best, ranking[:5]
    assert ranking[0][2] > 0.7
    assert ranking[4][2] > 0.5
    assert ranking[4][2] > 20 * np.median(scores)
    assert (scores[:10] < 0.25).all(), "the layers that come first have none"


def test_a_probe_reads_the_subjects_number_off_the_stream_but_not_off_the_last_token(
    example: Any, smollm2_server: Server
) -> None:
    found = example("linear_probe", smollm2_server.url)
    accuracy, control = found["accuracy"], found["control"]
    assert found["points"][0] == "embeddings"
    assert accuracy[0] == 0.5, "every last word stands with as many singular as plural subjects"
    assert accuracy[2:].mean() > 0.85
    assert accuracy[-4:].min() > 0.9
    assert np.abs(control - 0.5).max() < 0.12
    assert abs(control.mean() - 0.5) < 0.04


def test_a_layer_by_hand_is_the_served_one_from_its_points_and_from_its_weights(
    example: Any, smollm2_server: Server
) -> None:
    weights = packaged_model(SMOLLM2, lambda _: None) / "model.safetensors"
    off = example("layer_by_hand", smollm2_server.url, weights=weights)
    assert set(off["points"]) == {"attn_scores", "attn_probs", "z", "resid_mid", "resid_post"}
    assert set(off["weights"]) >= {"ln1", "q", "k", "v", "z", "attn_out", "resid_mid", "ln2", "mlp_out", "resid_post"}
    assert max(off["points"].values()) < 2e-5
    assert max(off["weights"].values()) < 2e-5


def test_two_services_with_half_the_layers_each_give_what_one_gives(
    example: Any, smollm2_server: Server, second_server: Server
) -> None:
    before = second_server.client()
    found = example("split_model", smollm2_server.url, second=second_server.url)
    assert found["layers"] == (15, 15)
    assert all(found["same_tokens"])
    assert len(found["difference"]) == 6
    assert max(found["difference"]) <= 2e-5
    with before as http:
        assert 'route="/forward"' in http.get("/metrics").text, "the second one was not asked"


def test_an_example_runs_from_the_command_line(
    smollm2_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    command = [sys.executable, str(EXAMPLES / "layer_by_hand.py"), "--url", smollm2_server.url]
    done = subprocess.run([*command, "--pictures", str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "attn_probs" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["layer_by_hand.png"]


def test_the_index_names_every_example() -> None:
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    scripts = {path.name for path in EXAMPLES.glob("*.py")} - {"common.py"}
    assert len(scripts) == 4
    for script in scripts:
        assert f"({script})" in index
        assert (EXAMPLES / script).read_text(encoding="utf-8").count("# %%") >= 4


def test_without_a_service_an_example_says_what_to_start() -> None:
    command = [sys.executable, EXAMPLES / "split_model.py", "--url", "http://127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "is a service running at http://127.0.0.1:9?" in done.stderr
