"""What of a record of metrics is a figure of the model, and which one people look at first. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AROUND = {"step", "steps", "time", "epoch", "examples_per_second", "loss"}


def names(record: Mapping[str, Any]) -> list[str]:
    """The metrics besides the loss, in the order in which the program has them."""
    return [name for name in record if name not in AROUND]


def headline(record: Mapping[str, Any]) -> tuple[str, float] | None:
    """The program's first metric, such as accuracy or auc."""
    return next(((name, float(record[name])) for name in names(record)), None)
