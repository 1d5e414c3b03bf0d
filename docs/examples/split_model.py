# %% [markdown]
# # One model on two services
#
# A stack is a row of layers, and between two of them there is nothing but the residual stream. So one service can run
# layers 0 to 14, and another, from what leaves layer 14, layers 15 to 29: the first never runs the deep half, for no
# layer past the deepest output is run, and the second never runs the other, for its `x` enters at `start`.
#
# Nothing may be lost on the way: the stream is sent as the float32 numbers that it is.

# %%
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import picture, run

from headwater_client import Client, MapRun, Output

Array = np.ndarray[Any, Any]
BOUNDARY = 15
TEXTS = [
    "The capital of France is",
    "A river begins in the mountains and ends in the",
    "Two plus two is",
    "The opposite of hot is",
    "The first month of the year is",
    "Water freezes when it is very",
]


# %% [markdown]
# `map` takes any iterable, so the results of the first run can be the inputs of the second, while the first goes on.
def handed_on(first: MapRun) -> Iterator[dict[str, Any]]:
    """What leaves the first half, as what enters the second."""
    for result in first:
        yield {"x": result.answer[f"layers.{BOUNDARY - 1}.resid_post"], "start": BOUNDARY}


def _difference(found: Array, expected: Array) -> float:
    """The largest, as a part of the largest number of its row; of [N, d]."""
    return float((np.abs(found - expected).max(axis=-1) / np.abs(expected).max(axis=-1)).max())


def _lengths(answer: dict[str, Array], first: int, last: int) -> tuple[list[int], list[float]]:
    """Of the stream's last row after each layer."""
    layers = list(range(first, last + 1))
    return layers, [float(np.linalg.norm(answer[f"layers.{i}.resid_post"][-1])) for i in layers]


# %%
def main(url: str, pictures: Path | None = None, second: str | None = None) -> dict[str, Any]:
    """Run each half of the stack on a service of its own, and compare with one service that runs all of it."""
    with Client(url) as here, Client(second or url) as there:
        if here.model().weights_sha256 != there.model().weights_sha256:
            raise SystemExit("the two services have different weights")
        last = here.model().layers - 1
        top = Output("logits", rows=[-1], top_k=3)
        outputs = ["layers.*.resid_post", top]  # from `start` on
        cost = here.dry_run(text=TEXTS[0], outputs=f"layers.{BOUNDARY - 1}.resid_post").layers_run
        rest = there.dry_run(n=5, start=BOUNDARY, outputs=outputs).layers_run
        print(f"layers run: {cost} here, {rest} there")

        halves = here.map(TEXTS, outputs=f"layers.{BOUNDARY - 1}.resid_post")
        split = [dict(result.answer) for result in there.map(handed_on(halves), outputs=outputs)]
        whole = [dict(result.answer) for result in here.map(TEXTS, outputs=outputs)]
        lengths = {"one service": _lengths(whole[0], 0, last), "the second half": _lengths(split[0], BOUNDARY, last)}

        off, same = [], []
        deep = range(BOUNDARY, last + 1)
        for text, one, other in zip(TEXTS, split, whole, strict=True):
            off.append(max(_difference(one[f"layers.{i}.resid_post"], other[f"layers.{i}.resid_post"]) for i in deep))
            same.append(bool(np.array_equal(one["logits.indices"], other["logits.indices"])))
            print(f"{text!r:52} differs by {off[-1]:.1e}, the same next tokens: {same[-1]}")

    with picture(pictures, "split_model", figsize=(7, 3.5)) as axes:
        if axes is not None:
            for (name, (layers, length)), style in zip(lengths.items(), ("-", "o"), strict=True):
                axes.plot(layers, length, style, label=name)
            axes.axvline(BOUNDARY - 0.5, color="gray", linestyle="--", label="handed over")
            axes.set(
                xlabel="layer", ylabel="length of the last row", yscale="log", title=f"{TEXTS[0]!r} on two services"
            )
            axes.legend()
    return {"layers": (cost, rest), "difference": off, "same_tokens": same}


# %%
if __name__ == "__main__":
    run(main, second="another service with the same model; the same one if not given")
