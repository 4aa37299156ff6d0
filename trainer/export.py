"""The trained model as a SavedModel that takes raw inputs."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import tensorflow as tf

from trainer import checkpoints
from trainer.cluster import Cluster


def export(model: Any, directory: str, strategy: str, cluster: Cluster) -> None:
    """Replaces what is in the directory, at once where the file system can. Under multi_worker_mirrored saving is a joint act."""
    options = tf.saved_model.SaveOptions(experimental_io_device=checkpoints.io_device(directory, strategy))
    if not cluster.is_lead:
        scratch = tempfile.mkdtemp()
        model.save(f"{scratch}/model", save_format="tf", include_optimizer=False, options=options)
        shutil.rmtree(scratch)
        return
    target = directory.rstrip("/")
    saving = f"{target}.saving"
    for leftover in (saving, f"{target}.old"):
        if tf.io.gfile.exists(leftover):
            tf.io.gfile.rmtree(leftover)
    model.save(saving, save_format="tf", include_optimizer=False, options=options)
    if tf.io.gfile.exists(target):
        tf.io.gfile.rename(target, f"{target}.old")
    tf.io.gfile.rename(saving, target)
    if tf.io.gfile.exists(f"{target}.old"):
        tf.io.gfile.rmtree(f"{target}.old")
