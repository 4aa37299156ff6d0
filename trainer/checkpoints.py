"""Checkpoints that are either whole or not there, under every strategy.

A checkpoint is a folder `step-00000660` with TensorFlow's files and, written last, `manifest.json`: without it the folder does not count.
Who writes and who reads:

- parameter_server: on gs:// every parameter server writes its own shard. Elsewhere the chief writes and reads all of it, so that the
  directory need not be shared with the servers;
- multi_worker_mirrored: saving is a joint act, so every worker takes part, but only the lead's files are kept. The lead alone reads, and
  hands what it read to the others, so that the directory need not be shared with them;
- mirrored: there is one task.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from typing import Any

import tensorflow as tf

from trainer import files
from trainer.cluster import Cluster, ConfigurationError

CHIEF_DEVICE = "/job:chief/replica:0/task:0/device:CPU:0"
MANIFEST, FINISHED, EVALUATED = "manifest.json", "finished.json", "evaluated.json"
FOLDER = re.compile(r"step-(\d+)/?$")
MOST_UNEVALUATED = 50  # an evaluator that falls further behind loses the oldest


def io_device(directory: str, strategy: str) -> str | None:
    """The device that reads and writes files: TensorFlow's choice, or the chief for all parameter servers."""
    return CHIEF_DEVICE if strategy == "parameter_server" and not directory.startswith("gs://") else None


def steps(directory: str) -> list[int]:
    """The steps of the whole checkpoints in a directory, oldest first."""
    try:
        names = tf.io.gfile.listdir(directory)
    except tf.errors.NotFoundError:
        return []
    found = [int(match[1]) for name in names if (match := FOLDER.search(name))]
    return sorted(step for step in found if tf.io.gfile.exists(f"{folder(directory, step)}/{MANIFEST}"))


def folder(directory: str, step: int) -> str:
    return f"{directory}/step-{step:08d}"


class Checkpoints:
    """The checkpoints of one training, for the task that trains. Made within the strategy's scope.

    Beside the model and the optimizer a checkpoint holds the measure by which its steps are epochs: the step at which the first epoch began and
    the steps of an epoch. With another batch size or another number of workers an epoch has another number of steps, and a training that goes
    on must not count the old ones by the new measure.
    """

    def __init__(self, directory: str, model: Any, strategy: Any, name: str, cluster: Cluster, keep: int, sidecar: bool) -> None:
        self.directory, self.strategy, self.name, self.cluster = directory, strategy, name, cluster
        self.keep, self.sidecar = keep, sidecar
        self.model = model
        self.measure = tf.Variable([0.0, 1.0], dtype=tf.float64, trainable=False, name="measure")
        self.checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, measure=self.measure)
        self.options = tf.train.CheckpointOptions(experimental_io_device=io_device(directory, name))
        self.saved_at, self.saving = -1, False

    @property
    def step(self) -> int:
        return int(self.model.optimizer.iterations.numpy())

    def restore(self, resume_from: str | None) -> tuple[int, float]:
        """Goes on from the newest checkpoint here, or else begins with the one to resume from. Returns the step and the epochs done."""
        if self.cluster.is_lead:
            tf.io.gfile.makedirs(self.directory)
            if steps(self.directory):
                self.read(folder(self.directory, steps(self.directory)[-1]))
            elif resume_from:
                if not steps(resume_from):
                    raise ConfigurationError(
                        f"there is no checkpoint in {resume_from}; correct resume_from, or remove it to start from nothing"
                    )
                self.read(folder(resume_from, steps(resume_from)[-1]))
                self.measure.assign([float(self.step), 1.0])  # another run: it has all its epochs before it
        if self.name == "multi_worker_mirrored":
            broadcast(self.strategy, [*self.model.variables, *self.model.optimizer.variables, self.measure])
        step = self.step
        done = self.epochs_at(step)
        self.saved_at = step if done else -1
        return step, done

    def epochs_at(self, step: int) -> float:
        """How many epochs are done after a step."""
        begun, length = self.measure.numpy()
        return float((step - begun) / length)

    def read(self, path: str) -> None:
        rate = self.model.optimizer.learning_rate
        chosen = (
            rate.numpy() if hasattr(rate, "assign") else None
        )  # a variable: it is saved, and what was saved is not what is asked for now
        try:
            self.checkpoint.read(f"{path}/checkpoint", options=self.options).assert_existing_objects_matched()
        except (ValueError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigurationError(
                f"{path} is of a model of another shape ({reason}); train it under another `run`, or undo the change"
            ) from None
        if chosen is not None:
            rate.assign(chosen)
        print(f"resumed from {path}", flush=True)

    def save(self) -> None:
        """Writes a checkpoint of this moment, once per step."""
        self.saving = True
        try:
            if (step := self.step) != self.saved_at:
                self.write(step)
        finally:
            self.saving = False

    def write(self, step: int) -> None:
        if not self.cluster.is_lead:
            scratch = tempfile.mkdtemp()
            self.checkpoint.write(f"{scratch}/checkpoint", options=self.options)
            shutil.rmtree(scratch)
        else:
            target = folder(self.directory, step)
            if tf.io.gfile.exists(target):
                tf.io.gfile.rmtree(target)  # half of one, from a task that was killed
            tf.io.gfile.makedirs(target)
            self.checkpoint.write(f"{target}/checkpoint", options=self.options)
            files.write_text(f"{target}/{MANIFEST}", json.dumps({"step": step, "tensorflow": tf.__version__}))
            self.prune()
        self.saved_at = step

    def prune(self) -> None:
        """Keeps the newest, and what the evaluator has not tried yet."""
        evaluated = json.loads(files.read_text(f"{self.directory}/{EVALUATED}") or '{"step": -1}')["step"] if self.sidecar else float("inf")
        whole = steps(self.directory)
        for step in whole[: -self.keep]:
            if step <= evaluated or step in whole[:-MOST_UNEVALUATED]:
                tf.io.gfile.rmtree(folder(self.directory, step))

    def finish(self) -> None:
        """The last checkpoint, and the word that it is the last."""
        self.save()
        if self.cluster.is_lead:
            files.write_text(f"{self.directory}/{FINISHED}", json.dumps({"step": self.step, "time": time.time()}))


def finished_at(directory: str) -> float:
    """When the training in a directory was last over."""
    return float(json.loads(files.read_text(f"{directory}/{FINISHED}") or '{"time": 0}')["time"])


def broadcast(strategy: Any, variables: list[Any]) -> None:
    """Gives every worker the lead's values: the lead adds its own, everybody else zeros."""

    @tf.function
    def summed() -> Any:
        def replica() -> Any:
            context = tf.distribute.get_replica_context()
            first = tf.equal(context.replica_id_in_sync_group, 0)
            values = [tf.where(first, value, tf.zeros_like(value)) for value in (variable.read_value() for variable in variables)]
            return [context.all_reduce(tf.distribute.ReduceOp.SUM, value) for value in values]

        return strategy.run(replica)

    for variable, value in zip(variables, summed(), strict=True):
        variable.assign(strategy.experimental_local_results(value)[0])
