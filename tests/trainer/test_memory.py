"""That a task keeps its memory, told by glibc's own note on every block of whether it belongs to the system."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT
from trainer import memory

MB = 2**20
pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="these settings are glibc's")


def of_the_system(size: int) -> bool:
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes, library.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    block = library.malloc(size)
    try:
        return bool(ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value & 2)
    finally:
        library.free(block)


def in_a_task() -> None:
    """In a process of its own: what is set cannot be taken back. Every block is larger than what is kept of those before."""
    assert of_the_system(8 * MB), "or the test proves nothing"
    memory.keep()
    assert not of_the_system(9 * MB)
    ctypes.CDLL(None).mallopt(memory.MMAP_THRESHOLD, MB // 8)  # what TensorFlow does for an iterator
    assert of_the_system(16 * MB)
    time.sleep(2 * memory.AGAIN)
    assert not of_the_system(24 * MB)


@pytest.mark.process
def test_a_task_keeps_its_memory_whatever_tensorflow_does() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import in_a_task; in_a_task()"], cwd=ROOT, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr


def test_a_system_without_such_settings_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert not memory.settings_made()
