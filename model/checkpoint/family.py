"""What a family of checkpoints has to say: how to read its config, and where its tensors belong."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from model.checkpoint.config_keys import ConfigKeys
from model.checkpoint.tensors import CheckpointTensors
from model.config import StackConfig

Weights = Iterator[tuple[str, Tensor]]


@dataclass(frozen=True)
class Family:
    """An adapter between a family's files and the stack.

    `model_type` is the word in config.json; `prefix` what may stand before every tensor's name; `harmless` the
    config keys that change nothing. `weights` yields each parameter of the stack under its name there.
    """

    model_type: str
    prefix: str
    harmless: frozenset[str]
    read_config: Callable[[ConfigKeys], StackConfig]
    weights: Callable[[StackConfig, CheckpointTensors], Weights]


def linear(ours: str, tensors: CheckpointTensors, theirs: str, rows: int, columns: int, bias: bool = True) -> Weights:
    """A projection that is stored [out, in], as the stack has it, with its bias where it has one."""
    yield f"{ours}.weight", tensors.take(f"{theirs}.weight", rows, columns)
    if bias:
        yield f"{ours}.bias", tensors.take(f"{theirs}.bias", rows)


def layer_norm(ours: str, tensors: CheckpointTensors, theirs: str, d: int) -> Weights:
    """The gain and bias of a LayerNorm, which old files call gamma and beta."""
    old = f"{theirs}.gamma" in tensors
    yield f"{ours}.weight", tensors.take(f"{theirs}.{'gamma' if old else 'weight'}", d)
    yield f"{ours}.bias", tensors.take(f"{theirs}.{'beta' if old else 'bias'}", d)


def unembedding(config: StackConfig, tensors: CheckpointTensors, embedding: str, head: str) -> Weights:
    """The unembedding under its own name, or the embedding once more where the two are tied."""
    if not config.unembedding:
        return
    shape = config.vocab_size, config.d_model
    if config.tied:
        tensors.take_copy_of(embedding, head, *shape)
        yield "unembedding.weight", tensors.take(embedding, *shape)
    else:
        yield "unembedding.weight", tensors.take(head, *shape)


def has_unembedding(architectures: object, tied: bool) -> bool:
    """Whether a checkpoint has logits: tied ones always, others unless they name a model without a head."""
    name = architecture(architectures)  # GPT2Model has no head, GPT2LMHeadModel has one
    return tied or name.endswith("LMHeadModel") or not name.endswith("Model")


def architecture(architectures: object) -> str:
    """The first of a config's `architectures`, or nothing."""
    return str(architectures[0]) if isinstance(architectures, list) and architectures else ""
