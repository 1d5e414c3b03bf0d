"""What a server holds in memory of its own: anonymous pages, as the kernel counts them, without mapped files."""

import threading
from dataclasses import dataclass

from bench.load.process import anonymous_bytes
from model.config import StackConfig

LOOK_SECONDS = 0.05


def need_of_batch(config: StackConfig, rows: int) -> int:
    """Bytes of float32 that a batch of so many rows needs at one moment at least, its answer of final states included.

    In attention that is X, T1, Q, K, V and the heads; in the feed-forward network O, T4 and what stands between its
    matrices before and after the activation, with its gate where it has one.
    """
    of_heads = (config.n_heads + config.n_kv_heads) * (config.d_k + config.d_v)
    of_ffn = (3 if config.gated else 2) * config.d_ff
    return 4 * rows * (2 * config.d_model + max(of_heads, of_ffn) + config.d_model)


@dataclass
class Memory:
    """Anonymous memory of our server in bytes, and what it should be compared with."""

    loaded: int
    peak: int
    weights: int
    batch_rows: int
    need: int


class Peak:
    """The most anonymous memory of a process while this is entered, looked at now and then."""

    def __init__(self, pid: int) -> None:
        self._pid, self._done = pid, threading.Event()
        self.nbytes = anonymous_bytes(pid)

    def __enter__(self) -> "Peak":
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(LOOK_SECONDS):
            self.nbytes = max(self.nbytes, anonymous_bytes(self._pid))
