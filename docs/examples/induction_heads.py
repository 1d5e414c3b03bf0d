# %% [markdown]
# # Induction heads
#
# An induction head continues a pattern that it has seen: at a token that stood here before, it looks at what came
# after it then (Olsson et al., 2022). On random tokens that repeat with period P there is nothing else to go by, so
# such a head is easy to tell: from position t it looks at t - P + 1.
#
# The score of a head is the attention that goes there, averaged over the second round.

# %%
from pathlib import Path
from typing import Any

import numpy as np
from common import picture, run

from headwater_client import Client, Output

PERIOD, SEQUENCES, SEED = 32, 4, 7


# %% [markdown]
# The map of a head over both rounds is [2P, 2P], but all that counts is the diagonal of one square: the rows of the
# second round (P to 2P-1), and the keys 1 to P, so that entry (j, j) goes from t = P + j to t - P + 1. The service
# cuts this square out of every map, so a quarter of it is sent, in half the bytes.
def square() -> Output:
    """The rows of the second round, and the columns right behind the same tokens of the first."""
    return Output("layers.*.attn_probs", rows=slice(PERIOD, 2 * PERIOD), keys=slice(1, PERIOD + 1), dtype="float16")


# %%
def main(url: str, pictures: Path | None = None) -> dict[str, Any]:
    """Rank all heads by how much they look behind the earlier copy of the token that they stand on."""
    with Client(url) as client:
        model = client.model()
        random = np.random.default_rng(SEED)
        # rare tokens are words of no common phrase, so that nothing but the repetition can be continued
        rounds = random.integers(1000, model.vocab_size or 0, size=(SEQUENCES, PERIOD))
        scores = np.zeros((model.layers, model.heads))
        for result in client.map([np.tile(one, 2) for one in rounds], outputs=square()):
            for i in range(model.layers):
                squares = result.answer[f"layers.{i}.attn_probs"]  # [A, P, P]
                scores[i] += np.diagonal(squares, axis1=1, axis2=2).mean(axis=1, dtype=np.float64) / SEQUENCES

    order = np.argsort(scores, axis=None)[::-1]
    places = zip(*np.unravel_index(order, scores.shape), strict=True)
    ranking = [(int(i), int(head), float(scores[i, head])) for i, head in places]
    print("layer  head  attention to t - P + 1")
    for i, head, score in ranking[:10]:
        print(f"{i:5}  {head:4}  {score:.3f}")
    print(f"median of all {scores.size} heads: {np.median(scores):.4f}; by chance: {1 / (1.5 * PERIOD):.4f}")

    with picture(pictures, "induction_heads", figsize=(4.5, 7)) as axes:
        if axes is not None:
            image = axes.imshow(scores, aspect="auto", cmap="magma", vmin=0, vmax=1)
            axes.set(
                xlabel="head", ylabel="layer", title=f"attention from t to t - {PERIOD - 1}\non repeated random tokens"
            )
            axes.figure.colorbar(image)
    return {"scores": scores, "ranking": ranking}


# %%
if __name__ == "__main__":
    run(main)
