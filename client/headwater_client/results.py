"""What a run over many sequences gives: a result each, and a count of all."""

from dataclasses import dataclass, field
from pathlib import Path

from headwater_client.answer import Answer
from headwater_client.errors import HeadwaterError


@dataclass(frozen=True, repr=False)
class Result:
    """One sequence of a run, by its index among the inputs.

    path: its file, where the run goes into a directory. reused: whether an earlier run had left it there.
    error: what kept its answer from coming, else None.
    """

    index: int
    path: Path | None = None
    error: HeadwaterError | None = None
    reused: bool = False
    held: Answer | None = None

    @property
    def answer(self) -> Answer:
        """The arrays; out of the file where there is one. Raises the error where there is one."""
        if self.error is not None:
            raise self.error
        if self.held is not None:
            return self.held
        assert self.path is not None, "a result without an error is held or written"
        return Answer.load(self.path)

    def __repr__(self) -> str:
        state = f"failed: {type(self.error).__name__}" if self.error else "reused" if self.reused else "asked"
        return f"<Result {self.index}, {state}>"


@dataclass
class Report:
    """What a run came to: sequences that were asked for, that were there already, and those that failed."""

    asked: int = 0
    reused: int = 0
    failed: list[Result] = field(default_factory=list)

    def count(self, result: Result) -> None:
        """One more."""
        if result.error is not None:
            self.failed.append(result)
        elif result.reused:
            self.reused += 1
        else:
            self.asked += 1

    @property
    def done(self) -> int:
        """All of them."""
        return self.asked + self.reused + len(self.failed)
