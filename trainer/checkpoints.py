"""Checkpoints that are either whole or not there, under every strategy.

A checkpoint is a folder `step-00000660` with TensorFlow's files and, written last, `manifest.json`: without it the folder does not count. The
manifest says which step it is, in how many shards it was written, by which code, and the shapes of the weights.

One that is damaged is passed over for the one before, and no longer counts. One that cannot be written, because the disk is full or has become
read-only, is tried again when the next is due: the training goes on. Only a training that cannot write at its start is refused.

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
from types import ModuleType
from typing import Any

import tensorflow as tf

from trainer import files
from trainer.cluster import Cluster, ConfigurationError
from trainer.version import version

CHIEF_DEVICE = "/job:chief/replica:0/task:0/device:CPU:0"
MANIFEST, FINISHED, EVALUATED = "manifest.json", "finished.json", "evaluated.json"
FOLDER = re.compile(r"step-(\d+)/?$")
MOST_UNEVALUATED = 50  # an evaluator that falls further behind loses the oldest
PROBE = ".writable"


class DamagedError(Exception):
    """A checkpoint that cannot be read: a file of it is missing, cut short or changed."""


def io_device(directory: str, strategy: str) -> str | None:
    """The device that reads and writes files: TensorFlow's choice, or the chief for all parameter servers."""
    return CHIEF_DEVICE if strategy == "parameter_server" and not directory.startswith("gs://") else None


def folders(directory: str) -> list[int]:
    """The steps of the checkpoints in a directory, oldest first, whole or not."""
    try:
        names = tf.io.gfile.listdir(directory)
    except tf.errors.NotFoundError:
        return []
    return sorted(int(match[1]) for name in names if (match := FOLDER.search(name)))


def steps(directory: str) -> list[int]:
    """The steps of the whole checkpoints in a directory, oldest first."""
    return [step for step in folders(directory) if tf.io.gfile.exists(f"{folder(directory, step)}/{MANIFEST}")]


def folder(directory: str, step: int) -> str:
    return f"{directory}/step-{step:08d}"


def manifest(path: str) -> dict[str, Any]:
    """What a checkpoint says about itself."""
    try:
        return dict(json.loads(files.read_text(f"{path}/{MANIFEST}") or "{}"))
    except ValueError as error:
        raise DamagedError(f"its {MANIFEST} is no JSON: {error}") from None


def read(checkpoint: Any, path: str, options: Any = None) -> Any:
    """Reads a checkpoint into the variables; TensorFlow has many words for a damaged one."""
    try:
        return checkpoint.read(f"{path}/checkpoint", options=options)
    except (IndexError, tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.OutOfRangeError) as error:
        raise DamagedError(files.reason(error)) from None
    except tf.errors.OpError as error:
        if type(error) is tf.errors.OpError:  # one of no kind: the index, or a shard of it
            raise DamagedError(files.reason(error)) from None
        raise


def shapes(model: Any) -> list[str]:
    return ["x".join(map(str, variable.shape)) or "1" for variable in model.variables]


def difference(saved: list[str], wanted: list[str]) -> str:
    """Where the weights of a checkpoint and of a model first differ; empty where they do not."""
    if len(saved) != len(wanted):
        return f"it has {len(saved)} weights, the model has {len(wanted)}"
    pairs = enumerate(zip(saved, wanted, strict=True), 1)
    return next((f"its weight {number} is {old}, the model's is {new}" for number, (old, new) in pairs if old != new), "")


