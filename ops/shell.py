"""A command in a container: with its output here, with this terminal, or as a stream of bytes.

The library's web socket is read frame by frame: its own reading gathers everything that has come, which for a model of a gigabyte is a gigabyte, twice.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ops.target import OpsError

STDIN, STDOUT, STDERR, END, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
CLOSE_FRAME = 8
SHELL = ["/bin/sh", "-c", "TERM=$0; export TERM; if command -v bash >/dev/null; then exec bash; else exec sh; fi"]


class Command:
    """A command that runs in a container, over an open web socket."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.exit_code: int | None = None
        self.trouble = ""  # why the command could not be run at all

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """What it prints, piece by piece, each with its channel."""
        from websocket import WebSocketException

        try:
            while self.exit_code is None:
                kind, frame = self._connection.sock.recv_data_frame(True)
                if kind == CLOSE_FRAME:
                    break
                channel, data = (frame.data[0], bytes(frame.data[1:])) if frame.data else (CLOSE, b"")
                if channel == END:
                    self._end(data)
                elif channel in (STDOUT, STDERR) and data:
                    yield channel, data
        except (WebSocketException, OSError):
            pass  # the pod is gone; no exit code says so
        finally:
            with contextlib.suppress(WebSocketException, OSError):
                self._connection.close(timeout=1)

    def _end(self, data: bytes) -> None:
        self.exit_code, self.trouble = exit_code(data)

    def write(self, data: bytes) -> None:
        self._connection.write_channel(STDIN, data)

    def close_stdin(self) -> None:
        self._connection.close_channel(STDIN)

    def resize(self) -> None:
        size = shutil.get_terminal_size()
        self._connection.write_channel(RESIZE, json.dumps({"Width": size.columns, "Height": size.lines}).encode())

    def result(self) -> int:
        if self.exit_code is None:
            raise OpsError("the connection to the pod was lost before the command ended; look with `trainstack explain`, then try again.")
        if self.trouble:
            raise OpsError(f"the command cannot be run there: {self.trouble}; correct it.")
        return self.exit_code


def exit_code(status: bytes) -> tuple[int, str]:
    """The exit code in the status that ends a command, and why there is none where it never ran."""
    said = json.loads(status)
    if said.get("status") == "Success":
        return 0, ""
    for cause in (said.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"]), ""
    message = " ".join(str(said.get("message") or "").split())
    return 126, message.rpartition("unable to start container process: ")[2].removesuffix(": unknown").rstrip(".")


def run(connection: Any) -> tuple[int, str, str]:
    """A command that prints little: its exit code and what it printed."""
    command, printed = Command(connection), {STDOUT: b"", STDERR: b""}
    for channel, data in command.frames():
        printed[channel] += data
    return command.result(), printed[STDOUT].decode(errors="replace"), printed[STDERR].decode(errors="replace")


class Output(io.RawIOBase):
    """What a command prints, as a file that is read from beginning to end."""

    def __init__(self, connection: Any) -> None:
        self.command = Command(connection)
        self.errors = b""
        self._frames, self._rest = self.command.frames(), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            channel, data = next(self._frames, (END, b""))
            if channel == END:
                return 0
            if channel == STDERR:
                self.errors += data
            else:
                self._rest = data
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def attach(connection: Any, terminal: bool) -> int:
    """A command with this process's input and output; with a terminal, every key goes to it, Ctrl-C too."""
    command = Command(connection)
    with _terminal(command) if terminal else contextlib.nullcontext(), _input(command):
        for channel, data in command.frames():
            stream = sys.stdout if channel == STDOUT else sys.stderr
            stream.buffer.write(data)
            stream.buffer.flush()
    return command.result()


def has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def terminal_name() -> str:
    return os.environ.get("TERM") or "xterm"


@contextlib.contextmanager
def _terminal(command: Command) -> Iterator[None]:
    """Raw mode, and the size of the window whenever it changes."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    signalled: Callable[..., None] = lambda *_: command.resize()
    previous = signal.signal(signal.SIGWINCH, signalled)
    try:
        command.resize()
        tty.setraw(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, previous)


@contextlib.contextmanager
def _input(command: Command) -> Iterator[None]:
    """Sends what is typed or piped in, until the command ends."""
    over, ended = os.pipe()

    def send() -> None:
        with contextlib.suppress(OSError, ValueError):
            while True:
                ready, _, _ = select.select([sys.stdin, over], [], [])
                if over in ready:
                    return
                data = os.read(sys.stdin.fileno(), 65536)
                if not data:
                    command.close_stdin()
                    return
                command.write(data)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        yield
    finally:
        os.close(ended)
        sender.join(timeout=1)
        os.close(over)
