"""Trainings on this machine: everything is read from the folders of their runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from naming import PROJECT
from ops.states import last_words, meaning
from ops.storage import newest
from ops.target import ROOT, Finding, OpsError, Run, Site, TaskStatus, choose, settings_of
from workloads.local import runs

if TYPE_CHECKING:
    from ops.rehearse_stack import LocalStackStage


class LocalTarget:
    pause = 0.5

    def __init__(self, stack: str, config_file: Path | None = None) -> None:
        self.stack, self.config_file = stack, config_file

    def runs(self, training: str | None = None) -> list[Run]:
        return [self._read(folder) for folder in runs.folders(self.stack, training or "*")]

    def _read(self, folder: Path) -> Run:
        plan, status = runs.read_plan(folder), runs.read_status(folder)
        tasks = tuple(TaskStatus(**{name: task[name] for name in TaskStatus.__dataclass_fields__}) for task in status["tasks"])
        logs = Path(plan["log_dir"])
        return Run(
            training=plan["training"],
            run=plan["run"],
            state=status["state"],
            reason=status["reason"],
            place=str(folder),
            model=_newest_model(plan["model_dir"]),
            started=status.get("started"),
            ended=status.get("ended"),
            tensorboard=status.get("tensorboard"),
            tasks=tasks,
            metrics=runs.read_records(logs / "metrics.jsonl"),
            evaluation=runs.read_records(logs / "evaluation.jsonl"),
            in_stack=not (folder / runs.RELEASED).exists(),
        )

    def logs(self, run: Run, task: str | None, follow: bool) -> Iterator[tuple[str, str]]:
        """All files are read from their beginning, then, when following, as they grow."""
        opened: dict[str, TextIO] = {}
        try:
            while True:
                found = sorted(Path(run.place, "tasks").glob("*.log"))
                chosen = [path for path in found if task is None or path.stem == task or path.stem.rsplit("-", 1)[0] == task]
                if not chosen and found:
                    raise OpsError(f"there is no task {task!r}; the tasks are {', '.join(path.stem for path in found)}.")
                over = self._read(Path(run.place)).is_over
                for path in chosen:
                    handle = opened.setdefault(path.stem, path.open(errors="replace"))
                    if path.stat().st_size < handle.tell():
                        handle.seek(0)  # it was rotated
                    for line in handle:
                        yield path.stem, line.rstrip("\n")
                if not follow or over:
                    return
                time.sleep(0.3)
        finally:
            for handle in opened.values():
                handle.close()

    def cancel(self, run: Run) -> None:
        if run.is_over:
            raise OpsError(f"run {run.run} of {run.training} is {run.state} already; there is nothing to cancel.")
        runs.stop(Path(run.place))

    def rerun(self, run: Run, fresh: bool) -> None:
        if not run.is_over:
            raise OpsError(f"run {run.run} of {run.training} is going on; end it first with `trainstack cancel`.")
        if not run.in_stack:
            raise OpsError(
                f"run {run.run} of {run.training} is no longer in the stack; `make up` with its settings starts it again where it stopped."
            )
        plan = runs.read_plan(Path(run.place))
        runs.stop(Path(run.place))
        try:
            if fresh:
                runs.clear(Path(run.place))
            runs.start(plan, self._secrets())
        except runs.RunError as error:
            raise OpsError(str(error)) from None

    def _secrets(self) -> dict[str, str]:
        """Secrets are kept by Pulumi alone; a stack that has none does not need to be asked."""
        if f"{PROJECT}:secrets" not in settings_of(self.stack, self.config_file):
            return {}
        command = [str(Path(sys.executable).with_name("pulumi")), "config", "get", f"{PROJECT}:secrets", "--stack", self.stack]
        command += ["--config-file", str(self.config_file.resolve())] if self.config_file else []
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            raise OpsError('the secrets of the stack cannot be read; prepare the shell with `eval "$(make env)"` and try again.') from None
        secrets: dict[str, str] = json.loads(done.stdout)
        return secrets

    def kill(self, run: Run, task: str) -> None:
        runs.kill(Path(run.place), task)

    def stage(self, run: Run) -> LocalStackStage:
        from ops.rehearse_stack import LocalStackStage

        return LocalStackStage(Path(run.place))

    def model(self, run: Run) -> str:
        return run.model

    def fetch_model(self, run: Run, destination: Path) -> None:
        if destination.exists():
            raise OpsError(f"{destination} exists already; name a folder that does not.")
        shutil.copytree(run.model, destination)

    def delete_model(self, run: Run) -> None:
        shutil.rmtree(Path(run.model).parent)  # with its older versions, which would take its place

    def predict(self, training: str | None, run: str | None, file: Path) -> list[dict[str, Any]]:
        from ops.predict import predict

        chosen = choose(self.runs(training), run)
        if not chosen.model:
            raise OpsError(f"run {chosen.run} of {chosen.training} ({chosen.state}) has no model; one appears when a run succeeds.")
        return predict(chosen.model, file)

    def explain(self, training: str | None) -> list[Finding]:
        """The supervisor's status says what it is; the last lines of a log say why."""
        found = []
        for run in self.runs(training):
            for task in run.tasks if run.in_stack else ():
                if sentence := self._explain(run, task):
                    found.append(Finding(run.training, task.name, task.state, sentence))
        return found

    def _explain(self, run: Run, task: TaskStatus) -> str | None:
        log = Path(run.place, "tasks", f"{task.name}.log")
        words = last_words(log.read_text(errors="replace").splitlines()[-20:]) if log.exists() else ""
        said = f'; its last words: "{words}"' if words else ""
        if run.state == "vanished":
            return f"{run.reason}, so nothing starts it again; `make up` does, and the run goes on where it stopped."
        if task.state == "failed":
            code = meaning(task.exit_code) if task.exit_code is not None else "failed"
            return f"it {code}{said}; mend what its log says, then `trainstack rerun`."
        if task.state == "waiting":
            return f"it is {task.detail or 'starting'}; look at why that task does not run."
        if task.state == "pending":
            return f"{task.detail or 'it is about to be started'}{said}; wait a moment."
        if task.state == "stopped" and run.state == "cancelled":
            return "the run was cancelled; start it again where it stopped with `trainstack rerun`."
        if task.state == "stopped" and run.state == "failed":
            return f"it was ended because the run failed ({run.reason}); mend that, then `trainstack rerun`."
        return None

    @contextmanager
    def tensorboard(self, training: str | None, run: str | None, port: int) -> Iterator[Site]:
        chosen = choose(self.runs(training), run)
        running = any(task.name == "tensorboard" and task.state == "running" for task in chosen.tasks)
        if not running or not chosen.tensorboard or chosen.state == "vanished":
            raise OpsError(
                f"no TensorBoard runs for run {chosen.run} of {chosen.training}; start one with `.venv/bin/tensorboard --logdir {chosen.place}/logs`, "
                "or write tensorboard: {} and `make up`."
            )
        if port:
            raise OpsError(f"TensorBoard runs on this machine already, at {chosen.tensorboard}; leave --port out.")
        yield Site(chosen.tensorboard)

    def inspect(self, training: str | None, command: Sequence[str], captured: bool) -> tuple[int, str, str]:  # noqa: ARG002 - as every target has it
        place = choose(self.runs(training), None).place
        raise OpsError(f"on local there is no pod to inspect; look into the run's folder, {place}.")

    def after(self, run: Run) -> list[tuple[str, str]]:
        if run.state == "vanished":
            return [("it resumes", "make up")]
        if run.state != "succeeded":
            return [("logs", f"{run.place}/tasks"), ("go on", "trainstack rerun")]
        files = [("plot", "plot.png"), ("summary", "SUMMARY.md")]
        return [
            *([("model", run.model)] if run.model else []),
            *((name, f"{run.place}/{file}") for name, file in files if Path(run.place, file).exists()),
            ("TensorBoard", run.tensorboard or f".venv/bin/tensorboard --logdir {run.place}/logs"),
        ]

    def standing(self) -> str:
        return ""


def _newest_model(directory: str) -> str:
    """Models are kept in folders named by their step. What is not on this machine is not looked for."""
    folder = Path(directory)
    version = newest(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else ""
    return str(folder / version) if version else ""
