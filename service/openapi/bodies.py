"""The bodies of POST /forward, of dry runs and of refusals, for /openapi.json; what reads and writes them is `wire`."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from service.openapi.model_body import PointBody
from service.wire.call import MAX_N, CallFields, InputFields

Matrix = list[list[float]]
Dtype = Literal["float32", "float16", "bfloat16", "int32"]


class InputBody(InputFields):
    """One sequence: exactly one of x, inputs_embeds, tokens, text (or n, in a dry run)."""

    x: Matrix | None = Field(
        None, description="the residual stream [N][d]: enters layer `start` as it is, no position is added; any N"
    )
    inputs_embeds: Matrix | None = Field(None, description="token embeddings [N][d]: the model adds positions")
    tokens: list[int] | None = Field(None, description="token ids [N], each from 0 to V-1")
    text: str | None = Field(None, description="a text, for the model's own tokenizer")
    n: int | None = Field(
        None, ge=1, le=MAX_N, description="a number of rows, instead of an input: with `dry_run=true` alone"
    )


class ForwardBody(CallFields, InputBody):
    """One call: exactly one of x, inputs_embeds, tokens, text, or inputs (or n, in a dry run)."""

    inputs: list[InputBody] | None = Field(
        None,
        description="several sequences of any lengths; names in the answer begin with 0., 1., ... `start`, `positions` "
        "and `add_special_tokens` then stand in each of them. All are answered, or none",
    )


class TensorBody(BaseModel):
    """One tensor of an answer."""

    shape: list[int] = Field(description="the length of each axis")
    dtype: Dtype = Field(description="as asked for; the indices of a `top_k` are int32")
    data: list[Any] = Field(
        description="lists in lists, one for each axis; the numbers are the shortest that read back to the same value; "
        "-inf in attn_scores is null"
    )


class BatchBody(BaseModel):
    """The batch that a sequence ran in."""

    sequences: int = Field(description="how many sequences shared the model call")
    tokens: int = Field(description="the rows of all of them")


class UsageBody(BaseModel):
    """What a sequence cost."""

    tokens: int = Field(description="its rows")
    queue_ms: float = Field(description="milliseconds from admission until its batch began")
    compute_ms: float = Field(description="milliseconds that its batch ran")
    batch: BatchBody = Field(description="the batch that it ran in")


class TokensBody(BaseModel):
    """The tokens of a sequence."""

    ids: list[int] = Field(description="token ids [N]")
    strings: list[str] | None = Field(None, description="what each stands for, where the model has a tokenizer")


class ResultManifestBody(PointBody):
    """What one result is: the point that it is cut out of, with the axes and dtype of the result."""

    dtype: Dtype = Field(description="of this result")


class ManifestBody(BaseModel):
    """Where the numbers come from."""

    model: str = Field(description="the served name")
    weights_sha256: str = Field(description="SHA-256 of the weights, in hexadecimal")
    compute_dtype: str = Field(description="what the stack computes in")
    results: dict[str, ResultManifestBody] = Field(description="each result by its name in the answer")


class AnswerBody(BaseModel):
    """The answer to one call; tokens and usage are lists where inputs were given."""

    model: str = Field(description="the served name")
    outputs: dict[str, TensorBody] = Field(description="each result by its name")
    tokens: TokensBody | list[TokensBody | None] | None = Field(
        None, description="of tokens and text; with `inputs` an entry for each, null for x and inputs_embeds"
    )
    usage: UsageBody | list[UsageBody] = Field(description="what it cost; with `inputs` an entry for each")
    manifest: ManifestBody = Field(description="the model, and what each result is")


class FieldErrorBody(BaseModel):
    """A field at fault."""

    pointer: str = Field(description="JSON pointer (RFC 6901) to the field; of a query parameter its name")
    message: str = Field(description="what is wrong there, with the value and the limit")


class ProblemBody(BaseModel):
    """A refusal (RFC 9457)."""

    type: str = Field(description="urn:headwater:problem:CODE")
    title: str = Field(description="the kind of refusal, in words")
    status: int = Field(description="the HTTP status")
    detail: str = Field(description="what was wrong with this request, for people")
    code: str = Field(description="what was wrong, for programs; it does not change")
    errors: list[FieldErrorBody] | None = Field(None, description="the fields at fault, where there are any")


class ResultBody(BaseModel):
    """Shape and dtype of a result."""

    shape: list[int] = Field(description="the length of each axis")
    dtype: Dtype = Field(description="of this result")


class DryRunBody(BaseModel):
    """What a dry run says: whether the call would be admitted, why not, and its cost where it fits the model."""

    admitted: bool = Field(description="whether the call would be run, as far as its own size goes")
    code: str | None = Field(description="the code of the refusal; null if it would be admitted")
    status: int | None = Field(None, description="the status of the refusal")
    detail: str | None = Field(None, description="the refusal in words")
    errors: list[FieldErrorBody] | None = Field(None, description="the fields at fault, where there are any")
    tokens: int | None = Field(None, description="rows of all sequences")
    layers_run: int | None = Field(None, description="layers that the deepest sequence runs")
    flops: int | None = Field(None, description="floating-point operations")
    answer_bytes: int | None = Field(
        None, description="bytes of the answer's tensors, exact in binary; in JSON an estimate of the whole answer"
    )
    results: dict[str, ResultBody] | None = Field(None, description="each result by its name")
