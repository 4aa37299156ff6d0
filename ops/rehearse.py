"""`trainstack rehearse` on this machine: trainings that are killed, told to stop and stopped while they train, by a schedule drawn from a seed.

For each strategy one training is started as `make up` would start it, has its share of the faults, and is then brought to its end; after it the
same training without faults, until it learns nothing more. Everything is under runs/rehearsal, the report and the picture, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from ops.rehearsal import Point, Say, report, suffer, wait
from ops.target import OpsError
from settings import parse
from workloads import faults, launcher
from workloads.faults import KILL, STOP, SUPERVISOR, TENSORBOARD, Fault
from workloads.local import runs
from workloads.local.plan import ROOT, RUNS, plan
from workloads.topology import MIRRORED, MULTI_WORKER_MIRRORED, PARAMETER_SERVER, Topology

STACK = "rehearsal"
STEPS = 50  # of an epoch
# Small trainings of the digits; how many epochs are between two checkpoints is chosen so that each makes one every few seconds.
TRAININGS: dict[str, dict[str, Any]] = {
    PARAMETER_SERVER: {"worker": {"replicas": 2}, "ps": {"replicas": 1}, "evaluator": {"mode": "sidecar"}, "tensorboard": {"keep": "1s"}},
    MULTI_WORKER_MIRRORED: {"worker": {"replicas": 2}},
    MIRRORED: {"worker": {"gpus": 2}},
}
CHECKPOINT_EVERY = {PARAMETER_SERVER: 5, MULTI_WORKER_MIRRORED: 4, MIRRORED: 10}
INTERVAL = {strategy: epochs * STEPS for strategy, epochs in CHECKPOINT_EVERY.items()}
FOREVER, MORE = 1_000_000, 10  # epochs: while there are faults to come, and after the last
HUNG = 180.0
PLATEAU = 100  # epochs after which the digits are told apart as well as they ever are; a run without faults need not be longer
LAST = 5  # evaluations whose mean is the final accuracy: one of 360 images alone is half a matter of luck


class LocalStage:
    """A run on this machine, looked at through its folder."""

    pause, hung = 0.1, HUNG

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.points: list[Point] = []

    @cached_property
    def plan(self) -> dict[str, Any]:
        return runs.read_plan(self.folder)

    @property
    def name(self) -> str:
        return f"the training in {self.folder}"

    @property
    def strategy(self) -> str:
        return str(self.plan["strategy"])

    @cached_property
    def topology(self) -> Topology:
        return Topology(**self.plan["topology"])

    # ------------------------------------------------------------------------------------------------ looking

    def state(self) -> tuple[str, str]:
        status = runs.read_status(self.folder)
        return status["state"], status["reason"]

    def incarnation(self, task: str) -> int | None:
        status = runs.read_status(self.folder)
        if task == SUPERVISOR:
            return int(status["pid"])
        found: int | None = next((each["pid"] for each in status["tasks"] if each["name"] == task), None)
        return found

    def look(self) -> Point:
        """Only the end of the file is read, because this is asked several times a second."""
        with contextlib.suppress(OSError, ValueError, IndexError), Path(self.plan["log_dir"], "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
            last = json.loads(file.read().splitlines()[-1])
            found = Point(last["time"], last["step"], last.get("epoch", 0))
            # Steps that are done over are dropped from the file, and older ones seen again.
            if not self.points or self.points[-1].time < found.time:
                self.points.append(found)
            return found
        return Point()

    def checkpoint(self) -> int:
        found = [int(path.parent.name.removeprefix("step-")) for path in Path(self.plan["checkpoint_dir"]).glob("step-*/manifest.json")]
        return max(found, default=0)

    def resumed(self) -> int:
        log = (self.folder / "tasks" / f"{self.topology.lead.name}.log").read_text()
        found = re.findall(r"^resumed from .*/step-(\d+)$", log, re.MULTILINE)
        return int(found[-1]) if found else 0

    def is_back(self, task: str) -> bool:
        """A server listens; a worker of parameter servers is at work once it asks one of them for the weights; of others it is enough that they run."""
        if (number := self.incarnation(task)) is None:
            return False
        with contextlib.suppress(psutil.Error, IndexError, KeyError):
            if task == TENSORBOARD:
                return any(each.status == psutil.CONN_LISTEN for each in psutil.Process(number).net_connections("tcp"))
            launched = psutil.Process(number)
            command = launched.children()[0]
            cluster = json.loads(launched.environ()["TF_CONFIG"])["cluster"]
            role, _, index = task.rpartition("-")
            if role == "worker" and "ps" in cluster:
                servers = {int(address.rpartition(":")[2]) for address in cluster["ps"]}
                connected = {each.raddr.port for each in command.net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED}
                return bool(servers & connected)
            host, port = cluster[role][int(index)].split(":")
            return role == "evaluator" or self.strategy == MIRRORED or launcher.accepts((host, int(port)))
        return False

    def accuracy(self) -> float:
        records = runs.read_records(Path(self.plan["log_dir"], "evaluation.jsonl"))
        last = [float(record["accuracy"]) for record in records[-LAST:]]
        return sum(last) / max(1, len(last))

    # ------------------------------------------------------------------------------------------------- acting

    def inject(self, fault: Fault) -> None:
        if fault.tasks == (SUPERVISOR,):
            os.kill(self.incarnation(SUPERVISOR) or 0, signal.SIGKILL)
            wait(self, lambda: self.state()[0] == "vanished", "the run has not vanished")
            runs.start(self.plan, {})  # as `pulumi up` does
        elif fault.kind == KILL:
            for process in [each for task in fault.tasks for each in runs.processes(self.folder, task)]:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        else:
            for number in filter(None, map(self.incarnation, fault.tasks)):
                if fault.kind == STOP:
                    psutil.Process(number).children()[0].suspend()
                else:
                    os.kill(number, signal.SIGTERM)


class Rehearsed(LocalStage):
    """One training of the rehearsal, which it starts and brings to its end."""

    def __init__(self, strategy: str, run: str) -> None:
        self.run, self.plan = run, made(strategy, run, FOREVER)
        super().__init__(ROOT / self.plan["folder"])

    def begin(self, epochs: int) -> None:
        self.plan = made(self.strategy, self.run, epochs)
        try:
            runs.start(self.plan, {})
        except runs.RunError as error:
            raise OpsError(str(error)) from None

    def end(self, epochs: int) -> None:
        """The same run, with an end in sight: the tasks are replaced and go on, as after a change of the settings."""
        runs.stop(self.folder)
        self.begin(epochs)
        self.wait_for_the_end()

    def wait_for_the_end(self) -> None:
        wait(self, lambda: self.state()[0] == "succeeded", "it does not come to its end", 10 * HUNG)


def made(strategy: str, run: str, epochs: int) -> dict[str, Any]:
    """The plan of one training."""
    args = {"epochs": epochs, "steps_per_epoch": STEPS, "checkpoint_every": CHECKPOINT_EVERY[strategy]}
    # What is done to it on purpose is no reason to give up.
    written = {"program": "digits", "strategy": strategy, "args": args, "max_restarts": 1000, "run": run}
    name = strategy.replace("_", "-")
    return plan(STACK, name, parse({"trainings": {name: {**written, **TRAININGS[strategy]}}}).trainings[name])


def rehearse(count: int, seed: int, say: Say) -> tuple[bool, dict[str, Any]]:
    """Whether everything was survived, and the report."""
    for folder in runs.folders(STACK):
        runs.stop(folder)
    shutil.rmtree(RUNS / STACK, ignore_errors=True)
    drawn, survivals, accuracies, stages = random.Random(seed), [], {}, []
    began, chosen = time.time(), faults.schedule(count, seed, faults.everything())
    for strategy in faults.TOPOLOGIES:
        share = [fault for fault in chosen if fault.strategy == strategy]
        if not share:
            continue
        under = Rehearsed(strategy, "faults")
        stages.append(under)
        with ended(under):
            say(f"{strategy}: {len(share)} faults")
            under.begin(FOREVER)
            found = list(suffer(under, share, drawn, say))
            survivals += found
            if any(each.recovered is None for each in found):
                continue
            epochs = under.look().epoch + MORE
            under.end(epochs)
        without = Rehearsed(strategy, "reference")
        with ended(without):
            without.begin(min(epochs, PLATEAU))
            without.wait_for_the_end()
        accuracies[strategy] = without.accuracy(), under.accuracy()
        say(
            f"{strategy}: accuracy {under.accuracy():.4f} after {epochs} epochs, without faults {without.accuracy():.4f} after {min(epochs, PLATEAU)}"
        )
    seconds = round(time.time() - began)
    return report(stages, survivals, INTERVAL, accuracies, RUNS / STACK, in_time=True, seed=seed, seconds=seconds)


@contextlib.contextmanager
def ended(run: LocalStage) -> Iterator[None]:
    try:
        yield
    finally:
        runs.stop(run.folder)
