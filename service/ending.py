"""How the process ends, and what its exit code says."""

import logging
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

WRONG_USE = 2  # a setting, a path or a checkpoint is wrong
LOADING_FAILED = 1  # loading raised what it should not; the log has the traceback
MODEL_THREAD_DIED = 70  # the model thread ended by itself; a new process may do better

_FLUSH_SECONDS = 1.0


def end_now(code: int) -> NoReturn:
    """End the process with this code, whatever its threads do; a signal handler may call it.

    The logs are flushed in a thread of their own, so that one that is stuck on them does not keep the process.
    """
    flushing = threading.Thread(target=_flush, daemon=True)
    flushing.start()
    flushing.join(_FLUSH_SECONDS)
    os._exit(code)


def _flush() -> None:
    with suppress(Exception):  # what goes wrong here has nowhere to be told
        logging.shutdown()
        sys.stderr.flush()
