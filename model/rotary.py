"""Rotary positions: the pair (x_j, x_{j + J}) of a head is turned by the angle position * theta^(-j/J).

Su et al., RoFormer (2021), eq. 34, in the "halves" layout that Llama checkpoints are trained with. Angles are
computed in float32 as the reference implementation does: at position 8192 a float64 angle differs visibly.

J = K / 2 where all of a head is turned. Some families turn its first 2J numbers alone and leave the others.

Names end in their dimensions: T rows of the packed matrix, A heads, K head width, J pairs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotation:
    """Cosine and sine of the angle of every row, each [T, 1, 2J]: of the pairs' first numbers, then of their second.

    Of the first numbers the sine has its sign changed, so that x turns to x * cos + swapped(x) * sin.
    """

    cos_T1K: Tensor
    sin_T1K: Tensor

    def __call__(self, x_TAK: Tensor) -> Tensor:
        """Turn every head of every row to its position; [T, A, K] in and out."""
        width = self.cos_T1K.shape[-1]
        first_TAJ, second_TAJ, rest = x_TAK.tensor_split([width // 2, width], dim=-1)
        turned_TAK = torch.cat((second_TAJ, first_TAJ, rest), dim=-1)
        turned_TAK[..., :width].mul_(self.sin_T1K).addcmul_(x_TAK[..., :width], self.cos_T1K)
        return turned_TAK


def rotation(positions_T: Tensor, width: int, theta: float, dtype: torch.dtype) -> Rotation:
    """The rotation for rows at these positions, of the first `width` numbers of each head."""
    pairs_J = torch.arange(0, width, 2, dtype=torch.float32, device=positions_T.device)
    frequencies_J = 1.0 / (theta ** (pairs_J / width))
    angles_TJ = positions_T.float()[:, None] * frequencies_J
    cos_TJ, sin_TJ = angles_TJ.cos().to(dtype), angles_TJ.sin().to(dtype)
    return Rotation(torch.cat((cos_TJ, cos_TJ), -1)[:, None], torch.cat((-sin_TJ, sin_TJ), -1)[:, None])
