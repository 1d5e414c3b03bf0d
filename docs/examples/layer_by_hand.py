# %% [markdown]
# # A layer, recomputed by hand
#
# The chapter's layer (Jurafsky & Martin, 7.3) in numpy, in float64, against what the service says of the same text.
# First attention from the served Q, K and V, for which no weights are needed:
#
#     scores = mask(Q K^T / sqrt(d_k))     P = softmax(scores)     head = P V
#
# then what the residual stream promises: T3 = X + T2, H = T3 + T5. And, where the file of weights is at hand, the rest:
# the norms, the projections, W_O and the FFN. SmolLM2 differs from the chapter in three places: its norm is
# RMSNorm, its FFN is W_down (silu(W_gate T4) * (W_up T4)), and each of three K and V serves three heads of Q.

# %%
from pathlib import Path
from typing import Any

import numpy as np
from common import picture, run

from headwater_client import Client
from headwater_client.safetensors import read

Array = np.ndarray[Any, Any]
LAYER = 11
TEXT = "A river begins in the mountains and ends in the sea."
THETA, EPSILON = 100_000.0, 1e-5  # of this checkpoint's config.json


def softmax(scores: Array) -> Array:
    """Over the last axis."""
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def rms_norm(x: Array, gamma: Array) -> Array:
    """gamma * x / sqrt(mean(x^2) + eps), row by row."""
    return gamma * x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPSILON)


def rotated(x: Array) -> Array:
    """[A, N, d_k]: the pair (j, j + d_k/2) of each row turned by its position times theta^(-2j/d_k)."""
    n, half = x.shape[1], x.shape[2] // 2
    angle = np.arange(n)[:, None] * THETA ** (-np.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


# %%
def from_points(t: dict[str, Array]) -> dict[str, Array]:
    """What follows from the served points alone."""
    heads, n, d_k = t["q"].shape
    k, v = (np.repeat(t[name], heads // len(t[name]), axis=0) for name in "kv")  # query head h uses K, V of h // 3
    causal = np.tri(n, dtype=bool)
    scores = np.where(causal, t["q"] @ k.transpose(0, 2, 1) / np.sqrt(d_k), -np.inf)
    maps = softmax(scores)
    return {
        "attn_scores": scores,
        "attn_probs": maps,
        "z": maps @ v,
        "resid_mid": t["resid_pre"] + t["attn_out"],
        "resid_post": t["resid_mid"] + t["mlp_out"],
    }


# %%
def from_weights(t: dict[str, Array], path: Path) -> dict[str, Array]:
    """The whole layer from X, and the weights in the file that the service loads."""
    tensors, _ = read(np.memmap(path, np.uint8, "r"))  # mapped: of 540 MB only this layer is read
    prefix = next(name for name in tensors if name.endswith("embed_tokens.weight")).removesuffix("embed_tokens.weight")

    def weight(name: str) -> Array:
        return tensors[f"{prefix}layers.{LAYER}.{name}.weight"].numbers().astype(np.float64)

    def in_heads(x: Array) -> Array:
        return x.reshape(len(x), -1, t["q"].shape[-1]).transpose(1, 0, 2)

    ln1 = rms_norm(t["resid_pre"], weight("input_layernorm"))
    q, k, v = (in_heads(ln1 @ weight(f"self_attn.{name}_proj").T) for name in "qkv")
    q, k = rotated(q), rotated(k)
    z = from_points({**t, "q": q, "k": k, "v": v})["z"]
    attn_out = np.concatenate(list(z), axis=-1) @ weight("self_attn.o_proj").T
    resid_mid = t["resid_pre"] + attn_out
    ln2 = rms_norm(resid_mid, weight("post_attention_layernorm"))
    gate = ln2 @ weight("mlp.gate_proj").T
    mlp_out = (gate / (1 + np.exp(-gate)) * (ln2 @ weight("mlp.up_proj").T)) @ weight("mlp.down_proj").T
    return {
        "ln1": ln1, "q": q, "k": k, "v": v, "z": z, "attn_out": attn_out, "resid_mid": resid_mid, "ln2": ln2,
        "mlp_out": mlp_out, "resid_post": resid_mid + mlp_out,
    }  # fmt: skip


def worst(found: Array, served: Array) -> float:
    """The largest difference, as a part of the largest number of its row; masked entries must be masked in both."""
    assert np.array_equal(np.isneginf(found), np.isneginf(served))
    found, served = (np.where(np.isneginf(x), 0.0, x) for x in (found, served))
    return float((np.abs(found - served).max(axis=-1) / np.abs(served).max(axis=-1)).max())


# %%
def main(url: str, pictures: Path | None = None, weights: str | Path | None = None) -> dict[str, Any]:
    """Recompute one layer by hand, from what the service gives and, if it is given, from the file of weights."""
    with Client(url) as client:
        own = f"layers.{LAYER}."
        names = [name.removeprefix(own) for name in client.model().points if name.startswith(own)]
        answer = client.forward(text=TEXT, outputs=[own + name for name in names])
    t = {name: answer[own + name].astype(np.float64) for name in names}
    off = {"points": {name: worst(x, t[name]) for name, x in from_points(t).items()}}
    if weights is not None:
        off["weights"] = {name: worst(x, t[name]) for name, x in from_weights(t, Path(weights)).items()}
    for source, of_points in off.items():
        print(f"layer {LAYER} from its {source}: largest difference, as a part of the row's largest number")
        for name, part in of_points.items():
            print(f"  {name:12} {part:.1e}")

    with picture(pictures, "layer_by_hand", figsize=(7, 3.5)) as axes:
        if axes is not None:
            for source, of_points in off.items():
                axes.plot(list(of_points), list(of_points.values()), "o", label=f"from {source}")
            axes.set(yscale="log", ylabel="difference / largest of the row", title=f"layer {LAYER} by hand, in float64")
            axes.tick_params(axis="x", rotation=45)
            axes.legend()
    return off


# %%
if __name__ == "__main__":
    run(main, weights="model.safetensors of the model that is served; without it, only what the points tell")
