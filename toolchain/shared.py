"""What the set-up steps share: words for people, locks, commands, and building programs from published Go modules.

Only the standard library is used here, because nothing else is installed yet.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainstack"


class SetupError(Exception):
    """Something a person has to mend; its text is one sentence that says how."""


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def run(command: Sequence[str | Path], **options: object) -> str:
    done = subprocess.run([str(part) for part in command], text=True, capture_output=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise SetupError(f"`{' '.join(str(part) for part in command)}` failed:\n{(done.stderr or done.stdout).strip()}")
    return str(done.stdout)


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Two clones that need the same tool at the same time: one builds it, the other waits and finds it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another set-up is working on {name}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def ticking(text: str, detail: object = None) -> Iterator[None]:
    """Says what goes on and for how long: in place in a terminal, a line every 20 s elsewhere."""
    terminal, started, done = sys.stderr.isatty(), time.monotonic(), threading.Event()

    def tick() -> None:
        while not done.wait(1 if terminal else 20):
            line = f"setup: {text} ({time.monotonic() - started:.0f} s)" + (f" {detail()}" if callable(detail) else "")
            print(f"\r\x1b[K{line[:110]}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()


def go_build(
    folder: Path, module: Sequence[str], packages: Sequence[str], output: Path, options: Sequence[str], **environment: str
) -> None:
    """Builds programs of published modules, from a module of our own whose go.mod has the lines of `module`.

    The output is a file for one program, and a folder for several: those share what they have in common, and all cores.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "go.mod").write_text("\n".join(["module trainstack/toolchain", *module]) + "\n")
    variables = go_environment(**environment)
    with ticking(f"{output.name}: reading its modules"):
        count = len(run(["go", "list", "-deps", *packages], cwd=folder, env=variables).splitlines())
    command = ["go", "build", "-v", *options, "-o", str(output), *packages]
    process = subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    compiled: list[str] = []
    with ticking(f"{output.name}: compiling", lambda: f"{min(99, 100 * len(compiled) // count)} %, {compiled[-1] if compiled else ''}"):
        for line in process.stderr:
            compiled.append(line.strip())
        if process.wait():
            raise SetupError(f"building {' '.join(packages)} failed:\n" + "\n".join(compiled[-15:]))


def go_environment(**environment: str) -> dict[str, str]:
    return {**os.environ, "GOFLAGS": "-mod=mod -buildvcs=false", **environment}
