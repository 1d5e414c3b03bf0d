"""The tables of docs/performance.md, in Markdown: ratios first, then figures."""

from collections.abc import Sequence

from bench.peers.figures import Figures, Finding
from bench.peers.memory import Memory

MEBIBYTE = 1 << 20


def findings_table(found: Sequence[Finding]) -> str:
    """What should hold, and what came out: the median of the rounds, and the least and the most."""
    lines = ["| ratio | target [aim] | found (least to most) | |", "|---|---|---|---|"]
    lines += [f"| {one.text} | {one.bound} | {one.found} | {'ok' if one.holds else '**missed**'} |" for one in found]
    return "\n".join(lines)


def figures_table(title: str, figures: Figures, columns: Sequence[str]) -> str:
    """The medians; rows stand in the order in which they were measured first."""
    rows = dict.fromkeys(row for row, column in figures.values if column in columns)
    used = [column for column in columns if any(figures.of(row, column) for row in rows)]
    lines = [f"| {title} | {' | '.join(used)} |", f"|---{'|---' * len(used)}|"]
    for row in rows:
        cells = (figures.median(row, column) for column in used)
        lines.append(f"| {row} | {' | '.join('' if cell is None else f'{cell:,.0f}' for cell in cells)} |")
    return "\n".join(lines)


def memory_findings(memory: Memory, base: Memory | None) -> list[Finding]:
    """Anonymous memory against its target; `base` is of a server of a model that is hardly there."""
    interpreter = 0 if base is None else max(0, base.loaded - base.weights)
    beyond = memory.peak - memory.weights - interpreter
    bound = 1.5 * memory.need
    return [
        Finding(
            "anonymous memory at its peak, less the weights once and what a server of the small model has / need of a "
            f"batch of {memory.batch_rows} rows",
            "at most 1.5",
            f"{beyond / memory.need:.2f}",
            beyond <= bound,
        )
    ]


def memory_table(memory: Memory, base: Memory | None) -> str:
    """In MiB."""
    rows = {
        "weights in the file": memory.weights,
        "anonymous memory when loaded and warm": memory.loaded,
        "anonymous memory at the peak, c=32": memory.peak,
        f"what a batch of {memory.batch_rows} rows needs": memory.need,
    }
    if base is not None:
        rows["anonymous memory of a server of the small model, loaded"] = base.loaded
        rows["its weights in the file"] = base.weights
    lines = ["| memory of our server | MiB |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {nbytes / MEBIBYTE:,.0f} |" for name, nbytes in rows.items())])
