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
    place.add_argument("--model-dir", required=True, help="the trained model, in a folder named by its step")
    place.add_argument("--resume-from", help="where there is no checkpoint yet: the directory of one to start from")
    device = result.add_argument_group("devices")
    device.add_argument(
        "--devices",
        type=programs.whole_number(),
        default=1,
        help="replicas under mirrored: GPUs, or virtual CPU devices where there are none",
    )
    device.add_argument(
        "--mixed-precision", action=argparse.BooleanOptionalAction, default=False, help="compute in 16 bits where the GPU can"
    )
    add_training_arguments(result)
    # What training.py knows better: how many replicas compute one step together, the steps of an epoch, the step at which the first one began, and the
    # step from which this task goes on.
    result.set_defaults(replicas=1, epoch_steps=1, begun=0, resumed_at=0)
    if program:
        module = programs.load(program)
        if own := getattr(module, "arguments", None):
            own(result.add_argument_group(f"arguments of {program}"))
        result.set_defaults(**getattr(module, "DEFAULTS", {}))
    return result


def add_training_arguments(result: argparse.ArgumentParser) -> None:
    """The arguments a stack's `args` may set for any program."""
    training = result.add_argument_group("training")
    training.add_argument(
        "--loop",
        choices=["auto", "fit", "custom"],
        default="auto",
        help="Keras' fit, or a loop of our own; auto: our own where there are several tasks, which it keeps busier",
    )
    training.add_argument("--epochs", type=programs.whole_number(), default=10, help="passes over the training data")
    training.add_argument("--batch-size", type=programs.whole_number(), default=64, help="examples per step of each worker or device")
    training.add_argument("--steps-per-epoch", type=programs.whole_number(), help="default: as many as the data has")
    training.add_argument("--steps-per-execution", type=programs.whole_number(), default=10, help="steps between two returns to Python")
    training.add_argument("--checkpoint-every", type=programs.whole_number(), default=1, help="epochs between two checkpoints")
    training.add_argument("--keep-checkpoints", type=programs.whole_number(), default=3, help="how many of the newest to keep")
    training.add_argument("--seed", type=int, default=1, help="for shuffling and for the first weights")
    training.add_argument(
        "--deterministic",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="the same numbers every time, under the mirrored strategies; slower",
    )
    training.add_argument(
        "--cache", action=argparse.BooleanOptionalAction, default=True, help="keep the decoded training data in memory after the first pass"
    )
    training.add_argument(
        "--shuffle",
        type=programs.whole_number(),
        default=10_000,
        help="examples among which the next one is drawn; where all fit into 256 MB, that is all of them",
    )
    training.add_argument(
        "--warmup-epochs", type=programs.number(), default=1.0, help="in which the learning rate rises to that of all replicas together"
    )


def preparation(name: str, add_help: bool = True) -> Parser:
    """What the preparation of a program's data understands: `python -m trainer.prepare`."""
    program = programs.load(name)
    if not hasattr(program, "prepare"):
        raise ArgumentError(f"{name} needs no preparation, because its data comes with it; remove data_prep")
    result = Parser(
        prog="python -m trainer.prepare",
        description=PREPARATION,
        add_help=add_help,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("program", choices=[name], help="the program whose data it is")
    result.add_argument("--data-dir", required=True, help="where the data goes; a local path or gs://…")
    result.add_argument(
        "--source", default=program.SOURCE, help=f"an address, gs://…, a path, or `{programs.GENERATED}`; default: {program.SOURCE}"
    )
    result.add_argument(
        "--examples", type=programs.whole_number(), default=2000, help=f"how many to make where the source is `{programs.GENERATED}`"
    )
    result.add_argument("--seed", type=int, default=1, help="of what is made or drawn")
    if own := getattr(program, "prepare_arguments", None):
        own(result.add_argument_group(f"data of {name}"))
    return result


def problems(program: str, args: Mapping[str, Any]) -> Iterable[str]:
    """What is wrong with a stack's `args` for a program, found without running it."""
    required = ["--program", program, "--checkpoint-dir", "-", "--log-dir", "-", "--model-dir", "-"]
    return _problems(program, parser(program, add_help=False), required, OF_THE_TRAINING, args)


def problems_of_preparation(program: str, args: Mapping[str, Any]) -> Iterable[str]:
    """The same for the preparation of its data."""
    try:
        known = preparation(program, add_help=False)
    except ArgumentError as error:
        return [f"{error}."]
    return _problems(f"{program}.prepare", known, [program, "--data-dir", "-"], {"program", "data_dir"}, args)


# What follows from a training's own settings.
OF_THE_TRAINING = {"program", "strategy", "evaluator", "data_dir", "checkpoint_dir", "log_dir", "model_dir", "resume_from", "devices", "mixed_precision"}  # fmt: skip


def _problems(program: str, known: Parser, required: list[str], reserved: set[str], args: Mapping[str, Any]) -> Iterable[str]:
    actions = {action.dest: action for action in known._actions if action.dest not in reserved}
    for name, value in args.items():
        if name in reserved:
            yield f"{name}: it follows from the training's own settings and would contradict them; write {name} beside args, not in it."
        elif name not in actions:
            close = difflib.get_close_matches(name, actions, n=1)
            meant = f" (did you mean {close[0]}?)" if close else ""
            yield f"{name}: {program} has no such argument{meant} and every task would fail; the known ones are {', '.join(sorted(actions))}."
        else:
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


PREPARATION = """\
Brings a program's data to where its trainings read it:

    python -m trainer.prepare mnist --data-dir /tmp/mnist                              the real data set, from where it is published
    python -m trainer.prepare mnist --data-dir /tmp/mnist --source generated           small data of the same format, made here
    python -m trainer.prepare mnist --data-dir gs://my-bucket/mnist --source /copies   the real one, from a copy of yours

In the settings of a training: `data_prep: {program: mnist.prepare, args: {source: generated}}`.
"""

DESCRIPTION = """\
Runs one task of a training: which one, and beside whom, TF_CONFIG says. Without TF_CONFIG it is a training in one process:

    python -m trainer --program digits --checkpoint-dir /tmp/digits/c --log-dir /tmp/digits/l --model-dir /tmp/digits/m
"""
