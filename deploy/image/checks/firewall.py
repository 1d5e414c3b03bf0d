"""What podman's network program, netavark, leaves in the firewall: chains that are empty once no container is there."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator

MARK = "NETAVARK"
COMMAND_SECONDS = 30
# of a network or a published port that somebody still uses: a chain by its number, or a rule that lets its packets pass
IN_USE = re.compile(rf"^:{MARK}-(DN-)?[0-9A-F]{{8,}} |^-A {MARK}_FORWARD ", re.MULTILINE)


def rules() -> str:
    """All of the firewall's, as `iptables-save` prints them; nothing where there is none."""
    if shutil.which("iptables-save") is None:
        return ""
    return subprocess.run(["iptables-save"], capture_output=True, text=True, timeout=COMMAND_SECONDS).stdout


def removal(saved: str) -> Iterator[list[str]]:
    """The commands that take netavark's frame away; none while a network of anybody is in use."""
    if IN_USE.search(saved):
        return
    for table, lines in re.findall(r"^\*(\w+)\n(.*?)^COMMIT", saved, re.MULTILINE | re.DOTALL):
        iptables = ["iptables", "-t", table]
        chains = re.findall(rf"^:({MARK}\S+)", lines, re.MULTILINE)
        for chain, rest in re.findall(rf"^-A (\S+) (.*-j {MARK}.*)$", lines, re.MULTILINE):
            if chain not in chains:
                yield [*iptables, "-D", chain, *shlex.split(rest)]
        for verb in ("-F", "-X"):
            yield from ([*iptables, verb, chain] for chain in chains)


def clear() -> None:
    """Take it away."""
    for command in removal(rules()):
        subprocess.run(command, capture_output=True, timeout=COMMAND_SECONDS)
