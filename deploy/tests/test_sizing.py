"""docs/deploy.md: what it says of speed and memory hangs together, and the manifests have what follows from it."""

import json
import re
from pathlib import Path

import pytest

from bench.load.process import MEBIBYTE, anonymous_bytes
from bench.sizing import RUNTIME_BYTES, need_of, numbers_in_layers, requests
from deploy.tests.choices import ROOT, Choice
from deploy.tests.manifests import Manifests, quantity
from model.checkpoint.initialise import initialise
from model.checkpoint.load import read_config
from model.config import StackConfig
from service.limits import BATCH_SECONDS, QUEUE_SECONDS
from service.warm_up import SIZES
from tests.server import serving

PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
MODELS = ("SmolLM2-135M", "MiniLM", "GPT-2-small")
IN_OVERLAY = "GPT-2-small"
FURTHER_DOUBLING = 0.8  # of a core's speed, for each doubling of threads beyond two
WAIT_SECONDS = 2.0  # that callers may wait
HELD_BYTES = 1 << 30  # of bodies and answers, that there should be room for
MOST_OFF = 0.15  # of the formula, that a measured peak may be
SHAPES = {
    "GPT-2-small": {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257},
    "SmolLM2-135M": {
        "model_type": "llama", "num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9,
        "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "rope_theta": 100000,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    },
    "MiniLM": {
        "model_type": "bert", "num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12,
        "intermediate_size": 1536, "vocab_size": 30522,
    },
}  # fmt: skip


def table(name: str) -> list[list[str]]:
    """The cells of the rows of a table of the page, without thousands' commas."""
    found = re.search(rf"<!-- table: {name} -->\n\|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE)
    assert found is not None, name
    return [[cell.strip().replace(",", "") for cell in row.split("|")[1:-1]] for row in found[1].splitlines()]


def config_of(model: str, folder: Path) -> StackConfig:
    (folder / "config.json").write_text(json.dumps(SHAPES[model]))
    return read_config(folder)[1]


def per_core(model: str) -> float:
    """Tokens a second of a core, of two threads."""
    (row,) = (row for row in table("speed") if row[0] == model)
    return float(row[4])


@pytest.mark.parametrize("model", MODELS)
def test_the_rows_of_the_table_of_speeds_agree_with_themselves_and_the_shape(model: str, tmp_path: Path) -> None:
    (row,) = (row for row in table("speed") if row[0] == model)
    millions, _, two, core, gflops = map(float, row[1:])
    numbers = numbers_in_layers(config_of(model, tmp_path))
    assert round(numbers / 1e6) == millions
    assert core == pytest.approx(two / 2, abs=1)
    assert gflops == pytest.approx(2 * numbers * core / 1e9, abs=1)


def test_the_first_guess_for_another_model_fits_those_that_were_measured() -> None:
    (guess,) = re.findall(r"(\d+) GFLOP/s a core over that is a first guess", PAGE)
    for row in table("speed"):
        assert float(row[5]) == pytest.approx(float(guess), rel=0.15), row[0]
    assert f"1,000 million numbers {float(guess) / 2:.0f} tokens/s a core" in PAGE.replace("\n  ", " ")


@pytest.mark.parametrize("row", table("memory"), ids=lambda row: row[0])
def test_the_formula_of_memory_gives_the_numbers_of_the_table_and_was_right(row: list[str], tmp_path: Path) -> None:
    model = row[0].rpartition(" ")[0]
    found = re.fullmatch(r"(\d+) \((\d+)\)", row[3])
    assert found is not None
    need = need_of(config_of(model, tmp_path), int(found[2]))
    in_page = [float(cell) for cell in (row[1], row[2], found[1], row[4])]
    assert in_page == [round(size / MEBIBYTE) for size in (need.runtime, need.layers, need.batch, need.total)]
    least = need_of(config_of(model, tmp_path), SIZES[-1]).total / MEBIBYTE
    warm, peak, _ = map(float, row[5:8])
    assert warm == pytest.approx(least, rel=MOST_OFF), "the largest batch has not come yet"
    assert (1 - MOST_OFF) * least <= peak <= (1 + MOST_OFF) * in_page[3]


def test_every_model_is_in_every_table() -> None:
    assert tuple(row[0] for row in table("speed")) == tuple(row[0] for row in table("requests")) == MODELS
    assert [row[0] for row in table("memory")] == [f"{model} {threads}" for model in MODELS for threads in (1, 2)]


@pytest.mark.parametrize("model", MODELS)
def test_what_to_ask_for_follows_from_both(model: str) -> None:
    (row,) = (row for row in table("requests") if row[0] == model)
    threads, limit, speed, waiting = int(row[1]), int(row[2]), float(row[4]), float(row[5])
    assert threads == 4, "one doubling of two"
    assert limit == threads + 1
    assert speed == pytest.approx(threads * per_core(model) * FURTHER_DOUBLING, abs=1)
    assert waiting == round(WAIT_SECONDS * speed, -2)
    needed = max(float(one[4]) + float(one[8]) for one in table("memory") if one[0].startswith(model)) * MEBIBYTE
    assert quantity(row[3].replace(" GiB", "Gi")) >= needed + 2 * HELD_BYTES


def test_the_overlay_asks_for_what_the_page_says(everything: dict[Choice, Manifests]) -> None:
    (row,) = (row for row in table("requests") if row[0] == IN_OVERLAY)
    built = everything[Choice("cpu")]
    resources = built.container["resources"]
    assert [resources["requests"]["cpu"], resources["limits"]["cpu"]] == row[1:3]
    assert resources["requests"]["memory"] == resources["limits"]["memory"] == row[3].replace(" GiB", "Gi")
    autoscaler = built.the("HorizontalPodAutoscaler")["spec"]
    assert autoscaler["metrics"][0]["pods"]["target"]["averageValue"] == row[5]
    busy = float(autoscaler["metrics"][1]["pods"]["target"]["averageValue"])
    most = round(autoscaler["maxReplicas"] * busy * float(row[4]), -2)
    assert f"the base's {autoscaler['maxReplicas']} do {most:,.0f}" in PAGE


def test_the_wait_that_is_wished_is_more_than_a_batch_and_much_less_than_the_queue() -> None:
    assert 2 * BATCH_SECONDS <= WAIT_SECONDS <= QUEUE_SECONDS / 10
    assert f"Less than {BATCH_SECONDS:g} s is less than one batch" in PAGE
    assert f"{QUEUE_SECONDS:g} s is\n  where the queue ends" in PAGE


def test_a_model_of_ones_own_is_asked_for_ids_and_positions_that_it_has(tmp_path: Path) -> None:
    initialise(tmp_path / "model", seed=3, n_layers=1, d_model=8, n_heads=1, vocab_size=11, max_positions=7)
    config = read_config(tmp_path / "model")[1]
    asked = [json.loads(request.body) for request in requests(config, ["layers.0.resid_post"])]
    assert max(len(one["tokens"]) for one in asked) == 7
    assert all(0 <= token < 11 for one in asked for token in one["tokens"])
    initialise(tmp_path / "without", seed=3, n_layers=1, d_model=8, n_heads=1)
    with pytest.raises(ValueError, match="vocab_size is 0"):
        requests(read_config(tmp_path / "without")[1], [])


def test_a_server_holds_what_the_formula_says(tmp_path: Path) -> None:
    """Small enough for a test; most of it is what Python and torch take before any model."""
    initialise(tmp_path / "model", seed=3, n_layers=8, d_model=512, n_heads=8, d_ff=2048)
    need = need_of(read_config(tmp_path / "model")[1], max_batch_tokens=1024)
    assert need.total > RUNTIME_BYTES + 100 * MEBIBYTE
    options = ("--threads", "1", "--log-level", "warning", "--max-batch-tokens", "1024")
    with serving(tmp_path / "model", *options) as server:
        assert anonymous_bytes(server.process.pid) == pytest.approx(need.total, rel=0.25)
