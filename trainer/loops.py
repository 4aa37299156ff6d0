"""The two ways to train: Keras' fit, and a loop of our own. Both end on the same step and go on from any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tf_keras as keras
from tf_keras.src.utils.tf_utils import with_metric_local_vars_scope

from trainer import data
from trainer.cluster import ConfigurationError
from trainer.programs import Shard

if TYPE_CHECKING:
    from trainer.training import Training

# Of a model: up to so many, several steps are one piece of work under a coordinator. A step of a larger one is long enough by itself, and long to trace.
FEW_OPERATIONS = 100


def run(training: Training, step: int) -> None:
    if training.args.loop == "fit":
        fit(training, step)
        return
    one = _Step(training, *checked(training))
    if training.name == "parameter_server":
        custom_with_coordinator(training, one, step)
    else:
        custom(training, one, step)


def checked(training: Training) -> tuple[Any, Any]:
    """What batches of inputs and of labels look like. Our own loop takes less than fit does."""
    if not isinstance(training.model.loss, str | keras.losses.Loss) and not callable(training.model.loss):
        raise ConfigurationError(
            "our own loop takes one loss, and the model is compiled with none or with several; write loop: fit in args"
        )
    batch = training.program.datasets(training.args, Shard())[0].batch(1).element_spec
    if not (isinstance(batch, tuple) and len(batch) == 2):
        raise ConfigurationError("our own loop takes pairs of inputs and labels, and the data has something else; write loop: fit in args")
    return batch


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


class _Totals:
    """What an epoch reports, the mean loss and the model's own metrics, as sums that its steps add to."""

    def __init__(self, metrics: Any) -> None:
        self.loss, self.metrics = keras.metrics.Mean("loss"), metrics

    def add(self, losses: Any, labels: Any, predictions: Any) -> None:
        self.loss.update_state(losses)
        self.metrics.update_state(labels, predictions)

    @property
    def all(self) -> list[Any]:
        return [self.loss, *self.metrics.metrics]

    def at_nothing(self) -> _Totals:
        """The same in variables of the function that asks for them, on the worker that runs it: there, adding is no message to a parameter server."""
        with with_metric_local_vars_scope():
            return _Totals(type(self.metrics)([fresh(metric) for metric in self.metrics.metrics]))

    def include(self, part: _Totals) -> None:
        for whole, more in zip(self.all, part.all, strict=True):
            if more is not whole:
                for variable, value in zip(whole.variables, more.variables, strict=True):
                    variable.assign_add(value)

    def report(self) -> dict[str, float]:
        values = {metric.name: float(metric.result()) for metric in self.all}
        for metric in self.all:
            metric.reset_state()
        return values


def fresh(metric: Any) -> Any:
    """Another one like it, at nothing. Of Keras' own it is known that they can be made again and that their variables are sums; not of a user's: there is one for all."""
    kind = type(metric)
    return kind.from_config(metric.get_config()) if kind.__module__.startswith("tf_keras.") else metric


class _Step:
    """One step of gradient descent, and the sums that its epoch reports."""

    def __init__(self, training: Training, inputs: Any, labels: Any) -> None:
        self.model = training.model
        loss = keras.losses.get(self.model.loss)
        self.loss_function = (
            loss.call if isinstance(loss, keras.losses.Loss) else loss
        )  # one value per example: the mean is over the global batch
        # In 16 bits small gradients would be lost, so the loss is scaled up before and the gradients down after.
        self.scaled = hasattr(self.model.optimizer, "get_scaled_loss")
        with training.strategy.scope():
            answers, self.operations = traced(self.model, inputs)
            self.model.compiled_metrics.build(answers, labels)
            self.totals = _Totals(self.model.compiled_metrics)

    def __call__(self, batch: Any, totals: _Totals) -> None:
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
        totals.add(each + penalty, labels, predictions)  # as fit and evaluate report it


def traced(model: Any, inputs: Any) -> tuple[Any, int]:
    """What the model says to such inputs, as far as its shape goes, and how many operations that takes."""
    function = tf.function(model).get_concrete_function(inputs)
    graph = function.graph.as_graph_def()
    return function.structured_outputs, len(graph.node) + sum(len(inner.node_def) for inner in graph.library.function)


def executions(training: Training, step: int, size: int) -> Any:
    """For each epoch still to run: how many times so many steps it has, and how many steps are left then."""
    while step < training.total_steps:
        left = training.steps_left_in_epoch(step)
        yield divmod(left, size)
        step += left


def custom(training: Training, one: _Step, step: int) -> None:
    size = training.args.steps_per_execution

    @tf.function
    def several(iterator: Any, count: Any) -> None:
        for _ in tf.range(count):
            training.strategy.run(one, args=(next(iterator), one.totals))

    iterator = iter(training.strategy.distribute_datasets_from_function(pipeline(training)))
    for times, rest in executions(training, step, size):
        for count in [size] * times + [rest] * bool(rest):
            several(iterator, tf.constant(count))
            training.preemption.check()
        training.end_epoch(one.totals.report())


def custom_with_coordinator(training: Training, one: _Step, step: int) -> None:
    """The chief hands out pieces of work; whichever worker is free takes the next."""
    size = training.args.steps_per_execution if one.operations <= FEW_OPERATIONS else 1

    def several(count: int) -> Any:
        """Written out one after the other: for a loop in the graph, worker and servers would have to agree on every round."""

        @tf.function
        def steps(iterator: Any) -> None:
            part = one.totals.at_nothing()
            for _ in range(count):
                training.strategy.run(one, args=(next(iterator), part))
            one.totals.include(part)

        return steps

    piece, single = several(size), several(1)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(training.strategy)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: on_worker(training)))
    for times, rest in executions(training, step, size):
        for work in [piece] * times + [single] * rest:
            coordinator.schedule(work, args=(iterator,))
        coordinator.join()
        training.end_epoch(one.totals.report())


def on_worker(training: Training) -> Any:
    """Batches for one worker. To its GPUs they are brought before they are asked for; without, that would only be more to do."""
    if tf.config.list_logical_devices("GPU"):  # the coordinator's view: those of the workers
        return training.strategy.distribute_datasets_from_function(pipeline(training))
    return pipeline(training)(None)
