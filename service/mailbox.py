"""Calls from the model thread into the event loop, few at a time.

When a batch of a hundred sequences ends, a hundred answers are to be written. All at once they would keep the loop from
everything else for as long as that takes, probes too; so a few are begun, then the loop looks around.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

AT_A_TIME = 4


class Mailbox:
    """Calls into one loop, in the order in which they are posted."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_coming = False
        self._lock = threading.Lock()

    def post(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call this in the loop, from any thread. Raises RuntimeError if the loop is closed."""
        with self._lock:
            self._calls.append((call, arguments))
            if self._is_coming:
                return
            self._is_coming = True
        self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        for _ in range(AT_A_TIME):
            with self._lock:
                if not self._calls:
                    self._is_coming = False
                    return
                call, arguments = self._calls.popleft()
            call(*arguments)
        self.loop.call_soon(self._deliver)
