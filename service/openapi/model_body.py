"""The body of GET /model, and of the probes, for /openapi.json."""

from typing import Literal

from pydantic import BaseModel, Field


class PointBody(BaseModel):
    """What a point is; the last four are there for maps alone."""

    point: str = Field(description="the point's own name, where it is asked for by another one too")
    layer: int | None = Field(description="from 0; null for what no layer makes")
    textbook: str = Field(description="its formula in the textbook's symbols")
    axes: list[str] = Field(description="what each axis counts: row, d, head, width, query, key, vocabulary, rank")
    normed: bool = Field(description="whether it is what a norm made")
    positions: bool = Field(description="whether positions are in it")
    causal: bool | None = Field(None, description="of a map: whether a row sees no key behind it")
    window: int | None = Field(None, description="of a map: the most keys that a row sees; null for no limit")
    scale: float | None = Field(None, description="of a map: what QK^T is multiplied by")
    softmax_dtype: Literal["float32"] | None = Field(None, description="of a map: what its softmax is computed in")


class LimitsBody(BaseModel):
    """The limits in force: what is set, or what follows from the device's memory and speed."""

    max_tokens: int = Field(description="rows of one request, all of its sequences together")
    max_inputs: int = Field(description="sequences of one request")
    max_text_bytes: int = Field(description="bytes of the texts of one request, all together, in UTF-8")
    max_body_bytes: int = Field(description="bytes of a request's body, packed and unpacked")
    max_answer_bytes: int = Field(description="bytes of an answer's tensors")
    max_json_bytes: int = Field(description="bytes of an answer in JSON, as estimated")
    deadline_seconds: float = Field(description="how long a request may take, queue included")
    max_batch_tokens: int = Field(description="rows of one packed matrix X; a longer sequence runs by itself")
    max_batch_attention: int = Field(description="sum of N squared of one batch")
    max_batch_bytes: int = Field(description="bytes of the results of one batch")
    max_queue_requests: int = Field(description="requests that are admitted, waiting and running")
    max_queue_tokens: int = Field(description="rows that are admitted, waiting and running")
    max_held_bytes: int = Field(description="bytes of bodies and answers of all that is admitted")


class LoadedModelBody(BaseModel):
    """The loaded model: its sizes, every point that can be asked for, the limits in force."""

    name: str = Field(description="the served name")
    family: str = Field(description="how its layers are built: llama, gpt2, bert, textbook, ...")
    layers: int = Field(description="L")
    d_model: int = Field(description="d, the width of the residual stream")
    heads: int = Field(description="A, query heads of a layer")
    kv_heads: int = Field(description="A_kv, key and value heads of a layer")
    d_k: int = Field(description="width of a head's queries and keys")
    d_v: int = Field(description="width of a head's values")
    d_ff: int = Field(description="width inside the feed-forward network")
    vocab_size: int | None = Field(description="V; null for a model without token ids")
    max_positions: int | None = Field(
        description="the most rows of tokens, text and inputs_embeds; null for no limit. x has no such limit"
    )
    causal: bool = Field(description="whether a row sees no row behind it")
    tokenizer: bool = Field(description="whether `text` can be sent")
    dtype: str = Field(description="what the stack computes in")
    device: str = Field(description="where the stack computes")
    parameters: int = Field(description="numbers in the weights; tied ones count once")
    weights_sha256: str = Field(description="SHA-256 of the weights, in hexadecimal")
    limits: LimitsBody = Field(description="the limits in force")
    points: dict[str, PointBody] = Field(description="each point by its name")


class ProbeBody(BaseModel):
    """That the probe says yes."""

    status: Literal["alive", "started", "ready"] = Field(description="what the probe was asked about")
