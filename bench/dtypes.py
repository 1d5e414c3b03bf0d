"""What a compute dtype costs in accuracy: `make bench-dtypes` prints the tables of docs/numerics.md.

Each packaged model runs 64 tokens in float32, and again in bfloat16 and in float16; where it reads text, these are the
first of an English text. The error of a row is max|difference| / max|float32| in it: of the layers' resid_post and
attn_probs the worst row of any layer and the median row of all are shown, and the same of final_norm and logits. Then
the float32 run is asked for in the narrower dtypes, which rounds its results once.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch

from model.checkpoint.load import LoadedModel, load_model
from model.checkpoint.packages import packaged_model
from tests.model.collect import sequence, together, wants
from tests.model.english import english

MODELS = ("mgm", "minilm", "smollm2-135m-instruct")
NARROW = ("bfloat16", "float16")
POINTS = ("layers.*.resid_post", "layers.*.attn_probs", "final_norm", "logits")
LENGTH = 64

Results = dict[str, np.ndarray]


def tokens_of(model: LoadedModel) -> list[int]:
    """64 tokens that the model could meet: English, or ids none of which comes twice where it has no tokenizer."""
    if model.tokenizer is None:
        return np.random.default_rng(LENGTH).permutation(model.config.vocab_size)[:LENGTH].tolist()
    return english(model.tokenizer, LENGTH)


def points_of(model: LoadedModel) -> list[str]:
    """Those of POINTS that the model has."""
    config = model.config
    missing = {"final_norm": not config.final_norm, "logits": not config.unembedding}
    return [point for point in POINTS if not missing.get(point)]


def results(model: LoadedModel, dtype: str = "float32") -> Results:
    """All of these points; `dtype` is what the answer comes in. Not finite: not in the results."""
    wanted = [replace(want, dtype=dtype) for want in wants(model.config, *points_of(model))]
    (sink,) = together(model.stack, [sequence(model.stack, "tokens", tokens_of(model), wanted)])
    for name in sink.failed:
        print(f"{model.name}: {name} is not finite")
    return {name: tensor.to(torch.float64).numpy() for name, tensor in sink.found.items()}


def row_errors(found: Results, reference: Results, names: Iterable[str]) -> np.ndarray:
    """The error of each row of these results, all in one list."""
    errors = []
    for name in names:
        size = np.abs(reference[name]).max(-1)
        errors.append((np.abs(found[name] - reference[name]).max(-1) / size).reshape(-1))
    return np.concatenate(errors)


def line(model: LoadedModel, dtype: str, found: Results, reference: Results) -> str:
    """One row of a table: worst and median error of each kind of point."""
    cells = []
    for point in POINTS:
        kind = point.rpartition(".")[2]
        names = [name for name in reference if name.rpartition(".")[2] == kind]
        if not names:
            cells.append("-")
            continue
        errors = row_errors(found, reference, names)
        cells.append(f"{errors.max():.1e} / {np.median(errors):.1e}")
    return f"| {model.name} | {dtype} | {' | '.join(cells)} |"


def main() -> None:
    """Print the tables."""
    head = "\n".join(
        ["| model | dtype | `resid_post` | `attn_probs` | `final_norm` | `logits` |", "|---|---|---|---|---|---|"]
    )
    computed, answered = [head], [head]
    for name in MODELS:
        directory = packaged_model(name, print)
        full = load_model(directory, name=name)
        reference = results(full)
        for dtype in NARROW:
            narrow = load_model(directory, name=name, dtype=dtype)
            computed.append(line(narrow, dtype, results(narrow), reference))
            answered.append(line(full, dtype, results(full, dtype), reference))
    print("Computed in another dtype, worst row / median row:", *computed, sep="\n")
    print("\nAnswered in another dtype by a float32 run, worst row / median row:", *answered, sep="\n")


if __name__ == "__main__":
    main()
