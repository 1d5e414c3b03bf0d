"""A product with a weight whose result does not depend on how many rows stand in the matrix.

Names end in their dimensions: T rows of the packed matrix, I inputs, O outputs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MIN_ROWS = 16


class Linear(nn.Linear):
    """x W^T + b, [T, I] to [T, O].

    For fewer than about a dozen rows the libraries behind torch take other kernels, which sum in another order. In a
    deep model such last bits grow beyond what is promised, so that a short sequence would get one answer alone and
    another in company. Rows of zeros below, which nobody owns, keep the product at a size at which each row has one
    result.
    """

    _packed: Tensor | None = None

    def reset_parameters(self) -> None:
        """Random numbers, but not on the meta device, where torch would import its compiler for that, for a second."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def pack(self) -> None:
        """Lay the weight out as oneDNN reads it fastest, and let go of it as it was; for float32 on the CPU.

        Its products are up to three times as fast for few rows, and one and the same for every number of rows above 1.
        """
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach())
        self.register_parameter("weight", None)

    @property
    def is_packed(self) -> bool:
        """Whether each row's product is the same whatever stands beside it, to the last bit."""
        return self._packed is not None

    def forward(self, x_TI: Tensor) -> Tensor:
        missing = MIN_ROWS - len(x_TI)
        if missing <= 0:
            return self._product(x_TI)
        return self._product(F.pad(x_TI, (0, 0, 0, missing)))[: len(x_TI)]

    def _product(self, x_TI: Tensor) -> Tensor:
        if self._packed is None:
            return F.linear(x_TI, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x_TI, self._packed, self.bias, "none", [], "")  # type: ignore[no-any-return]


def side_by_side(*parts: Linear) -> Linear:
    """One product for several of the same inputs, [T, I] to [T, O1 + O2 + ...]; the parts give their weights up.

    Every column is what it was, and few columns at a time are slow: the three of attention gain a tenth to a third.
    """
    with torch.device("meta"):
        joined = Linear(parts[0].in_features, sum(part.out_features for part in parts), parts[0].bias is not None)
    for name in ("weight", "bias"):
        if getattr(joined, name) is not None:
            whole = torch.cat([getattr(part, name).detach() for part in parts])
            joined.register_parameter(name, nn.Parameter(whole, requires_grad=False))
        for part in parts:
            part.register_parameter(name, None)
    return joined


def can_pack() -> bool:
    """Whether this build of torch has what `pack` needs; it is not part of torch's public interface."""
    names = ("_reorder_linear_weight", "_linear_pointwise")
    is_there: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return is_there and all(hasattr(torch.ops.mkldnn, name) for name in names)
