"""A server's processes: its own and all that it started."""

import subprocess
from contextlib import suppress

import psutil

STOP_SECONDS, KILLED_SECONDS = 20.0, 3.0


def tree(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def hold(pid: int, still: bool) -> None:
    """Stop a process and all below it where they are, or let them go on."""
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess):
            process.suspend() if still else process.resume()


def cpu_seconds(pid: int) -> float:
    """Of a process and all below it."""
    total = 0.0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM for the server, and SIGKILL for whatever of its own processes does not go with it."""
    children = tree(process.pid)[1:]
    hold(process.pid, False)
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _, left = psutil.wait_procs(children, timeout=KILLED_SECONDS)
    for child in left:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(left, timeout=KILLED_SECONDS)
