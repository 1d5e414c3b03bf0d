"""Products with weights: the same numbers in each row however many rows stand beside it, plain or packed."""

from pathlib import Path

import numpy as np
import pytest
import torch

from model.checkpoint.initialise import initialise
from model.checkpoint.load import load_model
from model.config import StackConfig
from model.feed_forward import BLOCK_ROWS, FeedForward, GatedFeedForward
from model.linear import Linear, can_pack, side_by_side

SHAPES = [(30, 53), (53, 30), (257, 1031), (1031, 257), (576, 1536)]
needs_packing = pytest.mark.skipif(not can_pack(), reason="this build of torch cannot pack weights")


CONFIG = StackConfig(
    family="textbook", n_layers=1, d_model=30, n_heads=2, n_kv_heads=2, d_k=7, d_v=5, d_ff=53, vocab_size=101,
    max_positions=61, norm="layer_norm", norm_eps=1e-5, activation="gelu_tanh", attention_scales=(1.0,),
)  # fmt: skip


def linear(inputs: int, outputs: int, *, bias: bool = True, packed: bool = False) -> Linear:
    torch.manual_seed(inputs)
    made = Linear(inputs, outputs, bias=bias).requires_grad_(False)
    if packed:
        made.pack()
    return made


@needs_packing
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_packed_weight_gives_the_product_of_the_plain_one(inputs: int, outputs: int, bias: bool) -> None:
    plain, packed = (linear(inputs, outputs, bias=bias, packed=packed) for packed in (False, True))
    x = torch.randn(101, inputs)
    with torch.inference_mode():
        exact = x.double() @ plain.weight.double().T + (plain.bias.double() if bias else 0.0)
        worst = (packed(x).double() - exact).abs().amax(1) / exact.abs().amax(1)
    assert worst.max() < 3e-6


@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=needs_packing)])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_row_has_one_product_whatever_stands_beside_it(inputs: int, outputs: int, packed: bool) -> None:
    weight = linear(inputs, outputs, packed=packed)
    x = torch.randn(700, inputs)
    with torch.inference_mode():
        whole = weight(x)
        for rows in (1, 2, 3, 5, 8, 13, 15, 16, 17, 31, 64, 100, 257, 512, 699):
            assert torch.equal(weight(x[1 : 1 + rows]), whole[1 : 1 + rows]), rows


@needs_packing
def test_the_layers_of_a_loaded_model_hold_their_weights_once(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    initialise(directory, seed=3, n_layers=2, d_model=30, n_heads=2, d_k=7, d_v=5, d_ff=53, vocab_size=101,
               max_positions=61)  # fmt: skip
    loaded = load_model(directory, name="tiny")
    held = [module for module in loaded.stack.layers.modules() if isinstance(module, Linear)]
    assert sum(module.is_packed for module in held) == 2 * 4, "q, k and v are one product"
    assert all(module.weight is None for module in held)
    assert all(module.is_packed or module.bias is None for module in held)
    assert loaded.stack.unembedding is None or loaded.stack.unembedding.weight is not None
    assert loaded.parameters > 2 * (30 * 53 * 2)


@pytest.mark.parametrize("bias", [True, False])
def test_products_side_by_side_are_those_of_each_part(bias: bool) -> None:
    parts = [linear(30, outputs, bias=bias) for outputs in (53, 7, 11)]
    x = torch.randn(40, 30)
    with torch.inference_mode():
        expected = torch.cat([part(x) for part in parts], dim=1)
        joined = side_by_side(*parts)
        torch.testing.assert_close(joined(x), expected, rtol=1e-5, atol=1e-5)
    assert all(part.weight is None and part.bias is None for part in parts), "held twice"


@needs_packing
@pytest.mark.parametrize("kind", [FeedForward, GatedFeedForward])
def test_a_long_input_goes_through_the_network_in_blocks_and_comes_out_the_same(
    kind: type[FeedForward], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = kind(CONFIG).requires_grad_(False)
    network.join()
    for part in network.children():
        if part.weight is not None:
            part.pack()  # type: ignore[operator]
    x = torch.from_numpy(np.random.default_rng(5).standard_normal((3 * BLOCK_ROWS + 7, 30)).astype(np.float32))
    with torch.inference_mode():
        blocks = network(x)
        monkeypatch.setattr("model.feed_forward.BLOCK_ROWS", len(x))
        # activations of the last few numbers of a matrix are computed one by one, and differ in the last bit
        torch.testing.assert_close(network(x), blocks, rtol=1e-6, atol=1e-7)
