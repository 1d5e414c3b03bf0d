"""What can go wrong in the model, in words that a person at a terminal or a caller can act on."""


class CheckpointError(Exception):
    """A checkpoint cannot be served as it is; the message is one line that names the file and the fault."""


class NonFiniteResult(Exception):
    """A point that was asked for holds NaN or Inf, or does not fit the dtype asked for.

    `point` is the name of the point, `dtype` the dtype of the answer.
    """

    def __init__(self, point: str, dtype: str) -> None:
        super().__init__(f"{point} has values that are NaN, Inf, or beyond the range of {dtype}")
        self.point = point
        self.dtype = dtype


class NobodyWaits(Exception):
    """A run was given up between two layers, because nobody waits for any of its sequences."""
