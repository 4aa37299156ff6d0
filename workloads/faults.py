"""Faults for a rehearsal: what may be done to which task, a schedule of it, and what a training has to make of it. Pure.

Everybody's share: a fault is survived when the training goes on. Lost steps are those between the last one that was reported before the fault and
the checkpoint that the training went on from; there may be no more of them than between two checkpoints.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workloads.topology import MIRRORED, MULTI_WORKER_MIRRORED, PARAMETER_SERVER

KILL, TERMINATE, STOP = "kill", "terminate", "stop"  # SIGKILL, SIGTERM and SIGSTOP
SUPERVISOR, TENSORBOARD = "supervisor", "tensorboard"

# Strategies with the tasks of a rehearsal, of each role one.
TASKS = {
    PARAMETER_SERVER: ("chief-0", "worker-1", "ps-0", "evaluator-0"),
    MULTI_WORKER_MIRRORED: ("worker-0", "worker-1"),
    MIRRORED: ("worker-0",),
}
PAIRS = {
    PARAMETER_SERVER: (("worker-0", "ps-0"), ("chief-0", "worker-1")),
    MULTI_WORKER_MIRRORED: (("worker-0", "worker-1"),),
    MIRRORED: (),
}
ACCURACY = 0.01  # how much worse than without faults a training may end


@dataclass(frozen=True)
class Fault:
    strategy: str
    kind: str
    tasks: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.kind} {' and '.join(self.tasks)}"

    @property
    def pauses(self) -> bool:
        """Whether the training has to go on from a checkpoint: workers of parameter servers, the evaluator and TensorBoard it can do without."""
        spared = ("worker", "evaluator", TENSORBOARD) if self.strategy == PARAMETER_SERVER else (TENSORBOARD,)
        return not all(task.startswith(spared) for task in self.tasks)

    @property
    def limit(self) -> float:
        """Seconds after which the training should have gone on."""
        if self.strategy == PARAMETER_SERVER or SUPERVISOR in self.tasks:
            seconds = 40.0 if self.pauses or self.tasks[0].startswith("evaluator") else 15.0
        else:
            seconds = 30.0
        return seconds + 15 * (self.kind == STOP)


@dataclass(frozen=True)
class Survival:
    """What became of a fault."""

    fault: Fault
    at: float
    recovered: float | None  # seconds until it had gone on, or None
    lost: int = 0  # steps
    pause: float = 0.0  # the longest time without a completed step, in seconds

    def problem(self, interval: int) -> str:
        """What is wrong with it, or nothing."""
        if self.recovered is None:
            return "the training did not go on"
        return f"{self.lost} steps are lost, and a checkpoint is made every {interval}" if self.lost > interval else ""

    @property
    def is_late(self) -> bool:
        return self.recovered is not None and self.recovered > self.fault.limit


def possible() -> list[Fault]:
    """Every fault that there is."""
    found = []
    for strategy, tasks in TASKS.items():
        found += [Fault(strategy, kind, (task,)) for task in tasks for kind in (KILL, TERMINATE, STOP)]
        found += [Fault(strategy, KILL, pair) for pair in PAIRS[strategy]]
        found.append(Fault(strategy, KILL, (SUPERVISOR,)))
    return [*found, Fault(PARAMETER_SERVER, KILL, (TENSORBOARD,))]


def schedule(count: int, seed: int) -> dict[str, list[Fault]]:
    """So many faults by strategy, in the order of a seed. None comes a second time before each has come once."""
    drawn = random.Random(seed)

    def endless() -> Iterator[Fault]:
        while True:
            yield from drawn.sample(possible(), len(possible()))

    source = endless()
    chosen = [next(source) for _ in range(count)]
    return {strategy: [fault for fault in chosen if fault.strategy == strategy] for strategy in TASKS}


def verdict(survivals: Sequence[Survival], interval: dict[str, int], accuracies: dict[str, tuple[float, float]]) -> tuple[bool, str]:
    """Whether all is as it should be, and the last line of the report."""
    bad = [each for each in survivals if each.problem(interval[each.fault.strategy])]
    worse = round(max((without - under for without, under in accuracies.values()), default=0.0), 6)
    lost = max((each.lost for each in survivals), default=0)
    slowest = max((each.recovered or 0.0 for each in survivals), default=0.0)
    late = sum(each.is_late for each in survivals)
    line = f"{len(survivals) - len(bad)} of {len(survivals)} survived, at most {lost} steps lost, {slowest:.1f} s to recover at the longest"
    line += f" ({late} slower than it should be)" if late else ""
    line += f", accuracy {100 * max(worse, 0):.1f} points below a run without faults at the worst"
    return not bad and worse <= ACCURACY, line
