"""What the set-up steps share: progress, locks, commands, and building programs from published Go modules.

Only the standard library is used here, because nothing else is installed yet.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainstack"
DURATIONS = CACHE / "durations.json"
CLEAR_LINE = "\r\x1b[K"


class SetupError(Exception):
    """Something that a person has to fix; its text is one sentence that says how."""


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


class Progress:
    """Shows the steps that are running: one line that is rewritten in a terminal, a line every 20 s elsewhere.

    Next to the time that a step has taken stands the time that it took the last time on this machine.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: dict[str, tuple[float, Callable[[], str]]] = {}  # by text: when it started, and what it is doing
        self.idle = threading.Event()

    @contextlib.contextmanager
    def step(self, text: str, detail: Callable[[], str] = lambda: "") -> Iterator[None]:
        started = time.monotonic()
        with self.lock:
            if not self.running:
                self.idle = threading.Event()
                threading.Thread(target=self.show, args=(self.idle,), daemon=True).start()
            self.running[text] = (started, detail)
        try:
            yield
        except BaseException:
            self.finish(text)
            raise
        self.finish(text)
        remember_duration(text, time.monotonic() - started)

    def finish(self, text: str) -> None:
        with self.lock:
            del self.running[text]
            if not self.running:
                self.idle.set()
                if sys.stderr.isatty():
                    print(CLEAR_LINE, end="", file=sys.stderr, flush=True)

    def show(self, idle: threading.Event) -> None:
        expected, terminal = durations(), sys.stderr.isatty()
        while not idle.wait(1 if terminal else 20):
            with self.lock:
                parts = [
                    describe_step(text, time.monotonic() - started, expected.get(text), detail())
                    for text, (started, detail) in self.running.items()
                ]
                if not parts:
                    return
                line = f"setup: {'; '.join(parts)}"
                width = shutil.get_terminal_size().columns - 1
                print(f"{CLEAR_LINE}{line[:width]}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)


def describe_step(text: str, seconds: float, expected: float | None, detail: str) -> str:
    usual = f" of about {expected:.0f} s" if expected and expected > seconds else " s"
    return f"{text} ({seconds:.0f}{usual})" + (f" {detail}" if detail else "")


def durations() -> dict[str, float]:
    """How long each step took the last time on this machine."""
    try:
        return dict(json.loads(DURATIONS.read_text()))
    except (OSError, ValueError):
        return {}


def remember_duration(text: str, seconds: float) -> None:
    """An estimate is not worth a failed set-up: where the cache cannot be written, there is none next time."""
    with contextlib.suppress(OSError):
        DURATIONS.parent.mkdir(parents=True, exist_ok=True)
        scratch = DURATIONS.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        scratch.write_text(json.dumps({**durations(), text: round(seconds, 1)}))
        scratch.replace(DURATIONS)


progress = Progress()


def go_build(
    name: str, folder: Path, module: Sequence[str], packages: Sequence[str], output: Path, options: Sequence[str], **environment: str
) -> None:
    """Builds programs from published modules, in a module of our own whose go.mod has the lines of `module`.

    The output is a file for one program and a folder for several, which then compile what they share once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "go.mod").write_text("\n".join(["module trainstack/toolchain", *module]) + "\n")
    variables = go_environment(**environment)
    with progress.step(f"{name}: downloading Go modules"):
        total = len(run(["go", "list", "-deps", *tags(options), *packages], cwd=folder, env=variables).splitlines())
    command = ["go", "build", "-v", *options, "-o", str(output), *packages]
    process = subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    compiled: list[str] = []
    with progress.step(f"{name}: compiling", lambda: f"{min(99, 100 * len(compiled) // total)} %"):
        for line in process.stderr:
            compiled.append(line.strip())
        if process.wait():
            raise SetupError(f"building {' '.join(packages)} failed:\n" + "\n".join(compiled[-15:]))


def tags(options: Sequence[str]) -> list[str]:
    """The build tags among the options, which also decide what is downloaded."""
    return [option for option in options if option.startswith("-tags=")]


def go_environment(**environment: str) -> dict[str, str]:
    return {**os.environ, "GOFLAGS": "-mod=mod -buildvcs=false", **environment}


def in_parallel(*tasks: Callable[[], object]) -> None:
    """Runs the tasks at the same time and waits for all of them; the first error is raised when all have ended."""
    with concurrent.futures.ThreadPoolExecutor(len(tasks)) as pool:
        for started in [pool.submit(task) for task in tasks]:
            started.result()
