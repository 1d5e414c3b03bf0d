"""The requests: the same for every server, each time. Ids go in as JSON, numbers come out in binary.

Ours answers in safetensors; the others with the bare float32 numbers of one array.
"""

from typing import Any, Literal

import numpy as np

from bench.load.connection import Reply
from bench.load.requests import Request, ask, ids, lengths
from model.config import StackConfig
from model.points import expand
from model.selection import Wanted
from model.sequence import Sequence

COUNT, SEED = 32, 11
MAP_LAYER = 0.5  # how deep in the stack the layer lies whose maps are asked for

Want = Literal["final", "layers", "maps"]
"""The states after the final norm; those of all layers, as transformers numbers them; the final ones and the maps of
all heads of one layer."""

Array = np.ndarray[Any, Any]


def prompts(count: int = COUNT, seed: int = SEED) -> list[list[int]]:
    """Token ids of lognormal lengths, median 64, from 4 to 512."""
    random = np.random.default_rng(seed)
    return [ids(random, n) for n in lengths(random, count)]


def map_layer(config: StackConfig) -> int:
    """The layer whose maps are asked for."""
    return int(MAP_LAYER * config.n_layers)


def names(want: Want, config: StackConfig) -> list[str]:
    """What is asked of our service."""
    match want:
        case "final":
            return ["final_norm"]
        case "layers":
            return [f"hidden_states.{k}" for k in range(1, config.n_layers + 1)]
        case "maps":
            return ["final_norm", f"layers.{map_layer(config)}.attn_probs"]


def sequence(tokens: list[int], want: Want, config: StackConfig) -> Sequence:
    """The same for the stack itself."""
    wanted = tuple(Wanted(name, point) for one in names(want, config) for name, point in expand(one, config, start=0))
    return Sequence("tokens", np.array(tokens, dtype=np.int64), 0, config.n_layers, wanted)


def to_us(want: Want, config: StackConfig) -> list[Request]:
    """All requests as our service takes them."""
    outputs = names(want, config)
    return [
        ask(f"{want} {i}", {"tokens": tokens, "outputs": outputs}, len(tokens)) for i, tokens in enumerate(prompts())
    ]


def to_peers(want: Want, config: StackConfig) -> list[Request]:
    """All requests as the servers in `servers/` take them."""
    fields = {"want": want, "layer": map_layer(config)}
    return [
        ask(f"{want} {i}", {"tokens": tokens, **fields}, len(tokens), path="/predict", accept="*/*")
        for i, tokens in enumerate(prompts())
    ]


def numbers_of_ours(tensors: dict[str, Array], want: Want, config: StackConfig) -> Array:
    """Our answer's tensors, one after the other in the order in which the others send them."""
    return np.concatenate([tensors[name].ravel() for name in names(want, config)])


def numbers_of_theirs(reply: Reply) -> Array:
    """The numbers of another server's answer."""
    return np.frombuffer(reply.body, np.float32)
