"""A pod that goes loses no request: two real services, callers who keep connections, a SIGTERM, a slow Service."""

import random
import select
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from service.cli import main
from tests.server import serving

DELAY_SECONDS = 6.0  # more than the 5 s after which an idle connection is closed, as in the manifests
LEARN_SECONDS = 1.0  # until new connections go elsewhere
PAUSES = (0.02, 0.02, 0.02, 0.3, 0.7, 4.0, 5.5)  # between the requests of each caller
BODY = b'{"tokens": [1, 2, 3], "outputs": ["layers.1.resid_post"]}'


class Caller(threading.Thread):
    """Asks over one connection while the service keeps it open; a new one goes to one of the ports of that moment."""

    def __init__(self, ports: list[int], pause: float, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.seen: Counter[str] = Counter()
        self.told_to_close = 0
        self._ports, self._pause, self._stop_asking = ports, pause, stop

    def run(self) -> None:
        connection: HTTPConnection | None = None
        while not self._stop_asking.is_set():
            if connection is not None and has_ended(connection):
                connection.close()
                connection = None
            if connection is None:
                connection = HTTPConnection("127.0.0.1", random.choice(self._ports), timeout=30)
            try:
                connection.request("POST", "/forward", BODY, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
            except (OSError, HTTPException) as error:
                self.seen[repr(error)] += 1
                connection.close()
                connection = None
                continue
            self.seen[str(answer.status)] += 1
            if answer.will_close:
                self.told_to_close += 1
                connection.close()
                connection = None
            self._stop_asking.wait(self._pause)
        if connection is not None:
            connection.close()


def has_ended(connection: HTTPConnection) -> bool:
    """Whether the service has closed it, as clients with a pool of connections look before they use one."""
    return connection.sock is not None and bool(select.select([connection.sock], [], [], 0)[0])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "textbook"
    assert main(["init", "--layers", "2", "--d-model", "16", "--heads", "2", str(directory)]) == 0
    return directory


def test_callers_with_connections_to_a_pod_that_goes_lose_nothing(model: Path) -> None:
    options, delay = ("--threads", "1", "--log-level", "warning"), ("--drain-delay-seconds", str(DELAY_SECONDS))
    with serving(model, *options, *delay) as old, serving(model, *options) as new:
        ports, stop = [old.port, new.port], threading.Event()
        callers = [Caller(ports, pause, stop) for pause in 2 * PAUSES]
        for caller in callers:
            caller.start()
        wait_until(lambda: all(caller.seen for caller in callers))
        old.terminate()
        threading.Timer(LEARN_SECONDS, ports.remove, (old.port,)).start()
        assert old.process.wait(60) == 0
        asked = sum(seen_by(callers).values())
        wait_until(lambda: sum(seen_by(callers).values()) > asked + 100)  # the other one alone serves everybody
        stop.set()
        for caller in callers:
            caller.join(60)
        assert set(seen_by(callers)) == {"200"}, seen_by(callers)
        assert sum(caller.told_to_close for caller in callers) >= 1


def seen_by(callers: list[Caller]) -> Counter[str]:
    """How often all of them saw what."""
    return sum((Counter(caller.seen) for caller in callers), Counter())


def wait_until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    """Poll until it is so."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
