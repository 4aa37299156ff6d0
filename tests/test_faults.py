"""Trainings with real TensorFlow to which things happen: every kind of fault, every role, every strategy."""

from __future__ import annotations

import os
import random
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ops import rehearsal, rehearse
from ops.rehearse import FOREVER, INTERVAL, MORE, Rehearsed
from tests.conftest import Stack, alive, eventually
from workloads.faults import KILL, STOP, SUPERVISOR, Fault, everything, schedule
from workloads.local import runs
from workloads.local.plan import RUNS
from workloads.topology import MIRRORED, MULTI_WORKER_MIRRORED, PARAMETER_SERVER

pytestmark = pytest.mark.training

SOAK, EVERY = 10 * 60.0, 30.0  # seconds: how long, with a fault how often
MEGABYTE = 1 << 20
LATE = 40  # seconds, in which minutes are tried: nothing in between is counted by a clock of ours
TOGETHER = [PARAMETER_SERVER, MULTI_WORKER_MIRRORED]


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Runs of the test's own, which end with it."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    monkeypatch.setattr(rehearse, "STACK", name)
    yield name
    for folder in runs.folders(name):
        runs.stop(folder)
        assert alive(folder) == []
    shutil.rmtree(RUNS / name, ignore_errors=True)


def suffer(strategy: str, faults: list[Fault]) -> None:
    """One training with faults one after the other, and then its end. Being late is left to the rehearsal: a busy machine is no bug."""
    run, said = Rehearsed(strategy, "faults"), []
    run.begin(FOREVER)
    found = list(rehearsal.suffer(run, faults, random.Random(1), said.append))
    assert [each.problem(INTERVAL[strategy]) for each in found] == [""] * len(faults), said
    counted = {task["name"]: task["restarts"] for task in runs.read_status(run.folder)["tasks"]}
    stopped = {task for fault in faults for task in fault.tasks if fault.kind == STOP} - {
        task for fault in faults for task in fault.tasks if fault.kind == KILL
    }
    assert all(counted[task] == 0 for task in stopped), "being stopped from outside is not counted"
    run.end(run.look().epoch + MORE)
    assert run.accuracy() >= 0.95
    steps = [record["step"] for record in runs.read_records(run.folder / "logs" / "metrics.jsonl")]
    assert steps == sorted(set(steps)), "no step is reported twice"


def test_a_stopped_server_and_a_killed_worker() -> None:
    """A server that is stopped is noticed after 5 s, and the chief starts again with it."""
    suffer(PARAMETER_SERVER, [Fault(PARAMETER_SERVER, STOP, ("ps-0",)), Fault(PARAMETER_SERVER, KILL, ("worker-1",))])


@pytest.mark.full
def test_two_tasks_killed_at_once() -> None:
    suffer(PARAMETER_SERVER, [Fault(PARAMETER_SERVER, KILL, ("chief-0", "worker-1"))])


@pytest.mark.full
@pytest.mark.parametrize("strategy", [PARAMETER_SERVER, MULTI_WORKER_MIRRORED, MIRRORED])
def test_every_fault_is_survived(strategy: str) -> None:
    """Each fault takes up to a minute, until the training has come further than before it."""
    suffer(strategy, [fault for fault in everything() if fault.strategy == strategy])


@pytest.mark.full
def test_a_damaged_last_checkpoint_costs_one_interval_more(stack: Stack) -> None:
    settings: dict[str, Any] = {"program": "digits", "strategy": "mirrored", "args": {"epochs": 4, "steps_per_epoch": 10}}
    stack.up({"t": settings})
    stack.wait("t", "succeeded", 90)
    folder = stack.folder_of("t")
    os.truncate(folder / "checkpoints" / "step-00000040" / "checkpoint.data-00000-of-00001", 100)
    stack.up({"t": {**settings, "args": {"epochs": 5, "steps_per_epoch": 10}}})
    stack.wait("t", "succeeded", 90)
    log = (folder / "tasks" / "worker-0.log").read_text()
    assert "step-00000040 is damaged (" in log
    assert f"resumed from {folder}/checkpoints/step-00000030" in log
    assert "20 of 50 steps to go" in log
    assert stack.task("t", "worker-0")["restarts"] == 0


@pytest.mark.full
@pytest.mark.parametrize("strategy", TOGETHER)
def test_a_slow_worker_is_waited_for_and_not_killed(strategy: str) -> None:
    """It is stopped for most of the time, but never for as long as one that hangs."""
    run = Rehearsed(strategy, "faults")
    run.begin(FOREVER)
    rehearsal.settle(run, 1)
    before, step, slow = run.incarnation("worker-1"), run.look().step, trainer_of(run, "worker-1")
    for _ in range(12):
        slow.suspend()
        time.sleep(1.5)
        slow.resume()
        time.sleep(0.5)
    assert run.look().step > step, "slowly is on"
    rehearsal.settle(run, 1)
    assert run.incarnation("worker-1") == before
    assert all(task["restarts"] == 0 for task in runs.read_status(run.folder)["tasks"])


@pytest.mark.full
@pytest.mark.parametrize("strategy", TOGETHER)
def test_a_worker_that_comes_late_is_waited_for(stack: Stack, tmp_path: Path, strategy: str) -> None:
    late = f"if os.environ.get('TRAINSTACK_TASK') == 'worker-1':\n    print('late', flush=True)\n    time.sleep({LATE})\n"
    (tmp_path / "late.py").write_text(f"import os, time\nfrom trainer.programs.digits import *\n{late}")
    settings: dict[str, Any] = {"program": str(tmp_path / "late.py"), "strategy": strategy, "worker": {"replicas": 2}}
    settings |= {"args": {"epochs": 4, "steps_per_epoch": 10}, **({"ps": {"replicas": 1}} if strategy == PARAMETER_SERVER else {})}
    stack.up({"t": settings})
    stack.wait("t", "succeeded", LATE + 60)
    assert "late\n" in (stack.folder_of("t") / "tasks" / "worker-1.log").read_text()
    assert all(task["restarts"] == 0 for task in stack.status("t")["tasks"])


@pytest.mark.full
def test_a_soak() -> None:
    """Ten minutes with a fault every half minute: the training comes further after each, and neither the supervisor nor the chief grows."""
    run = Rehearsed(PARAMETER_SERVER, "faults")
    run.begin(FOREVER)
    came, sizes = [], []
    began, drawn = time.monotonic(), random.Random(1)
    faults = [fault for fault in schedule(200, 1, everything()) if fault.strategy == PARAMETER_SERVER and fault.tasks != (SUPERVISOR,)]
    for number, fault in enumerate(faults):
        if time.monotonic() - began > SOAK:
            break
        rehearsal.settle(run, drawn.uniform(1, 5))
        came.append(run.look().step)
        sizes.append([psutil.Process(run.incarnation(SUPERVISOR)).memory_info().rss, trainer_of(run, "chief-0").memory_info().rss])
        assert rehearsal.survive(run, fault).problem(INTERVAL[PARAMETER_SERVER]) == "", fault
        eventually(lambda number=number: time.monotonic() - began > EVERY * (number + 1), EVERY, "")
    assert came == sorted(set(came)), "progress strictly increases"
    settled = sizes[len(sizes) // 3 :]
    for first, last in zip(settled[0], settled[-1], strict=True):
        assert last < 1.25 * first + 50 * MEGABYTE, "memory is flat"


def trainer_of(run: Rehearsed, task: str) -> psutil.Process:
    return psutil.Process(run.incarnation(task)).children()[0]
