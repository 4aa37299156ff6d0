"""The two ways to train: Keras' fit, and a loop of our own. Both end on the same step and go on from any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tf_keras as keras

from trainer import data
from trainer.cluster import ConfigurationError
from trainer.programs import Shard

if TYPE_CHECKING:
    from trainer.training import Training


def run(training: Training, step: int) -> None:
    if training.args.loop == "fit":
        fit(training, step)
        return
    check(training)
    if training.name == "parameter_server":
        custom_with_coordinator(training, step)
    else:
        custom(training, step)


def check(training: Training) -> None:
    """Our own loop takes less than fit does."""
    if not isinstance(training.model.loss, str | keras.losses.Loss) and not callable(training.model.loss):
        raise ConfigurationError(
            "our own loop takes one loss, and the model is compiled with none or with several; write loop: fit in args"
        )
    example = training.program.datasets(training.args, Shard())[0].element_spec
    if not (isinstance(example, tuple) and len(example) == 2):
        raise ConfigurationError("our own loop takes pairs of inputs and labels, and the data has something else; write loop: fit in args")


def pipeline(training: Training) -> Any:
    return lambda context: data.training(training.program, training.args, context, training.workers)


# ---------------------------------------------------------------------------------------------------- fit


def fit(training: Training, step: int) -> None:
    """Every epoch but perhaps the first is a whole one: a run that was stopped within an epoch goes on there."""
    if training.name == "parameter_server":
        source = keras.utils.experimental.DatasetCreator(pipeline(training))
        callback: Any = _EpochEnd(training)
    else:
        source = training.strategy.distribute_datasets_from_function(pipeline(training))
        callback = _BatchEnd(training)
    whole, begun = divmod(training.total_steps - step, training.steps_per_epoch)
    epoch = training.args.epochs - whole
    options = {"x": source, "callbacks": [callback], "verbose": 0}
    if begun:
        training.model.fit(initial_epoch=epoch - 1, epochs=epoch, steps_per_epoch=begun, **options)
    if whole:
        training.model.fit(initial_epoch=epoch, epochs=training.args.epochs, steps_per_epoch=training.steps_per_epoch, **options)


class _EpochEnd(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, training: Training) -> None:
        super().__init__()
        self.training = training

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:  # noqa: ARG002 - Keras' signature
        self.training.end_epoch(dict(logs or {}))


class _BatchEnd(_EpochEnd):
    """Under parameter_server Keras refuses callbacks that see batches, so there is a class without."""

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:  # noqa: ARG002
        self.training.preemption.check()


# --------------------------------------------------------------------------------------------- our own loop


class _Step:
    """One step of gradient descent, and the sums that its epoch reports."""

    def __init__(self, training: Training) -> None:
        self.model, self.strategy = training.model, training.strategy
        loss = keras.losses.get(self.model.loss)
        self.loss_function = (
            loss.call if isinstance(loss, keras.losses.Loss) else loss
        )  # one value per example: the mean is over the global batch
        # In 16 bits small gradients would be lost, so the loss is scaled up before and the gradients down after.
        self.scaled = hasattr(self.model.optimizer, "get_scaled_loss")
        with self.strategy.scope():
            self.loss = keras.metrics.Mean("loss")

    def __call__(self, batch: Any) -> None:
        inputs, labels = batch
        with tf.GradientTape() as tape:
            predictions = self.model(inputs, training=True)
            each = self.loss_function(labels, predictions)
            penalty = tf.add_n([tf.constant(0.0), *self.model.losses])
            loss = tf.nn.compute_average_loss(each) + tf.nn.scale_regularization_loss(penalty)
            if self.scaled:
                loss = self.model.optimizer.get_scaled_loss(loss)
        variables = self.model.trainable_variables
        gradients = tape.gradient(loss, variables)
        if self.scaled:
            gradients = self.model.optimizer.get_unscaled_gradients(gradients)
        self.model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self.loss.update_state(each + penalty)  # as fit and evaluate report it
        self.model.compiled_metrics.update_state(labels, predictions)

    def repeated(self) -> Any:
        """Several steps in one call, so that Python is not asked for each."""

        @tf.function
        def several(iterator: Any, count: Any) -> None:
            for _ in tf.range(count):
                self.strategy.run(self, args=(next(iterator),))

        return several

    @property
    def metrics(self) -> list[Any]:
        return [self.loss, *self.model.compiled_metrics.metrics]

    def report(self) -> dict[str, float]:
        values = {metric.name: float(metric.result()) for metric in self.metrics}
        for metric in self.metrics:
            metric.reset_state()
        return values


def executions(training: Training, step: int) -> Any:
    """For each epoch still to run, how many steps each return to Python stands for."""
    size = training.args.steps_per_execution
    while step < training.total_steps:
        left = training.steps_left_in_epoch(step)
        yield [size] * (left // size) + [left % size] * bool(left % size)
        step += left


def custom(training: Training, step: int) -> None:
    one = _Step(training)
    several = one.repeated()
    iterator = iter(training.strategy.distribute_datasets_from_function(pipeline(training)))
    for epoch in executions(training, step):
        for count in epoch:
            several(iterator, tf.constant(count))
            training.preemption.check()
        training.end_epoch(one.report())


def custom_with_coordinator(training: Training, step: int) -> None:
    """The chief hands out pieces of work; whichever worker is free takes the next."""
    one = _Step(training)
    several = one.repeated()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(training.strategy)
    source = coordinator.create_per_worker_dataset(lambda: training.strategy.distribute_datasets_from_function(pipeline(training)))
    iterator = iter(source)
    for epoch in executions(training, step):
        for count in epoch:
            coordinator.schedule(several, args=(iterator, tf.constant(count)))
        coordinator.join()
        training.end_epoch(one.report())
