"""The training programs: one file each, found by name. No TensorFlow is imported here.

A program is a module with two functions:

    def model(args) -> tf_keras.Model                  a compiled model (optimizer, loss, metrics)
    def datasets(args, shard) -> (train, test)         tf.data of single (input, label) pairs; `train` only this shard's part

and what else it needs of these:

    DEFAULTS = {"epochs": 5}                           its own defaults for arguments that every program has
    def arguments(parser) -> None                      adds arguments to an argparse parser
    def augment(args, inputs, labels) -> (…, …)        changes a batch of training data, anew each time it is used
    def serving(args, model) -> tf_keras.Model         the trained model behind the raw inputs that it is asked with
    def prepare(args) -> None                          brings the data into args.data_dir: trainer/prepare.py
    def prepare_arguments(parser) -> None              adds arguments to those of `prepare`

Besides the arguments, `args` has what a learning rate depends on (trainer/schedules.py): `replicas`, `epoch_steps` and `begun`.
Import TensorFlow inside the functions, so that the arguments can be checked without it.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from trainer.cluster import ConfigurationError

FOLDER = Path(__file__).parent
File = TypeVar("File")
GENERATED = "generated"  # the source of data that is made and not fetched


@dataclass(frozen=True)
class Shard:
    """Which part of the training data a task reads: number `index` of `count`."""

    index: int = 0
    count: int = 1

    def of(self, files: Sequence[File]) -> tuple[Sequence[File], Shard]:
        """Which files it reads, and which part of their records: whole files only where everybody has equally many of them."""
        return (files[self.index :: self.count], Shard()) if len(files) % self.count == 0 else (files, self)


def whole_number(lowest: int = 1, highest: int | None = None, multiple_of: int = 1) -> Callable[[str], int]:
    """The type of an argument that counts something."""
    kind = "a whole number" if multiple_of == 1 else f"a multiple of {multiple_of}"
    limits = f"{kind} from {lowest} to {highest}" if highest is not None else f"{kind} from {lowest}" if lowest > 1 else f"{kind} above 0"

    def number(text: str) -> int:
        if not text.isdecimal() or not lowest <= int(text) <= (int(text) if highest is None else highest) or int(text) % multiple_of:
            raise argparse.ArgumentTypeError(f"{text!r} is not {limits}")
        return int(text)

    return number


def number(lowest: float = 0.0, below: float | None = None, above: bool = False) -> Callable[[str], float]:
    """The type of an argument that measures something: finite, and `lowest` or more, or `above` it."""
    limits = f"a number {'above' if above else 'from'} {lowest:g}{f' on, below {below:g}' if below is not None else ''}"

    def value(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        too_low = found <= lowest if above else found < lowest
        if not math.isfinite(found) or too_low or (below is not None and found >= below):
            raise argparse.ArgumentTypeError(f"{text!r} is not {limits}")
        return found

    return value


def add_fetch_arguments(parser: argparse._ArgumentGroup, published: bool = False) -> None:
    """Of a preparation that fetches one file. `published`: whether its checksum is known."""
    default = "that of the published one, and none for another source" if published else "none"
    parser.add_argument("--sha256", help=f"checksum that the source must have; default: {default}")
    parser.add_argument(
        "--scratch", help="a folder on this disk that keeps what was fetched, by its source and checksum; default: one that is removed"
    )


def checksum(args: argparse.Namespace, source: str, sha256: str) -> str | None:
    """The one that is asked for, or where the data comes from `source`, the published one."""
    return args.sha256 or (sha256 if args.source.rstrip("/") == source else None)


def data_directory(args: argparse.Namespace, program: str) -> str:
    """Where a program reads whose data does not come with it."""
    if not args.data_dir:
        raise ConfigurationError(
            f"{program} needs its data; write data_prep: {{program: {program}.prepare, args: {{source: generated}}}}, or data_dir"
        )
    return str(args.data_dir.rstrip("/"))


def names() -> list[str]:
    """The programs that come with the project."""
    return sorted(path.stem for path in FOLDER.glob("[!_]*.py"))


def prepared_by(reference: str) -> str | None:
    """The program whose data `NAME.prepare` prepares, where that is one of ours."""
    name, _, what = reference.rpartition(".")
    return name if what == "prepare" and name in names() else None


def load(reference: str) -> ModuleType:
    """A program by its name here, by its module, or by its file."""
    if reference in names():
        return importlib.import_module(f"trainer.programs.{reference}")
    module = _from_file(Path(reference).resolve()) if reference.endswith(".py") else importlib.import_module(reference)
    if missing := [name for name in ("model", "datasets") if not hasattr(module, name)]:
        raise ConfigurationError(
            f"{reference} has no function {' and no function '.join(missing)}; docs/programs.md shows what a program has"
        )
    return module


@functools.cache  # once per process: what it registers with Keras cannot be registered twice
def _from_file(path: Path) -> ModuleType:
    """Under a name that is nobody else's, and with what lies beside it within reach."""
    spec = importlib.util.spec_from_file_location(f"trainstack_program_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ModuleNotFoundError(f"there is no file {path}")
    sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
