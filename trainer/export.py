"""The trained model as a SavedModel that takes raw inputs, laid out as TensorFlow Serving reads it: a folder per version, numbered by the global step.

A folder whose name is not a number is no version, and neither is one without saved_model.pb: that is how a half of one is told from a whole one.
"""

from __future__ import annotations

import argparse
import posixpath
from types import ModuleType
from typing import Any

import tensorflow as tf
import tf_keras as keras

from trainer.cluster import Cluster

MODEL = "saved_model.pb"
SAVING, REPLACED = "saving", "replaced"  # beside the versions while one is written, and no numbers


def export(program: ModuleType, args: argparse.Namespace, model: Any, step: int, cluster: Cluster) -> str:
    """Writes a version and then removes the others. Returns its folder.

    What is saved is a copy outside of the strategy, so that it is the same whichever that was, and the lead alone writes it. Taking the weights is
    a joint act under multi_worker_mirrored.
    """
    directory = args.model_dir.rstrip("/")
    target = f"{directory}/{step}"
    weights = model.get_weights()
    if not cluster.is_lead:
        return target
    saving, replaced = f"{directory}/{SAVING}", f"{directory}/{REPLACED}"
    for leftover in (saving, replaced):
        remove(leftover)
    served(program, args, weights).save(saving, save_format="tf", include_optimizer=False)
    if "://" in directory:
        remove(target)
        move_objects(saving, target)
    else:
        if tf.io.gfile.exists(target):
            tf.io.gfile.rename(target, replaced)
        tf.io.gfile.rename(saving, target)
    for other in (replaced, *(folder for number, folder in folders(directory).items() if number != step)):
        remove(other)
    return target


def served(program: ModuleType, args: argparse.Namespace, weights: list[Any]) -> Any:
    """The trained model as it is asked: on raw inputs, where the program has a way to them."""
    keras.mixed_precision.set_global_policy("float32")  # whatever it was trained in: who serves it may have no GPU
    copy = program.model(args)
    copy.set_weights(weights)
    around = getattr(program, "serving", None)
    return around(args, copy) if around else copy


def folders(directory: str) -> dict[int, str]:
    """The folders with a number, whole or not, lowest first."""
    try:
        names = [name.rstrip("/") for name in tf.io.gfile.listdir(directory)]
    except tf.errors.NotFoundError:
        return {}
    return {int(name): f"{directory.rstrip('/')}/{name}" for name in sorted(filter(str.isdecimal, names), key=int)}


def newest(directory: str) -> tuple[int, str] | None:
    """The highest version that is whole, and its folder."""
    numbered = reversed(folders(directory).items())
    return next(((number, folder) for number, folder in numbered if tf.io.gfile.exists(f"{folder}/{MODEL}")), None)


def remove(folder: str) -> None:
    """What makes it a version goes first, so that what is left on the way is none."""
    if tf.io.gfile.exists(f"{folder}/{MODEL}"):
        tf.io.gfile.remove(f"{folder}/{MODEL}")
    if tf.io.gfile.exists(folder):
        tf.io.gfile.rmtree(folder)


def move_objects(source: str, target: str) -> None:
    """Where folders cannot be renamed at once: what makes it a version comes last."""
    found = [posixpath.join(folder, name) for folder, _, names in tf.io.gfile.walk(source) for name in names]
    for path in sorted(found, key=lambda path: posixpath.basename(path) == MODEL):
        copy = target + path.removeprefix(source)
        tf.io.gfile.makedirs(posixpath.dirname(copy))
        tf.io.gfile.copy(path, copy, overwrite=True)
    remove(source)
