"""Where a training's numbers go: a .jsonl file for programs, TensorBoard's files for people."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

from trainer import files

TRAINING, EVALUATION = "metrics.jsonl", "evaluation.jsonl"


class MetricsWriter:
    """Appends one record per call. Only the task that owns the file writes it.

    A training that goes on from an older checkpoint repeats some steps; what was written of them before is dropped. A place that cannot be written
    ends no training: all records are written every time, so the next time brings what is missing.
    """

    def __init__(self, log_dir: str, name: str, resumed_at: int) -> None:
        self.path = f"{log_dir}/{name}"
        self.records = [record for record in files.read_lines(self.path) if record["step"] <= resumed_at]
        if self.records:
            files.write_lines(self.path, self.records)
        folder = {TRAINING: "train", EVALUATION: "evaluation"}[name]
        self.summary = tf.summary.create_file_writer(f"{log_dir}/{folder}")

    def write(self, step: int, values: dict[str, float], **extra: Any) -> None:
        record = {"step": step, "time": round(time.time(), 3), **{name: round(float(value), 6) for name, value in values.items()}, **extra}
        self.records.append(record)
        try:
            files.write_lines(self.path, self.records)
            with self.summary.as_default():
                for name, value in values.items():
                    tf.summary.scalar(name, value, step=step)
            self.summary.flush()
        except files.UNWRITABLE as error:
            files.warn(f"the numbers of step {step} cannot be written now ({files.reason(error)}); make room in log_dir")


class Meter:
    """Examples per second since it was last asked."""

    def __init__(self, step: int) -> None:
        self.step, self.at = step, time.monotonic()

    def rate(self, step: int, examples_per_step: int) -> float:
        now = time.monotonic()
        rate = (step - self.step) * examples_per_step / max(now - self.at, 1e-6)
        self.step, self.at = step, now
        return rate
