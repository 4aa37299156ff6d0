"""Trainings on this machine: everything is read from the folders of their runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ops.target import OpsError, Run, TaskStatus, settings_of
from settings import PROJECT, ROOT
from workloads.local import runs


class LocalTarget:
    def __init__(self, stack: str) -> None:
        self.stack = stack

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
            model=plan["model_dir"],
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
        if f"{PROJECT}:secrets" not in settings_of(self.stack):
            return {}
        command = [str(Path(sys.executable).with_name("pulumi")), "config", "get", f"{PROJECT}:secrets", "--stack", self.stack]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            raise OpsError('the secrets of the stack cannot be read; prepare the shell with `eval "$(make env)"` and try again.') from None
        secrets: dict[str, str] = json.loads(done.stdout)
        return secrets

    def kill(self, run: Run, task: str) -> None:
        runs.kill(Path(run.place), task)

    def fetch_model(self, run: Run, destination: Path) -> None:
        if destination.exists():
            raise OpsError(f"{destination} exists already; name a folder that does not.")
        shutil.copytree(run.model, destination)

    def delete_model(self, run: Run) -> None:
        shutil.rmtree(run.model)
