"""A product with a weight whose result does not depend on how many rows stand in the matrix.

Names end in their dimensions: T rows of the packed matrix, I inputs, O outputs.
"""

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

    def forward(self, x_TI: Tensor) -> Tensor:
        missing = MIN_ROWS - len(x_TI)
        if missing <= 0:
            return F.linear(x_TI, self.weight, self.bias)
        return F.linear(F.pad(x_TI, (0, 0, 0, missing)), self.weight, self.bias)[: len(x_TI)]
