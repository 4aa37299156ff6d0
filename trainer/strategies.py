"""From a strategy's name to the strategy."""

from __future__ import annotations

import socket
import time
from typing import Any

import tensorflow as tf


def make(name: str, devices: int) -> Any:
    if name == "parameter_server":
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        wait_for_servers(resolver.cluster_spec())
        return tf.distribute.ParameterServerStrategy(resolver)
    if name == "multi_worker_mirrored":
        return tf.distribute.MultiWorkerMirroredStrategy()
    return tf.distribute.MirroredStrategy(local_devices(devices))


def wait_for_servers(cluster: Any) -> None:
    """TensorFlow tries again ever more seldom where nobody listens yet; so it is started only when everybody does."""
    for job in ("ps", "worker"):
        for address in cluster.job_tasks(job):
            while not listens(address):
                time.sleep(0.1)


def wait_until_gone(address: str, seconds: float) -> None:
    """Until nobody listens there any more, or for so long."""
    until = time.monotonic() + seconds
    while listens(address) and time.monotonic() < until:
        time.sleep(0.1)


def listens(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
    except OSError:
        return False
    return True


def local_devices(count: int) -> list[str]:
    """The first GPUs; where there are not enough, that many virtual CPU devices. Must come before any other use of TensorFlow."""
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) >= count:
        return [f"/gpu:{index}" for index in range(count)]
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    return [f"/cpu:{index}" for index in range(count)]
