"""Bodies with something wrong, for every decoder: each is a call or a refusal, at once. `make fuzz` sends more."""

import http.client
import random
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from model.checkpoint.load import LoadedModel, load_model
from service.door import admit
from service.dry_run import estimate
from service.errors import ServiceError, Unprocessable
from service.infer import admit_infer
from service.settings import Settings
from service.wire.coding import coding_of_answer, coding_of_body, unpacked
from service.wire.decode import decode
from service.wire.formats import format_of_answer, format_of_body
from service.wire.v2_request import LENGTH_HEADER, length_of_json
from service.wire.v2_request import decode as decode_v2
from tests.server import serving
from tests.service.mutations import PACK, Sample, mutated, samples
from tests.service.small_text_model import over_bytes, write_model

SECONDS = 1.0
IN_PROCESS, OVER_HTTP = 20_000, 600
SETTINGS = Settings(max_body_bytes=1 << 20)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "small", over_bytes(), n_layers=3)


@pytest.fixture(scope="module")
def loaded(directory: Path) -> LoadedModel:
    return load_model(directory, name="small")


@pytest.fixture(scope="module")
def valid(loaded: LoadedModel) -> list[Sample]:
    return samples(loaded.name, loaded.config.d_model, loaded.config.vocab_size, text=True)


def admitted(sample: Sample, loaded: LoadedModel) -> None:
    """What a route does with a request before it is run."""
    coding, url = coding_of_body(sample.headers.get("Content-Encoding")), urlsplit(sample.path)
    if url.path.startswith("/v2/"):
        length = length_of_json(sample.headers.get(LENGTH_HEADER))
        coding_of_answer(sample.headers.get("Accept-Encoding"))
        body = unpacked(bytearray(sample.content), coding, SETTINGS.max_body_bytes)
        admit_infer(decode_v2(body, length), loaded, SETTINGS)
        return
    body_format = format_of_body(sample.headers.get("Content-Type"))
    answer_format = format_of_answer(sample.headers.get("Accept"))
    query = parse_qs(url.query, encoding="utf-8", errors="replace")
    body = unpacked(bytearray(sample.content), coding, SETTINGS.max_body_bytes)
    call = decode(body, body_format, query["request"][0] if "request" in query else None)
    if "dry_run" in query:
        estimate(call, answer_format, loaded, SETTINGS)
    else:
        admit(call, answer_format, loaded, SETTINGS)


@pytest.mark.parametrize("coding", [None, *PACK])
def test_the_bodies_that_are_changed_are_valid(valid: list[Sample], loaded: LoadedModel, coding: str | None) -> None:
    for sample in valid:
        admitted(sample.packed(coding) if coding else sample, loaded)


def test_a_changed_body_is_a_call_or_a_refusal_and_never_takes_long(valid: list[Sample], loaded: LoadedModel) -> None:
    refused = 0
    for seed in range(IN_PROCESS):
        sample = mutated(valid[seed % len(valid)], random.Random(seed))
        began = time.thread_time()  # the machine may be busy with something else
        try:
            admitted(sample, loaded)
        except ServiceError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}, {sample.name}: {error!r}; body {sample.content[:200]!r}") from error
        seconds = time.thread_time() - began
        assert seconds < SECONDS, f"seed {seed}, {sample.name}: {seconds} seconds; body {sample.content[:200]!r}"
    assert 0.3 < refused / IN_PROCESS < 0.99, "changes should be small enough to come deep into a decoder"


def test_a_changed_body_sent_to_a_server_gets_an_answer_that_is_no_fault(directory: Path, valid: list[Sample]) -> None:
    with serving(directory, "--threads", "1", "--max-body-bytes", str(1 << 20)) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        statuses: dict[int, int] = {}
        for seed in range(OVER_HTTP):
            sample = mutated(valid[seed % len(valid)], random.Random(-seed))
            connection.request("POST", sample.path, sample.content, sample.headers)
            response = connection.getresponse()
            answer = response.read()
            where = f"seed {-seed}, {sample.name}: {answer[:300]!r}; body {sample.content[:200]!r}"
            assert response.status < 500, where
            assert response.status == 200 or b'"code":' in answer or b'"error":' in answer, where
            statuses[response.status] = statuses.get(response.status, 0) + 1
        connection.close()
    assert {200, 400, 415, 422} <= set(statuses)


@pytest.mark.parametrize("code", ["F64", "F32", "F16", "BF16"])
def test_a_signalling_nan_is_refused_as_any_nan_and_without_a_warning(loaded: LoadedModel, code: str) -> None:
    infinity = {"F64": 0x7FF0 << 48, "F32": 0x7F80 << 16, "F16": 0x7C00, "BF16": 0x7F80}[code]
    size = {"F64": 8, "F32": 4}.get(code, 2)
    header = f'{{"x":{{"dtype":"{code}","shape":[1,6],"data_offsets":[0,{6 * size}]}}}}'.encode()
    numbers = bytes(5 * size) + (infinity + 1).to_bytes(size, "little")
    content = len(header).to_bytes(8, "little") + header + numbers
    with pytest.raises(Unprocessable, match="/x/0/5: nan is not finite"):
        admitted(Sample("", "/forward", content, {"Content-Type": "application/x-safetensors"}), loaded)
