"""When to ask again. It has no clock that sleeps and no network, so both clients wait by the same rules."""

import random
import time
from dataclasses import dataclass

from headwater_client.checks import integer, positive
from headwater_client.errors import RETRIED, BrokenAnswer, HeadwaterError

_LATE_SECONDS = 0.1  # after Retry-After: within the second for which the service keeps a place, and not all at once
_BROKEN_TRIES = 3  # an answer that breaks again and again breaks for a reason


@dataclass(frozen=True)
class Retries:
    """How often and how long one call is tried: on 429 and 503, when the connection fails, when an answer breaks off.

    Nothing else is asked again. Retrying is safe, for a call changes nothing in the service. `Retry-After` is heeded,
    with up to a tenth of a second added; without one the wait doubles from `first_wait` to `longest_wait` seconds, and
    a random part of it, up to a half, is left out.

    attempts: tries in all; None for no limit but time.
    seconds: no try begins later than this after the first; a Retry-After beyond it is not waited for.
    """

    attempts: int | None = 5
    seconds: float = 120.0
    first_wait: float = 0.25
    longest_wait: float = 15.0

    def __post_init__(self) -> None:
        if self.attempts is not None:
            integer("attempts", self.attempts, least=1)
        for field in ("seconds", "first_wait", "longest_wait"):
            positive(field, getattr(self, field))

    @classmethod
    def of(cls, retries: "Retries | int | None") -> "Retries":
        """From a number of retries beyond the first try; None or 0 for none. Raises ValueError."""
        if isinstance(retries, Retries):
            return retries
        return cls(attempts=1 + (0 if retries is None else integer("retries", retries, least=0)))


MANY = Retries(attempts=None, seconds=600.0)  # for runs over many sequences, where a restart should cost nothing


class Tries:
    """The tries of one call."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._began = time.monotonic()
        self._failed = self._broken = 0

    def wait_after(self, error: HeadwaterError) -> float:
        """The seconds to wait before the next try; raises the error where there should be none."""
        self._failed += 1
        self._broken += isinstance(error, BrokenAnswer)
        retries = self._retries
        if not isinstance(error, RETRIED) or self._broken >= _BROKEN_TRIES:
            raise error
        if retries.attempts is not None and self._failed >= retries.attempts:
            raise error
        if error.retry_after is not None:
            wait = error.retry_after + random.uniform(0.0, _LATE_SECONDS)
        else:
            doubled = retries.first_wait * 2.0 ** min(self._failed - 1, 30)
            wait = min(retries.longest_wait, doubled) * random.uniform(0.5, 1.0)
        if time.monotonic() + wait - self._began > retries.seconds:
            raise error
        return wait
