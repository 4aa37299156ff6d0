"""Brings files from where they are to where they are needed: whole, and the right ones.

A source is an address (https://…), an object (gs://…) or a path. What was interrupted goes on where it stopped; what does not have the checksum that it
should have is not kept. Nothing appears under its name before it is whole.
"""

from __future__ import annotations

import hashlib
import http.client
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer.cluster import ConfigurationError

BLOCK = 1 << 20
SAY_EVERY = 5.0  # seconds
TRIES = 5


def fetch(source: str, target: Path, sha256: str | None = None) -> Path:
    """A file from anywhere onto this disk; one that is there already, with the right checksum, stays."""
    if target.exists() and (sha256 is None or checksum(target) == sha256):
        print(f"{target.name} is there already", flush=True)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    if source.startswith(("http://", "https://")):
        _download(source, part)
    else:
        _copy(source, part)
    if sha256 is not None and (found := checksum(part)) != sha256:
        part.unlink()
        raise ConfigurationError(
            f"{source} has the checksum {found} and not {sha256}: it is another file, or it was changed on the way; correct source or sha256"
        )
    part.replace(target)
    return target


def _download(source: str, part: Path) -> None:
    for number in range(1, TRIES + 1):
        done = part.stat().st_size if part.exists() else 0
        request = urllib.request.Request(source, headers={"Range": f"bytes={done}-"} if done else {})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                resumed = answer.status == 206
                size = int(answer.headers.get("Content-Length") or 0) + (done if resumed else 0)
                with (
                    part.open("ab" if resumed else "wb") as file,
                    progress(source.rpartition("/")[2], size, done if resumed else 0) as step,
                ):
                    while block := answer.read(BLOCK):
                        file.write(block)
                        step(len(block))
            if size and part.stat().st_size < size:
                raise OSError("the connection ended early")
            return
        except urllib.error.HTTPError as error:
            if error.code == 416:  # nothing is left to send: it is all there
                return
            raise ConfigurationError(
                f"{source} cannot be downloaded ({error.code} {error.reason}); correct the address in `source`"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            if number == TRIES:
                raise ConfigurationError(
                    f"{source} cannot be downloaded ({getattr(error, 'reason', None) or error}); see that this machine reaches it, or write the path of a copy as `source`"
                ) from None
            time.sleep(2**number)


def _copy(source: str, part: Path) -> None:
    try:
        tf.io.gfile.copy(source, str(part), overwrite=True)
    except tf.errors.OpError as error:
        raise ConfigurationError(f"{source} cannot be read ({first_line(error)}); correct `source`") from None


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack(archive: Path, target: Path) -> Path:
    """A .tar.gz or .zip as a folder, whole or not there. Names that lead out of it are refused."""
    if target.exists():
        return target
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(part)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(part, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise ConfigurationError(f"{archive} cannot be unpacked ({error}); delete it, and it is fetched again") from None
    return part.rename(target)


def put(source: Path, directory: str, name: str | None = None) -> None:
    """A file of this disk into a directory that may be gs://…, under its name only when it is whole."""
    tf.io.gfile.makedirs(directory)
    target = f"{directory.rstrip('/')}/{name or source.name}"
    if "://" in directory:  # an object appears at once and whole
        tf.io.gfile.copy(str(source), target, overwrite=True)
        return
    tf.io.gfile.copy(str(source), f"{target}.part", overwrite=True)
    tf.io.gfile.rename(f"{target}.part", target, overwrite=True)


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def progress(what: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Says every few seconds how far something is; `total` may be unknown (0). Bytes are shown as MB, fewer things as they are."""
    state: dict[str, Any] = {"done": done, "said": time.monotonic()}

    def shown(number: int) -> str:
        return f"{number / 1e6:,.1f} MB" if max(total, number) > 1_000_000 else f"{number:,}"

    def step(count: int = 1) -> None:
        state["done"] += count
        if time.monotonic() - state["said"] > SAY_EVERY:
            state["said"] = time.monotonic()
            of = f" of {shown(total)} ({100 * state['done'] // total} %)" if total else ""
            print(f"{what}: {shown(state['done'])}{of}", flush=True)

    yield step
    print(f"{what}: {shown(state['done'])}, done", flush=True)
