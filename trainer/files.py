"""Small files that are always whole, on a local disk or on gs://."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

import tensorflow as tf


def read_text(path: str) -> str | None:
    try:
        with tf.io.gfile.GFile(path) as file:
            return str(file.read())
    except tf.errors.NotFoundError:
        return None


def write_text(path: str, text: str) -> None:
    """Written beside the old one and renamed, so that a reader sees the one or the other."""
    tf.io.gfile.makedirs(os.path.dirname(path))  # noqa: PTH120 - may be gs://
    if path.startswith("gs://"):  # an object appears at once and whole
        with tf.io.gfile.GFile(path, "w") as file:
            file.write(text)
        return
    with tf.io.gfile.GFile(f"{path}.new", "w") as file:
        file.write(text)
    tf.io.gfile.rename(f"{path}.new", path, overwrite=True)


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
