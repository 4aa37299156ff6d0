"""What a person does with a running stack: `python -m ops`, installed as `trainstack`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ops.target import OpsError, Run, Target, choose, target_of

EXIT = {"succeeded": 0, "failed": 3, "vanished": 3, "cancelled": 4}


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="trainstack",
        description="Look at the trainings of a stack and act on them.",
        epilog="exit codes: 0 fine or succeeded, 1 error, 2 usage, 3 the training failed, 4 it was cancelled",
    )
    result.add_argument("--stack", default=os.environ.get("PULUMI_STACK") or "local", help="the stack; default: %(default)s")
    result.add_argument("--training", help="the training; may be left out when the stack has one")
    result.add_argument("--run", help="the run; default: the newest")
    result.add_argument("--json", action="store_true", help="print JSON, for programs")
    commands = result.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("status", help="what every task is doing")
    commands.add_parser("watch", help="follow the run until it ends")
    commands.add_parser("list", help="every run there has been")
    logs = commands.add_parser("logs", help="what the tasks print")
    logs.add_argument("task", nargs="?", help="a task (worker-1) or a role (worker); default: all")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    commands.add_parser("cancel", help="end the run; it keeps its last checkpoint")
    rerun = commands.add_parser("rerun", help="start a run that has ended again, where it stopped")
    rerun.add_argument("--fresh", action="store_true", help="start from nothing: deletes its checkpoints, logs and model")
    models = commands.add_parser("models", help="the trained models")
    actions = models.add_subparsers(dest="action", required=True, metavar="list|fetch|delete")
    actions.add_parser("list", help="the models of all runs")
    actions.add_parser("fetch", help="copy the model into a new folder").add_argument("folder", type=Path)
    actions.add_parser("delete", help="delete the model; the run stays")
    predict = commands.add_parser("predict", help="ask the model")
    predict.add_argument("file", type=Path, help="inputs: .json, .csv or .npy")
    commands.add_parser(
        "recover", help="after an `up` that was killed: find what it made and did not write down; `pulumi refresh` must follow"
    )
    container = commands.add_parser("container", help="train in the trainer's image on this machine, in one container")
    container.add_argument("settings", type=Path, help="a settings file, such as examples/demo.yaml")
    commands.add_parser("demo", help="follow the run, and kill a worker on the way")
    return result


def main() -> int:
    args = parser().parse_args()
    commands: dict[str, Callable[[Target, argparse.Namespace], int]] = {
        "status": status, "watch": watch, "list": history, "logs": logs, "cancel": cancel,
        "rerun": rerun, "models": models, "predict": predict, "demo": demo,
    }  # fmt: skip
    without_target: dict[str, Callable[[argparse.Namespace], int]] = {"recover": recover, "container": container}
    try:
        if args.command in without_target:
            return without_target[args.command](args)
        return commands[args.command](target_of(args.stack), args)
    except OpsError as error:
        print(json.dumps({"error": str(error)}) if args.json else f"trainstack: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def the_run(target: Target, args: argparse.Namespace) -> Run:
    return choose(target.runs(args.training), args.run)


def newest(target: Target, args: argparse.Namespace) -> list[Run]:
    """The runs that the stack has now, or the run that was named."""
    runs = target.runs(args.training)
    if args.run:
        return [choose(runs, args.run)]
    current = {run.training: run for run in runs if run.in_stack}
    if not current:
        raise OpsError("the stack has no training now; `make up` starts it" + (", `trainstack list` shows what has been." if runs else "."))
    return list(current.values())


def as_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def brief(run: Run) -> dict[str, Any]:
    last = {"training": run.metrics[-1] if run.metrics else None, "test": run.evaluation[-1] if run.evaluation else None}
    return {**asdict(run), "metrics": last["training"], "evaluation": last["test"]}


# ------------------------------------------------------------------------------------------------------ commands


def status(target: Target, args: argparse.Namespace) -> int:
    runs = newest(target, args)
    if args.json:
        as_json([brief(run) for run in runs])
    else:
        from rich.console import Console

        from ops.watch import render

        Console().print(render(runs))
        for run in runs:
            if run.reason:
                print(f"{run.training}: {run.state}: {run.reason}")
    return max(EXIT.get(run.state, 0) for run in runs)


def watch(target: Target, args: argparse.Namespace) -> int:
    from ops.watch import watch as follow

    if not args.training and not args.run and not any(run.in_stack for run in target.runs()):
        print("the stack has no training to follow")
        return 0
    names = [(run.training, run.run) for run in newest(target, args)]

    def look() -> Sequence[Run]:
        return [run for run in target.runs(args.training) if (run.training, run.run) in names]

    return conclude(lambda: follow(look), args)


def conclude(follow: Callable[[], Sequence[Run]], args: argparse.Namespace) -> int:
    """Follows, then says what came of it."""
    try:
        runs = follow()
    except KeyboardInterrupt:
        print("\nThe run goes on. Return to it with `trainstack watch`, end it with `trainstack cancel` or `make down`.")
        return 0
    if args.json:
        as_json([brief(run) for run in runs])
    else:
        for run in runs:
            print(ending(run))
    return max(EXIT.get(run.state, 0) for run in runs)


def ending(run: Run) -> str:
    from ops.watch import since

    head = f"\n{run.training}, run {run.run}: {run.state} after {since(run)}"
    lines = [head + (f", test accuracy {run.accuracy:.4f}" if run.accuracy is not None else "") + (f": {run.reason}" if run.reason else "")]
    if run.state == "succeeded":
        if Path(run.model).exists():
            lines.append(f"  model        {run.model}")
        for name, file in (("plot", "plot.png"), ("summary", "SUMMARY.md")):
            if Path(run.place, file).exists():
                lines.append(f"  {name:<12} {run.place}/{file}")
        lines.append(f"  TensorBoard  {run.tensorboard or f'.venv/bin/tensorboard --logdir {run.place}/logs'}")
    elif run.state == "vanished":
        lines.append("  it resumes with `make up`")
    else:
        lines.append(f"  logs         {run.place}/tasks")
        lines.append("  go on        trainstack rerun")
    return "\n".join(lines)


def history(target: Target, args: argparse.Namespace) -> int:
    runs = target.runs(args.training)
    if args.json:
        as_json([brief(run) for run in runs])
        return 0
    from rich.console import Console
    from rich.table import Table

    from ops.watch import since

    table = Table("training", "run", "state", "started", "took", "test accuracy", "steps")
    for run in runs:
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)) if run.started else ""
        accuracy = f"{run.accuracy:.4f}" if run.accuracy is not None else ""
        steps = str(run.metrics[-1]["step"]) if run.metrics else ""
        table.add_row(run.training, run.run, run.state, started, since(run) if run.started else "", accuracy, steps)
    Console().print(table if runs else "there is no run yet; start one with `make up`")
    return 0


def logs(target: Target, args: argparse.Namespace) -> int:
    run = the_run(target, args)
    alone = args.task is not None and "-" in args.task
    try:
        for task, line in target.logs(run, args.task, args.follow):
            if args.json:
                print(json.dumps({"task": task, "line": line}), flush=True)
            else:
                print(line if alone else f"{task:<12} {line}", flush=True)
    except KeyboardInterrupt:
        pass
    return 0


def cancel(target: Target, args: argparse.Namespace) -> int:
    run = the_run(target, args)
    target.cancel(run)
    return said(
        args, run, "cancelled", f"{run.training}, run {run.run}: cancelled; it goes on from its last checkpoint with `trainstack rerun`"
    )


def rerun(target: Target, args: argparse.Namespace) -> int:
    run = the_run(target, args)
    target.rerun(run, args.fresh)
    return said(
        args,
        run,
        "started",
        f"{run.training}, run {run.run}: started {'from nothing' if args.fresh else 'where it stopped'}; follow it with `trainstack watch`",
    )


def said(args: argparse.Namespace, run: Run, done: str, sentence: str) -> int:
    if args.json:
        as_json({"training": run.training, "run": run.run, "done": done})
    else:
        print(sentence)
    return 0


def models(target: Target, args: argparse.Namespace) -> int:
    if args.action == "list":
        found = [run for run in target.runs(args.training) if Path(run.model).exists()]
        if args.json:
            as_json([{"training": run.training, "run": run.run, "model": run.model, "accuracy": run.accuracy} for run in found])
        else:
            for run in found:
                print(
                    f"{run.training}  run {run.run}  "
                    + (f"test accuracy {run.accuracy:.4f}  " if run.accuracy is not None else "")
                    + run.model
                )
            if not found:
                print("there is no model yet; one appears when a run succeeds")
        return 0
    run = with_model(the_run(target, args))
    if args.action == "fetch":
        target.fetch_model(run, args.folder)
        return said(args, run, "fetched", f"the model of {run.training}, run {run.run}, is in {args.folder}")
    target.delete_model(run)
    return said(
        args,
        run,
        "deleted",
        f"the model of {run.training}, run {run.run}, is deleted; `trainstack rerun` makes it again from the last checkpoint",
    )


def with_model(run: Run) -> Run:
    if not Path(run.model).exists():
        raise OpsError(f"run {run.run} of {run.training} ({run.state}) has no model; one appears when a run succeeds.")
    return run


def predict(target: Target, args: argparse.Namespace) -> int:
    from ops.predict import predict as ask

    answers = ask(with_model(the_run(target, args)).model, args.file)
    if args.json:
        as_json({"predictions": answers})
        return 0
    for number, answer in enumerate(answers):
        for name, value in answer.items():
            best = f"class {value.index(max(value))} ({max(value):.4f})" if isinstance(value, list) and len(value) > 1 else value
            print(f"{number}: {name}: {best}")
    return 0


def demo(target: Target, args: argparse.Namespace) -> int:
    """The same as watch, but a worker is killed once training is under way."""
    from ops.watch import watch as follow

    first = the_run(target, args)
    workers = [task.name for task in first.tasks if task.name.startswith("worker")]
    if first.is_over or not workers:
        raise OpsError("the demonstration needs a run with workers that is going on; start it with `make demo`.")
    killed: list[str] = []

    def look() -> Sequence[Run]:
        run = next(each for each in target.runs(first.training) if each.run == first.run)
        if not killed and len(run.metrics) >= 3:
            killed.append(workers[-1])
            target.kill(run, workers[-1])
            print(f">>> killed {workers[-1]} without warning (kill -9); watch the others go on and it come back", flush=True)
        return [run]

    return conclude(lambda: follow(look), args)


def recover(args: argparse.Namespace) -> int:
    from ops.recover import recover as mend

    for line in mend(args.stack):
        print(line, flush=True)
    return 0


def container(args: argparse.Namespace) -> int:
    from ops.container import train

    return train(args.settings, args.training)


if __name__ == "__main__":
    sys.exit(main())