class Checkpoints:
    """The checkpoints of one training, for the task that trains. Made within the strategy's scope.

    Beside the model and the optimizer a checkpoint holds the measure by which its steps are epochs: the step at which the first epoch began and
    the steps of an epoch. With another batch size or another number of workers an epoch has another number of steps, and a training that goes
    on must not count the old ones by the new measure.
    """

    def __init__(
        self, directory: str, program: ModuleType, model: Any, strategy: Any, name: str, cluster: Cluster, keep: int, sidecar: bool
    ) -> None:
        self.directory, self.strategy, self.name, self.cluster = directory, strategy, name, cluster
        self.code = version(program)
        self.keep, self.sidecar = keep, sidecar
        self.model = model
        self.measure = tf.Variable([0.0, 1.0], dtype=tf.float64, trainable=False, name="measure")
        self.checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, measure=self.measure)
        self.options = tf.train.CheckpointOptions(experimental_io_device=io_device(directory, name))
        self.tried_at, self.saved, self.saving = -1, True, False

    @property
    def step(self) -> int:
        return int(self.model.optimizer.iterations.numpy())

    def restore(self, resume_from: str | None) -> tuple[int, float]:
        """Goes on from the newest checkpoint here, or else begins with the one to resume from. Returns the step and the epochs done."""
        if self.cluster.is_lead:
            self.try_to_write()
            if steps(self.directory):
                self.read_newest(self.directory)
            elif resume_from:
                if not steps(resume_from):
                    raise ConfigurationError(
                        f"there is no checkpoint in {resume_from}; correct resume_from, or remove it to start from nothing"
                    )
                self.read_newest(resume_from)
                self.measure.assign([float(self.step), 1.0])  # another run: it has all its epochs before it
        if self.name == "multi_worker_mirrored":
            broadcast(self.strategy, [*self.model.variables, *self.model.optimizer.variables, self.measure])
        step = self.step
        done = self.epochs_at(step)
        self.tried_at = step if done else -1
        return step, done

    def epochs_at(self, step: int) -> float:
        """How many epochs are done after a step."""
        begun, length = self.measure.numpy()
        return float((step - begun) / length)

    def try_to_write(self) -> None:
        """Better now than at the first checkpoint. A disk that is full may have room again soon; who may not write here has to be told."""
        try:
            tf.io.gfile.makedirs(self.directory)
            files.write_text(f"{self.directory}/{PROBE}", "")
            tf.io.gfile.remove(f"{self.directory}/{PROBE}")
        except tf.errors.ResourceExhaustedError as error:
            raise files.UnwritableError(f"checkpoint_dir has no room ({files.reason(error)}); make some") from None
        except (*files.UNWRITABLE, tf.errors.NotFoundError, tf.errors.FailedPreconditionError) as error:
            raise ConfigurationError(
                f"checkpoint_dir cannot be written ({files.reason(error)}); make it writable for the tasks, or name another"
            ) from None

    def read_newest(self, directory: str) -> None:
        """The newest that is not damaged. One of this run's own that is does not count from now on; its files stay."""
        for step in reversed(steps(directory)):
            path = folder(directory, step)
            try:
                return self.read(path)
            except DamagedError as error:
                files.warn(f"{path} is damaged ({error}) and is passed over for the one before")
                if directory == self.directory:
                    tf.io.gfile.remove(f"{path}/{MANIFEST}")
        raise ConfigurationError(
            f"every checkpoint in {directory} is damaged; bring one back from a copy, or start from nothing under another `run`"
        )

    def read(self, path: str) -> None:
        about = manifest(path)
        other = difference(about["shapes"], shapes(self.model)) if "shapes" in about else ""
        rate = self.model.optimizer.learning_rate
        # A rate that is a number is a variable and is saved; what was saved is not what is asked for now.
        asked_for = rate.numpy() if hasattr(rate, "assign") else None
        try:
            if not other:
                read(self.checkpoint, path, self.options).assert_existing_objects_matched()
        except (ValueError, AssertionError) as error:
            other = files.reason(error)
        if other:
            raise ConfigurationError(f"{path} is of a model of another shape ({other}); train it under another `run`, or undo the change")
        if asked_for is not None:
            rate.assign(asked_for)
        print(f"resumed from {path}", flush=True)
        if about.get("code", self.code) != self.code:
            print(f"the code has changed since then ({about['code']} is now {self.code})", flush=True)

    def save(self) -> bool:
        """Writes a checkpoint of this moment. Returns whether there is one now.

        Tried once per step, also where it failed: the others of a joint act may have succeeded, and would leave this one alone in a second.
        """
        self.saving, step = True, self.step
        try:
            if step != self.tried_at:
                self.tried_at, self.saved = step, False
                self.write(step)
                self.saved = True
        except files.UNWRITABLE as error:
            files.warn(
                f"step {step} is NOT SAVED ({files.reason(error)}); the training goes on and saves when the next checkpoint is due: "
                "make room, or make checkpoint_dir writable"
            )
        finally:
            self.saving = False
        return self.saved

    def write(self, step: int) -> None:
        """Saving is a joint act under multi_worker_mirrored: also a lead that cannot write takes part, or the others would wait for it."""
        target, problem = folder(self.directory, step), None
        if self.cluster.is_lead:
            try:
                if tf.io.gfile.exists(target):
                    tf.io.gfile.rmtree(target)  # half of one, from a task that was killed
                tf.io.gfile.makedirs(target)
            except files.UNWRITABLE as error:
                problem = error
        if problem or not self.cluster.is_lead:
            with tempfile.TemporaryDirectory() as scratch:
                self.checkpoint.write(f"{scratch}/checkpoint", options=self.options)
        if problem:
            raise problem
        if self.cluster.is_lead:
            try:
                self.checkpoint.write(f"{target}/checkpoint", options=self.options)
                files.write_text(f"{target}/{MANIFEST}", json.dumps(self.about(step)))
            except files.UNWRITABLE:
                shutil.rmtree(target, ignore_errors=True)  # half of one takes the room that the next needs
                raise
            self.prune()

    def about(self, step: int) -> dict[str, Any]:
        together = self.name != "parameter_server" or io_device(self.directory, self.name)
        shards = 1 if together else self.cluster.counts["ps"]
        return {"step": step, "shards": shards, "code": self.code, "shapes": shapes(self.model), "tensorflow": tf.__version__}

    def prune(self) -> None:
        """Keeps the newest, and what the evaluator has not tried yet; halves of older ones go, too."""
        evaluated = json.loads(files.read_text(f"{self.directory}/{EVALUATED}") or '{"step": -1}')["step"] if self.sidecar else float("inf")
        whole = steps(self.directory)
        superfluous = [step for step in whole[: -self.keep] if step <= evaluated or step in whole[:-MOST_UNEVALUATED]]
        halves = [step for step in folders(self.directory) if step < whole[-1] and step not in whole]
        for step in (*superfluous, *halves):
            tf.io.gfile.rmtree(folder(self.directory, step))

    def finish(self) -> None:
        """The last checkpoint, and the word that it is the last."""
        if not self.save():
            raise files.UnwritableError("the last checkpoint could not be written; make room, or make checkpoint_dir writable")
        if self.cluster.is_lead:
            with files.writing("checkpoint_dir"):
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
