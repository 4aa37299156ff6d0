"""`trainstack rehearse`: trainings on this machine that are killed, told to stop and stopped while they train, by a schedule drawn from a seed.

For each strategy one training is started as `make up` would start it, has its share of the faults, and is then brought to its end; beside it the
same training without faults. Everything is under runs/rehearsal, the report and the picture, too.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from ops.target import OpsError
from settings import parse
from workloads import faults, launcher
from workloads.faults import KILL, STOP, SUPERVISOR, TASKS, TENSORBOARD, Fault, Survival
from workloads.local import runs
from workloads.local.plan import ROOT, RUNS, plan
from workloads.topology import MIRRORED, MULTI_WORKER_MIRRORED, PARAMETER_SERVER

STACK = "rehearsal"
STEPS = 50  # of an epoch
# Small trainings of the digits; how many epochs are between two checkpoints is chosen so that each makes one every few seconds.
TRAININGS: dict[str, dict[str, Any]] = {
    PARAMETER_SERVER: {"worker": {"replicas": 2}, "ps": {"replicas": 1}, "evaluator": {"mode": "sidecar"}, "tensorboard": {"keep": "1s"}},
    MULTI_WORKER_MIRRORED: {"worker": {"replicas": 2}},
    MIRRORED: {"worker": {"gpus": 2}},
}
CHECKPOINT_EVERY = {PARAMETER_SERVER: 10, MULTI_WORKER_MIRRORED: 4, MIRRORED: 10}
INTERVAL = {strategy: epochs * STEPS for strategy, epochs in CHECKPOINT_EVERY.items()}
FOREVER, MORE = 1_000_000, 10  # epochs: while there are faults to come, and after the last
HUNG = 180.0  # seconds after which a training that has not gone on is called hung
LAST = 5  # evaluations whose mean is the final accuracy: one of 360 images alone is half a matter of luck


class HungError(OpsError):
    """A training that does not go on, or has failed."""


class Rehearsed:
    """One training of the rehearsal, and what was seen of it."""

    def __init__(self, strategy: str, run: str) -> None:
        self.strategy, self.run = strategy, run
        self.folder = ROOT / self.plan(FOREVER)["folder"]
        self.lead = "chief-0" if strategy == PARAMETER_SERVER else "worker-0"
        self.points: list[tuple[float, int]] = []  # when which step was the last that was completed

    def plan(self, epochs: int) -> dict[str, Any]:
        args = {"epochs": epochs, "steps_per_epoch": STEPS, "checkpoint_every": CHECKPOINT_EVERY[self.strategy]}
        # What is done to it on purpose is no reason to give up.
        written = {"program": "digits", "strategy": self.strategy, "args": args, "max_restarts": 1000, "run": self.run}
        name = self.strategy.replace("_", "-")
        return plan(STACK, name, parse({"trainings": {name: {**written, **TRAININGS[self.strategy]}}}).trainings[name])

    def begin(self, epochs: int) -> None:
        try:
            runs.start(self.plan(epochs), {})
        except runs.RunError as error:
            raise OpsError(str(error)) from None

    def end(self, epochs: int) -> None:
        """The same run, with an end in sight: the tasks are replaced and go on, as after a change of the settings."""
        runs.stop(self.folder)
        self.begin(epochs)
        self.wait_for_the_end()

    def wait_for_the_end(self) -> None:
        self.wait(lambda: self.status()["state"] == "succeeded", 10 * HUNG, "it does not come to its end")

    # ------------------------------------------------------------------------------------------------ looking

    def status(self) -> dict[str, Any]:
        return runs.read_status(self.folder)

    def pid(self, task: str) -> int | None:
        status = self.status()
        if task == SUPERVISOR:
            return int(status["pid"])
        found: int | None = next((each["pid"] for each in status["tasks"] if each["name"] == task), None)
        return found

    def records(self, name: str) -> list[dict[str, Any]]:
        return runs.read_records(self.folder / "logs" / f"{name}.jsonl")

    def look(self) -> dict[str, Any]:
        """The last completed step; only the end of the file is read, because this is asked several times a second."""
        with contextlib.suppress(OSError, ValueError, IndexError), (self.folder / "logs" / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
            last: dict[str, Any] = json.loads(file.read().splitlines()[-1])
            if (
                not self.points or self.points[-1][0] < last["time"]
            ):  # steps that are done over are dropped from the file, and older ones seen again
                self.points.append((last["time"], last["step"]))
            return last
        return {"step": 0, "time": 0.0, "epoch": 0}

    def checkpoint(self) -> int:
        """The step of the newest whole checkpoint."""
        found = [int(path.parent.name.removeprefix("step-")) for path in (self.folder / "checkpoints").glob("step-*/manifest.json")]
        return max(found, default=0)

    def resumed(self) -> int:
        """The step that the lead last went on from."""
        found = re.findall(r"^resumed from .*/step-(\d+)$", (self.folder / "tasks" / f"{self.lead}.log").read_text(), re.MULTILINE)
        return int(found[-1]) if found else 0

    def is_back(self, task: str) -> bool:
        """Whether a task does its work: it runs, and where it is a server, it listens."""
        if (number := self.pid(task)) is None:
            return False
        if task == TENSORBOARD:
            return True
        with contextlib.suppress(psutil.Error, IndexError, KeyError):
            config = json.loads(psutil.Process(number).environ()["TF_CONFIG"])
            role, _, index = task.rpartition("-")
            host, port = config["cluster"][role][int(index)].split(":")
            listens = role == "evaluator" or self.strategy == MIRRORED or launcher.accepts((host, int(port)))
            return listens and bool(psutil.Process(number).children())
        return False

    def wait(self, condition: Callable[[], Any], seconds: float, what: str) -> float:
        """Looks at the training until something is so; returns when it was."""
        until = time.time() + seconds
        while not condition():
            self.look()
            status = self.status()
            if status["state"] in ("failed", "cancelled"):
                raise HungError(f"the training under {self.strategy} is {status['state']}: {status['reason']}; see {self.folder}.")
            if time.time() > until:
                raise HungError(f"the training under {self.strategy} is called hung: {what}; see {self.folder}.")
            time.sleep(0.1)
        return time.time()

    def _is_new(self, task: str, old: int | None) -> bool:
        return self.pid(task) not in (None, old)

    def accuracy(self) -> float:
        last = [float(record["accuracy"]) for record in self.records("evaluation")[-LAST:]]
        return sum(last) / max(1, len(last))

    # ------------------------------------------------------------------------------------------------- acting

    def inject(self, fault: Fault) -> None:
        if fault.tasks == (SUPERVISOR,):
            os.kill(self.pid(SUPERVISOR) or 0, signal.SIGKILL)
        elif fault.kind == KILL:
            for process in [each for task in fault.tasks for each in runs.processes(self.folder, task)]:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        else:
            for number in filter(None, map(self.pid, fault.tasks)):
                if fault.kind == STOP:
                    psutil.Process(number).children()[0].suspend()
                else:
                    os.kill(number, signal.SIGTERM)

    def survive(self, fault: Fault) -> Survival:
        """Does it, and looks how the training goes on."""
        before, last = {task: self.pid(task) for task in (*fault.tasks, self.lead)}, self.look()
        self.inject(fault)
        at = time.time()
        try:
            if fault.tasks == (SUPERVISOR,):
                self.wait(lambda: self.status()["state"] == "vanished", HUNG, "the run has not vanished")
                runs.start(runs.read_plan(self.folder), {})  # as `pulumi up` does
            for task in [self.lead] if fault.pauses else fault.tasks:
                self.wait(partial(self._is_new, task, before[task]), HUNG, f"{task} is not started again")
            if fault.pauses:
                again = time.time()
                self.wait(lambda: self.look()["time"] > again, HUNG, "no step was completed")
                back = self.look()["time"]
            else:
                back = self.wait(lambda: all(map(self.is_back, fault.tasks)), HUNG, "it does not come back")
        except HungError:
            return Survival(fault, at, None)
        lost = max(0, last["step"] - self.resumed()) if fault.pauses else 0
        times = [when for when, _ in self.points if at - 5 < when <= back] + [back]
        gaps = [late - early for early, late in itertools.pairwise(times) if late > at]
        return Survival(fault, at, round(back - at, 1), lost, round(max(gaps, default=0.0), 1))

    def settle(self, seconds: float) -> None:
        """Until everybody is back and there is a checkpoint of this part of the training, and a while longer."""
        newest = self.checkpoint()
        self.wait(lambda: all(map(self.is_back, TASKS[self.strategy])), HUNG, "not all tasks come back")
        self.wait(lambda: self.checkpoint() > newest, HUNG, "there is no new checkpoint")
        until = time.time() + seconds
        self.wait(lambda: time.time() > until, HUNG, "")


def rehearse(count: int, seed: int, say: Callable[[str], None]) -> tuple[bool, dict[str, Any]]:
    """Whether everything was survived, and the report."""
    for folder in runs.folders(STACK):
        runs.stop(folder)
    shutil.rmtree(RUNS / STACK, ignore_errors=True)
    drawn, survivals, accuracies, seen = random.Random(seed), [], {}, []
    began = time.time()
    for strategy, share in faults.schedule(count, seed).items():
        if not share:
            continue
        under = Rehearsed(strategy, "faults")
        seen.append(under)
        with _ended(under):
            say(f"{strategy}: {len(share)} faults")
            found = list(_suffer(under, share, drawn, say))
            survivals += found
            if any(each.recovered is None for each in found):
                continue
            epochs = under.look()["epoch"] + MORE
            under.end(epochs)
        without = Rehearsed(strategy, "reference")
        with _ended(without):
            without.begin(epochs)
            without.wait_for_the_end()
        accuracies[strategy] = without.accuracy(), under.accuracy()
        say(f"{strategy}: accuracy {under.accuracy():.4f} after {epochs} epochs, without faults {without.accuracy():.4f}")
    fine, line = faults.verdict(survivals, INTERVAL, accuracies)
    report = {
        "survived": fine,
        "summary": line,
        "seed": seed,
        "seconds": round(time.time() - began),
        "intervals": INTERVAL,
        "accuracies": {strategy: {"without": without, "under": under} for strategy, (without, under) in accuracies.items()},
        "faults": [
            {**asdict(each), "limit": each.fault.limit, "problem": each.problem(INTERVAL[each.fault.strategy])} for each in survivals
        ],
        "picture": str(RUNS / STACK / "timeline.png"),
    }
    draw(seen, survivals, RUNS / STACK / "timeline.png")
    runs.write_whole(RUNS / STACK / "report.json", report)
    return fine, report


@contextlib.contextmanager
def _ended(run: Rehearsed) -> Iterator[None]:
    try:
        yield
    finally:
        runs.stop(run.folder)


def _suffer(run: Rehearsed, share: list[Fault], drawn: random.Random, say: Callable[[str], None]) -> Iterator[Survival]:
    """One fault after the other; what a training that has hung would still have had to suffer is not survived either."""
    run.begin(FOREVER)
    hung = False
    for fault in share:
        if not hung:
            try:
                run.settle(drawn.uniform(1, 5))
            except HungError as error:
                say(f"  {error}")
                hung = True
        found = Survival(fault, time.time(), None) if hung else run.survive(fault)
        hung = hung or found.recovered is None
        late = f", later than {fault.limit:.0f} s" if found.is_late else ""
        pause = f"{found.lost} steps lost" if fault.pauses else f"the others paused for {found.pause:.1f} s"
        say(f"  {fault.name}: " + (f"back after {found.recovered:.1f} s{late}, {pause}" if not hung else "NOT SURVIVED"))
        yield found


def draw(seen: list[Rehearsed], survivals: list[Survival], target: Path) -> None:
    """The steps of each training by time, with what was done to it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(len(seen), 1, figsize=(14, 3.6 * len(seen)), layout="constrained", squeeze=False)
    colours = {"kill": "tab:red", "terminate": "tab:orange", "stop": "tab:purple"}
    for axes, run in zip(rows[:, 0], seen, strict=True):
        start = run.points[0][0] if run.points else 0.0
        axes.plot([when - start for when, _ in run.points], [step for _, step in run.points], color="tab:blue", linewidth=1.2)
        top = max((step for _, step in run.points), default=1)
        for each in (each for each in survivals if each.fault.strategy == run.strategy):
            colour = colours[each.fault.kind]
            axes.axvspan(each.at - start, each.at - start + (each.recovered or HUNG), color=colour, alpha=0.18, linewidth=0)
            axes.axvline(each.at - start, color=colour, linewidth=0.9)
            axes.text(each.at - start, top, f" {each.fault.name}", rotation=90, va="top", fontsize=7, color=colour)
        axes.set(title=run.strategy.replace("_", " "), xlabel="seconds", ylabel="completed steps")
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Faults (lines) and the time until the training had gone on (shaded)")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=110)
