"""What comes back: named arrays over the received bytes, and what the service says of them."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headwater_client.errors import BrokenAnswer
from headwater_client.safetensors import read
from headwater_client.tensors import Array, Tensor

if TYPE_CHECKING:
    import torch


class About:
    """What stands in an answer beside its tensors."""

    def __init__(self, metadata: Mapping[str, str], request_id: str | None) -> None:
        #: the name of the model that answered
        self.model: str = metadata.get("model", "")
        #: tokens, queue_ms, compute_ms (not of streamed answers) and batch; with `inputs`, a list with one for each
        self.usage: Any = _parsed(metadata, "usage")
        #: {"ids", "strings"} where the input was a text or tokens; with `inputs`, a list
        self.tokens: Any = _parsed(metadata, "tokens")
        #: point, layer, axes, textbook symbol and more of each result, under `results`; model, weights' hash, dtype
        self.manifest: dict[str, Any] = _parsed(metadata, "manifest") or {}
        #: the id of the call in the service's log; None of an answer that was read from a file
        self.request_id = request_id

    @property
    def weights_sha256(self) -> str | None:
        """The hash of the weights that made the answer."""
        found = self.manifest.get("weights_sha256")
        return found if isinstance(found, str) else None


class Answer(Mapping[str, Array]):
    """The arrays of an answer by their names, in the order in which the stack made them.

    `answer["layers.4.attn_probs"]` is a view of what was received, so it costs nothing and keeps all of the answer in
    memory; copy what should outlive it. bfloat16 comes as float32, which is a copy, made anew at each look; `bits()`
    and `torch()` give it as it is.
    """

    def __init__(self, body: Array, request_id: str | None = None) -> None:
        self._tensors, metadata = read(body)
        self._body = body
        self.about = About(metadata, request_id)
        self.metadata = metadata

    @classmethod
    def load(cls, path: str | Path) -> "Answer":
        """An answer that was saved; its arrays are views of the file, read when looked at, and may not be changed."""
        return cls(np.memmap(path, np.uint8, "r"))

    def save(self, path: str | Path) -> None:
        """Write it as a .safetensors file, which every library of that format can read."""
        with Path(path).open("wb") as file:
            file.write(self._body.data)

    def __getitem__(self, name: str) -> Array:
        return self.tensor(name).numbers()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {one.dtype} {list(one.shape)}" for name, one in list(self._tensors.items())[:8])
        return f"<Answer of {self.model}: {shapes}{', ...' if len(self) > 8 else ''}>"

    def tensor(self, name: str) -> Tensor:
        """A tensor with its dtype on the wire. Raises KeyError, with the names that there are."""
        try:
            return self._tensors[name]
        except KeyError:
            raise KeyError(f"{name}; the answer has {', '.join(list(self._tensors)[:20])}") from None

    def bits(self, name: str) -> Array:
        """An array as it is stored, without a copy: bfloat16 as uint16."""
        return self.tensor(name).bits()

    def torch(self) -> "dict[str, torch.Tensor]":
        """All of it as torch tensors over the same memory, bfloat16 as such."""
        return {name: one.torch() for name, one in self._tensors.items()}

    def split(self) -> list[dict[str, Array]]:
        """Of a call with `inputs`: the arrays of each sequence, `0.logits` as `logits` of the first."""
        if not isinstance(self.usage, list):
            raise ValueError("only the answer to a call with `inputs` can be split")
        found: list[dict[str, Array]] = [{} for _ in self.usage]
        for name, tensor in self._tensors.items():
            index, _, own = name.partition(".")
            found[int(index)][own] = tensor.numbers()
        return found

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(one.nbytes for one in self._tensors.values())

    @property
    def model(self) -> str:
        """The name of the model that answered."""
        return self.about.model

    @property
    def manifest(self) -> dict[str, Any]:
        """Of each result its point, layer, axes and more (`results`); the weights' hash, the dtype of computing."""
        return self.about.manifest

    @property
    def usage(self) -> Any:
        """tokens, queue_ms, compute_ms and batch; with `inputs`, a list with one for each."""
        return self.about.usage

    @property
    def tokens(self) -> Any:
        """{"ids", "strings"} of a text or of tokens, else None; with `inputs`, a list."""
        return self.about.tokens

    @property
    def request_id(self) -> str | None:
        """The id of the call in the service's log; None of an answer that was read from a file."""
        return self.about.request_id


def _parsed(metadata: Mapping[str, str], key: str) -> Any:
    try:
        return json.loads(metadata.get(key, "null"))
    except ValueError:
        raise BrokenAnswer(f"the answer's {key} is not JSON") from None
