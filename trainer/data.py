"""The input pipeline that every program shares."""

from __future__ import annotations

import argparse
from types import ModuleType
from typing import Any

import tensorflow as tf

from trainer.cluster import ConfigurationError
from trainer.programs import Shard


def training(program: ModuleType, args: argparse.Namespace, context: Any = None) -> Any:
    """Endless batches of this pipeline's share of the data, shuffled anew in every pass."""
    shard = Shard(context.input_pipeline_id, context.num_input_pipelines) if context else Shard()
    data, _ = program.datasets(args, shard)
    # Whole batches only: workers that train together must always have equally many.
    data = data.cache().shuffle(10_000, seed=args.seed + shard.index).repeat().batch(args.batch_size, drop_remainder=True)
    return data.prefetch(tf.data.AUTOTUNE)


def test(program: ModuleType, args: argparse.Namespace) -> Any:
    """Every test example once."""
    _, data = program.datasets(args, Shard())
    return data.batch(args.batch_size).prefetch(tf.data.AUTOTUNE)


def examples(program: ModuleType, args: argparse.Namespace) -> int:
    """How many training examples there are."""
    data, _ = program.datasets(args, Shard())
    count = int(data.cardinality())
    if count < 1:
        raise ConfigurationError("the program's data does not say how many examples it has; set steps_per_epoch in args")
    return count
