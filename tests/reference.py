"""The chapter's transformer in float64 numpy (Jurafsky & Martin 7.3), formula by formula: what every point must be.

Weights come by their textbook names, as they stand in the file.
"""

from collections.abc import Callable, Mapping
from math import erf, pi, sqrt

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

FFN_ACTIVATIONS: dict[str, Callable[[Matrix], Matrix]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + np.vectorize(erf)(x / sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def layer_norm(x: Matrix, gamma: Matrix, beta: Matrix, eps: float = 1e-5) -> Matrix:
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return gamma * (x - mean) / np.sqrt(variance + eps) + beta


def softmax(x: Matrix) -> Matrix:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def textbook_layer(X: Matrix, w: Mapping[str, Matrix], *, causal: bool, act: str = "relu") -> dict[str, Matrix]:
    """Every point of one layer, from the weights of that layer."""
    T1 = layer_norm(X, w["ln1.gamma"], w["ln1.beta"])
    Q, K, V = T1 @ w["W_Q"], T1 @ w["W_K"], T1 @ w["W_V"]  # [A, N, width]: one product a head
    scores = Q @ K.transpose(0, 2, 1) / sqrt(K.shape[-1])
    if causal:
        scores = np.where(np.tri(len(X), dtype=bool), scores, -np.inf)
    P = softmax(scores)
    heads = P @ V
    T2 = np.concatenate(list(heads), axis=-1) @ w["W_O"]
    T3 = X + T2
    T4 = layer_norm(T3, w["ln2.gamma"], w["ln2.beta"])
    T5 = FFN_ACTIVATIONS[act](T4 @ w["W_1"] + w["b_1"]) @ w["W_2"] + w["b_2"]
    return {
        "resid_pre": X, "ln1": T1, "q": Q, "k": K, "v": V, "attn_scores": scores, "attn_probs": P, "z": heads,
        "attn_out": T2, "resid_mid": T3, "ln2": T4, "mlp_out": T5, "resid_post": T3 + T5,
    }  # fmt: skip


def textbook(
    X: Matrix, w: Mapping[str, Matrix], *, n_layers: int, causal: bool, start: int = 0, act: str = "relu"
) -> dict[str, Matrix]:
    """Every point of layers `start` to L-1, of a matrix that enters layer `start`, and of what follows them."""
    points: dict[str, Matrix] = {} if start else {"embeddings": X}
    for i in range(start, n_layers):
        own = f"layers.{i}."
        of_layer = {name.removeprefix(own): x for name, x in w.items() if name.startswith(own)}
        layer = textbook_layer(X, of_layer, causal=causal, act=act)
        points |= {own + kind: x for kind, x in layer.items()}
        X = layer["resid_post"]
    if "final_norm.gamma" in w:
        X = points["final_norm"] = layer_norm(X, w["final_norm.gamma"], w["final_norm.beta"])
    if "E" in w:
        points["logits"] = X @ w["E"].T
    return points


def embed(tokens: list[int], w: Mapping[str, Matrix], positions: list[int] | None = None) -> Matrix:
    """Token embedding + position."""
    return w["E"][tokens] + w["P"][range(len(tokens)) if positions is None else positions]
