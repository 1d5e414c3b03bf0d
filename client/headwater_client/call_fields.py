"""The arguments that every kind of call takes, once for all of them."""

from collections.abc import Sequence
from typing import Any, TypedDict, cast

from headwater_client.call import KINDS, Input, body_of
from headwater_client.exchange import Request
from headwater_client.outputs import Outputs
from headwater_client.tensors import Array


class CallFields(TypedDict, total=False):
    """What is asked; exactly one of x, inputs_embeds, tokens, text and inputs.

    x: [N, d], numpy, torch or nested lists: the residual stream, which enters layer `start` (default 0) as it is.
    inputs_embeds: [N, d]: token embeddings; the model adds positions.
    tokens: [N] integers.
    text: a string; `add_special_tokens` as the model's tokenizer does if not given.
    inputs: several sequences, each a text, token ids, a matrix x, or an object with the fields of one (`Input`).
    outputs: a name, a pattern, an `Output` or an object, or a list of them; the last layer's resid_post if not given.
    positions: [N] integers, where the model uses them.
    timeout_ms: a deadline below the service's own, queue included.
    """

    x: Any
    inputs_embeds: Any
    tokens: Any
    text: str
    inputs: Sequence[Any]
    outputs: Outputs
    start: int
    positions: Sequence[int] | Array
    add_special_tokens: bool
    timeout_ms: int


def forward_request(
    fields: CallFields, request_id: str | None = None, *, n: int | None = None, dry_run: bool = False
) -> Request:
    """The request for these arguments. Raises ValueError, and TypeError for a name that is no argument."""
    unknown = set(fields) - CallFields.__annotations__.keys()
    if unknown:
        raise TypeError(f"there is no argument {min(unknown)!r}")
    given = {name: value for name, value in fields.items() if value is not None}
    one: Any = {name: given[name] for name in (*KINDS, "start", "positions", "add_special_tokens") if name in given}
    asked: Any = {name: given[name] for name in ("outputs", "timeout_ms") if name in given}
    body = body_of(cast(Input, one), fields.get("inputs"), n=n, **asked)
    params = {"dry_run": "true"} if dry_run else {}
    if request_id is None:
        return Request("POST", "forward", body, params)
    return Request("POST", "forward", body, params, id=request_id)
