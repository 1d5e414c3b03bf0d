"""What a scenario found: numbers to look at, checks that pass or fail; printed as Markdown."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Check:
    """A promise, whether it held, the figure that was found, and the bound."""

    name: str
    passed: bool
    figure: str
    bound: str


@dataclass(slots=True)
class Outcome:
    """What one scenario found."""

    title: str
    numbers: dict[str, str] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    def check(self, name: str, passed: bool, figure: object, bound: object) -> None:
        """Note a check."""
        self.checks.append(Check(name, bool(passed), str(figure), str(bound)))

    @property
    def failed(self) -> list[Check]:
        """The checks that did not hold."""
        return [check for check in self.checks if not check.passed]

    def markdown(self) -> str:
        """Two tables under the title."""
        lines = [f"### {self.title}", "", "| check | found | bound | |", "|---|---|---|---|"]
        lines += [
            f"| {one.name} | {_cell(one.figure)} | {_cell(one.bound)} | {'ok' if one.passed else '**FAILED**'} |"
            for one in self.checks
        ]
        lines += ["", "| measured | |", "|---|---|"]
        lines += [f"| {name} | {_cell(value)} |" for name, value in self.numbers.items()]
        return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
