"""The benchmark against other servers: what its figures rest on."""

import importlib.util
import json
import math
import mmap
import os
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from bench.load.connection import Reply
from bench.load.process import anonymous_bytes
from bench.load.requests import Request
from bench.load.traffic import Attempt, Cost, Visit
from bench.peers.check import worst_deviation
from bench.peers.environments import pinned
from bench.peers.figures import Figures, Target, findings
from bench.peers.in_process import Kept
from bench.peers.limit import Rate, best_rate, operations_of_token, product_shapes, tokens_per_second
from bench.peers.measure import summary
from bench.peers.memory import Peak, need_of_batch
from bench.peers.models import Shape, write_gpt2
from bench.peers.prompts import Want, map_layer, prompts, sequence, to_peers, to_us
from bench.peers.quiet import DISTURBED, Quiet
from model.checkpoint.load import load_model, read_config
from model.run import run

LAYERS, D, HEADS = 3, 14, 2
LENGTHS = (5, 11)
SECONDS = 10.0
LONG = 1e12


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of the benchmark's kind."""
    found = tmp_path_factory.mktemp("bench") / "model"
    write_gpt2(found, Shape(LAYERS, D, HEADS, vocabulary=101, positions=37))
    return found


def of_length(n: int) -> list[int]:
    return [7 * i % 101 for i in range(n)]


def test_the_requests_are_the_same_each_time() -> None:
    before = prompts()
    np.random.default_rng().random()
    assert prompts() == before


def test_the_requests_have_the_lengths_that_are_promised() -> None:
    found = [len(tokens) for tokens in prompts()]
    assert 16 <= len(found) <= 64
    assert min(found) >= 4
    assert max(found) <= 512
    assert 40 < np.median(found) < 100  # of 32 from a lognormal distribution around 64


@pytest.mark.parametrize("want", ["final", "layers", "maps"])
def test_every_server_gets_the_same_ids_for_the_same_request(directory: Path, want: Want) -> None:
    _, config = read_config(directory)
    for ours, theirs, tokens in zip(to_us(want, config), to_peers(want, config), prompts(), strict=True):
        assert json.loads(ours.body)["tokens"] == json.loads(theirs.body)["tokens"] == tokens
        assert ours.tokens == theirs.tokens == len(tokens)


