"""The command line of `python -m trainer`. No TensorFlow is imported here, so that a preview can check arguments with it."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from trainer import programs


class ArgumentError(Exception):
    """An argument that the program does not know or cannot use."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ArgumentError(message)


def parser(program: str | None, add_help: bool = True) -> Parser:
    """What every program understands, and what `program` adds to it."""
    result = Parser(
        prog="python -m trainer", description=DESCRIPTION, add_help=add_help, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("--program", required=True, help=f"one of {', '.join(programs.names())}; or package.module; or path/to/file.py")
    result.add_argument(
        "--strategy", choices=["parameter_server", "multi_worker_mirrored", "mirrored"], help="default: what TF_CONFIG looks like"
    )
    result.add_argument("--evaluator", choices=["sidecar", "inline", "none"], default="inline", help="who tries the model on test data")
    place = result.add_argument_group("directories; a local path or gs://…")
    place.add_argument("--data-dir", help="the data; default: data that comes with the program")
    place.add_argument("--checkpoint-dir", required=True, help="checkpoints; a training that finds one here goes on from it")
    place.add_argument("--log-dir", required=True, help="metrics.jsonl, evaluation.jsonl and TensorBoard's files")
    place.add_argument("--model-dir", required=True, help="the trained model")
    place.add_argument("--resume-from", help="where there is no checkpoint yet: the directory of one to start from")
    device = result.add_argument_group("devices")
    device.add_argument(
        "--devices", type=_positive, default=1, help="replicas under mirrored: GPUs, or virtual CPU devices where there are none"
    )
    device.add_argument(
        "--mixed-precision", action=argparse.BooleanOptionalAction, default=False, help="compute in 16 bits where the GPU can"
    )
    add_training_arguments(result)
    if program:
        own = getattr(programs.load(program), "arguments", None)
        if own:
            own(result.add_argument_group(f"arguments of {program}"))
    return result


def add_training_arguments(result: argparse.ArgumentParser) -> None:
    """The arguments a stack's `args` may set for any program."""
    training = result.add_argument_group("training")
    training.add_argument("--loop", choices=["fit", "custom"], default="fit", help="Keras' fit, or a loop of our own")
    training.add_argument("--epochs", type=_positive, default=10, help="passes over the training data")
    training.add_argument("--batch-size", type=_positive, default=64, help="examples per step of each worker or device")
    training.add_argument("--steps-per-epoch", type=_positive, help="default: as many as the data has")
    training.add_argument("--steps-per-execution", type=_positive, default=10, help="steps between two returns to Python")
    training.add_argument("--checkpoint-every", type=_positive, default=1, help="epochs between two checkpoints")
    training.add_argument("--keep-checkpoints", type=_positive, default=3, help="how many of the newest to keep")
    training.add_argument("--seed", type=int, default=1, help="for shuffling and for the first weights")


def problems(program: str, args: Mapping[str, Any]) -> Iterable[str]:
    """What is wrong with a stack's `args` for a program, found without running it."""
    known = parser(program, add_help=False)
    reserved = {
        "program",
        "strategy",
        "evaluator",
        "data_dir",
        "checkpoint_dir",
        "log_dir",
        "model_dir",
        "resume_from",
        "devices",
        "mixed_precision",
    }
    actions = {action.dest: action for action in known._actions if action.dest not in reserved}
    for name, value in args.items():
        if name in reserved:
            yield f"{name}: it follows from the training's own settings and would contradict them; write {name} beside args, not in it."
        elif name not in actions:
            close = difflib.get_close_matches(name, actions, n=1)
            meant = f" (did you mean {close[0]}?)" if close else ""
            yield f"{name}: {program} has no such argument{meant} and every task would fail; the known ones are {', '.join(sorted(actions))}."
        else:
            required = ["--program", program, "--checkpoint-dir", "-", "--log-dir", "-", "--model-dir", "-"]
            try:
                known.parse_args([*required, *flags({name: value})])
            except ArgumentError as error:
                yield f"{name}: {program} cannot use {value!r} and every task would fail; {error}."


def flags(args: Mapping[str, Any]) -> list[str]:
    """{epochs: 5, augment: false} as --no-augment --epochs=5, always in the same order."""
    result = []
    for name, value in sorted(args.items()):
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            result.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            result.append(f"--{flag}={value}")
    return result


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


DESCRIPTION = """\
Runs one task of a training: which one, and beside whom, TF_CONFIG says. Without TF_CONFIG it is a training in one process:

    python -m trainer --program digits --checkpoint-dir /tmp/digits/c --log-dir /tmp/digits/l --model-dir /tmp/digits/m
"""
