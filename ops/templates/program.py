"""A small network that tells three kinds of iris apart: a model and its data, to be replaced by yours. docs/programs.md says what else there can be.

python -m trainer --program trainer/own/my_training.py --epochs 5 --checkpoint-dir /tmp/try/c --log-dir /tmp/try/l --model-dir /tmp/try/m
"""

from __future__ import annotations

import argparse
from typing import Any

from trainer.programs import Shard, number, whole_number


def arguments(parser: argparse._ArgumentGroup) -> None:
    """What `args` of the settings may have, besides what every program has (epochs, batch_size, …)."""
    parser.add_argument("--units", type=whole_number(), default=16, help="of the hidden layer")
    parser.add_argument("--learning-rate", type=number(above=True), default=0.01, help="of the Adam optimizer")


def model(args: argparse.Namespace) -> Any:
    """A compiled model. Import inside the functions, so that arguments can be checked without TensorFlow; tf_keras, because Keras 3 cannot
    train in several processes."""
    import tf_keras as keras

    network = keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(args.units, activation="relu"),
            keras.layers.Dense(3, activation="softmax", dtype="float32"),
        ]
    )
    network.compile(keras.optimizers.Adam(args.learning_rate), keras.losses.SparseCategoricalCrossentropy(), ["accuracy"])
    return network


def datasets(args: argparse.Namespace, shard: Shard) -> tuple[Any, Any]:  # noqa: ARG001 - yours may read from args.data_dir
    """Single examples for training and for testing; batches, shuffling and repeating are done for you. Of the training data only the part of this
    task: number shard.index of shard.count."""
    import tensorflow as tf
    from sklearn.datasets import load_iris

    inputs, labels = load_iris(return_X_y=True)
    test = set(range(0, len(labels), 5))
    train = [index for index in range(len(labels)) if index not in test][shard.index :: shard.count]
    make = tf.data.Dataset.from_tensor_slices
    return make((inputs[train], labels[train])), make((inputs[sorted(test)], labels[sorted(test)]))
