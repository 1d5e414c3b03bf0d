# %% [markdown]
# # Where does the model know whether its subject is singular or plural?
#
# "The key near the cabinets" goes on with "is", "The keys near the cabinet" with "are": the verb agrees with a noun
# that is three words away, over another one that may have another number. At the last token the subject has to be
# known, and the token itself does not tell it.
#
# A linear probe asks at each layer whether the number of the subject can be read off the last row of the residual
# stream, by one direction for all sentences. The nouns that it is tested on are not those that it has learned from.

# %%
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from common import picture, run

from headwater_client import Client, Output

# regular and irregular, one token or several
SUBJECTS = (
    "key keys, book books, teacher teachers, child children, dog dogs, picture pictures, woman women, letter letters, "
    "student students, house houses, man men, tree trees"
).split(", ")
OTHERS = "cabinet cabinets, door doors, river rivers, nurse nurses".split(", ")
Array = np.ndarray[Any, Any]
LEARNED = 8  # of the subjects; four are left for the test
SHUFFLES = 20
RIDGE = 10.0


def sentences() -> tuple[list[str], Array, Array]:
    """Texts; of each whether its subject is plural; and which noun that is. Every combination occurs once.

    So the last word, whatever its number, goes with singular and plural subjects alike: by it alone one can only guess.
    """
    texts, plural, noun = [], [], []
    for (n, forms), others in product(enumerate(SUBJECTS), OTHERS):
        for (is_plural, subject), other in product(enumerate(forms.split()), others.split()):
            texts.append(f"The {subject} near the {other}")
            plural.append(is_plural)
            noun.append(n)
    return texts, np.array(plural), np.array(noun)


# %% [markdown]
# The probe is a ridge regression on labels of -1 and 1: with X the standardised rows [n, d],
# w = X^T (X X^T + r I)^-1 y. Standardised, for some dimensions of this stream are thousands of times as large as
# others.
def accuracy(rows: Array, labels: Array, learned: Array, taught: Array) -> Array:
    """The part of the rows not learned from that are told rightly; one for each column of the labels taught [n, c]."""
    mean, deviation = rows[learned].mean(axis=0), rows[learned].std(axis=0) + 1e-6
    x = np.clip((rows - mean) / deviation, -10, 10)
    inner = x[learned] @ x[learned].T + RIDGE * np.eye(learned.sum())
    w = x[learned].T @ np.linalg.solve(inner, 2.0 * taught[learned] - 1.0)
    told = x[~learned] @ w > 0
    return (told == labels[~learned, None]).mean(axis=0)


# %%
def main(url: str, pictures: Path | None = None) -> dict[str, Any]:
    """Accuracy of a linear probe at each layer, on nouns that it has not seen, beside that of shuffled labels."""
    texts, plural, noun = sentences()
    # one row of each layer is all that is asked for: 70 kB a sentence
    outputs = [Output("embeddings", rows=[-1]), Output("layers.*.resid_post", rows=[-1])]
    with Client(url) as client:
        layers = client.model().layers
        points = ["embeddings", *(f"layers.{i}.resid_post" for i in range(layers))]
        stream = np.stack(
            [
                np.concatenate([result.answer[point] for point in points])
                for result in client.map(texts, outputs=outputs, concurrency=32)
            ]
        ).astype(np.float64)  # [sentences, 1 + L, d]

    learned = noun < LEARNED
    random = np.random.default_rng(5)
    # the control: the same probe taught labels that mean nothing, which it learns as well by heart
    shuffled = np.stack([random.permutation(plural) for _ in range(SHUFFLES)], axis=1)
    found = np.array([accuracy(stream[:, k], plural, learned, plural[:, None])[0] for k in range(len(points))])
    control = np.array([accuracy(stream[:, k], plural, learned, shuffled).mean() for k in range(len(points))])

    print(f"{len(texts)} sentences, {learned.sum()} to learn from; accuracy on the nouns that are left")
    for point, one, other in zip(points, found, control, strict=True):
        print(f"{point:22} {one:.2f}   shuffled {other:.2f}")
    with picture(pictures, "linear_probe", figsize=(7, 4)) as axes:
        if axes is not None:
            axes.plot(range(len(points)), found, "o-", label="number of the subject, unseen nouns")
            axes.plot(range(len(points)), control, "s--", color="gray", label="shuffled labels")
            axes.set(xlabel="layers passed (0: embeddings)", ylabel="accuracy", ylim=(0.3, 1.02))
            axes.set_title('"The keys near the cabinet": is the subject plural?')
            axes.legend()
    return {"points": points, "accuracy": found, "control": control, "sentences": len(texts)}


# %%
if __name__ == "__main__":
    run(main)
