"""How many bytes are still to be had where the model computes."""

import re
from pathlib import Path

import torch

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def available_bytes(device: str, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """On cuda what the device has free, on the CPU the least that the machine and the process's cgroups leave."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    left = cgroups_leave(proc, cgroups)
    machine = machine_leaves((proc / "meminfo").read_text())
    return machine if left is None else min(machine, left)


def machine_leaves(meminfo: str) -> int:
    """Bytes of MemAvailable in /proc/meminfo, which counts what the kernel would give back."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    if found is None:
        raise ValueError("/proc/meminfo has no MemAvailable")
    return 1024 * int(found[1])


def cgroup_paths(listed: str) -> tuple[str | None, str | None]:
    """Of /proc/PID/cgroup: the path in the tree of version 2, and that of version 1's memory controller."""
    of_v2 = of_v1 = None
    for line in listed.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            of_v2 = path
        elif "memory" in controllers.split(","):
            of_v1 = path
    return of_v2, of_v1


def cgroups_leave(proc: Path, cgroups: Path) -> int | None:
    """Bytes that the strictest memory limit leaves, this cgroup's or one's above it; None where nothing is limited.

    Inside a container the path may be the host's, of which the tree that is mounted shows the end alone: a folder that
    is not there is passed over, and the mounted tree's root is always looked at.
    """
    try:
        of_v2, of_v1 = cgroup_paths((proc / "self" / "cgroup").read_text())
    except OSError:
        return None
    trees = [
        # version 2 is mounted at the top, or beside version 1 where both are there
        (cgroups, of_v2, ("memory.max", "memory.current", "inactive_file")),
        (cgroups / "unified", of_v2, ("memory.max", "memory.current", "inactive_file")),
        (cgroups / "memory", of_v1, ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ]
    left: list[int] = []
    for root, path, names in trees:
        if path is None:
            continue
        inside = root / path.strip("/")
        for folder in (inside, *inside.parents):
            if (found := _folder_leaves(folder, *names)) is not None:
                left.append(found)
            if folder == root:
                break
    return max(0, min(left)) if left else None


def _folder_leaves(folder: Path, limit_name: str, used_name: str, reclaimable: str) -> int | None:
    try:
        limit = (folder / limit_name).read_text().strip()
        if limit == "max":
            return None
        used = int((folder / used_name).read_text())
        stat = (folder / "memory.stat").read_text()
    except OSError:
        return None
    # pages of files that nobody used lately count as used and are given back when memory is short
    found = re.search(rf"^{reclaimable} (\d+)$", stat, re.MULTILINE)
    return int(limit) - used + (int(found[1]) if found else 0)
