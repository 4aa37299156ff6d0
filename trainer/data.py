"""The input pipeline that every program shares."""

from __future__ import annotations

import argparse
from types import ModuleType
from typing import Any

import tensorflow as tf

from trainer.cluster import ConfigurationError
from trainer.programs import Shard

ONE_PIECE = 256e6  # bytes of examples that are kept as one piece: to draw from it costs a fraction of what single examples do
TOGETHER = 8  # batches that are gathered at once
TEXT = 64  # bytes of a text, by guess


def training(program: ModuleType, args: argparse.Namespace, context: Any = None, workers: int = 0) -> Any:
    """Endless batches of this pipeline's share of the data, shuffled anew in every pass.

    `workers`: how many work for a coordinator. It makes one pipeline for all of them, in which each has a number that is not known before it runs.
    """
    shard = Shard(context.input_pipeline_id, context.num_input_pipelines) if context else Shard()
    data, _ = program.datasets(args, shard)
    count = in_one_piece(program, args)
    number = tf.constant(shard.index, tf.int64)
    if workers:
        number = tf.cast(tf.distribute.coordinator.experimental_get_current_worker_index(), tf.int64)
        data = data.shard(workers, number)
    # A run that goes on must not begin with what it has just seen, so the step at which it does is part of the seed. Whole batches only: workers
    # that train together must always have equally many.
    seed = args.seed + args.resumed_at + number
    if count:
        data = data.batch(count).flat_map(lambda *pieces: drawn(pieces, args, seed))
    else:
        data = data.cache() if args.cache else data
        data = data.shuffle(args.shuffle, seed=seed).repeat().batch(args.batch_size, drop_remainder=True)
    if augment := getattr(program, "augment", None):
        data = data.map(lambda inputs, labels: augment(args, inputs, labels), num_parallel_calls=tf.data.AUTOTUNE)
    options = tf.data.Options()
    # What is read and decoded in parallel comes as it is ready, unless the order matters: workers that take turns with the examples must see the same.
    options.deterministic = args.deterministic or bool(workers)
    return data.with_options(options).prefetch(tf.data.AUTOTUNE)


def drawn(pieces: Any, args: argparse.Namespace, seed: Any) -> Any:
    """The same of examples that are in memory one behind the other: their numbers are shuffled at once, and several batches are gathered at once."""
    count = tf.shape(tf.nest.flatten(pieces)[0], tf.int64)[0]
    passes = tf.data.Dataset.counter().map(lambda number: tf.random.experimental.stateless_shuffle(tf.range(count), [seed, number]))
    several = passes.rebatch(TOGETHER * args.batch_size, drop_remainder=True)
    gathered = several.map(lambda chosen: tf.nest.map_structure(lambda piece: tf.gather(piece, chosen), pieces))
    return gathered.rebatch(args.batch_size, drop_remainder=True)


@tf.autograph.experimental.do_not_convert
def in_one_piece(program: ModuleType, args: argparse.Namespace) -> int:
    """How many examples there are, if they can be kept as one piece; otherwise 0."""
    if not args.cache:
        return 0
    with tf.init_scope():  # a number now, also where a function is traced
        data, _ = program.datasets(args, Shard())
        count = int(data.cardinality())
    parts = tf.nest.flatten(data.element_spec)
    if not all(isinstance(part, tf.TensorSpec) and part.shape.is_fully_defined() for part in parts):
        return 0
    size = sum((TEXT if part.dtype == tf.string else part.dtype.size) * part.shape.num_elements() for part in parts)
    return max(count, 0) if count * size <= ONE_PIECE else 0


def test(program: ModuleType, args: argparse.Namespace) -> Any:
    """Every test example once."""
    _, data = program.datasets(args, Shard())
    options = tf.data.Options()
    # Workers that evaluate together take turns with the batches, for which all must see them in the same order; by files, of which there may be one,
    # they could not.
    options.deterministic = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.batch(args.batch_size).with_options(options).prefetch(tf.data.AUTOTUNE)


def examples(program: ModuleType, args: argparse.Namespace) -> int:
    """How many training examples there are."""
    data, _ = program.datasets(args, Shard())
    count = int(data.cardinality())
    if not count:
        raise ConfigurationError("there is no example to train on; prepare the data again (data_prep), or correct data_dir")
    if count < 0:
        raise ConfigurationError("the program's data does not say how many examples it has; set steps_per_epoch in args")
    return count
