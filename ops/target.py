"""What a person can do with the trainings of a stack, whichever target they run on. One class per target answers these questions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from settings import PROJECT, ROOT

ENDED = ("succeeded", "failed", "cancelled")


class OpsError(Exception):
    """What a person has to know or mend: one sentence with the fix in it."""


@dataclass(frozen=True)
class TaskStatus:
    name: str
    state: str
    detail: str = ""
    restarts: int = 0
    exit_code: int | None = None


@dataclass(frozen=True)
class Run:
    """One run of a training, as it is now."""

    training: str
    run: str
    state: str
    reason: str
    place: str
    model: str
    started: float | None = None
    ended: float | None = None
    tensorboard: str | None = None
    tasks: tuple[TaskStatus, ...] = ()
    metrics: list[dict[str, Any]] = field(default_factory=list)
    evaluation: list[dict[str, Any]] = field(default_factory=list)
    in_stack: bool = True  # whether the stack still has it, or only its files are left

    @property
    def is_over(self) -> bool:
        return self.state in (*ENDED, "vanished")

    @property
    def accuracy(self) -> float | None:
        return self.evaluation[-1].get("accuracy") if self.evaluation else None


class Target(Protocol):
    def runs(self, training: str | None = None) -> list[Run]:
        """Every run, oldest first."""

    def logs(self, run: Run, task: str | None, follow: bool) -> Iterator[tuple[str, str]]:
        """The lines of a task, of a role, or of everything, each with the name of its task."""

    def cancel(self, run: Run) -> None: ...

    def rerun(self, run: Run, fresh: bool) -> None: ...

    def kill(self, run: Run, task: str) -> None:
        """Ends a task without warning, as a vanishing node would."""

    def fetch_model(self, run: Run, destination: Path) -> None: ...

    def delete_model(self, run: Run) -> None: ...


def target_of(stack: str) -> Target:
    """The target of a stack, from its settings file."""
    kind = settings_of(stack).get(f"{PROJECT}:target", "local")
    if kind != "local":
        raise OpsError(f"stack {stack} has target {kind}, which these commands do not reach yet; use a stack with target local.")
    from ops.local import LocalTarget

    return LocalTarget(stack)


def settings_of(stack: str) -> dict[str, Any]:
    """What is written in the settings file of a stack, unchecked."""
    path = ROOT / f"Pulumi.{stack}.yaml"
    if not path.exists():
        known = sorted(file.name.split(".")[1] for file in ROOT.glob("Pulumi.*.yaml") if file.name.count(".") == 2)
        raise OpsError(f"there is no stack {stack!r} here; write --stack with one of {', '.join(known)}.")
    written: dict[str, Any] = (yaml.safe_load(path.read_text()) or {}).get("config") or {}
    return written


def choose(runs: list[Run], run: str | None) -> Run:
    """The run a command is about: the newest, or the one that was named. What the stack has now goes before what it had."""
    if any(each.in_stack for each in runs) and run is None:
        runs = [each for each in runs if each.in_stack]
    trainings = sorted({each.training for each in runs})
    if len(trainings) > 1:
        raise OpsError(f"there are several trainings; say which with --training: {', '.join(trainings)}.")
    matching = [each for each in runs if run is None or each.run == run]
    if not matching:
        names = ", ".join(each.run for each in runs)
        raise OpsError(f"there is no run {run!r}; the runs are {names}." if runs else "there is no run yet; start one with `make up`.")
    return matching[-1]
