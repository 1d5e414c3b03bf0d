"""The log: one JSON object a line on stderr, whoever writes it.

A message that is a dict is a set of fields, as of a request; any other is the field `message`.
"""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

TRACEBACK_LINE = 300  # characters: what an exception says of a value is cut there


def configure(level: str) -> None:
    """Let every logger, Python's warnings and uvicorn's too, write JSON lines on stderr from this level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)


class JsonLines(logging.Formatter):
    """A record as one JSON object in ASCII, whatever stands in it: a line is never broken, nor unreadable."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if isinstance(record.msg, dict):
            line |= record.msg
        else:
            line["message"] = _message(record)
        if record.exc_info and record.exc_info[1] is not None:
            whole = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
            line["exception"] = "\n".join(one[:TRACEBACK_LINE] for one in whole.split("\n"))
        return json.dumps(line, default=str)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):
        # the arguments do not fit the text: logging would print a traceback that is no JSON
        return f"{record.msg} {record.args!r}"
