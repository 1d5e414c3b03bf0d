"""Rotary positions: the pair (x_j, x_{j + K/2}) of a head is turned by the angle position * theta^(-2j/K).

Su et al., RoFormer (2021), eq. 34, in the "halves" layout that Llama checkpoints are trained with. Angles are
computed in float32 as the reference implementation does: at position 8192 a float64 angle differs visibly.

Names end in their dimensions: T rows of the packed matrix, A heads, K head width, J = K / 2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotation:
    """Cosine and sine of the angle of every row and pair, each [T, 1, K / 2]."""

    cos_T1J: Tensor
    sin_T1J: Tensor

    def __call__(self, x_TAK: Tensor) -> Tensor:
        """Turn every head of every row to its position; [T, A, K] in and out."""
        first_TAJ, second_TAJ = x_TAK.chunk(2, dim=-1)
        return torch.cat(
            (
                first_TAJ * self.cos_T1J - second_TAJ * self.sin_T1J,
                second_TAJ * self.cos_T1J + first_TAJ * self.sin_T1J,
            ),
            dim=-1,
        )


def rotation(positions_T: Tensor, width: int, theta: float, dtype: torch.dtype) -> Rotation:
    """The rotation for rows at these positions, in heads of this width."""
    pairs_J = torch.arange(0, width, 2, dtype=torch.float32, device=positions_T.device)
    frequencies_J = 1.0 / (theta ** (pairs_J / width))
    angles_TJ = positions_T.float()[:, None] * frequencies_J
    return Rotation(angles_TJ.cos().to(dtype)[:, None], angles_TJ.sin().to(dtype)[:, None])
