"""What our own loop reports of an epoch."""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ["TF_USE_LEGACY_KERAS"] = "1"

pytestmark = pytest.mark.tensorflow


def compiled(network: Any) -> Any:
    import tf_keras as keras

    network.compile("sgd", "binary_crossentropy", ["accuracy", keras.metrics.AUC(name="auc"), keras.metrics.MeanAbsoluteError()])
    return network


def batches() -> list[tuple[Any, Any, Any]]:
    """Losses, labels and predictions of four steps."""
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(1)
    steps = [(random.random(8, np.float32), random.integers(0, 2, (8, 1)), random.random((8, 1), np.float32)) for _ in range(4)]
    return [(tf.constant(losses), tf.constant(labels), tf.constant(predictions)) for losses, labels, predictions in steps]


def test_what_pieces_of_work_add_up_is_what_all_steps_would() -> None:
    import tensorflow as tf
    import tf_keras as keras

    from trainer.loops import _Totals, traced

    model = compiled(keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, "sigmoid")]))
    model.compiled_metrics.build(traced(model, tf.TensorSpec([None, 3]))[0], tf.TensorSpec([None, 1]))
    totals = _Totals(model.compiled_metrics)
    steps = batches()
    for step in steps:
        totals.add(*step)
    expected = totals.report()
    assert set(expected) == {"loss", "accuracy", "auc", "mean_absolute_error"}

    @tf.function
    def piece(losses: Any, labels: Any, predictions: Any) -> None:
        part = totals.at_nothing()
        for number in range(2):
            part.add(losses[number], labels[number], predictions[number])
        totals.include(part)

    for first, second in (steps[:2], steps[2:]):
        piece(*(tf.stack(pair) for pair in zip(first, second, strict=True)))
    assert totals.report() == pytest.approx(expected), "a piece begins at nothing every time it is called"


def test_a_metric_of_a_kind_of_ones_own_is_neither_copied_nor_added_up() -> None:
    import tensorflow as tf
    import tf_keras as keras

    from trainer.loops import _Totals

    class Largest(keras.metrics.Metric):  # type: ignore[misc]
        def __init__(self, times: float) -> None:
            super().__init__("largest")
            self.times, self.value = times, self.add_weight("value", initializer="zeros")

        def update_state(self, labels: Any, predictions: Any, sample_weight: Any = None) -> None:  # noqa: ARG002 - Keras' signature
            self.value.assign(tf.maximum(self.value, self.times * tf.reduce_max(predictions)))

        def result(self) -> Any:
            return self.value

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", ["mae", Largest(times=2.0)])
    model.compiled_metrics.build(tf.zeros((2, 1)), tf.zeros((2, 1)))
    totals = _Totals(model.compiled_metrics)

    @tf.function
    def piece(predictions: Any) -> None:
        part = totals.at_nothing()
        part.add(tf.constant([1.0, 3.0]), tf.zeros((2, 1)), predictions)
        totals.include(part)

    piece(tf.constant([[3.0], [5.0]]))
    piece(tf.constant([[1.0], [3.0]]))
    assert totals.report() == pytest.approx({"loss": 2.0, "mae": 3.0, "largest": 10.0})


def test_a_model_is_small_or_large_by_its_operations_and_need_not_be_of_known_layers() -> None:
    import tensorflow as tf
    import tf_keras as keras

    from trainer.loops import FEW_OPERATIONS, traced

    class Own(keras.Model):  # type: ignore[misc]
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.layer = layer

        def call(self, inputs: Any) -> Any:
            return self.layer(inputs)

    answers, operations = traced(Own(keras.layers.Dense(7)), tf.TensorSpec([None, 3]))
    assert answers.shape.as_list() == [None, 7]
    assert operations < FEW_OPERATIONS
    assert traced(Own(keras.layers.GRU(7)), tf.TensorSpec([None, 5, 3]))[1] > FEW_OPERATIONS, "what a loop repeats counts, too"
