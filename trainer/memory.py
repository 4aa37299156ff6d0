"""What a step has used is kept for the next one.

By itself, glibc gives large blocks back to the system and fetches them again in the next step, page by page: on CPUs, where tensors are such blocks,
up to half of the time.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time

# glibc's numbers for: how much that is not used is given back; from which size on a block is one of the system's own (32 MB are the most that it
# takes); how many heaps the threads share.
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
# A heap apart keeps less, and on few cores nobody waits for another's lock.
KEPT = {TRIM_THRESHOLD: 2**31 - 1, MMAP_THRESHOLD: 2**25, ARENA_MAX: max(1, (os.cpu_count() or 1) // 8)}
AGAIN = 1.0  # seconds; TensorFlow sets the second one back whenever it makes an iterator that brings batches to a device


def keep() -> None:
    """From now on, and before there are other threads. Systems without glibc have no such settings, and nothing to be mended."""
    if settings_made():
        threading.Thread(target=keep_on, daemon=True).start()


def keep_on() -> None:
    while settings_made():
        time.sleep(AGAIN)


def settings_made() -> bool:
    try:
        library = ctypes.CDLL(None)
        return all(library.mallopt(name, value) for name, value in KEPT.items())
    except (AttributeError, OSError, TypeError):
        return False
