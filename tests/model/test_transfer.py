"""Results that are brought from a device later are those that are taken at once; as far as a CPU can show it."""

import numpy as np
import pytest
import torch

from model.checkpoint.load import LoadedModel
from model.run import begin, run
from tests.model.collect import Remembers, select, sequence, wants

LENGTHS = (5, 1, 9)


def sinks_of(model: LoadedModel) -> list[Remembers]:
    return [Remembers(model.config, n) for n in LENGTHS]


def test_all_points_of_all_layers_come_as_they_are(mgm: LoadedModel) -> None:
    config = mgm.config
    chosen = (
        *wants(config, "embeddings", *(f"layers.*.{kind}" for kind in ("resid_pre", "q", "attn_scores", "z"))),
        select(config, "layers.0.attn_probs", top_k=2, heads=(1,)),
        select(config, "layers.2.resid_post", pool=True, dtype="bfloat16"),
        select(config, "logits", rows=(0,)),
    )
    batch = [sequence(mgm.stack, "tokens", list(range(1, n + 1)), chosen) for n in LENGTHS]
    at_once, later = sinks_of(mgm), sinks_of(mgm)
    run(mgm.stack, batch, list(at_once))
    finish = begin(mgm.stack, batch, list(later), later=True)
    assert finish is not None
    assert not any(sink.found for sink in later), "taken before it is asked for"
    finish()
    for one, other in zip(at_once, later, strict=True):
        assert list(one.found) == list(other.found)
        for name, tensor in one.found.items():
            assert torch.equal(tensor, other.found[name]), name


def test_the_next_run_may_begin_before_the_results_of_the_last_are_taken(mgm: LoadedModel) -> None:
    chosen = wants(mgm.config, "layers.2.resid_post")
    batches = [[sequence(mgm.stack, "tokens", [first, 7, 3], chosen)] for first in (1, 2, 3)]
    expected = [Remembers(mgm.config, 3) for _ in batches]
    found = [Remembers(mgm.config, 3) for _ in batches]
    for batch, sink in zip(batches, expected, strict=True):
        run(mgm.stack, batch, [sink])
    finishes = [begin(mgm.stack, batch, [sink], later=True) for batch, sink in zip(batches, found, strict=True)]
    for finish in finishes:
        assert finish is not None
        finish()
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one.found["layers.2.resid_post"], other.found["layers.2.resid_post"])


@pytest.mark.parametrize("later", [False, True])
def test_what_is_not_finite_fails_its_own_sequence_alone(mgm: LoadedModel, later: bool) -> None:
    stack, chosen = mgm.stack, wants(mgm.config, "layers.0.resid_pre", "layers.0.attn_scores")
    rows = [np.ones((n, mgm.config.d_model), np.float32) for n in LENGTHS]
    rows[1][0, 0] = np.inf
    sinks = sinks_of(mgm)
    finish = begin(stack, [sequence(stack, "x", x, chosen) for x in rows], list(sinks), later=later)
    assert (finish is not None) == later
    if finish is not None:
        finish()
    assert [bool(sink.failed) for sink in sinks] == [False, True, False]
    assert all(len(sinks[i].found) == len(chosen) for i in (0, 2))
