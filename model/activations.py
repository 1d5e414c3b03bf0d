"""What stands between the two products of a feed-forward network, by name."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

_LINEAR = math.sqrt(8 / math.pi)
_CUBIC = 0.044715 * _LINEAR


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU in its tanh form, 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel, 2016).

    On a CPU in float32 by the identity (1 + tanh(u)) / 2 = sigmoid(2u), for which torch takes half the time.
    """
    if x.dtype != torch.float32 or x.device.type != "cpu":
        return F.gelu(x, approximate="tanh")
    twice_u = x * x
    return twice_u.mul_(_CUBIC).add_(_LINEAR).mul_(x).sigmoid_().mul_(x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
}
