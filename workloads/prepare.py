"""Prepares data once: one file, standard library only, so that it runs in any image.

    python prepare.py --marker DIRECTORY --inputs HASH -- COMMAND [ARGUMENT…]

When the command has succeeded it leaves a marker in the directory with the data. Where there is one of the same inputs, the data is there and
the command is not run: a stack that was destroyed and made again does not prepare what was kept. A preparation that failed or was
interrupted leaves no marker, and neither does one of other inputs that has begun: what is there may be half of the one and half of the other.

The directory may be gs://…, for which TensorFlow is needed; in an image without it the command is run every time.

Its exit code is the command's, or 128 + the signal that ended it; 75 when it was told to stop and the command returned 0 all the same; 78 when
it cannot be started.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

MARKER = ".trainstack-prepared.json"
DONE, RETRY, CONFIGURATION = 0, 75, 78
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def inputs(command: Sequence[str], args: Mapping[str, Any], data_dir: str) -> str:
    """What a preparation depends on, as a hash: what is run, with which arguments, for which directory, all as the settings write it."""
    return hashlib.sha256(json.dumps([list(command), dict(args), data_dir], sort_keys=True).encode()).hexdigest()


class Place(Protocol):
    """Where the marker is. Each of these may raise OSError."""

    def read(self) -> str | None: ...

    def write(self, text: str) -> None:
        """Whole or not at all."""

    def remove(self) -> None: ...


class Disk:
    def __init__(self, directory: str) -> None:
        self.path = Path(directory) / MARKER

    def read(self) -> str | None:
        try:
            return self.path.read_text()
        except FileNotFoundError:
            return None

    def write(self, text: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f"{MARKER}.{os.getpid()}")
        beside.write_text(text)
        beside.replace(self.path)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


class Bucket:
    """Raises ImportError where there is no TensorFlow."""

    def __init__(self, directory: str) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        tensorflow = importlib.import_module("tensorflow")  # not by a statement: it may be missing, and nothing else here needs it
        self.files, self.error = tensorflow.io.gfile, tensorflow.errors.OpError
        self.directory, self.path = directory.rstrip("/"), f"{directory.rstrip('/')}/{MARKER}"

    @contextlib.contextmanager
    def as_os_error(self) -> Iterator[None]:
        try:
            yield
        except self.error as error:
            raise OSError((str(error).splitlines() or [type(error).__name__])[0]) from None

    def read(self) -> str | None:
        with self.as_os_error():
            if not self.files.exists(self.path):
                return None
            with self.files.GFile(self.path) as file:
                return str(file.read())

    def write(self, text: str) -> None:
        with self.as_os_error():
            self.files.makedirs(self.directory)
            beside = f"{self.path}.{os.getpid()}"
            with self.files.GFile(beside, "w") as file:
                file.write(text)
            self.files.rename(beside, self.path, overwrite=True)

    def remove(self) -> None:
        with self.as_os_error():
            if self.files.exists(self.path):
                self.files.remove(self.path)


def place_of(directory: str) -> Place | None:
    """None where nothing can be kept; the line that says so is written here."""
    if "://" not in directory:
        return Disk(directory)
    try:
        return Bucket(directory)
    except ImportError:
        say(f"there is no TensorFlow here to reach {directory}, so no marker is kept and the data is prepared every time")
        return None


def is_of(text: str | None, wanted: str) -> bool:
    """Whether a marker is of these inputs. One that cannot be read is of none."""
    try:
        return bool(json.loads(text or "{}").get("inputs") == wanted)
    except (ValueError, AttributeError):
        return False


class Preparation:
    """The command, and the signals that it gets."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.environment = dict(os.environ)  # as it is before TensorFlow is loaded here
        self.child: subprocess.Popen[bytes] | None = None
        self.interrupted, self.told = 0, False
        for number in PASSED_ON:
            signal.signal(number, self.pass_on)

    def pass_on(self, number: int, _: FrameType | None) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self.interrupted, self.told = number, self.child is not None
        if self.child is not None:
            self.send(number)

    def send(self, number: int) -> None:
        """To the command and everything it started: it leads a process group of its own."""
        assert self.child is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child.pid, number)

    def run(self) -> int:
        try:
            self.child = subprocess.Popen(self.command, env=self.environment, start_new_session=True)
        except OSError as error:
            say(f"{self.command[0]!r} cannot be started ({error.strerror}); correct the command of data_prep")
            return CONFIGURATION
        if self.interrupted and not self.told:  # a signal that came while the command was being started
            self.send(self.interrupted)
        returned = self.child.wait()
        self.send(signal.SIGKILL)  # what the command may have left behind
        if self.interrupted and returned == DONE:
            return RETRY
        return returned if returned >= 0 else 128 - returned


def say(text: str) -> None:
    print(f"prepare: {text}", file=sys.stderr, flush=True)


def prepare(directory: str, wanted: str, command: list[str]) -> int:
    preparation = Preparation(command)
    place = place_of(directory)
    if place is None:
        return preparation.run()
    try:
        found = place.read()
        if is_of(found, wanted):
            say(f"the data in {directory} is prepared already; remove {MARKER} there to have it prepared again")
            return DONE
        if found is not None:
            place.remove()
    except OSError as error:
        say(f"the marker in {directory} cannot be read or removed ({error}); see that this task may write there")
        return CONFIGURATION
    code = RETRY if preparation.interrupted else preparation.run()
    if code == DONE:
        try:
            place.write(json.dumps({"inputs": wanted, "time": round(time.time(), 3)}) + "\n")
        except OSError as error:
            say(f"no marker could be left in {directory} ({error}), so the data will be prepared again the next time")
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--marker", required=True, metavar="DIRECTORY", help="the directory with the data; a local path or gs://…")
    parser.add_argument("--inputs", required=True, metavar="HASH", help="what the preparation depends on")
    parser.add_argument("command", nargs="+", help="what to run, after --")
    options = parser.parse_args()
    return prepare(options.marker, options.inputs, options.command)


if __name__ == "__main__":
    sys.exit(main())
