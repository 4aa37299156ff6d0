"""A parameter server, or one of its workers: does what the chief asks, and never returns by itself.

Such a task runs graphs, in C++. Of TensorFlow's Python it needs one class, and `import tensorflow` would bring all of it: six times the work, which
is most of the time that a lost worker is away, and 200 MB. So the package is entered without its front door.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from trainer import cluster


def load() -> ModuleType:
    """TensorFlow's module of servers, alone; unless somebody has already loaded everything, or has plugins, which only the whole of it loads."""
    if "tensorflow" not in sys.modules and not has_plugins():
        spec = importlib.util.find_spec("tensorflow")
        assert spec is not None
        package = ModuleType("tensorflow")
        package.__path__ = list(spec.submodule_search_locations or ())
        sys.modules["tensorflow"] = package
        os.environ["TF2_BEHAVIOR"] = "1"
        from tensorflow.python import tf2

        tf2.enable()
    from tensorflow.python.training import server_lib

    found: ModuleType = server_lib
    return found


def has_plugins() -> bool:
    """Devices and kernels that did not come with TensorFlow."""
    return "TF_PLUGGABLE_DEVICE_LIBRARY_PATH" in os.environ or any(Path(place, "tensorflow-plugins").exists() for place in sys.path)


def serve(library: ModuleType) -> None:
    config = cluster.configuration()
    task = config["task"]
    library.Server(config["cluster"], job_name=task["type"], task_index=int(task["index"]), protocol="grpc").join()
