"""Ids of requests that came without one."""

import random

# Nobody need fail to guess them; and to ask the system for each is to let go of the interpreter, and to wait for it.
_random = random.Random(random.SystemRandom().getrandbits(256))


def new_id() -> str:
    """32 hexadecimal digits that no other request has, in this process or another."""
    return f"{_random.getrandbits(128):032x}"
