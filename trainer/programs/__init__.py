"""The training programs: one file each, found by name. No TensorFlow is imported here.

A program is a module with two functions, and a third if it has arguments of its own:

    def model(args) -> tf_keras.Model                  a compiled model (optimizer, loss, metrics)
    def datasets(args, shard) -> (train, test)         tf.data of single (input, label) pairs; `train` only this shard's part
    def arguments(parser) -> None                      adds arguments to an argparse parser

Import TensorFlow inside the first two, so that the arguments can be checked without it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Shard:
    """Which part of the training data a task reads: number `index` of `count`."""

    index: int = 0
    count: int = 1


def names() -> list[str]:
    """The programs that come with the project."""
    return sorted(path.stem for path in FOLDER.glob("[!_]*.py"))


def load(reference: str) -> ModuleType:
    """A program by its name here, by its module, or by its file."""
    if reference in names():
        return importlib.import_module(f"trainer.programs.{reference}")
    if reference.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(reference).stem, reference)
        if spec is None or spec.loader is None or not Path(reference).is_file():
            raise ModuleNotFoundError(f"there is no file {reference}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    return importlib.import_module(reference)
