"""What a container must answer: the numbers that the same model gives outside of it."""

from typing import Any

import httpx
import numpy as np

from tests.service.calls import ask

TOLERANCE = 2e-5  # of a row's largest magnitude
OUTPUTS = ["layers.*.resid_post", "layers.1.attn_probs", "logits"]
TOKENS = [2, 3, 5, 7, 11, 13]


def check_answer(client: httpx.Client, expected: dict[str, Any]) -> None:
    """Every number is the one that is given outside of a container."""
    found = ask(client, {"tokens": TOKENS, "outputs": OUTPUTS})
    assert found.keys() == expected.keys()
    assert len(found) == 8
    for name, wanted in expected.items():
        scale = np.abs(wanted).max(axis=-1, keepdims=True)
        assert found[name].shape == wanted.shape, name
        assert (np.abs(found[name] - wanted) <= TOLERANCE * scale).all(), name
