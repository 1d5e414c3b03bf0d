"""From start to end: how far the process is, and who may therefore ask what of it."""

import time

from service.errors import Draining, NotAlive, NotReady

_LOADING_RETRY, _DRAINING_RETRY = 2.0, 5.0  # seconds after which a caller may ask again


class LoadingStopped(Exception):
    """The process was told to end while it loaded."""


class Life:
    """loading, then ready, then draining; or loading, then failed.

    What happened is never undone, and each step is one assignment: any thread may take one and read all of them
    without a lock, and so may a signal handler, which could wait for ever for a lock of the thread that it interrupts.
    """

    def __init__(self) -> None:
        self.began = time.time()
        self.progress = "starting"
        self.failure: BaseException | None = None
        self._loaded = self._draining = self._died = False

    def report(self, progress: str) -> None:
        """Say how far loading is. Raises LoadingStopped when it should go no further."""
        if self._draining:
            raise LoadingStopped
        self.progress = progress

    def ready(self) -> None:
        """The model is loaded and warmed up."""
        self._loaded = True

    def drain(self) -> None:
        """The process was told to end."""
        self._draining = True

    def fail(self, error: BaseException) -> None:
        """The model could not be loaded."""
        self.failure = error

    def die(self) -> None:
        """The model thread ended before it should have."""
        self._died = True

    @property
    def phase(self) -> str:
        """loading, ready, draining or failed."""
        if self.failure is not None or self._died:
            return "failed"
        if self._draining:
            return "draining"
        return "ready" if self._loaded else "loading"

    def is_loaded(self) -> bool:
        """Whether the model was loaded and warmed up at some time."""
        return self._loaded

    def is_draining(self) -> bool:
        """Whether the process was told to end."""
        return self._draining

    def has_died(self) -> bool:
        """Whether the model thread ended before it should have."""
        return self._died

    def check_alive(self) -> None:
        """Raise NotAlive once the model thread has died."""
        if self._died:
            raise NotAlive("the model thread has ended")

    def check_started(self) -> None:
        """Raise NotReady, with the progress, until the model is loaded and warmed up."""
        if self.failure is not None:
            raise NotReady("the model could not be loaded", retry_after=_DRAINING_RETRY)
        if not self._loaded:
            raise NotReady(f"loading the model: {self.progress}", retry_after=_LOADING_RETRY)

    def check_ready(self) -> None:
        """Raise NotReady unless requests should be sent here: before that, at the end, and after a death."""
        if self._died:
            raise NotReady("the model thread has ended", retry_after=_DRAINING_RETRY)
        if self._draining:
            raise Draining("the service is shutting down", retry_after=_DRAINING_RETRY)
        self.check_started()
