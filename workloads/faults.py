"""Faults for a rehearsal: what may be done to which task, a schedule of it, and what a training has to make of it. Pure.

Everybody's share: a fault is survived when the training goes on. Lost steps are those between the last one that was reported before the fault and
the checkpoint that the training went on from; there may be no more of them than between two checkpoints.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from workloads.topology import MIRRORED, MULTI_WORKER_MIRRORED, PARAMETER_SERVER, Topology

KILL, TERMINATE, STOP = "kill", "terminate", "stop"  # SIGKILL, SIGTERM and SIGSTOP, or what comes closest to them
SUPERVISOR, TENSORBOARD = "supervisor", "tensorboard"
ACCURACY = 0.01  # how much worse than without faults a training may end
PAUSE = 5.0  # seconds without a completed step that the others may need to notice that a worker is gone


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
        spared = ("worker", "evaluator", TENSORBOARD) if self.strategy == PARAMETER_SERVER else ("evaluator", TENSORBOARD)
        return not all(task.startswith(spared) for task in self.tasks)

    @property
    def limit(self) -> float:
        """Seconds after which the training must have gone on, or what was lost must be back."""
        if self.strategy == PARAMETER_SERVER or SUPERVISOR in self.tasks:
            seconds = 15.0 if all(task.startswith("worker") for task in self.tasks) else 40.0
        else:
            seconds = 30.0
        return seconds + self.longer

    @property
    def longest_pause(self) -> float:
        """Seconds that those who were spared may be without a completed step."""
        return self.limit if self.pauses else PAUSE + self.longer

    @property
    def longer(self) -> float:
        """What it takes to notice that a task hangs."""
        return 15.0 if self.kind == STOP else 0.0


@dataclass(frozen=True)
class Survival:
    """What became of a fault."""

    fault: Fault
    at: float
    recovered: float | None  # seconds until it had gone on, or None
    lost: int = 0  # steps
    pause: float = 0.0  # the longest time without a completed step, in seconds

    def problem(self, interval: int) -> str:
        """Why it was not survived, or nothing."""
        if self.recovered is None:
            return "the training did not go on"
        return f"{self.lost} steps are lost, and a checkpoint is made every {interval}" if self.lost > interval else ""

    @property
    def late(self) -> str:
        """What took too long, or nothing."""
        if self.recovered is not None and self.recovered > self.fault.limit:
            return f"later than {self.fault.limit:.0f} s"
        return f"a pause of more than {self.fault.longest_pause:.0f} s" if self.pause > self.fault.longest_pause else ""


def cast(topology: Topology) -> tuple[str, ...]:
    """Whom something is done to: the lead, and of each role the last."""
    last = [f"{role}-{count - 1}" for role, count in topology.counts().items() if count]
    return tuple(dict.fromkeys([topology.lead.name, *last]))


def pairs(topology: Topology) -> list[tuple[str, str]]:
    """Who is lost at once: a worker with a parameter server, and the lead with a worker."""
    worker = f"worker-{topology.worker - 1}"
    found = [("worker-0", f"ps-{topology.ps - 1}")] if topology.worker and topology.ps else []
    return [*found, (topology.lead.name, worker)] if topology.worker and worker != topology.lead.name else found


def possible(strategy: str, topology: Topology, beside: Sequence[str] = ()) -> list[Fault]:
    """Every fault that there is for a training, and for what stands beside its tasks."""
    singles = [Fault(strategy, kind, (task,)) for task in cast(topology) for kind in (KILL, TERMINATE, STOP)]
    return [*singles, *(Fault(strategy, KILL, pair) for pair in pairs(topology)), *(Fault(strategy, KILL, (name,)) for name in beside)]


# The trainings of a rehearsal on this machine.
TOPOLOGIES = {
    PARAMETER_SERVER: Topology(chief=1, worker=2, ps=1, evaluator=1),
    MULTI_WORKER_MIRRORED: Topology(worker=2),
    MIRRORED: Topology(worker=1),
}
BESIDE = {PARAMETER_SERVER: (SUPERVISOR, TENSORBOARD), MULTI_WORKER_MIRRORED: (SUPERVISOR,), MIRRORED: (SUPERVISOR,)}


def everything() -> list[Fault]:
    """Every fault of every strategy."""
    return [fault for strategy, topology in TOPOLOGIES.items() for fault in possible(strategy, topology, BESIDE[strategy])]


def schedule(count: int, seed: int, faults: Sequence[Fault]) -> list[Fault]:
    """So many faults in the order of a seed. None comes a second time before each has come once."""
    drawn = random.Random(seed)

    def endless() -> Iterator[Fault]:
        while True:
            yield from drawn.sample(faults, len(faults))

    source = endless()
    return [next(source) for _ in range(count)]


def verdict(
    survivals: Sequence[Survival], interval: Mapping[str, int], accuracies: Mapping[str, tuple[float, float]], in_time: bool = True
) -> tuple[bool, str]:
    """Whether all is as it should be, and the last line of the report. `in_time`: whether being late is a failure, or only said."""
    bad = [each for each in survivals if each.problem(interval[each.fault.strategy])]
    worse = round(max((without - under for without, under in accuracies.values()), default=0.0), 6)
    lost = max((each.lost for each in survivals), default=0)
    slowest = max((each.recovered or 0.0 for each in survivals), default=0.0)
    late = sum(bool(each.late) for each in survivals)
    line = f"{len(survivals) - len(bad)} of {len(survivals)} survived, at most {lost} steps lost, {slowest:.1f} s to recover at the longest"
    line += f", {late} LATE" if late else ""
    line += f", accuracy {100 * max(worse, 0):.1f} points below a run without faults at the worst" if accuracies else ""
    return not bad and not (late and in_time) and worse <= ACCURACY, line
