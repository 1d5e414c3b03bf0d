"""Small batches by recordings of the layers: what is recorded, when it is used, and that nobody sees a difference.

A GPU alone has recordings; here a recording does the recorded work again on the same memory.
"""

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

import model.attention
from model.replay import Replays, record
from model.run import begin
from model.selection import Wanted
from model.sequence import Sequence
from model.stack import Stack
from tests.model.collect import Remembers, errors_above, same_bits, select, sequence, together
from tests.model.kernels import stand_in
from tests.model.tiny import L, V

LIMIT = 2e-5
SIZES = (16, 32, 64)


class Again:
    """A recorder that does the work again, and counts."""

    def __init__(self) -> None:
        self.made, self.replayed = 0, Counter[int]()

    def record(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        number, self.made = self.made, self.made + 1
        result = work()

        def replay() -> None:
            self.replayed[number] += 1
            result.copy_(work())

        return replay, result


@pytest.fixture
def recorder(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Again]:
    """Recordings of each small stack, with kernels that take all sequences at once."""
    stand_in(monkeypatch)
    monkeypatch.setattr(model.attention, "TOGETHER_ON", ("cpu",))
    recorder = Again()
    with torch.inference_mode():
        stack.replays = Replays(stack, recorder, SIZES)
    recorder.replayed.clear()
    yield recorder
    stack.replays = None


def x_of(stack: Stack, n: int, *outputs: str | Wanted, start: int = 0) -> Sequence:
    rows = np.random.default_rng(n).standard_normal((n, stack.config.d_model))
    return sequence(stack, "x", rows, outputs, start=start)


def tokens_of(stack: Stack, n: int, *outputs: str | Wanted) -> Sequence:
    return sequence(stack, "tokens", np.random.default_rng(n).integers(0, V, n), outputs)


def without(stack: Stack, batch: list[Sequence]) -> list[Remembers]:
    """What the layers themselves make of a batch."""
    replays, stack.replays = stack.replays, None
    try:
        return together(stack, batch)
    finally:
        stack.replays = replays


def test_a_batch_gets_from_recordings_what_it_gets_from_the_layers(stack: Stack, recorder: Again) -> None:
    batch = [
        tokens_of(stack, 9, "embeddings", "layers.*.resid_post", "final_norm", "logits"),
        x_of(stack, 1, "layers.1.resid_pre", "layers.2.resid_post", start=1),
        x_of(stack, 7, "layers.0.resid_post"),
        x_of(stack, 13, f"layers.{L - 1}.resid_post", start=2),
    ]
    for one, expected in zip(together(stack, batch), without(stack, batch), strict=True):
        assert one.failed == []
        assert list(one.found) == list(expected.found)
        assert errors_above(LIMIT, one.found, expected.found) == {}
    assert sum(recorder.replayed.values()) == L, "each layer by a recording, once"


def test_another_batch_of_the_same_size_has_its_own_places_and_positions(stack: Stack, recorder: Again) -> None:
    for lengths in ((5, 8, 2), (11, 1, 1), (15,)):
        batch = [tokens_of(stack, n, "final_norm") for n in lengths]
        for one, expected in zip(together(stack, batch), without(stack, batch), strict=True):
            assert errors_above(LIMIT, one.found, expected.found) == {}
    assert set(recorder.replayed) == set(range(L)), "all three by the smallest size"


def test_a_layer_of_which_something_within_is_wanted_runs_by_itself(stack: Stack, recorder: Again) -> None:
    batch = [x_of(stack, 6, "layers.1.attn_probs", "layers.1.ln1", f"layers.{L - 1}.resid_post")]
    (found,), (expected,) = together(stack, batch), without(stack, batch)
    assert errors_above(LIMIT, found.found, expected.found) == {}
    assert sorted(recorder.replayed) == [0, 2]


def test_asking_for_more_changes_no_bit_of_the_rest(stack: Stack, recorder: Again) -> None:
    last = f"layers.{L - 1}.resid_post"
    (little,), (much,) = (together(stack, [x_of(stack, 6, last, *more)]) for more in ((), ("layers.*.z",)))
    assert same_bits(little.found[last], much.found[last])


def test_batches_too_large_or_of_too_many_sequences_start_each_kernel_by_itself(stack: Stack, recorder: Again) -> None:
    for batch in ([x_of(stack, 65, "final_norm")], [x_of(stack, 1, "final_norm") for _ in range(5)]):
        for one, expected in zip(together(stack, batch), without(stack, batch), strict=True):
            assert errors_above(LIMIT, one.found, expected.found) == {}
    assert not recorder.replayed


def test_the_next_batch_does_not_write_over_results_that_wait_to_be_copied_out(stack: Stack, recorder: Again) -> None:
    outputs = ("layers.*.resid_pre", "layers.*.resid_post", "final_norm")
    batches = [[tokens_of(stack, n, *outputs)] for n in (5, 6, 7)]
    sinks = [Remembers(stack.config, n) for n in (5, 6, 7)]
    finishes = [begin(stack, batch, [sink], later=True) for batch, sink in zip(batches, sinks, strict=True)]
    for batch, sink, finish in zip(batches, sinks, finishes, strict=True):
        assert finish is not None
        finish()
        (expected,) = without(stack, batch)
        assert errors_above(LIMIT, sink.found, expected.found) == {}


def test_a_neighbour_that_is_not_finite_is_not_seen(stack: Stack, recorder: Again) -> None:
    pooled = select(stack.config, "layers.0.resid_post", pool=True)
    good, bad = x_of(stack, 6, "final_norm", pooled), x_of(stack, 5, "final_norm")
    bad.rows[2, 1] = np.nan
    expected = without(stack, [good])[0].found
    for _ in range(2):  # also not by what it leaves behind
        first, second = together(stack, [good, bad])
        assert errors_above(LIMIT, first.found, expected) == {}
        assert second.failed == ["final_norm"]
        assert errors_above(LIMIT, together(stack, [good])[0].found, expected) == {}


def test_recordings_that_do_not_do_what_the_layers_do_are_not_used(
    stack: Stack, recorder: Again, caplog: pytest.LogCaptureFixture
) -> None:
    class Stale(Again):
        def record(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
            return (lambda: None), super().record(work)[1]

    stack.replays = None
    record(stack, Stale())
    assert stack.replays is None
    assert "is not what was recorded" in caplog.text


def test_attention_by_a_call_for_each_sequence_is_not_recorded(
    stack: Stack, recorder: Again, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.attention, "TOGETHER_ON", ())
    stack.replays = None
    record(stack, Again())
    assert stack.replays is None


def test_a_card_that_cannot_record_serves_all_the_same(
    stack: Stack, recorder: Again, caplog: pytest.LogCaptureFixture
) -> None:
    class Cannot:
        def record(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
            raise RuntimeError("operation not permitted when stream is capturing")

    stack.replays = None
    record(stack, Cannot())
    assert stack.replays is None
    assert "not permitted when stream is capturing" in caplog.text
    assert together(stack, [x_of(stack, 3, "final_norm")])[0].failed == []


def test_on_a_cpu_nothing_is_recorded(stack: Stack) -> None:
    record(stack)
    assert stack.replays is None
