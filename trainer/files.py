"""Small files that are always whole, on a local disk or on gs://; and what it means that a place cannot be written."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from trainer.cluster import ConfigurationError
from trainer.rest import first_line

# What a full disk, a quota, a read-only mount or missing permission look like. It may pass, and so no training ends of it.
UNWRITABLE = (tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError, OSError)


class UnwritableError(Exception):
    """A result that has to be written and cannot be now. One sentence."""


@contextlib.contextmanager
def writing(what: str) -> Iterator[None]:
    """Around what cannot be left out. Memory that is exhausted looks the same, so that is not asked where something is computed."""
    try:
        yield
    except UNWRITABLE as error:
        raise UnwritableError(f"{what} cannot be written ({reason(error)}); make room, or make it writable") from None


def reason(error: Exception) -> str:
    """What went wrong, without TensorFlow's words about where in a graph."""
    return re.sub(r"^\{\{.*?\}\} *| *\[Op:\w+\].*$", "", first_line(error))


def warn(text: str) -> None:
    """For people, above all for those who look for why something is missing."""
    print(f"trainer: WARNING: {text}", file=sys.stderr, flush=True)


def read_text(path: str) -> str | None:
    try:
        with tf.io.gfile.GFile(path) as file:
            return str(file.read())
    except tf.errors.NotFoundError:
        return None


def read_bytes(path: str) -> bytes:
    """A whole file; that it is not there is said with its name."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return bytes(file.read())
    except tf.errors.NotFoundError:
        raise _missing(path) from None


def beginning(path: str, count: int, size: int | None = None) -> tuple[bytes, int]:
    """A file's first bytes and its length, which is little to read for every task that starts. `size`: the length that it was prepared with."""
    try:
        found = int(tf.io.gfile.stat(path).length)
        with tf.io.gfile.GFile(path, "rb") as file:
            head = bytes(file.read(count))
    except tf.errors.NotFoundError:
        raise _missing(path) from None
    if size is not None and found != size:
        raise ConfigurationError(f"{path} ends at byte {found} and was prepared to end at byte {size}; prepare the data again")
    return head, found


def _missing(path: str) -> ConfigurationError:
    return ConfigurationError(f"there is no {path}; prepare the data (data_prep), or correct data_dir")


def unpacked(path: str, shown: str) -> bytes:
    """What is in a file, whether it is packed or not: the name does not say it reliably, since some servers unpack what they send.

    `shown`: what to name in place of a copy.
    """
    data = read_bytes(path)
    if not data.startswith(b"\x1f\x8b"):
        return data
    stream = io.BytesIO(data)
    try:
        return gzip.GzipFile(fileobj=stream).read()
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigurationError(
            f"{shown} is no whole gzip file: it cannot be unpacked up to byte {stream.tell()} of {len(data)} ({error}); "
            "prepare the data again from a whole copy"
        ) from None


def write_bytes(path: str, data: bytes) -> None:
    """Written beside the old one and renamed, so that a reader sees the one or the other."""
    tf.io.gfile.makedirs(os.path.dirname(path))  # noqa: PTH120 - may be gs://
    beside = path if "://" in path else f"{path}.part"  # an object appears at once and whole
    with tf.io.gfile.GFile(beside, "wb") as file:
        file.write(data)
    if beside != path:
        tf.io.gfile.rename(beside, path, overwrite=True)


def write_text(path: str, text: str) -> None:
    write_bytes(path, text.encode())


def read_lines(path: str) -> list[dict[str, Any]]:
    """The records of a .jsonl file; a last line cut short by a kill is left out."""
    records = []
    for line in (read_text(path) or "").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def write_lines(path: str, records: Iterable[dict[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(record) + "\n" for record in records))
