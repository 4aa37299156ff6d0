"""Signs of life for whoever has started this task: a byte a second, and another when the training has come further.

The launcher says where to: TRAINSTACK_HEARTBEAT is the number of an open file. Without it nobody listens, and nothing is written.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

ALIVE, FURTHER = b".", b"+"
BEAT_EVERY = 1.0
LOOK_EVERY = 2.0  # seconds between two looks at the step


def begin() -> None:
    """Begins to give signs. Call it once TensorFlow is loaded: loading may hold up every thread for a while, and who has begun must go on."""
    if (number := _listener()) is not None:
        os.set_blocking(number, False)  # a launcher that is itself stopped must not stop the training
        _repeat(lambda: _write(ALIVE), BEAT_EVERY)


def further() -> None:
    """The training has come further."""
    _write(FURTHER)


def follow(step: Callable[[], int]) -> None:
    """Says so whenever the step has changed, also within an epoch, however long that is."""
    seen = -1

    def look() -> None:
        nonlocal seen
        with contextlib.suppress(Exception):  # where the step is kept may be gone; the training itself says so
            if (now := step()) != seen:
                seen = now
                further()

    if _listener() is not None:
        _repeat(look, LOOK_EVERY)


def _repeat(action: Callable[[], None], seconds: float) -> None:
    def forever() -> None:
        while True:
            action()
            time.sleep(seconds)

    threading.Thread(target=forever, daemon=True).start()


def _listener() -> int | None:
    written = os.environ.get("TRAINSTACK_HEARTBEAT", "")
    return int(written) if written.isdecimal() else None


def _write(sign: bytes) -> None:
    if (number := _listener()) is not None:
        with contextlib.suppress(OSError):
            os.write(number, sign)
