"""The service as its users start it: a process of its own on a loopback port, ended by its own id."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import httpx

HEADWATER = Path(sys.executable).with_name("headwater")
START_SECONDS = 120.0
STOP_SECONDS = 60.0
ANSWER_SECONDS = 120.0


def environment(**variables: str) -> dict[str, str]:
    """Ours without settings of the service, but where its cache is, and with these."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("HEADWATER_") or k == "HEADWATER_CACHE_DIR"}
    return own | {"PYTHONUNBUFFERED": "1"} | variables


class Server:
    """A running service: where it is, and every line that it wrote on stderr so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.url = ""
        self._grown = threading.Condition()
        self._ended = self._told_to_end = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for_line(self, *parts: str, seconds: float = 30.0) -> str:
        """The first line that holds all the parts, as soon as it is there."""
        deadline = time.monotonic() + seconds
        seen = 0
        with self._grown:
            while True:
                for line in self.lines[seen:]:
                    if all(part in line for part in parts):
                        return line
                seen = len(self.lines)
                left = deadline - time.monotonic()
                if self._ended or left <= 0 or not self._grown.wait(left):
                    break
        raise AssertionError(f"no line with {parts} on stderr; there were: {self.lines[-20:]}")

    def client(self) -> httpx.Client:
        """A client of this server, and of no proxy."""
        return httpx.Client(base_url=self.url, timeout=ANSWER_SECONDS, trust_env=False)

    def async_client(self) -> httpx.AsyncClient:
        """The same for many calls at once."""
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.url, timeout=ANSWER_SECONDS, trust_env=False, limits=limits)

    @property
    def port(self) -> int:
        """The port that it got."""
        return int(self.url.rpartition(":")[2])

    def terminate(self) -> None:
        """Tell it to end with SIGTERM, once: a second signal would end it before it has drained."""
        if not self._told_to_end:
            self._told_to_end = True
            self.process.terminate()

    def stop(self) -> int:
        """End it with SIGTERM, unless it was told already; its exit code."""
        self.terminate()
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"still there {STOP_SECONDS} seconds after SIGTERM") from None
        finally:
            self._reader.join(5.0)
            if self.process.stderr is not None:
                self.process.stderr.close()
        return code

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._grown:
                self.lines.append(line.rstrip("\n"))
                self._grown.notify_all()
        with self._grown:
            self._ended = True
            self._grown.notify_all()


@contextmanager
def serving(
    model: Path | str,
    *options: str,
    program: Sequence[str] = (str(HEADWATER),),
    until: Literal["serving", "listening"] = "serving",
    code: int = 0,
    **variables: str,
) -> Iterator[Server]:
    """A service of this model, as soon as it is ready (or, `until` listening, does not hold its model yet).

    At the end it is told to go by SIGTERM, if it has not ended by then, and must have ended with this exit code.
    """
    command = [*program, "serve", "--model", str(model), "--port", "0", *options]
    process = subprocess.Popen(command, env=environment(**variables), stderr=subprocess.PIPE, text=True)
    server = Server(process)
    try:
        line = server.wait_for_line(f"headwater: {until}", "http://127.0.0.1:", seconds=START_SECONDS)
        server.url = "http://127.0.0.1:" + line.split("http://127.0.0.1:")[1].split()[0].rstrip(",;)")
        yield server
    except BaseException:
        process.kill()
        server.stop()
        raise
    ended = server.stop()
    assert ended == code, f"exit code {ended}, not {code}; stderr ended with {server.lines[-10:]}"
