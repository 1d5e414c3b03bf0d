"""Who may call: the keys of a file, and the comparison that does not tell how much of a key was right."""

import hashlib
import hmac
import re
from pathlib import Path

from service.errors import Unauthorized

_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_SHORTEST = 8


class KeysFileError(Exception):
    """The file of keys cannot be used; the message names the setting and the line, and never holds a key."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"--api-keys-file (HEADWATER_API_KEYS_FILE): {fault}")


class ApiKeys:
    """The keys that are accepted, as digests; each has a name, which stands in the log."""

    def __init__(self, names_by_key: dict[str, str]) -> None:
        self._names = {_digest(key.encode()): name for key, name in names_by_key.items()}

    @classmethod
    def read(cls, path: Path) -> "ApiKeys":
        """Keys from a file: on each line a key, or a name and a key; blank lines and those from # on are skipped.

        A key without a name is called `key-1`, `key-2`, ... by its place among the keys. Raises KeysFileError.
        """
        try:
            lines = path.read_text("ascii").splitlines()
        except OSError as error:
            raise KeysFileError(f"{path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise KeysFileError(f"{path}: is not ASCII text") from None
        found: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) > 2:
                raise KeysFileError(f"{path}, line {number}: has {len(words)} words, not a key or a name and a key")
            name, key = words if len(words) == 2 else (f"key-{len(found) + 1}", words[0])
            if not _NAME.fullmatch(name):
                raise KeysFileError(f"{path}, line {number}: the name may have letters, digits and _ . @ - alone")
            if len(key) < _SHORTEST:
                raise KeysFileError(
                    f"{path}, line {number}: the key has {len(key)} characters, the least is {_SHORTEST}"
                )
            if key in found or name in found.values():
                raise KeysFileError(f"{path}, line {number}: a key or a name comes a second time")
            found[key] = name
        if not found:
            raise KeysFileError(f"{path}: there is no key in it")
        return cls(found)

    def name_of(self, authorization: str | None) -> str:
        """The name of the key in an Authorization header. Raises Unauthorized."""
        if authorization is None:
            raise Unauthorized("send the header Authorization: Bearer KEY")
        scheme, _, key = authorization.strip().partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthorized("the header Authorization must be: Bearer KEY")
        asked = _digest(key.strip().encode("latin-1", "replace"))
        name = None
        for digest, owner in self._names.items():  # all of them, so that the time tells nothing
            if hmac.compare_digest(digest, asked):
                name = owner
        if name is None:
            raise Unauthorized("the API key is not known here")
        return name


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
