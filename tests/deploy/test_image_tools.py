"""Where images cannot be built, `make image-test` and CI say why in one line, and go on; nothing hangs."""

import os
import runpy
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from deploy.image.checks import tools
from deploy.image.checks.firewall import removal
from deploy.image.checks.store import Store

ROOT, SOMEBODY = 0, 1000
LEFT_BEHIND = """*filter
:FORWARD ACCEPT [0:0]
:NETAVARK_FORWARD - [0:0]
-A FORWARD -s 10.0.0.1/32 -j DROP
-A FORWARD -m comment --comment "netavark firewall plugin rules" -j NETAVARK_FORWARD
COMMIT
*nat
:POSTROUTING ACCEPT [0:0]
:NETAVARK-HOSTPORT-MASQ - [0:0]
-A POSTROUTING -j NETAVARK-HOSTPORT-MASQ
-A NETAVARK-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
COMMIT
"""


def machine(
    monkeypatch: pytest.MonkeyPatch, user: int, mounts: bool = True, has: tuple[str, ...] = (), apt: int | None = None
) -> list[list[str]]:
    """A machine with this user, these programs, and an apt-get that ends so; what is run on it, as it comes."""
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        if command[0] == "unshare":
            return subprocess.CompletedProcess(command, 0 if mounts else 1)
        assert apt is not None
        return subprocess.CompletedProcess(command, apt, "", "E: first\nE: no such package\n")

    found = {*has, *(("apt-get",) if apt is not None else ())}
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: name if name in found else None)
    return ran


def test_another_user_than_root_is_told_so_and_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = machine(monkeypatch, SOMEBODY, has=tools.PROGRAMS)
    assert str(tools.why_not()).startswith("the image is tested by root alone")
    assert not ran


def test_a_root_that_may_mount_nothing_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, ROOT, mounts=False, has=tools.PROGRAMS)
    assert tools.why_not() == "this root may mount nothing"


def test_nothing_is_installed_where_all_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = machine(monkeypatch, ROOT, has=tools.PROGRAMS)
    assert tools.why_not() is None
    assert [command[0] for command in ran] == ["unshare"]


def test_what_is_missing_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, ROOT, has=("buildah", "podman", "runc", "mmdebstrap", "netavark"))
    assert tools.why_not() == "catatonit: not installed, and there is no apt-get to install them with"
    ran = machine(monkeypatch, ROOT, has=("buildah", "podman", "runc", "mmdebstrap", "netavark"), apt=100)
    assert tools.why_not() == "catatonit: could not be installed (E: no such package)"
    assert [command[1] for command in ran[1:]] == ["update", "install"]
    assert set(tools.PACKAGES) <= set(ran[-1])


def test_the_program_exits_3_with_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    machine(monkeypatch, SOMEBODY)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(tools.__file__), run_name="__main__")
    assert ended.value.code == 3
    assert capsys.readouterr().out.count("\n") == 1


def runs(pid: int) -> bool:
    """Whether a process is there, and not only waits to be noticed as ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_command_that_takes_too_long_ends_with_all_that_it_began(tmp_path: Path) -> None:
    store = Store()
    try:
        script = f"sleep 1000 & echo $! > {tmp_path}/child; wait"
        with pytest.raises(subprocess.TimeoutExpired):
            store.tried("sh", "-c", script, seconds=1.0)
        child, deadline = int((tmp_path / "child").read_text()), time.monotonic() + 10
        while runs(child):
            assert time.monotonic() < deadline, "it still runs"
            time.sleep(0.01)
    finally:
        shutil.rmtree(store.folder)


def test_what_podman_leaves_in_the_firewall_is_taken_away_and_nothing_else() -> None:
    filtering, nat = ["iptables", "-t", "filter"], ["iptables", "-t", "nat"]
    comment = ["-m", "comment", "--comment", "netavark firewall plugin rules"]
    assert list(removal(LEFT_BEHIND)) == [
        [*filtering, "-D", "FORWARD", *comment, "-j", "NETAVARK_FORWARD"],
        [*filtering, "-F", "NETAVARK_FORWARD"],
        [*filtering, "-X", "NETAVARK_FORWARD"],
        [*nat, "-D", "POSTROUTING", "-j", "NETAVARK-HOSTPORT-MASQ"],
        [*nat, "-F", "NETAVARK-HOSTPORT-MASQ"],
        [*nat, "-X", "NETAVARK-HOSTPORT-MASQ"],
    ]


@pytest.mark.parametrize("rule", ["-A NETAVARK_FORWARD -s 10.89.1.0/24 -j ACCEPT", ":NETAVARK-5FFDD9D923A2D - [0:0]"])
def test_the_firewall_is_left_as_it_is_while_a_network_of_somebody_else_is_in_use(rule: str) -> None:
    assert not list(removal(LEFT_BEHIND.replace("COMMIT", f"{rule}\nCOMMIT", 1)))
