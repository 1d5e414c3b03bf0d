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


# %%
def main(url: str, pictures: Path | None = None, second: str | None = None) -> dict[str, Any]:
    """Run each half of the stack on a service of its own, and compare with one service that runs all of it."""
    with Client(url) as here, Client(second or url) as there:
        if here.model().weights_sha256 != there.model().weights_sha256:
            raise SystemExit("the two services have different weights")
        last = here.model().layers - 1
        outputs = [f"layers.{last}.resid_post", Output("logits", rows=[-1], top_k=3)]
        cost = here.dry_run(text=TEXTS[0], outputs=f"layers.{BOUNDARY - 1}.resid_post").layers_run
        rest = there.dry_run(n=5, start=BOUNDARY, outputs=outputs).layers_run
        print(f"layers run: {cost} here, {rest} there")

        halves = here.map(TEXTS, outputs=f"layers.{BOUNDARY - 1}.resid_post")
        split = [dict(result.answer) for result in there.map(handed_on(halves), outputs=outputs)]
        whole = [dict(result.answer) for result in here.map(TEXTS, outputs=outputs)]

        off, same = [], []
        for text, one, other in zip(TEXTS, split, whole, strict=True):
            a, b = (answer[f"layers.{last}.resid_post"] for answer in (one, other))
            off.append(float((np.abs(a - b).max(axis=-1) / np.abs(b).max(axis=-1)).max()))
            same.append(bool(np.array_equal(one["logits.indices"], other["logits.indices"])))
            print(f"{text!r:52} differs by {off[-1]:.1e}, the same next tokens: {same[-1]}")

    with picture(pictures, "split_model", figsize=(7, 3.5)) as axes:
        if axes is not None:
            axes.barh(TEXTS, off)
            axes.axvline(2e-5, color="red", label="what the service promises")
            axes.set(xlabel="largest difference / largest of the row", title="two halves against one stack")
            axes.legend()
    return {"layers": (cost, rest), "difference": off, "same_tokens": same}


# %%
if __name__ == "__main__":
    run(main, second="another service with the same model; the same one if not given")
