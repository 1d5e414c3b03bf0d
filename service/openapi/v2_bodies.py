"""The bodies of the Open Inference Protocol's routes, for /openapi.json; those of requests are in `wire.v2_request`."""

from typing import Any

from pydantic import BaseModel, Field

from service.wire.v2_tensors import Datatype


class ErrorBody(BaseModel):
    """A refusal in the protocol's form."""

    error: str = Field(description="what was wrong with this request, for people")


class ServerBody(BaseModel):
    """The server metadata."""

    name: str = Field(description="`headwater`")
    version: str = Field(description="of the service")
    extensions: list[str] = Field(description="of the protocol: `binary_tensor_data`")


class TensorMetadata(BaseModel):
    """An input or output."""

    name: str = Field(description="of the input, or of the point")
    datatype: Datatype = Field(description="what it is if nothing else is asked for")
    shape: list[int] = Field(description="-1 stands for N, the rows of the input")


class ModelBody(BaseModel):
    """The model metadata; a request has exactly one of the inputs."""

    name: str = Field(description="the served name")
    versions: list[str] = Field(description='one: `"1"`')
    platform: str = Field(description="`headwater_` and the family")
    inputs: list[TensorMetadata] = Field(description="the inputs, of which a request has one")
    outputs: list[TensorMetadata] = Field(description="every point, as an output")


class LiveBody(BaseModel):
    """That the server lives."""

    live: bool = Field(description="true")


class ReadyBody(BaseModel):
    """That the server takes requests."""

    ready: bool = Field(description="true")


class ModelReadyBody(BaseModel):
    """That the model takes requests."""

    name: str = Field(description="the served name")
    ready: bool = Field(description="true")


class BehindBody(BaseModel):
    """Where an output's numbers are, if not in `data`."""

    binary_data_size: int = Field(description="bytes behind the JSON, in the order of the outputs; little-endian")


class InferredTensor(BaseModel):
    """One tensor of an answer: flat `data`, or bytes behind the JSON."""

    name: str = Field(description="the point, or what `as` said; of a `top_k` NAME.values and NAME.indices")
    datatype: Datatype = Field(description="as asked for; the indices of a `top_k` are INT32")
    shape: list[int] = Field(description="the length of each axis")
    data: list[Any] | None = Field(None, description="all numbers in one list; -inf of attn_scores is null")
    parameters: BehindBody | None = Field(None, description="of an output whose bytes are behind the JSON")


class InferredBody(BaseModel):
    """The answer to an inference request."""

    model_name: str = Field(description="the served name")
    model_version: str = Field(description='`"1"`')
    id: str | None = Field(None, description="as it came, if one came")
    outputs: list[InferredTensor] = Field(description="in the order asked")
