"""The promises of test_packing.py on real weights: of widths for which kernels are chosen by the number of rows."""

import pytest

from model.checkpoint.load import LoadedModel
from model.points import LAYER_KINDS
from model.selection import Wanted
from model.stack import Stack
from tests.model.collect import alone, ask, errors_above, same_bits, sequence, together, wants
from tests.model.english import english

LIMIT = 2e-5
EVERYTHING = ("embeddings", *(f"layers.*.{kind}" for kind in LAYER_KINDS), "final_norm", "logits")


def test_real_sequences_get_the_same_answer_alone_and_in_company(smollm2: LoadedModel) -> None:
    # English: a residual stream of magnitude 19,900 makes random ids as sensitive to rounding as 4e-5
    stack, ids = smollm2.stack, english(smollm2.tokenizer, 300)
    outputs = ["layers.*.resid_post", "layers.*.attn_probs", "final_norm", "logits"]
    lengths = (1, 7, 2, 64, 33, 1)
    batch = [sequence(stack, "tokens", ids[40 * i :][:n], outputs) for i, n in enumerate(lengths)]
    for one, sink in zip(batch, together(stack, batch), strict=True):
        assert errors_above(LIMIT, sink.found, alone(stack, one)) == {}


def test_asking_for_a_row_of_logits_first_changes_no_bit_of_all_the_logits(mgm: LoadedModel) -> None:
    # In company, on a model of real width: there the kernels of a product differ by the number of its rows.
    stack = mgm.stack
    (all_of_them,) = wants(stack.config, "logits")
    one_of_them = Wanted("one row", all_of_them.point, rows=(0,))
    neighbour = sequence(stack, "tokens", range(300, 340), [all_of_them])
    little, much = (
        together(stack, [sequence(stack, "tokens", range(100, 105), outputs), neighbour])[0].found
        for outputs in ([all_of_them], [one_of_them, all_of_them])
    )
    assert same_bits(little["logits"], much["logits"])


@pytest.mark.parametrize("name", ["mgm", "smollm2"])
def test_real_weights_keep_every_bit_however_they_are_asked(name: str, request: pytest.FixtureRequest) -> None:
    """Maps asked or not, begun at the tokens or at any layer: on widths for which kernels are chosen by size."""
    stack: Stack = request.getfixturevalue(name).stack
    last = stack.config.n_layers - 1
    whole = ask(stack, "tokens", range(100, 137), "embeddings", "layers.*.resid_post", "logits")
    busy = ask(stack, "tokens", range(100, 137), *EVERYTHING)
    assert [point for point in whole if not same_bits(whole[point], busy[point])] == []
    for start in (0, 1, 5, last, last + 1):
        entering = whole[f"layers.{start - 1}.resid_post"] if start else whole["embeddings"]
        rest = ask(stack, "x", entering, *(["layers.*.resid_post"] if start <= last else []), "logits", start=start)
        assert [point for point in rest if not same_bits(rest[point], whole[point])] == []
