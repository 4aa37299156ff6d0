"""Trains a program under a strategy: makes or restores the model, runs the loop, saves the result."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tensorflow as tf
import tf_keras as keras

from trainer import data, evaluation, files, heartbeat, loops, strategies
from trainer.checkpoints import Checkpoints
from trainer.cluster import Cluster
from trainer.export import export
from trainer.metrics import EVALUATION, TRAINING, Meter, MetricsWriter
from trainer.preemption import Preemption

# Seconds a worker stays after its last step together: the others may still have to fetch their part of it from here.
LAST_WORD = 30.0


@dataclass
class Training:
    """What the loops need, and what they call at the end of every epoch."""

    args: argparse.Namespace
    program: ModuleType
    cluster: Cluster
    name: str
    strategy: Any
    model: Any
    checkpoints: Checkpoints
    preemption: Preemption
    steps_per_epoch: int
    examples_per_step: int
    total_steps: int

    @property
    def workers(self) -> int:
        """How many work for a coordinator; 0 where there is none."""
        return self.cluster.counts["worker"] if self.name == "parameter_server" else 0

    def steps_left_in_epoch(self, step: int) -> int:
        return (self.total_steps - step) % self.steps_per_epoch or self.steps_per_epoch

    def begin(self, step: int) -> None:
        self.meter = Meter(step)
        lead = self.cluster.is_lead
        with files.writing("log_dir"):
            self.writer = MetricsWriter(self.args.log_dir, TRAINING, step) if lead else None
            self.evaluations = MetricsWriter(self.args.log_dir, EVALUATION, step) if lead and self.args.evaluator == "inline" else None
        left = self.total_steps - step
        replicas = self.strategy.num_replicas_in_sync
        print(f"training {self.args.program} under {self.name}, replicas {replicas}: {left} of {self.total_steps} steps to go", flush=True)

    def end_epoch(self, values: dict[str, float]) -> None:
        """Called by every task that runs the loop, after the same step."""
        step = self.checkpoints.step
        epoch = math.floor(self.checkpoints.epochs_at(step) + 1e-6)
        values = {**values, "examples_per_second": self.meter.rate(step, self.examples_per_step)}
        if self.writer:
            self.writer.write(step, values, epoch=epoch, steps=self.total_steps)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        print(f"epoch {epoch}/{self.args.epochs}, step {step}: {shown}", flush=True)
        self.preemption.check()
        if epoch % self.args.checkpoint_every == 0 or step >= self.total_steps:
            if self.name != "parameter_server":
                agree(self.model)
            self.checkpoints.save()
            heartbeat.further()
            self.preemption.check()
            if self.args.evaluator == "inline":
                self.evaluate(step)
                heartbeat.further()
        self.meter = Meter(step)  # neither saving nor evaluating counts as training

    def evaluate(self, step: int) -> None:
        values = evaluation.inline(self.model, self.program, self.args, self.workers)
        if self.evaluations:
            evaluation.record(self.evaluations, step, values)


def agree(model: Any) -> None:
    """Batch normalization has averages on every replica by itself. What is saved is their mean, and then that is what should be tried, too."""
    for variable in model.non_trainable_variables:
        if variable.dtype.is_floating:
            variable.assign(variable.read_value())


def train(args: argparse.Namespace, program: ModuleType, cluster: Cluster, name: str) -> None:
    strategy = strategies.make(name, args.devices)
    if args.mixed_precision and tf.config.list_logical_devices("GPU"):  # those of a coordinator's workers as well: it has none itself
        keras.mixed_precision.set_global_policy("mixed_float16")
    if args.loop == "auto":
        args.loop = "fit" if name == "mirrored" else "custom"
    args.replicas = strategy.num_replicas_in_sync if name != "parameter_server" else 1
    examples_per_step = args.batch_size * args.replicas
    args.epoch_steps = args.steps_per_epoch or max(1, data.examples(program, args) // examples_per_step)
    with strategy.scope():
        model = program.model(args)
        model.optimizer.build(model.trainable_variables)
        model._configure_steps_per_execution(args.steps_per_execution)  # compile() would take it, but the program compiles
        checkpoints = Checkpoints(
            args.checkpoint_dir, program, model, strategy, name, cluster, args.keep_checkpoints, args.evaluator == "sidecar"
        )
    step, done = checkpoints.restore(args.resume_from)
    args.resumed_at = step
    total_steps = step + max(0, round((args.epochs - done) * args.epoch_steps))
    args.begun = total_steps - args.epochs * args.epoch_steps
    preemption = Preemption(checkpoints, strategy, together=name == "multi_worker_mirrored")
    training = Training(
        args, program, cluster, name, strategy, model, checkpoints, preemption, args.epoch_steps, examples_per_step, total_steps
    )
    checkpoints.measure.assign([float(args.begun), float(args.epoch_steps)])
    training.begin(step)
    heartbeat.follow(lambda: checkpoints.step)
    if step < training.total_steps:
        loops.run(training, step)
    with files.writing("model_dir"):
        exported = export(program, args, model, checkpoints.step, cluster)
    checkpoints.finish()
    preemption.meet()
    if cluster.is_lead:
        print(f"done: the model is in {exported}", flush=True)
    elif name == "multi_worker_mirrored":
        strategies.wait_until_gone(cluster.lead, LAST_WORD)
