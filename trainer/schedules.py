"""How large the steps of a training are.

A program names the rate for one replica's batch. Where several replicas compute one step together, their batch is so many times larger and so is the
step; it is reached within the first epochs, because a network that knows nothing yet does not bear it. Under parameter servers each worker's
batch is a step of its own, so the rate stays.
"""

from __future__ import annotations

import argparse
import math
from typing import Any, Literal

import tensorflow as tf
import tf_keras as keras

Decay = Literal["none", "cosine"]


class LearningRate(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """`args.begun` is read when the step is traced, which is after a checkpoint was restored: a run that starts from another's begins its own schedule."""

    def __init__(self, args: argparse.Namespace, rate: float, decay: Decay = "none") -> None:
        self.args, self.rate, self.decay = args, rate, decay

    def __call__(self, step: Any) -> Any:
        # A parameter server counts the steps. Computed elsewhere, the rate would be a message from there and one back, in every step.
        with tf.device(getattr(step, "device", None)):
            return self.at(step)

    def at(self, step: Any) -> Any:
        args = self.args
        done = tf.maximum(tf.cast(step, tf.float32) - float(args.begun), 0.0)
        warmup = args.warmup_epochs * args.epoch_steps
        total = max(float(args.epochs * args.epoch_steps), warmup + 1)
        rising = tf.minimum(done / warmup, 1.0) if warmup else tf.constant(1.0)
        rate = self.rate * (1.0 + rising * (args.replicas - 1))
        if self.decay == "none":
            return rate
        passed = tf.clip_by_value((done - warmup) / (total - warmup), 0.0, 1.0)
        return rate * 0.5 * (1.0 + tf.cos(math.pi * passed))

    def get_config(self) -> dict[str, Any]:
        """For Keras, which writes it into the model's metadata."""
        return {"rate": self.rate, "decay": self.decay}
