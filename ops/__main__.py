"""What a person does with a running stack: `python -m ops`, installed as `trainstack`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ops.target import ROOT, OpsError, Run, Target, choose, settings_of, target_of

EXIT = {"succeeded": 0, "failed": 3, "vanished": 3, "cancelled": 4}


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="trainstack",
        description="Look at the trainings of a stack and act on them.",
        epilog="exit codes: 0 fine or succeeded, 1 error, 2 usage, 3 the training failed, 4 it was cancelled",
    )
    result.add_argument("--stack", default=os.environ.get("PULUMI_STACK") or "local", help="the stack; default: %(default)s")
    result.add_argument("--config-file", type=Path, metavar="FILE", help="the settings of the stack; default: Pulumi.<stack>.yaml")
    result.add_argument("--training", help="the training; may be left out when the stack has one")
    result.add_argument("--run", help="the run; default: the newest")
    result.add_argument("--json", action="store_true", help="print JSON, for programs")
    commands = result.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("status", help="what every task is doing")
    commands.add_parser("explain", help="for every task that does not run: why, and what to do")
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
    predict = commands.add_parser("predict", help="ask the model, or the server that has it")
    predict.add_argument("file", type=Path, help="inputs: .json, .csv or .npy")
    board = commands.add_parser("tensorboard", help="open TensorBoard; on a cluster, forward to it until Ctrl-C")
    board.add_argument("--port", type=int, default=0, help="the port of this machine to forward from; default: a free one")
    board.add_argument("--no-browser", action="store_true", help="say where it is, open nothing")
    inspect = commands.add_parser("inspect", help="a shell, or one command, in the pod that has the volumes mounted")
    inspect.add_argument("words", nargs="*", metavar="COMMAND", help="after --, a command to run there; its exit code is the result")
    commands.add_parser(
        "recover", help="after an `up` that was killed: find what it made and did not write down; `pulumi refresh` must follow"
    )
    container = commands.add_parser("container", help="train in the trainer's image on this machine, in one container")
    container.add_argument("settings", type=Path, help="a settings file, such as examples/demo.yaml")
    rehearse = commands.add_parser(
        "rehearse",
        help="kill and stop the tasks of small trainings on this machine, and see whether they survive it; with --training, or on a cluster, those of "
        "a training that is running",
    )
    rehearse.add_argument("--faults", type=int, default=20, help="how many; default: %(default)s")
    rehearse.add_argument("--seed", type=int, default=1, help="of their order; default: %(default)s")
    commands.add_parser("doctor", help="before the first `up`: what is missing, and how to get it")
    commands.add_parser("leftovers", help="after the last `destroy`: what of the stack is still there, and what of it costs money")
    bootstrap = commands.add_parser("bootstrap", help="once for a team: a bucket for Pulumi's state, and a key for the secrets in it")
    bootstrap.add_argument("--project", required=True, help="the project of Google Cloud to make them in")
    bootstrap.add_argument("--region", default="us-central1", help="where; default: %(default)s")
    bootstrap.add_argument("--bucket", help="the bucket's name; default: PROJECT-trainstack-state")
    bootstrap.add_argument("--yes", action="store_true", help="do it without asking")
    commands.add_parser("demo", help="follow the run, and kill a worker on the way")
    commands.add_parser("cost", help="what the stack costs by the hour, and what a run has cost and will")
    report = commands.add_parser("report", help="a preview as one page of Markdown, for a pull request")
    report.add_argument(
        "preview",
        metavar="PREVIEW.json",
        help="from `pulumi preview --json` or `pulumi up --json --yes --skip-preview`; - reads standard input",
    )
    made = commands.add_parser("new", help="write the settings file of a stack of your own, with a program to begin with")
    made.add_argument("name", help="of the stack, its training and its program")
    tfjob = commands.add_parser(
        "import-tfjob", help="print a settings file that does what TFJobs of Kubeflow do, with a note for all that differs"
    )
    tfjob.add_argument(
        "files", nargs="+", metavar="FILE", help="manifests as YAML, with the claims they use if there are; - is standard input"
    )
    tfjob.add_argument("--context", help="the context of the kubeconfig to train on; default: to be filled in")
    return result


def main() -> int:
    args = parser().parse_args()
    commands: dict[str, Callable[[Target, argparse.Namespace], int]] = {
        "status": status, "watch": watch, "list": history, "logs": logs, "cancel": cancel,
        "rerun": rerun, "models": models, "predict": predict, "demo": demo, "explain": explain, "tensorboard": tensorboard,
        "inspect": inspect,
    }  # fmt: skip
    without_target: dict[str, Callable[[argparse.Namespace], int]] = {
        "recover": recover, "container": container, "rehearse": rehearse, "cost": cost, "report": report,
        "import-tfjob": import_tfjob, "new": new,
        "doctor": doctor, "leftovers": leftovers, "bootstrap": bootstrap,
    }  # fmt: skip
    try:
        if args.command in without_target:
            return without_target[args.command](args)
        return commands[args.command](target_of(args.stack, args.config_file), args)
    except OpsError as error:
        print(json.dumps({"error": str(error)}) if args.json else f"trainstack: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if (ROOT / package).exists() or (ROOT / f"{package}.py").exists():
            raise  # it is ours, and should be there
        print(f"trainstack: {package} is not installed for {sys.executable}; run `make ready`, then .venv/bin/trainstack.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
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


def beside_the_answer(args: argparse.Namespace) -> contextlib.AbstractContextManager[object]:
    """With --json, what a person reads meanwhile goes to standard error, and the answer alone to standard output."""
    return contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext()


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
        if all(run.is_over for run in runs) and (standing := target.standing()):
            print(standing)
    return max(EXIT.get(run.state, 0) for run in runs)


def watch(target: Target, args: argparse.Namespace) -> int:
    from ops.watch import watch as follow

    if not args.training and not args.run and not any(run.in_stack for run in target.runs()):
        if args.json:
            as_json([])
        else:
            print("the stack has no training to follow")
        return 0
    names = [(run.training, run.run) for run in newest(target, args)]

    def look() -> Sequence[Run]:
        return [run for run in target.runs(args.training) if (run.training, run.run) in names]

    return conclude(lambda: follow(look, target.pause), target, args)


def conclude(follow: Callable[[], Sequence[Run]], target: Target, args: argparse.Namespace) -> int:
    """Follows, then says what came of it."""
    try:
        with beside_the_answer(args):
            runs = follow()
    except KeyboardInterrupt:
        with beside_the_answer(args):
            print("\nThe run goes on. Return to it with `trainstack watch`, end it with `trainstack cancel` or `make down`.")
        return 0
    if not runs:
        raise OpsError("the run is no longer in the stack; somebody has taken it down. `make up` starts it again.")
    if args.json:
        as_json([brief(run) for run in runs])
    else:
        for run in runs:
            print(ending(target, run))
        if standing := target.standing():
            print(f"\n{standing}")
    return max(EXIT.get(run.state, 0) for run in runs)


def ending(target: Target, run: Run) -> str:
    from ops.watch import since

    head = f"\n{run.training}, run {run.run}: {run.state} after {since(run)}"
    figure = f", test {run.figure}" if run.figure else ""
    return "\n".join(
        [head + figure + (f": {run.reason}" if run.reason else ""), *(f"  {name:<12} {value}" for name, value in target.after(run))]
    )


def history(target: Target, args: argparse.Namespace) -> int:
    runs = target.runs(args.training)
    if args.json:
        as_json([brief(run) for run in runs])
        return 0
    from rich.console import Console
    from rich.table import Table

    from ops.watch import since

    table = Table("training", "run", "state", "started", "took", "test", "steps")
    for run in runs:
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)) if run.started else ""
        steps = str(run.metrics[-1]["step"]) if run.metrics else ""
        table.add_row(run.training, run.run, run.state, started, since(run) if run.started else "", run.figure, steps)
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
        found = []
        for run in target.runs(args.training):
            try:
                place = target.model(run)
            except OpsError as error:  # one that cannot be looked at does not hide the others
                print(f"trainstack: {run.training}: {error}", file=sys.stderr)
                continue
            if place:
                found.append((run, place))
        if args.json:
            as_json(
                [
                    {"training": run.training, "run": run.run, "model": place, "evaluation": run.evaluation[-1] if run.evaluation else None}
                    for run, place in found
                ]
            )
        else:
            for run, place in found:
                figure = f"test {run.figure}  " if run.figure else ""
                print(f"{run.training}  run {run.run}  {figure}{place}")
            if not found:
                print("there is no model yet; one appears when a run succeeds")
        return 0
    run = the_run(target, args)
    if not target.model(run):
        raise OpsError(f"run {run.run} of {run.training} ({run.state}) has no model; one appears when a run succeeds.")
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


def predict(target: Target, args: argparse.Namespace) -> int:
    from ops.predict import check

    check(args.file)
    answers = target.predict(args.training, args.run, args.file)
    if args.json:
        as_json({"predictions": answers})
        return 0
    for number, answer in enumerate(answers):
        for name, value in answer.items():
            best = f"class {value.index(max(value))} ({max(value):.4f})" if isinstance(value, list) and len(value) > 1 else value
            print(f"{number}: {name}: {best}")
    return 0


def explain(target: Target, args: argparse.Namespace) -> int:
    findings = target.explain(args.training)
    if args.json:
        as_json([asdict(finding) for finding in findings])
        return 0
    together: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        together.setdefault((finding.training, finding.sentence), []).append(finding.task)
    for (training, sentence), tasks in together.items():
        shown = ", ".join(tasks) if len(tasks) <= 6 else f"{', '.join(tasks[:5])} and {len(tasks) - 5} more"
        print(f"{training} {shown}: {sentence}")
    if not findings:
        print("every task runs or is done")
    return 0


def tensorboard(target: Target, args: argparse.Namespace) -> int:
    import threading
    import webbrowser

    with target.tensorboard(args.training, args.run, args.port) as site:
        if args.json:
            print(json.dumps({"url": site.url}), flush=True)
        else:
            print(f"TensorBoard is at {site.url}" + (" until you press Ctrl-C" if site.forwarded else ""), flush=True)
        if not args.no_browser:
            webbrowser.open(site.url)
        if site.forwarded:
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    return 0


def inspect(target: Target, args: argparse.Namespace) -> int:
    if args.json and not args.words:
        raise OpsError("--json shows what one command prints; write it behind --, as in `trainstack --json inspect -- ls /`.")
    code, printed, errors = target.inspect(args.training, args.words, captured=args.json)
    if args.json:
        as_json({"exit_code": code, "output": printed, "errors": errors})
    return code


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

    return conclude(lambda: follow(look, target.pause), target, args)


def recover(args: argparse.Namespace) -> int:
    from ops.recover import recover as mend

    done = []
    with beside_the_answer(args):
        for line in mend(args.stack):
            done.append(line)
            print(line, flush=True)
    if args.json:
        as_json({"stack": args.stack, "done": done})
    return 0


def rehearse(args: argparse.Namespace) -> int:
    from ops.local import LocalTarget

    if args.faults < 1:
        raise OpsError(f"{args.faults} faults are no rehearsal; write --faults 20.")
    say: Callable[[str], None] = (lambda _: None) if args.json else lambda line: print(line, flush=True)
    target = target_of(args.stack, args.config_file)
    if isinstance(target, LocalTarget) and args.training is None:
        from ops.rehearse import rehearse as on_this_machine

        signal.signal(signal.SIGTERM, signal.default_int_handler)  # its trainings end with it
        fine, report = on_this_machine(args.faults, args.seed, say)
    else:
        from ops.rehearse_stack import rehearse as on_the_stack

        run = choose(target.runs(args.training), args.run)
        fine, report = on_the_stack(target.stage(run), run, args.stack, args.faults, args.seed, say)
    if args.json:
        as_json(report)
    else:
        print(f"the picture is {report['picture']}\n{report['summary']}", flush=True)
    return 0 if fine else 3


def cost(args: argparse.Namespace) -> int:
    from ops import spending

    written = settings_of(args.stack, args.config_file)
    stack = spending.parsed(written, args.stack)
    bill = spending.bill(stack)
    if bill is None:
        from costs import NOWHERE

        return said_of(args, {"nothing": NOWHERE[stack.target]}, NOWHERE[stack.target])
    blind = ""
    spent: list[spending.Spent] = []
    try:
        runs = target_of(args.stack, args.config_file).runs(args.training)
        spent = [spending.spent(stack, run, time.time()) for run in runs if run.in_stack and run.training in stack.trainings]
    except OpsError as error:  # a stack that is not up has a bill, too
        blind = str(error)
    if args.json:
        amounts = ("per_hour", "so_far", "per_epoch", "to_the_end", "at_most")
        told = [{**asdict(each), **{key: spending.amount(getattr(each, key)) for key in amounts}} for each in spent]
        as_json({**spending.as_data(bill), "runs": told, "runs_not_seen": blind or None})
        return 0
    from rich.console import Console

    from ops.bills import bill_table, spent_table

    console = Console()
    console.print(bill_table(args.stack, bill))
    console.print(*(f"· {note}\n" for note in bill.notes), sep="", end="", highlight=False)
    if spent:
        console.print(spent_table(spent))
    elif blind:
        print(f"no run was looked at: {blind}")
    return 0


def report(args: argparse.Namespace) -> int:
    from ops.changes import read
    from ops.report import page

    try:
        text = sys.stdin.read() if args.preview == "-" else Path(args.preview).read_text()
    except OSError as error:
        raise OpsError(
            f"{args.preview} cannot be read ({error.strerror}); name the file with the preview, or - for standard input."
        ) from None
    changes = read(text)
    if args.json:
        as_json({"stack": changes.stack, "done": changes.done, "failed": bool(changes.errors), "markdown": page(changes)})
    else:
        print(page(changes), end="")
    return 0


def said_of(args: argparse.Namespace, data: object, sentence: str) -> int:
    if args.json:
        as_json(data)
    else:
        print(sentence)
    return 0


def container(args: argparse.Namespace) -> int:
    from ops.container import train

    with beside_the_answer(args):
        code, folder = train(args.settings, args.training)
    if args.json:
        as_json({"state": "failed" if code else "succeeded", "folder": str(folder)})
    elif not code:
        print(f"The run is in {folder}.")
    return code


def new(args: argparse.Namespace) -> int:
    from ops.new import new as write

    settings, program = (path.relative_to(ROOT) for path in write(args.name, ROOT))
    if args.json:
        as_json({"stack": args.name, "settings": str(settings), "program": str(program)})
    else:
        print(f"{settings} has the settings, {program} the model and its data. Train them as they are: `make up STACK={args.name}`.")
    return 0


def import_tfjob(args: argparse.Namespace) -> int:
    from ops.tfjob import convert, load

    documents = []
    for name in args.files:
        try:
            documents += load(sys.stdin.read() if name == "-" else Path(name).read_text(), name)
        except (OSError, UnicodeDecodeError) as error:
            raise OpsError(
                f"{name} cannot be read ({getattr(error, 'strerror', None) or 'it is not text'}); name a file with a TFJob in it."
            ) from None
    imported = convert(documents, args.context)
    if args.json:
        as_json({"config": imported.config, "notes": [asdict(note) for note in imported.notes]})
        return 0
    print(imported.text(), end="")
    for note in imported.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def doctor(args: argparse.Namespace) -> int:
    from ops.doctor import OK, PROBLEM, examine

    found = examine(args.stack, args.config_file, quiet=args.json)
    problems = sum(finding.state == PROBLEM for finding in found)
    unknown = sum(finding.state not in (OK, PROBLEM) for finding in found)
    if args.json:
        as_json([asdict(finding) for finding in found])
        return 1 if problems else 0
    group = ""
    for finding in found:
        if finding.group != group:
            group = finding.group
            print(f"\n{group}")
        print(f"  {finding.state:<11}  {finding.subject}: {finding.sentence}")
    not_checked = f", {unknown} could not be checked" if unknown else ""
    print(f"\n{problems} problem{'' if problems == 1 else 's'}{not_checked}." if problems or unknown else "\nEverything is ready.")
    return 1 if problems else 0


def leftovers(args: argparse.Namespace) -> int:
    from ops.leftovers import report

    return report(args.stack, args.config_file, as_json if args.json else None)


def bootstrap(args: argparse.Namespace) -> int:
    from ops.bootstrap import bootstrap as make

    return make(args.project, args.region, args.bucket, args.yes, as_json if args.json else None)


if __name__ == "__main__":
    sys.exit(main())
