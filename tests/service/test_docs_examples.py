"""What the pages of docs/ show is what comes back: every example runs as it is written, in the order of its page.

Python blocks of a page share one namespace. What a block prints stands behind each `print(...)  # like this`, or in the
block that follows it; there `...` stands for anything, and the last digit shown of a number may be another one, for
processors differ in it.
"""

import contextlib
import io
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from service.cli import main
from tests.server import Server, serving

DOCS = Path(__file__).parents[2] / "docs"
CLIENT = "../client/README.md"
PAGES = [*sorted(path.name for path in DOCS.glob("*.md")), CLIENT]
WITH_EXAMPLES = (CLIENT, "api.md", "long-inputs.md", "models.md", "observability.md", "v2.md")
PROGRAMS = ("python", "curl", "shell")
OUTPUTS = ("text", "json")
SMOLLM2, TEXTBOOK = "http://127.0.0.1:8000", "http://127.0.0.1:8001"
TIMES = ("queue_ms", "compute_ms")
NUMBER = re.compile(r"(-?\d+(?:\.\d*)?(?:e[+-]?\d+)?)")


@dataclass(frozen=True)
class Block:
    """A fenced block: the line of its first line of text, its kind, its text, and the output shown behind it."""

    page: str
    line: int
    kind: str
    text: str
    shown: str | None = None

    def __str__(self) -> str:
        return f"docs/{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page that run, each with its output."""
    found: list[Block] = []
    text = (DOCS / page).read_text(encoding="utf-8")
    end = 0
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        kind, inner = match[1], match[2]
        if not kind and re.match(r"\s*curl\b", inner):
            kind = "curl"
        block = Block(page, text.count("\n", 0, match.start(2)) + 1, kind, inner)
        if kind in PROGRAMS:
            found.append(block)
        elif kind in OUTPUTS and found and not text[end : match.start()].strip():
            found[-1] = Block(page, found[-1].line, found[-1].kind, found[-1].text, inner)
        else:
            assert not kind, f"{block}: no program, and no output right behind one: {kind}"
        end = match.end()
    return found


