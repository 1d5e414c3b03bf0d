"""Spans that go to a collector: a small HTTP server here that reads what the exporter sends."""

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.tracing import CLOSE_SECONDS, ENDPOINTS, open_tracing, trace_id_of
from tests.server import serving

ROOT = Path(__file__).parents[2]
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
NOT_SAMPLED = f"00-{'7' * 32}-{PARENT}-00"
LATER = "600000"  # milliseconds until the exporter would send by itself


@dataclass
class Collector:
    """What came, as it came and as it is read."""

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def spans(self) -> list[tuple[dict[str, Any], Span]]:
        """Each span with the attributes of the service that it is from."""
        return [
            (attributes_of(of_service.resource), span)
            for body in self.bodies
            for of_service in ExportTraceServiceRequest.FromString(body).resource_spans
            for of_library in of_service.scope_spans
            for span in of_library.spans
        ]


def attributes_of(one: Any) -> dict[str, Any]:
    return {
        pair.key: pair.value.string_value if pair.value.HasField("string_value") else pair.value.int_value
        for pair in one.attributes
    }


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.paths.append(self.path)
            found.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


@dataclass
class Traced:
    """A service that ran to its end: its spans by request id, its log lines, and what had come before the end."""

    spans: dict[str, Span]
    children: dict[str, list[Span]]
    services: list[dict[str, Any]]
    lines: dict[str, dict[str, Any]]
    before_the_end: int
    raw: bytes
    paths: list[str]


@pytest.fixture(scope="module")
def traced(tiny_directory: Path, collector: Collector) -> Traced:
    """A few requests, and the end of the service, at which its spans are sent."""
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_SERVICE_NAME": "upper-thames",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        "OTEL_BSP_SCHEDULE_DELAY": LATER,
        "NO_PROXY": "127.0.0.1",
    }
    with serving(tiny_directory, "--threads", "1", **variables) as server, server.client() as client:

        def call(request_id: str, method: str, path: str, body: Any = None, **headers: str) -> None:
            client.request(method, path, json=body, headers={"X-Request-Id": request_id, **headers})

        call("goes-on", "POST", "/forward", {"tokens": [1, 2, 3]}, traceparent=TRACEPARENT, tracestate="a=b")
        call("own", "POST", "/forward", {"inputs": [{"tokens": [1]}, {"tokens": [2, 3]}]})
        call("refused", "POST", "/forward", {"tokens": [], "text": "xylophone"}, Authorization="Bearer xylophone")
        call("no-route", "GET", "/xylophone?xylophone=1", traceparent="00-xylophone")
        call("template", "GET", "/v2/models/xylophone")
        call("strange", "PROPFIND", "/livez")
        call("unsampled", "POST", "/forward", {"tokens": [1]}, traceparent=NOT_SAMPLED)
        names = "goes-on own refused no-route template strange unsampled".split()
        lines = {name: json.loads(server.wait_for_line(f'"{name}"')) for name in names}
        before_the_end = len(collector.bodies)
    found = collector.spans()
    by_id = {s.span_id: attributes_of(s)["headwater.request_id"] for _, s in found if s.kind == Span.SPAN_KIND_SERVER}
    children: dict[str, list[Span]] = {name: [] for name in names}
    for _, span in found:
        if span.kind != Span.SPAN_KIND_SERVER:
            children[by_id[span.parent_span_id]].append(span)
    return Traced(
        {by_id[span.span_id]: span for _, span in found if span.span_id in by_id},
        children,
        [service for service, _ in found],
        lines,
        before_the_end,
        b"".join(collector.bodies),
        collector.paths,
    )


def test_a_trace_that_the_caller_began_goes_on_in_the_span(traced: Traced) -> None:
    span = traced.spans["goes-on"]
    assert span.trace_id.hex() == TRACE
    assert span.parent_span_id.hex() == PARENT
    assert span.trace_state == "a=b"
    assert traced.lines["goes-on"]["trace_id"] == TRACE


def test_a_request_without_a_trace_begins_one_and_the_log_names_it(traced: Traced) -> None:
    span = traced.spans["own"]
    assert not span.parent_span_id
    assert span.trace_id.hex() == traced.lines["own"]["trace_id"]
    assert len({traced.lines[name]["trace_id"] for name in ("own", "refused", "no-route")}) == 3


def test_a_trace_that_its_beginner_does_not_record_is_not_sent(traced: Traced) -> None:
    assert "unsampled" not in traced.spans
    assert traced.lines["unsampled"]["trace_id"] == "7" * 32


def test_there_is_one_server_span_a_request_named_by_method_and_route(traced: Traced) -> None:
    assert {name: span.name for name, span in traced.spans.items()} == {
        "goes-on": "POST /forward",
        "own": "POST /forward",
        "refused": "POST /forward",
        "no-route": "GET",
        "template": "GET /v2/models/{name:path}",
        "strange": "HTTP /livez",
    }


