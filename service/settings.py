"""Every knob: typed, frozen, built once at start. Each is an option of `headwater serve` and a HEADWATER_* variable."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

MEBIBYTE = 1 << 20
LONGEST_SECONDS = 86_400.0


class Settings(BaseSettings):
    """What can be set; command line before environment before default."""

    model_config = SettingsConfigDict(
        env_prefix="HEADWATER_", frozen=True, extra="forbid", protected_namespaces=(), env_ignore_empty=True
    )

    model: str = Field(
        "smollm2-135m-instruct",
        description="a directory with config.json and model.safetensors, a .gguf file, a packaged model's name, or "
        "organisation/model on the Hugging Face hub",
    )
    revision: str | None = Field(
        None, description="branch, tag or commit of a model on the Hugging Face hub; main if not set"
    )
    name: str | None = Field(None, description="the model's name in answers; the directory's or file's if not set")
    host: str = Field("127.0.0.1", description="the address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="the port to listen on; 0 takes a free one")
    dtype: Literal["float32", "float16", "bfloat16"] = Field("float32", description="what the stack computes in")
    device: str = Field("cpu", description="where the stack computes: cpu, cuda, cuda:1, ...")
    threads: PositiveInt | None = Field(
        None, description="CPU threads for the model; as many as torch finds cores if not set"
    )
    ignore_config_keys: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="keys of config.json that are known not to change the numbers, with commas between"
    )
    max_batch_tokens: PositiveInt | None = Field(
        None,
        description="rows of one packed matrix X; a longer sequence runs by itself. By speed and memory if not set",
    )
    max_batch_attention: PositiveInt | None = Field(
        None, description="sum of N squared of one batch; a longer sequence runs by itself. By the model if not set"
    )
    max_batch_bytes: PositiveInt | None = Field(
        None, description="bytes of the results of one batch; one with more runs by itself. By memory if not set"
    )
    max_queue_requests: PositiveInt = Field(1024, description="requests that are admitted, waiting and running")
    max_queue_tokens: PositiveInt | None = Field(
        None, description="rows that are admitted, waiting and running. 30 seconds of work, 8192 at least, if not set"
    )
    max_held_bytes: PositiveInt | None = Field(
        None, description="bytes of bodies and answers of all that is admitted. By memory if not set"
    )
    max_tokens: PositiveInt = Field(262_144, description="rows of one request, all of its sequences together")
    max_inputs: PositiveInt = Field(4096, description="sequences of one request")
    max_text_bytes: PositiveInt = Field(
        2 * MEBIBYTE, description="bytes of the texts of one request, all together, in UTF-8"
    )
    max_body_bytes: PositiveInt = Field(256 * MEBIBYTE, description="bytes of a request's body")
    max_answer_bytes: PositiveInt = Field(2048 * MEBIBYTE, description="bytes of an answer's tensors")
    max_json_bytes: PositiveInt = Field(64 * MEBIBYTE, description="bytes of an answer in JSON, as estimated")
    stream_above_bytes: PositiveInt = Field(
        16 * MEBIBYTE, description="bytes of tensors above which a safetensors answer is sent while it is made"
    )
    header_timeout_seconds: float = Field(
        10.0, gt=0, le=LONGEST_SECONDS, description="how long the head of a request may take to arrive"
    )
    body_timeout_seconds: float = Field(
        60.0, gt=0, le=LONGEST_SECONDS, description="how long a body may take to arrive"
    )
    send_timeout_seconds: float = Field(
        60.0,
        gt=0,
        le=LONGEST_SECONDS,
        description="how long a caller may read nothing of an answer that waits for it; it may be up to twice as long",
    )
    deadline_seconds: float = Field(
        300.0, gt=0, le=LONGEST_SECONDS, description="how long a request may take, queue included"
    )
    drain_delay_seconds: float = Field(
        0.0,
        ge=0,
        le=LONGEST_SECONDS,
        description="how long new requests are still taken after SIGTERM, while /readyz already says no: time for load "
        "balancers to notice",
    )
    drain_seconds: float = Field(
        20.0,
        gt=0,
        le=LONGEST_SECONDS,
        description="how long admitted requests may take to end after SIGTERM, from when no new ones are taken",
    )
    stuck_after_seconds: float = Field(
        600.0,
        gt=0,
        le=LONGEST_SECONDS,
        description="how long the model thread may show no sign of life before /livez says no; longer than the longest "
        "single layer takes",
    )
    api_keys_file: Path | None = Field(
        None, description="a file with an API key a line, or a name and a key; calls need no key if not set"
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="web origins that may call, with commas between; none if not set"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="what is logged; one line a request at info"
    )

    @field_validator("log_level", mode="before")
    @classmethod
    def _lower(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @field_validator("ignore_config_keys", "cors_origins", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value