def test_the_limit_counts_operations_as_by_hand(directory: Path) -> None:
    _, config = read_config(directory)
    sequences = [sequence(of_length(n), "final", config) for n in LENGTHS]
    # a layer has 4 d^2 in attention and 8 d^2 in the FFN; row i attends to i + 1 keys, twice d products for each
    by_hand = sum(LAYERS * (2 * n * 12 * D * D + 4 * D * n * (n + 1) // 2) for n in LENGTHS)
    assert operations_of_token(config, sequences) == by_hand / sum(LENGTHS)
    rate = Rate(1e9, "F.linear", 16, D, D)
    assert tokens_per_second(rate, config, sequences) == pytest.approx(1e9 * sum(LENGTHS) / by_hand)


def test_the_best_rate_is_of_a_product_of_the_model(directory: Path) -> None:
    _, config = read_config(directory)
    assert product_shapes(config) == [(D, D), (D, 3 * D), (D, 4 * D), (4 * D, D)]
    rate = best_rate(config, rows=(16,))
    assert (rate.inputs, rate.outputs) in product_shapes(config)
    assert 0 < rate.per_second < 1e14


def test_a_ratio_is_the_median_of_the_rounds_against_the_best_of_each() -> None:
    figures = Figures()
    for ours, first, second in ((30, 10, 5), (40, 10, 20), (90, 10, 45)):
        figures.add("ours", "c=32", ours)
        figures.add("first", "c=32", first)
        figures.add("second", "c=32", second)
    target = Target("speed", "model", "ours", "c=32", ("first", "second", "absent"), bound=2.0, aim=3.0)
    assert target.ratios(figures) == [3.0, 2.0, 2.0]
    (found,) = findings([target], {"model": figures})
    assert (found.found, found.bound, found.holds) == ("2.00 (2.00 to 3.00)", "at least 2 [3]", True)


def test_times_are_compared_with_the_shortest() -> None:
    figures = Figures()
    for row, ms in (("ours", 12.0), ("slow", 100.0), ("fast", 10.0)):
        figures.add(row, "p50", ms)
    target = Target("time", "model", "ours", "p50", ("slow", "fast"), bound=1.1, at_most=True)
    (found,) = findings([target], {"model": figures})
    assert (found.found, found.holds) == ("1.20 (1.20 to 1.20)", False)


def test_what_was_not_measured_is_no_finding() -> None:
    figures = Figures()
    figures.add("ours", "c=32", 1.0)
    target = Target("speed", "model", "ours", "c=32", ("absent",), bound=2.0)
    assert findings([target], {"model": figures}) == []
    assert findings([target], {}) == []


def visit(name: str, tokens: int, due: float, ended: float, status: int = 200) -> Visit:
    attempt = Attempt(due, ended, status, "", math.nan, math.nan, None, None)
    return Visit(Request(name, b"", b"", tokens), due, attempts=[attempt])


def test_rates_count_from_the_last_answer_of_the_starting_time() -> None:
    visits = [visit("a", 100, 10.0, 10.5), visit("b", 7, 10.0, 12.5), visit("a", 13, 10.5, 14.5)]
    found = summary(visits, 10.0, 11.0, Cost(0.0, 1.0, 3))
    assert found.tokens_per_second == pytest.approx(20 / 4)
    assert found.requests_per_second == pytest.approx(2 / 4)
    assert found.p50_ms == pytest.approx(1000 * np.median([np.median([0.5, 4.0]), 2.5]))
    assert found.refused == 0


def test_a_refused_request_counts_as_refused_alone() -> None:
    visits = [visit("a", 100, 10.0, 10.5, status=429), visit("b", 7, 10.0, 12.0)]
    found = summary(visits, 10.0, 11.0, Cost(0.0, 1.0, 2))
    assert (found.tokens_per_second, found.requests_per_second, found.refused) == (3.5, 0.5, 1)


def test_a_request_that_fails_ends_the_measuring() -> None:
    with pytest.raises(AssertionError, match="b: 503"):
        summary([visit("b", 7, 0.0, 1.0, status=503)], 0.0, 0.0, Cost(0.0, 1.0, 1))


def test_an_answer_that_differs_from_ours_is_found() -> None:
    right = np.array([1000, 1, 2, 3], dtype=np.float32)
    wrong = right + np.array([0, 0, 0, 0.3], dtype=np.float32)
    request = Request("final 0", b"", b"", 2)
    replies = [Reply(200, 0.0, body=wrong.tobytes())]
    assert worst_deviation(replies, [right], [request], width=2) == pytest.approx(0.1)  # of the second row
    with pytest.raises(AssertionError, match="3 numbers, and not 4"):
        worst_deviation([Reply(200, 0.0, body=wrong[:3].tobytes())], [right], [request], width=2)


@pytest.fixture(scope="module")
def hidden() -> ModuleType:
    """What the peers on transformers have in common, as their own environments import it."""
    path = Path(__file__).parents[1] / "bench" / "peers" / "servers" / "hidden.py"
    spec = importlib.util.spec_from_file_location("hidden", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("want", ["final", "layers", "maps"])
def test_a_padded_batch_of_a_peer_answers_what_our_stack_does(directory: Path, hidden: ModuleType, want: Want) -> None:
    loaded = load_model(directory, name="bench")
    config = loaded.config
    calls = [{"tokens": of_length(n), "want": want, "layer": map_layer(config)} for n in LENGTHS]
    expected = []
    for n in LENGTHS:
        sink = Kept()
        run(loaded.stack, [sequence(of_length(n), want, config)], [sink])
        tensors = sink.tensors
        if want == "maps":  # made before the final states, and sent after them
            tensors = tensors[::-1]
        expected.append(np.concatenate([tensor.numpy().ravel() for tensor in tensors]))
    requests = [Request(f"{want} {n}", b"", b"", n) for n in LENGTHS]
    for batch in ([0], [1], [0, 1]):
        answers = hidden.forward(directory, [calls[i] for i in batch])
        replies = [Reply(200, 0.0, body=answer) for answer in answers]
        found = worst_deviation(replies, [expected[i] for i in batch], [requests[i] for i in batch], width=D)
        assert found < 1e-5


def test_what_was_disturbed_is_measured_again_while_there_is_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = iter((0.0, 0.0, 0.0, 1e9))  # seconds of all processors: quiet before the first try, not during it
    monkeypatch.setattr("bench.peers.quiet._busy_seconds", lambda: next(busy, 1e9))
    monkeypatch.setattr("bench.peers.quiet.LOOK_SECONDS", 0.01)
    results = iter(("disturbed", "quiet"))
    assert Quiet(patience=LONG).measured(lambda: next(results)) == "quiet"


def test_without_patience_a_disturbed_measurement_counts_and_its_share_is_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = iter((0.0, 1e9))
    monkeypatch.setattr("bench.peers.quiet._busy_seconds", lambda: next(busy, 1e9))
    quiet = Quiet(patience=0.0)
    assert quiet.measured(lambda: "disturbed") == "disturbed"
    assert quiet.shares[0] > DISTURBED


def test_peers_take_torch_in_our_own_version() -> None:
    assert pinned("torch").startswith("torch==")
    with pytest.raises(LookupError, match="no-such-package"):
        pinned("no-such-package")


def test_memory_that_comes_and_goes_is_seen() -> None:
    before, deadline = anonymous_bytes(os.getpid()), time.monotonic() + SECONDS
    with Peak(os.getpid()) as peak:
        # pages of its own: what numpy takes may lie in memory that earlier tests have left resident
        held = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        held.write(b"1" * (64 << 20))
        while peak.nbytes < before + (60 << 20):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        held.close()


def test_the_need_of_a_batch_is_counted_as_by_hand(directory: Path) -> None:
    _, config = read_config(directory)
    # X, T1, Q, K, V, heads: 6 d; O, T4, and twice 4 d: 10 d; the answer: d
    assert need_of_batch(config, 13) == 13 * 4 * (10 + 1) * D