def test_the_attributes_are_those_of_the_conventions(traced: Traced) -> None:
    found = attributes_of(traced.spans["goes-on"])
    line = traced.lines["goes-on"]
    assert found == {
        "http.request.method": "POST",
        "http.route": "/forward",
        "http.response.status_code": 200,
        "http.request.body.size": line["bytes_in"],
        "http.response.body.size": line["bytes_out"],
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "headwater.request_id": "goes-on",
        "headwater.tokens": 3,
        "headwater.sequences": 1,
    }
    assert attributes_of(traced.spans["refused"])["headwater.code"] == "invalid_request"
    assert attributes_of(traced.spans["strange"])["http.request.method"] == "_OTHER"
    # what a caller did wrong is no error of the server
    assert traced.spans["refused"].status.code == Status.STATUS_CODE_UNSET


def test_waiting_computing_and_encoding_are_spans_inside_of_it(traced: Traced) -> None:
    for name in ("goes-on", "own"):
        span, line = traced.spans[name], traced.lines[name]
        children = sorted(traced.children[name], key=lambda child: child.start_time_unix_nano)
        assert [child.name for child in children] == ["queue", "compute", "encode"]
        at = span.start_time_unix_nano
        for child in children:
            assert child.trace_id == span.trace_id
            assert child.start_time_unix_nano == at
            at = child.end_time_unix_nano
            took = (at - child.start_time_unix_nano) / 1e6
            assert took == pytest.approx(line[f"{child.name}_ms"], abs=0.01)
        assert at <= span.end_time_unix_nano
        assert (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6 == pytest.approx(line["ms"], abs=0.01)
        assert abs(span.start_time_unix_nano / 1e9 - time.time()) < 600
    assert not traced.children["refused"]


def test_no_span_holds_what_a_caller_sent(traced: Traced) -> None:
    assert b"forward" in traced.raw
    assert b"xylophone" not in traced.raw


def test_spans_are_sent_when_the_service_ends_at_the_latest(traced: Traced) -> None:
    assert traced.before_the_end == 0
    assert len(traced.spans) == 6
    assert set(traced.paths) == {"/v1/traces"}


def test_the_environment_names_the_service(traced: Traced) -> None:
    for service in traced.services:
        assert service["service.name"] == "upper-thames"
        assert service["deployment.environment.name"] == "test"
        assert service["service.version"]


def test_a_collector_that_never_answers_costs_neither_requests_nor_the_end(tiny_directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        variables = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "NO_PROXY": "127.0.0.1",
        }
        with serving(tiny_directory, "--threads", "1", **variables) as server, server.client() as client:
            client.get("/livez")
            silent.settimeout(20)
            connection, _ = silent.accept()  # now the exporter waits
            began = time.monotonic()
            for _ in range(20):
                assert client.post("/forward", json={"tokens": [1]}).status_code == 200
            assert time.monotonic() - began < 5  # against the 10 seconds that the exporter waits
            began = time.monotonic()
        ended = time.monotonic() - began
        connection.close()
    assert ended < CLOSE_SECONDS + 5


def test_without_the_extra_there_is_one_warning_and_the_service_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    for name in ENDPOINTS:
        caplog.clear()
        assert open_tracing({name: "http://127.0.0.1:4318"}, "1") is None
        (record,) = caplog.records
        assert name in record.getMessage()
        assert "headwater[otel]" in record.getMessage()


def test_a_variable_that_cannot_be_read_is_one_warning_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    assert open_tracing({ENDPOINTS[0]: "http://127.0.0.1:4318"}, "1") is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_without_the_variable_nothing_of_opentelemetry_is_imported() -> None:
    program = (
        "import sys; from service.tracing import open_tracing; assert open_tracing({}, '1') is None; "
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr
    importing = [
        path.name
        for path in (ROOT / "service").rglob("*.py")
        if re.search(r"^\s*(import|from) opentelemetry", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert importing == ["tracing.py"]


VALID = f"{TRACE}-{PARENT}-01"


@pytest.mark.parametrize(
    "header",
    [
        f"00-{VALID}",
        f"cc-{VALID}",
        f"cc-{VALID}-more",
        f"00-{VALID}-more",
        f"ff-{VALID}",
        f"00-{VALID.upper()}",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE[1:]}-{PARENT}-01",
        f"cc-{VALID}.more",
        f" 00-{VALID} ",
        "",
        "-" * 55,
    ],
)
def test_a_traceparent_is_read_as_opentelemetry_reads_it(header: str) -> None:
    context = TraceContextTextMapPropagator().extract({"traceparent": header})
    span = trace.get_current_span(context).get_span_context()
    expected = trace.format_trace_id(span.trace_id) if span.is_valid else None
    assert trace_id_of([(b"x", b"y"), (b"traceparent", header.encode())]) == expected


def test_two_traceparents_are_none() -> None:
    assert trace_id_of([(b"traceparent", TRACEPARENT.encode())] * 2) is None
