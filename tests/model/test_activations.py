"""Activations are what their formulas say, in float64."""

import math

import pytest
import torch
from torch import Tensor

from model.activations import ACTIVATIONS


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_tanh_gelu_is_its_formula(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.cat([torch.linspace(-12, 12, 10_001), torch.randn(10_000), torch.zeros(1)]).to(dtype)
    exact = gelu_tanh(x.double())
    worst = (ACTIVATIONS["gelu_tanh"](x).double() - exact).abs() / x.double().abs().clamp(min=1e-30)
    assert worst.max() < 2 * torch.finfo(dtype).eps


def test_the_tanh_gelu_of_the_largest_numbers_is_finite() -> None:
    largest = torch.finfo(torch.float32).max
    x = torch.tensor([largest, -largest, 1e20, -1e20])
    assert torch.equal(ACTIVATIONS["gelu_tanh"](x).abs(), torch.tensor([largest, 0.0, 1e20, 0.0]))
