"""A training's numbers, read from what its tasks print: the same records as in metrics.jsonl and evaluation.jsonl, where those files are out of reach. Pure."""

from __future__ import annotations

import re
from typing import Any

Record = dict[str, Any]

BEGINNING = re.compile(r"training .+ under .+: (\d+) of (\d+) steps to go")
EPOCH = re.compile(r"epoch (\d+)/\S+, step (\d+): (.+)")
TEST = re.compile(r"step (\d+): (test .+)")
VALUE = re.compile(r"(?:test )?(\S+) (\S+)")


class Numbers:
    """The records so far. Lines are fed in the order in which they were printed."""

    def __init__(self) -> None:
        self.metrics: list[Record] = []
        self.evaluation: list[Record] = []
        self.steps: int | None = None  # of the whole run

    def feed_lead(self, time: float, line: str) -> None:
        """A line of the task that trains. One that goes on from an older checkpoint repeats some steps; what was known of them is dropped."""
        if begun := BEGINNING.fullmatch(line):
            left, self.steps = int(begun[1]), int(begun[2])
            resumed_at = self.steps - left
            self.metrics = [record for record in self.metrics if record["step"] <= resumed_at]
            self.evaluation = [record for record in self.evaluation if record["step"] <= resumed_at]
        elif epoch := EPOCH.fullmatch(line):
            steps = {} if self.steps is None else {"steps": self.steps}
            _add(self.metrics, {"step": int(epoch[2]), "time": time, **_values(epoch[3]), "epoch": int(epoch[1]), **steps})
        else:
            self.feed_evaluator(time, line)

    def feed_evaluator(self, time: float, line: str) -> None:
        """A line of a task that tries the model."""
        if test := TEST.fullmatch(line):
            _add(self.evaluation, {"step": int(test[1]), "time": time, **_values(test[2])})


def _add(records: list[Record], record: Record) -> None:
    """What is said of a step again replaces what was said before: an evaluator that was started again, a log that was read from its beginning."""
    records[:] = sorted([*(each for each in records if each["step"] != record["step"]), record], key=lambda each: int(each["step"]))


def _values(text: str) -> dict[str, float]:
    found = {}
    for part in text.split(", "):
        if match := VALUE.fullmatch(part):
            try:
                found[match[1]] = float(match[2])
            except ValueError:
                continue
    return found
