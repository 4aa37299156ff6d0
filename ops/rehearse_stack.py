"""`trainstack rehearse` on a training that a stack has now, whichever its target: it is left running, and no other run is beside it to compare with.

On a cluster a kill is an eviction that gives no time, and SIGTERM one that gives the pod its grace period: what a node does that vanishes or is drained.
Kubernetes does not count either in `max_restarts`. How long a new pod takes to start is the cluster's business, so being late is said and is no failure.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ops import shell, states
from ops.connection import Cluster
from ops.numbers import BEGINNING, Numbers
from ops.podlogs import Logs
from ops.records import is_ready
from ops.rehearsal import Point, Say, Stage, report, suffer
from ops.rehearse import LocalStage
from ops.states import Object
from ops.target import OpsError, Run
from workloads import faults
from workloads.faults import KILL, STOP, TENSORBOARD, Fault
from workloads.local import runs
from workloads.local.plan import RUNS
from workloads.local.supervisor import HELPERS_RESTARTS
from workloads.topology import MIRRORED, PARAMETER_SERVER, Topology

# SIGSTOP to what the launcher has started; the launcher is the first process of its container.
STOPPING = "import os, pathlib; [os.kill(int(each), 19) for each in pathlib.Path('/proc/1/task/1/children').read_text().split()]"
CONNECTIONS = ["cat", "/proc/net/tcp", "/proc/net/tcp6"]
LISTENING, ESTABLISHED = "0A", "01"  # as Linux writes it there


class StackStage(Stage, Protocol):
    """What is asked besides of a training that is not the rehearsal's own."""

    @property
    def beside(self) -> Sequence[str]:
        """What stands beside its tasks and can be killed."""

    @property
    def settings(self) -> dict[str, Any]:
        """The training's, as they were written."""

    def kills_left(self, task: str) -> float:
        """How often a task may be killed before it is out of restarts."""


def rehearse(stage: StackStage, run: Run, stack: str, count: int, seed: int, say: Say) -> tuple[bool, dict[str, Any]]:
    """Whether everything was survived, and the report."""
    share = faults.schedule(count, seed, faults.possible(stage.strategy, stage.topology, stage.beside))
    check(stage, run, share)
    spared = ["the supervisor", *([] if TENSORBOARD in stage.beside else ["TensorBoard, which it does not have"])]
    say(f"{stage.name}: {count} faults; spared: {', '.join(spared)}")
    began = time.time()
    survivals = list(suffer(stage, share, random.Random(seed), say))
    last = stage.look()
    interval = math.ceil(checkpoint_every(stage) * last.step / max(1, last.epoch))
    folder, seconds = RUNS / f"rehearsal-{stack}-{run.training}", round(time.time() - began)
    return report([stage], survivals, {stage.strategy: interval}, {}, folder, in_time=False, seed=seed, seconds=seconds)


def check(stage: StackStage, run: Run, share: Sequence[Fault]) -> None:
    """Says what speaks against it before anything is done."""
    if run.state != "running":
        raise OpsError(
            f"run {run.run} of {run.training} is {run.state}; a rehearsal needs one that is running: `trainstack rerun`, or another `run:`."
        )
    if stage.settings.get("command"):
        raise OpsError(
            f"training {run.training} runs a command of its own, and what that prints does not say how far it is; rehearse one with a program."
        )
    for task, number in Counter(task for fault in share if fault.kind == KILL for task in fault.tasks).items():
        if number > stage.kills_left(task):
            raise OpsError(
                f"{task} of {run.training} would be killed {number} times, and then be out of restarts; raise max_restarts and `make up`, or "
                "write fewer --faults."
            )


def checkpoint_every(stage: StackStage) -> int:
    return int((stage.settings.get("args") or {}).get("checkpoint_every", 1))


class LocalStackStage(LocalStage):
    """The run of a stack on this machine."""

    @property
    def beside(self) -> Sequence[str]:
        return [TENSORBOARD] if self.incarnation(TENSORBOARD) else []

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.plan["settings"])

    def kills_left(self, task: str) -> float:
        """On this machine a kill counts, whoever did it."""
        counted = {each["name"]: each["restarts"] for each in runs.read_status(self.folder)["tasks"]}
        most = HELPERS_RESTARTS if task == TENSORBOARD else self.plan["max_restarts"]
        return float(most - counted[task])