@pytest.fixture(scope="module")
def book_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The textbook model that docs/models.md makes, with the commands that stand there."""
    (made,) = (block for block in blocks("models.md") if block.kind == "shell")
    folder = tmp_path_factory.mktemp("docs")
    init, serve = (shlex.split(line, comments=True) for line in made.text.splitlines())
    assert init[:2] == ["headwater", "init"]
    assert serve == ["headwater", "serve", "--model", init[-1], "--port", "8001"]
    with contextlib.chdir(folder):
        assert main(init[1:]) == 0
    with serving(folder / init[-1], "--threads", "1") as server:
        yield server


@pytest.mark.parametrize("page", PAGES)
def test_every_example_gives_what_the_page_shows(
    page: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.chdir(tmp_path)  # files that one example writes and another reads
    text = (DOCS / page).read_text(encoding="utf-8")
    here = {
        said: request.getfixturevalue(fixture).url
        for said, fixture in ((SMOLLM2, "smollm2_server"), (TEXTBOOK, "book_server"))
        if said.removeprefix("http://") in text
    }
    namespace: dict[str, Any] = {}
    wrong: list[str] = []
    try:
        for block in blocks(page):
            if block.kind == "shell":
                continue  # book_server ran it
            program = block.text
            for said, url in here.items():
                program = program.replace(said.removeprefix("http://"), url.removeprefix("http://"))
            printed = run_python(block, program, namespace) if block.kind == "python" else run_curl(program)
            if not agrees(block, printed):
                wrong.append(f"{block} shows\n{expected(block)}\nand this came:\n{printed}")
    finally:
        for value in namespace.values():
            if callable(getattr(value, "close", None)) and not isinstance(value, type):
                value.close()
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_that_could_run_is_run(page: str) -> None:
    """Counted in another way than by the blocks that are run: by the fences, and by what stands in commands."""
    found = blocks(page)
    assert bool(found) is (page in WITH_EXAMPLES)
    lines = (DOCS / page).read_text(encoding="utf-8").split("\n")
    inside = {n for block in found for n in range(block.line, block.line + block.text.count("\n"))}
    fences = [n for n, line in enumerate(lines, 1) if line.lstrip().startswith("```")]
    assert len(fences) % 2 == 0
    for opening, closing in zip(fences[::2], fences[1::2], strict=True):
        body = "\n".join(lines[opening : closing - 1])
        program = lines[opening - 1].strip() in ("```python", "```curl", "```shell", "```bash", "```sh")
        if program or re.search(r"\bcurl\b|^\s*(import|from) \w|\bprint\(", body, re.MULTILINE):
            assert opening + 1 in inside, f"docs/{page}:{opening + 1} is not run"


def test_every_example_shows_what_it_prints() -> None:
    silent = [str(b) for page in PAGES for b in blocks(page) if b.kind == "curl" and b.shown is None]
    silent += [
        str(b)
        for page in PAGES
        for b in blocks(page)
        if b.kind == "python" and b.shown is None and len(comments(b)) != b.text.count("print(")
    ]
    assert not silent


def run_python(block: Block, program: str, namespace: dict[str, Any]) -> str:
    """What a block prints; lines in a traceback are those of the page."""
    code = compile("\n" * (block.line - 1) + program, f"docs/{block.page}", "exec")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, namespace)
    return out.getvalue()


def run_curl(program: str) -> str:
    done = subprocess.run(["bash", "-e", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{program}\n{done.stderr}"
    return done.stdout


def comments(block: Block) -> list[str]:
    """What stands behind the prints of a block."""
    return re.findall(r"^\s*print\(.*\)  # (.*)$", block.text, re.MULTILINE)


def expected(block: Block) -> str:
    return "\n".join(comments(block)) if block.shown is None else block.shown.strip("\n")


def agrees(block: Block, printed: str) -> bool:
    """Whether this is what the page shows."""
    if block.kind == "curl" and block.shown is not None and block.shown.lstrip().startswith("{"):
        found, shown = json.loads(printed), json.loads(block.shown)
        if "manifest" not in shown:
            found.pop("manifest", None)  # as the page says
        return alike(found, shown)
    found, shown = printed.strip("\n").split("\n"), expected(block).split("\n")
    return len(found) == len(shown) and all(same_line(*pair) for pair in zip(found, shown, strict=True))


def alike(found: Any, shown: Any) -> bool:
    """Equal JSON but for times and the last digits of numbers; "..." stands for any string."""
    if isinstance(shown, dict) and isinstance(found, dict):
        return list(found) == list(shown) and all(key in TIMES or alike(found[key], shown[key]) for key in shown)
    if isinstance(shown, list) and isinstance(found, list):
        return len(found) == len(shown) and all(alike(*pair) for pair in zip(found, shown, strict=True))
    if isinstance(shown, float) and isinstance(found, float):
        return abs(found - shown) <= 1e-3 * max(1.0, abs(shown))
    if isinstance(shown, str) and isinstance(found, str):
        return same_line(found, shown)
    return type(found) is type(shown) and bool(found == shown)


def same_line(found: str, shown: str) -> bool:
    """Equal but for spaces and the last digit of numbers that are no integers; `...` stands for anything."""
    found, shown = (re.sub(r"\s+(?=])", "", re.sub(r"\s+", " ", line.strip())) for line in (found, shown))
    parts = NUMBER.split(shown)
    texts = [re.escape(part).replace(re.escape("..."), ".*") for part in parts[::2]]
    pattern = texts[0] + "".join(NUMBER.pattern + text for text in texts[1:])
    match = re.fullmatch(pattern, found)
    return match is not None and all(near(*pair) for pair in zip(match.groups(), parts[1::2], strict=True))


def near(found: str, shown: str) -> bool:
    digits = len(shown.partition("e")[0].partition(".")[2])
    if not digits:
        return found == shown
    unit = 10.0 ** (int(shown.partition("e")[2] or 0) - digits)
    return abs(float(found) - float(shown)) <= 1.01 * unit


@pytest.mark.parametrize(
    ("found", "shown", "same"),
    [
        ("(5, 576)", "(5, 576)", True),
        ("(5, 576)", "(5, 577)", False),
        ("0.84218", "0.842", True),
        ("0.844", "0.842", False),
        ("[0.1 0.25]", "[0.1 0.26]", True),
        ("[0.19 0.1 ]", "[0.2  0.1]", True),
        ("[1.    0.]", "[1. 0.]", True),
        ("layers.4.z", "layers.5.z", False),
        ("[0.1 0.25]", "[0.1]", False),
        ("1.2e-06 off", "1.3e-06 off", True),
        ("1.2e-05 off", "1.3e-06 off", False),
        ("took 7 ms", "took ... ms", True),
        ("took 7 s", "took ... ms", False),
        ("-3.4", "3.4", False),
    ],
)
def test_the_comparison_itself(found: str, shown: str, same: bool) -> None:
    assert same_line(found, shown) is same
