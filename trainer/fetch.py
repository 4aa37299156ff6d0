"""Brings files from where they are to where they are needed: whole, and the right ones.

A source is an address (https://…), an object (gs://…) or a path. What was interrupted goes on where it stopped; what does not have the checksum that it
should have is not kept. Nothing appears under its name before it is whole.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import posixpath
import shutil
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer.cluster import ConfigurationError
from trainer.rest import first_line

BLOCK = 1 << 20
SAY_EVERY = 5.0  # seconds
TRIES = 5
BUSY = (408, 429)  # what a server also says that will answer later, beside 500 and more


def fetch(source: str, target: Path, sha256: str | None = None) -> Path:
    """A file from anywhere onto this disk; one that is there already, with the right checksum, stays."""
    if target.exists() and (sha256 is None or checksum(target) == sha256):
        print(f"{target.name} is there already", flush=True)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    if source.startswith(("http://", "https://")):
        _download(source, part, sha256 is not None)
    else:
        _copy(source, part)
    if sha256 is not None and (found := checksum(part)) != sha256:
        part.unlink()
        raise ConfigurationError(
            f"{source} has the checksum {found} and not {sha256}: it is another file, or it was changed on the way; correct source or sha256"
        )
    part.replace(target)
    return target


def _download(source: str, part: Path, checked: bool) -> None:
    version = part.with_name(f"{part.name}.version")
    for number in range(1, TRIES + 1):
        try:
            _go_on(source, part, version, checked)
            version.unlink(missing_ok=True)
            return
        except (OSError, http.client.HTTPException) as error:
            said = f"{error.code} {error.reason}" if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", None) or error
            if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code not in BUSY:
                raise ConfigurationError(f"{source} cannot be downloaded ({said}); correct the address in `source`") from None
            if number == TRIES:
                raise ConfigurationError(
                    f"{source} cannot be downloaded ({said}); see that this machine reaches it, or write the path of a copy as `source`"
                ) from None
            time.sleep(2**number)


def _go_on(source: str, part: Path, version: Path, checked: bool) -> None:
    """Asks for the rest of what is there, if that is known to be of the same file: the server compares the version, or we the checksum of it all."""
    of = version.read_text() if version.exists() else ""
    done = part.stat().st_size if part.exists() and (of or checked) else 0
    headers = {"Range": f"bytes={done}-"} if done else {}
    if done and of:
        headers["If-Range"] = of
    try:
        answer = urllib.request.urlopen(urllib.request.Request(source, headers=headers), timeout=60)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is left to send: it is all there
            return
        raise
    with answer:
        if answer.status != 206:
            done = 0
            part.unlink(missing_ok=True)  # before the version, which would otherwise be that of another part
            version.write_text(_version(answer.headers))
        size = int(answer.headers.get("Content-Length") or 0) + done
        with part.open("ab") as file, progress(name_of(source), size, done) as step:
            while block := answer.read(BLOCK):
                file.write(block)
                step(len(block))
    if size and part.stat().st_size < size:
        raise OSError("the connection ended early")


def _version(headers: Any) -> str:
    """By what a server tells that a file is still the same; a weak tag does not promise the same bytes."""
    tag = headers.get("ETag") or ""
    return str((tag if not tag.startswith("W/") else "") or headers.get("Last-Modified") or "")


def _copy(source: str, part: Path) -> None:
    try:
        tf.io.gfile.copy(source, str(part), overwrite=True)
    except tf.errors.OpError as error:
        raise ConfigurationError(f"{source} cannot be read ({first_line(error)}); correct `source`") from None


def name_of(source: str) -> str:
    """What a file is called there, without a query behind its name."""
    path = urllib.parse.urlsplit(source).path if "://" in source else source
    return posixpath.basename(path.rstrip("/")) or "file"


def place(scratch: Path, *what: str | int | None) -> Path:
    """Where a folder that serves several sources keeps one of them: under what tells it from the others, and not under a name that two may have."""
    return scratch / hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12]


def kept_file(source: str, scratch: Path, sha256: str | None = None) -> Path:
    """A file from anywhere, in its place in such a folder."""
    return fetch(source, _place_of(source, scratch, sha256) / name_of(source), sha256)


def kept_folder(source: str, scratch: Path, sha256: str | None = None) -> Path:
    """What an archive from anywhere holds, in its place in such a folder."""
    folder = _place_of(source, scratch, sha256)
    if not folder.exists():
        archive = fetch(source, scratch / f"{folder.name}-{name_of(source)}", sha256)
        print("unpacking", flush=True)
        unpack(archive, folder)
        archive.unlink()  # all of it is in the folder, and scratch may be small
    return folder


def _place_of(source: str, scratch: Path, sha256: str | None) -> Path:
    what: list[str | int | None] = [source, sha256]
    if sha256 is None and not source.startswith(("http://", "https://")):
        with suppress(tf.errors.OpError):  # which fetching it will say
            found = tf.io.gfile.stat(source)
            what += [found.length, found.mtime_nsec]  # it may have been written anew
    return place(scratch, *what)


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


def publish(files: Iterable[Path], directory: str, last: str) -> None:
    """Files of this disk in place of those of their names. `last` goes first and comes last: nobody takes some of the old and some of the new for a
    whole, because readers refuse what lacks it."""
    ordered = sorted(files, key=lambda file: file.name == last)
    for file in reversed(ordered):
        if tf.io.gfile.exists(old := f"{directory.rstrip('/')}/{file.name}"):
            tf.io.gfile.remove(old)
    for file in ordered:
        put(file, directory)


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