class ClusterStage:
    """A run on a cluster. Times are those of this machine's clock, at which something was first seen."""

    pause, hung = 1.0, 900.0

    def __init__(self, cluster: Cluster, record: dict[str, Any], look: Callable[[], tuple[list[Object], list[Object]]]) -> None:
        self.cluster, self.record, self._list = cluster, record, look
        self._listed: tuple[list[Object], list[Object]] = [], []
        self._listed_at = 0.0
        self.points: list[Point] = []
        self._logs, self._numbers, self._resumed, self._last = Logs(cluster), Numbers(), 0, 0.0
        self._at_work: set[str] = set()  # pods that have been seen to do their work

    @property
    def name(self) -> str:
        return f"training {self.record['training']}"

    @property
    def strategy(self) -> str:
        return str(self.record["strategy"])

    @property
    def topology(self) -> Topology:
        return Topology(**self.record["topology"])

    @property
    def beside(self) -> Sequence[str]:
        return [TENSORBOARD] if self._pod(TENSORBOARD) else []

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.record["settings"])

    def kills_left(self, task: str) -> float:  # noqa: ARG002 - as every target has it
        """Evictions do not count."""
        return math.inf

    # ------------------------------------------------------------------------------------------------ looking

    def _look(self) -> tuple[list[Object], list[Object]]:
        """The Jobs and the pods; they are asked for once for all that is asked here at a time."""
        if time.monotonic() - self._listed_at > self.pause / 2:
            self._listed, self._listed_at = self._list(), time.monotonic()
        return self._listed

    def state(self) -> tuple[str, str]:
        verdict = states.verdict(self.record, *self._look())
        return verdict.state, verdict.reason

    def look(self) -> Point:
        """From what the lead prints."""
        for pod in self._look()[1]:
            if states.task_of(pod) != self.topology.lead.name:
                continue
            for when, line in self._logs.new(pod):
                self._numbers.feed_lead(when, line)
                if begun := BEGINNING.fullmatch(line):
                    self._resumed = int(begun[2]) - int(begun[1])
        if self._numbers.metrics and (last := self._numbers.metrics[-1])["time"] > self._last:
            self._last = last["time"]
            self.points.append(Point(time.time(), last["step"], last["epoch"]))
        return self.points[-1] if self.points else Point()

    def _pod(self, task: str) -> Object | None:
        """The pod that a task has now."""
        pods = [pod for pod in self._look()[1] if states.task_of(pod) == task and not pod["metadata"].get("deletionTimestamp")]
        alive = [pod for pod in pods if pod["status"].get("phase") in ("Pending", "Running")]
        return alive[-1] if alive else None

    def incarnation(self, task: str) -> str | None:
        pod = self._pod(task)
        return str(pod["metadata"]["uid"]) if pod else None

    def is_back(self, task: str) -> bool:
        """As on this machine: a server listens, a worker of parameter servers is connected to one of them, and of others it is enough that they run."""
        pod = self._pod(task)
        if pod is None or pod["status"].get("phase") != "Running":
            return False
        uid, role = pod["metadata"]["uid"], task.rpartition("-")[0]
        if task == TENSORBOARD:
            return is_ready(pod)
        if uid in self._at_work or role == "evaluator" or self.strategy == MIRRORED:
            return True
        try:
            _, printed, _ = shell.run(self.cluster.exec(pod["metadata"]["name"], states.container_name(pod), CONNECTIONS))
        except OpsError:  # it may be gone by now
            return False
        port = next(each["containerPort"] for each in states.container(pod)["ports"] if each["name"] == "tensorflow")
        worker = role == "worker" and self.strategy == PARAMETER_SERVER
        if is_connected(printed, port) if worker else listens(printed, port):
            self._at_work.add(uid)
        return uid in self._at_work

    def checkpoint(self) -> int:
        """By the epochs that were completed; the last one may still be being saved."""
        every = checkpoint_every(self)
        saved = [int(record["step"]) for record in self._numbers.metrics[:-1] if record["epoch"] % every == 0]
        return max([self._resumed, *saved])

    def resumed(self) -> int:
        return self._resumed

    # ------------------------------------------------------------------------------------------------- acting

    def inject(self, fault: Fault) -> None:
        for pod in filter(None, map(self._pod, fault.tasks)):
            name = pod["metadata"]["name"]
            if fault.kind == STOP:
                code, _, said = shell.run(self.cluster.exec(name, states.container_name(pod), ["python3", "-c", STOPPING]))
                if code:
                    raise OpsError(f"{name} could not be stopped: {said.strip()}; `trainstack explain` shows how it is.")
            else:
                self.cluster.evict(name, 0 if fault.kind == KILL else None)


def connections(text: str) -> list[tuple[int, int, str]]:
    """Local port, remote port and state of what /proc/net/tcp lists."""
    rows = (line.split() for line in text.splitlines())
    return [
        (int(row[1].rpartition(":")[2], 16), int(row[2].rpartition(":")[2], 16), row[3])
        for row in rows
        if len(row) > 3 and row[0].endswith(":") and ":" in row[1]
    ]


def listens(text: str, port: int) -> bool:
    return any(local == port and state == LISTENING for local, _, state in connections(text))


def is_connected(text: str, port: int) -> bool:
    """Whether it has connected to that port of somebody else's."""
    return any(remote == port and local != port and state == ESTABLISHED for local, remote, state in connections(text))
