"""What was measured, one value a round, and the ratios of it.

A ratio is taken within each round, in which both sides were measured shortly one after the other; what counts is the
median of the rounds.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass
class Figures:
    """Values by row (who) and column (at what)."""

    values: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, row: str, column: str, value: float) -> None:
        """Note the value of one round."""
        self.values[row, column].append(value)

    def of(self, row: str, column: str) -> list[float]:
        """The values of all rounds; empty where there are none."""
        return self.values.get((row, column), [])

    def median(self, row: str, column: str) -> float | None:
        """The median of the rounds; None where there are none."""
        found = self.of(row, column)
        return median(found) if found else None


@dataclass(frozen=True)
class Target:
    """A ratio of our figure and the best one of some others', and what it should be at least, or at most.

    `aim` is what we should like beyond it. The others are in another column where `against_column` says so.
    """

    text: str
    model: str
    row: str
    column: str
    against: tuple[str, ...]
    bound: float
    aim: float | None = None
    against_column: str | None = None
    at_most: bool = False  # for times, of which the best is the shortest

    def ratios(self, figures: Figures) -> list[float]:
        """One a round; none where a side was not measured."""
        column = self.against_column or self.column
        others = [found for row in self.against if (found := figures.of(row, column))]
        if not others:
            return []
        best = min if self.at_most else max
        return [mine / best(theirs) for mine, *theirs in zip(figures.of(self.row, self.column), *others, strict=False)]

    def holds(self, ratio: float) -> bool:
        """Whether such a ratio is good enough."""
        return ratio <= self.bound if self.at_most else ratio >= self.bound


@dataclass(frozen=True)
class Finding:
    """One line of the first table."""

    text: str
    bound: str
    found: str
    holds: bool


def findings(targets: Sequence[Target], figures: dict[str, Figures]) -> list[Finding]:
    """The targets for which both sides were measured, and what came out."""
    found = []
    for target in targets:
        ratios = target.ratios(figures.get(target.model, Figures()))
        if ratios:
            ratio, low, high = median(ratios), min(ratios), max(ratios)
            aim = "" if target.aim is None else f" [{target.aim:g}]"
            bound = f"{'at most' if target.at_most else 'at least'} {target.bound:g}{aim}"
            found.append(Finding(target.text, bound, f"{ratio:.2f} ({low:.2f} to {high:.2f})", target.holds(ratio)))
    return found
