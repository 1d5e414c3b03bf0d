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
    """Cosine and sine of the angle of every row and pair, each [T, 1, J]."""

    cos_T1J: Tensor
    sin_T1J: Tensor

    def __call__(self, x_TAK: Tensor) -> Tensor:
        """Turn every head of every row to its position; [T, A, K] in and out."""
        pairs = self.cos_T1J.shape[-1]
        first_TAJ, second_TAJ, rest = x_TAK[..., :pairs], x_TAK[..., pairs : 2 * pairs], x_TAK[..., 2 * pairs :]
        return torch.cat(
            (
                first_TAJ * self.cos_T1J - second_TAJ * self.sin_T1J,
                second_TAJ * self.cos_T1J + first_TAJ * self.sin_T1J,
                rest,
            ),
            dim=-1,
        )


def rotation(positions_T: Tensor, width: int, theta: float, dtype: torch.dtype) -> Rotation:
    """The rotation for rows at these positions, of the first `width` numbers of each head."""
    pairs_J = torch.arange(0, width, 2, dtype=torch.float32, device=positions_T.device)
    frequencies_J = 1.0 / (theta ** (pairs_J / width))
    angles_TJ = positions_T.float()[:, None] * frequencies_J
    return Rotation(angles_TJ.cos().to(dtype)[:, None], angles_TJ.sin().to(dtype)[:, None])
