"""A rehearsal, wherever the training runs: does one fault after the other to it, looks how it goes on, and reports and draws what was seen."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ops.target import OpsError
from workloads import faults
from workloads.faults import Fault, Survival
from workloads.local import runs
from workloads.topology import Topology

Say = Callable[[str], None]
A_WHILE = 1.0, 4.0  # seconds that a training has at least, and at most, from a checkpoint to the next fault


class HungError(OpsError):
    """A training that does not go on, or has failed."""


@dataclass(frozen=True)
class Point:
    """A completed step: when, which, and of which epoch."""

    time: float = 0.0
    step: int = 0
    epoch: int = 0


class Stage(Protocol):
    """A training that is rehearsed. One class per target answers these questions."""

    @property
    def name(self) -> str:
        """What the training is called in the report."""

    @property
    def strategy(self) -> str: ...

    @property
    def topology(self) -> Topology: ...

    @property
    def pause(self) -> float:
        """Seconds between two looks."""

    @property
    def hung(self) -> float:
        """Seconds after which a training that has not gone on is called hung."""

    @property
    def points(self) -> list[Point]:
        """What the looks have seen."""

    def state(self) -> tuple[str, str]:
        """Running, succeeded, failed, cancelled or vanished, and why."""

    def look(self) -> Point:
        """The last completed step."""

    def incarnation(self, task: str) -> object:
        """Which start of a task there is now; None while there is none."""

    def is_back(self, task: str) -> bool:
        """Whether a task does its work."""

    def checkpoint(self) -> int:
        """The step of the newest whole checkpoint."""

    def resumed(self) -> int:
        """The step that the lead last went on from."""

    def inject(self, fault: Fault) -> None:
        """Does it, and what a person would have to do about it."""


def wait(stage: Stage, condition: Callable[[], Any], what: str, seconds: float | None = None) -> float:
    """Looks at the training until something is so; returns when it was."""
    until = time.time() + (seconds or stage.hung)
    while not condition():
        stage.look()
        state, reason = stage.state()
        if state in ("failed", "cancelled"):
            raise HungError(f"{stage.name} is {state}: {reason}.")
        if state == "succeeded" and not condition():
            raise OpsError(f"{stage.name} came to its end before the rehearsal did; give it more epochs, or write fewer --faults.")
        if time.time() > until:
            raise HungError(f"{stage.name} is called hung: {what}.")
        time.sleep(stage.pause)
    return time.time()


def settle(stage: Stage, seconds: float) -> None:
    """Until everybody is back and there is a checkpoint of this part of the training, and a while longer."""
    newest = stage.checkpoint()
    wait(stage, lambda: all(map(stage.is_back, faults.cast(stage.topology))), "not all tasks come back")
    wait(stage, lambda: stage.checkpoint() > newest, "there is no new checkpoint")
    until = time.time() + seconds
    wait(stage, lambda: time.time() > until, "")


def survive(stage: Stage, fault: Fault) -> Survival:
    """Does it, and looks how the training goes on."""
    lead = stage.topology.lead.name
    before, last = {task: stage.incarnation(task) for task in (*fault.tasks, lead)}, stage.look()
    at = time.time()
    try:
        stage.inject(fault)
        last = max(last, stage.look(), key=lambda point: point.step)
        for task in [lead] if fault.pauses else fault.tasks:
            wait(stage, partial(_is_new, stage, task, before[task]), f"{task} is not started again")
        if fault.pauses:
            again = time.time()
            wait(stage, lambda: stage.look().time > again, "no step was completed")
            back = stage.look().time
        else:
            back = wait(stage, lambda: all(map(stage.is_back, fault.tasks)), "it does not come back")
    except HungError:
        return Survival(fault, at, None)
    lost = max(0, last.step - stage.resumed()) if fault.pauses else 0
    times = [point.time for point in stage.points if at - 5 < point.time <= back] + [back]
    gaps = [late - early for early, late in itertools.pairwise(times) if late > at]
    return Survival(fault, at, round(back - at, 1), lost, round(max(gaps, default=0.0), 1))


def _is_new(stage: Stage, task: str, old: object) -> bool:
    return stage.incarnation(task) not in (None, old)


def suffer(stage: Stage, share: Sequence[Fault], drawn: random.Random, say: Say) -> Iterator[Survival]:
    """One fault after the other; what a training that has hung would still have had to suffer is not survived either."""
    hung = False
    for fault in share:
        if not hung:
            try:
                settle(stage, drawn.uniform(*A_WHILE))
            except HungError as error:
                say(f"  {error}")
                hung = True
        found = Survival(fault, time.time(), None) if hung else survive(stage, fault)
        hung = hung or found.recovered is None
        say(f"  {fault.name}: {told(found)}")
        yield found


def told(survival: Survival) -> str:
    if survival.recovered is None:
        return "NOT SURVIVED"
    cost = f"{survival.lost} steps lost" if survival.fault.pauses else f"the others paused for {survival.pause:.1f} s"
    return f"back after {survival.recovered:.1f} s, {cost}" + (f"; LATE: {survival.late}" if survival.late else "")


def report(
    stages: Sequence[Stage],
    survivals: Sequence[Survival],
    intervals: Mapping[str, int],
    accuracies: Mapping[str, tuple[float, float]],
    folder: Path,
    in_time: bool,
    **more: Any,
) -> tuple[bool, dict[str, Any]]:
    """Whether everything was survived, and the report, which is written to a folder with its picture."""
    fine, line = faults.verdict(survivals, intervals, accuracies, in_time)
    written = {
        "survived": fine,
        "summary": line,
        **more,
        "intervals": dict(intervals),
        "accuracies": {strategy: {"without": without, "under": under} for strategy, (without, under) in accuracies.items()},
        "faults": [
            {**asdict(each), "limit": each.fault.limit, "late": each.late, "problem": each.problem(intervals[each.fault.strategy])}
            for each in survivals
        ],
        "picture": str(folder / "timeline.png"),
    }
    draw(stages, survivals, folder / "timeline.png")
    runs.write_whole(folder / "report.json", written)
    return fine, written


def draw(stages: Sequence[Stage], survivals: Sequence[Survival], target: Path) -> None:
    """The steps of each training by time, with what was done to it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(len(stages), 1, figsize=(14, 3.6 * len(stages)), layout="constrained", squeeze=False)
    colours = {faults.KILL: "tab:red", faults.TERMINATE: "tab:orange", faults.STOP: "tab:purple"}
    for axes, stage in zip(rows[:, 0], stages, strict=True):
        start = stage.points[0].time if stage.points else 0.0
        axes.plot([point.time - start for point in stage.points], [point.step for point in stage.points], color="tab:blue", linewidth=1.2)
        top = max((point.step for point in stage.points), default=1)
        for each in (each for each in survivals if each.fault.strategy == stage.strategy):
            colour = colours[each.fault.kind]
            until = each.at - start + (stage.hung if each.recovered is None else each.recovered)
            axes.axvspan(each.at - start, until, color=colour, alpha=0.18, linewidth=0)
            axes.axvline(each.at - start, color=colour, linewidth=0.9)
            axes.text(each.at - start, top, f" {each.fault.name}", rotation=90, va="top", fontsize=7, color=colour)
        axes.set(title=stage.strategy.replace("_", " "), xlabel="seconds", ylabel="completed steps")
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Faults (lines) and the time until the training had gone on (shaded)")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=110)
    pyplot.close(figure)
