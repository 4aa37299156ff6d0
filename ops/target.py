"""What a person can do with the trainings of a stack, whichever target they run on. One class per target answers these questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from naming import PROJECT
from workloads import figures

if TYPE_CHECKING:
    from ops.rehearse_stack import StackStage

ROOT = Path(__file__).resolve().parent.parent
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
    """One run of a training, as it is now: running, succeeded, failed, cancelled, vanished, or kept, of which only the files are left."""

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
        return self.state in (*ENDED, "vanished", "kept")

    @property
    def figure(self) -> str:
        """How good the model is on data it was not trained on, as in `accuracy 0.9833`; nothing where that is not known."""
        found = figures.headline(self.evaluation[-1]) if self.evaluation else None
        return f"{found[0].replace('_', ' ')} {found[1]:.4f}" if found else ""


@dataclass(frozen=True)
class Finding:
    """Why something of a training does not run, and what to do about it."""

    training: str
    task: str
    state: str
    sentence: str


@dataclass(frozen=True)
class Site:
    """Where a browser finds TensorBoard."""

    url: str
    forwarded: bool = False  # it can be reached as long as this process forwards to it


class Target(Protocol):
    @property
    def pause(self) -> float:
        """Seconds between two looks while following."""

    def runs(self, training: str | None = None) -> list[Run]:
        """Every run, oldest first."""

    def logs(self, run: Run, task: str | None, follow: bool) -> Iterator[tuple[str, str]]:
        """The lines of a task, of a role, or of everything, each with the name of its task."""

    def cancel(self, run: Run) -> None: ...

    def rerun(self, run: Run, fresh: bool) -> None: ...

    def kill(self, run: Run, task: str) -> None:
        """Ends a task without warning, as a vanishing node would."""

    def stage(self, run: Run) -> StackStage:
        """The run, as a rehearsal looks at it."""

    def model(self, run: Run) -> str:
        """Where the newest model of a run is; empty when there is none."""

    def fetch_model(self, run: Run, destination: Path) -> None: ...

    def delete_model(self, run: Run) -> None: ...

    def predict(self, training: str | None, run: str | None, file: Path) -> list[dict[str, Any]]:
        """What the model says to the inputs in a file, one answer each."""

    def explain(self, training: str | None) -> list[Finding]:
        """For everything that neither runs nor is done: why, and what to do."""

    def tensorboard(self, training: str | None, run: str | None, port: int) -> AbstractContextManager[Site]:
        """Where TensorBoard is, for as long as the context lasts."""

    def inspect(self, training: str | None, command: Sequence[str], captured: bool) -> tuple[int, str, str]:
        """A shell, or one command, in the pod that has the volumes mounted. Returns its exit code and, captured, what it printed."""

    def after(self, run: Run) -> list[tuple[str, str]]:
        """What a person may want to look at, or to do, now that a run has ended: a name and a place or a command."""

    def standing(self) -> str:
        """What the stack costs when nothing runs, and how to end that; empty where it is nothing."""


def target_of(stack: str, config_file: Path | None = None) -> Target:
    """The target of a stack, from its settings file."""
    written = settings_of(stack, config_file)
    kind = written.get(f"{PROJECT}:target", "local")
    if kind in ("kubernetes", "gke"):
        from ops.cluster import KubernetesTarget
        from ops.connection import connect

        return KubernetesTarget(stack, connect(stack, written), written)
    if kind != "local":
        raise OpsError(f"stack {stack} has target {kind!r}, which is not known; write one of local, kubernetes, gke.")
    from ops.local import LocalTarget

    return LocalTarget(stack, config_file)


def settings_of(stack: str, config_file: Path | None = None) -> dict[str, Any]:
    """What is written in the settings file of a stack, unchecked: whoever only looks at a run needs no more, and need not wait for more."""
    path = file_of(stack, config_file)
    import yaml

    written: dict[str, Any] = (yaml.safe_load(path.read_text()) or {}).get("config") or {}
    return written


def file_of(stack: str, config_file: Path | None = None) -> Path:
    """The settings file of a stack."""
    path = config_file or ROOT / f"Pulumi.{stack}.yaml"
    if config_file and not path.exists():
        raise OpsError(f"there is no settings file {config_file}; name one with --config-file, or leave that out for Pulumi.{stack}.yaml.")
    if not path.exists():
        known = sorted(file.name.split(".")[1] for file in ROOT.glob("Pulumi.*.yaml") if file.name.count(".") == 2)
        raise OpsError(f"there is no stack {stack!r} here; write --stack with one of {', '.join(known)}.")
    return path


def only(trainings: Sequence[str], what: str) -> str:
    """The training that a command is about when it was not named."""
    found = sorted(set(trainings))
    if len(found) > 1:
        raise OpsError(f"there are several trainings with {what}; say which with --training: {', '.join(found)}.")
    return found[0] if found else ""


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
