"""Which series an expression of Prometheus' query language asks for, by reading its words; it is not evaluated."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

AGGREGATIONS = frozenset("avg bottomk count count_values group max min quantile stddev stdvar sum topk".split())
OF_LABELS = frozenset("by without on ignoring group_left group_right".split())
OPERATORS = frozenset("and or unless bool offset atan2 inf nan".split())
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
      | (?P<word>[A-Za-z_:][A-Za-z0-9_:]*)
      | (?P<range>\[[^\]]*\])
      | (?P<number>[0-9][0-9.eE]*(?:ms|[smhdwy])?)
      | (?P<sign>=~|!~|!=|==|<=|>=|[-+*/%^<>=(){},@])
    )""",
    re.VERBOSE,
)


@dataclass
class Asked:
    """A metric with the matchers of its selector: label, one of = != =~ !~, and a value."""

    metric: str
    matchers: list[tuple[str, str, str]] = field(default_factory=list)


@dataclass
class Expression:
    """The selectors of an expression, and the labels by which it groups or matches."""

    selectors: list[Asked] = field(default_factory=list)
    grouping: set[str] = field(default_factory=set)


def read(text: str) -> Expression:
    """Read an expression. Raises ValueError at what is no token, and KeyError at a selector without a name."""
    tokens = list(_tokens(text))
    found = Expression()
    at = 0

    def sign(place: int) -> str:
        return tokens[place][1] if place < len(tokens) and tokens[place][0] == "sign" else ""

    while at < len(tokens):
        kind, word = tokens[at]
        at += 1
        if kind == "sign" and word == "{":
            raise KeyError(f"a selector without a name in {text!r}")
        if kind != "word" or word in OPERATORS:
            continue
        if word in OF_LABELS:
            assert sign(at) == "(", f"no labels after {word} in {text!r}"
            while sign(at) != ")":
                if tokens[at][0] == "word":
                    found.grouping.add(tokens[at][1])
                at += 1
        elif sign(at) != "(" and word not in AGGREGATIONS:
            asked = Asked(word)
            if sign(at) == "{":
                at += 1
                while sign(at) != "}":
                    if tokens[at][0] == "word":
                        (_, label), (_, operator), (_, value) = tokens[at : at + 3]
                        asked.matchers.append((label, operator, value[1:-1]))
                        at += 2
                    at += 1
            found.selectors.append(asked)
    return found


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    text = re.sub(r"#.*", "", text).rstrip()
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"what is {text[at : at + 20]!r} in {text!r}?")
        at = match.end()
        kind = match.lastgroup
        assert kind is not None
        yield kind, match[kind]
