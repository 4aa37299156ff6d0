"""TensorBoard for logs on this machine: without TensorFlow, which it wants for files elsewhere and takes five times as long to start with."""

from __future__ import annotations

import sys
from types import ModuleType

if __name__ == "__main__":
    sys.modules["tensorboard.compat.notf"] = ModuleType("notf")  # that there is such a module tells TensorBoard to do without
    from tensorboard.main import run_main

    run_main()
