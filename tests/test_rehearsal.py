"""The schedule of a rehearsal and its verdict, without any training."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ops import __main__ as ops
from ops import rehearsal, rehearse
from ops.rehearsal import Point
from workloads.faults import (
    KILL,
    STOP,
    SUPERVISOR,
    TENSORBOARD,
    TERMINATE,
    TOPOLOGIES,
    Fault,
    Survival,
    cast,
    everything,
    pairs,
    possible,
    schedule,
    verdict,
)
from workloads.topology import MIRRORED, MULTI_WORKER_MIRRORED, PARAMETER_SERVER, Topology

INTERVAL = dict.fromkeys(TOPOLOGIES, 100)
PS = Fault(PARAMETER_SERVER, KILL, ("ps-0",))
WORKER = Fault(PARAMETER_SERVER, KILL, ("worker-1",))


def test_a_seed_is_a_schedule_and_another_seed_another() -> None:
    assert schedule(20, 1, everything()) == schedule(20, 1, everything())
    assert schedule(20, 1, everything()) != schedule(20, 2, everything())
    assert len(schedule(33, 5, everything())) == 33


def test_every_fault_comes_once_before_any_comes_twice() -> None:
    several = Counter(schedule(2 * len(everything()), 3, everything()))
    assert set(several.values()) == {2}
    assert len(several) == len(everything())


def test_every_role_of_every_strategy_is_killed_told_and_stopped() -> None:
    found = {(fault.strategy, fault.kind, task) for fault in everything() for task in fault.tasks}
    for strategy, topology in TOPOLOGIES.items():
        roles = {task.role for task in topology.tasks()}
        assert {(strategy, kind, task.split("-")[0]) for _, kind, task in found if "-" in task} >= {
            (strategy, kind, role) for kind in (KILL, TERMINATE, STOP) for role in roles
        }
        assert (strategy, KILL, SUPERVISOR) in found


@pytest.mark.parametrize(
    ("topology", "tasks", "together"),
    [
        (Topology(1, 4, 3, 1), ("chief-0", "worker-3", "ps-2", "evaluator-0"), [("worker-0", "ps-2"), ("chief-0", "worker-3")]),
        (Topology(worker=3), ("worker-0", "worker-2"), [("worker-0", "worker-2")]),
        (Topology(chief=1, worker=1), ("chief-0", "worker-0"), [("chief-0", "worker-0")]),
        (Topology(worker=1, evaluator=1), ("worker-0", "evaluator-0"), []),
    ],
)
def test_to_whom_something_is_done(topology: Topology, tasks: tuple[str, ...], together: list[tuple[str, str]]) -> None:
    assert cast(topology) == tasks
    assert pairs(topology) == together
    assert len(possible(PARAMETER_SERVER, topology, [TENSORBOARD])) == 3 * len(tasks) + len(together) + 1


@pytest.mark.parametrize(
    ("strategy", "kind", "tasks", "pauses", "limit"),
    [
        (PARAMETER_SERVER, KILL, ("worker-1",), False, 15),
        (PARAMETER_SERVER, STOP, ("worker-1",), False, 30),
        (PARAMETER_SERVER, KILL, ("ps-0",), True, 40),
        (PARAMETER_SERVER, STOP, ("chief-0",), True, 55),
        (PARAMETER_SERVER, KILL, ("chief-0", "worker-1"), True, 40),
        (PARAMETER_SERVER, KILL, ("evaluator-0",), False, 40),
        (MULTI_WORKER_MIRRORED, TERMINATE, ("worker-1",), True, 30),
        (MIRRORED, STOP, ("worker-0",), True, 45),
        (PARAMETER_SERVER, KILL, (TENSORBOARD,), False, 40),
    ],
)
def test_what_a_fault_may_cost(strategy: str, kind: str, tasks: tuple[str, ...], pauses: bool, limit: float) -> None:
    fault = Fault(strategy, kind, tasks)
    assert (fault.pauses, fault.limit) == (pauses, limit)


@pytest.mark.parametrize(
    ("survivals", "accuracies", "fine", "line"),
    [
        ([Survival(PS, 0, 12.5, 100)], (0.98, 0.97), True, "1 of 1 survived, at most 100 steps lost, 12.5 s to recover at the longest, "),
        ([Survival(PS, 0, 12.5, 101)], (0.98, 0.98), False, "0 of 1 survived"),
        ([Survival(PS, 0, 1.0), Survival(PS, 9, None)], (0.98, 0.98), False, "1 of 2 survived"),
        ([Survival(PS, 0, 1.0)], (0.98, 0.96), False, "accuracy 2.0 points below"),
        ([Survival(PS, 0, 1.0)], (0.96, 0.98), True, "accuracy 0.0 points below"),
        ([Survival(PS, 0, 41.0)], (0.98, 0.98), False, "1 of 1 survived, at most 0 steps lost, 41.0 s to recover at the longest, 1 LATE"),
        ([Survival(WORKER, 0, 9.0, pause=5.1)], (0.98, 0.98), False, "1 LATE"),
    ],
    ids=["fine", "too much is lost", "one hung", "a worse model", "a better model", "late", "the others paused"],
)
def test_the_verdict(survivals: list[Survival], accuracies: tuple[float, float], fine: bool, line: str) -> None:
    said = verdict(survivals, INTERVAL, {PARAMETER_SERVER: accuracies})
    assert said[0] is fine
    assert line in said[1]


def test_on_a_cluster_being_late_is_said_and_is_no_failure() -> None:
    fine, line = verdict([Survival(PS, 0, 41.0)], INTERVAL, {}, in_time=False)
    assert fine
    assert line == "1 of 1 survived, at most 0 steps lost, 41.0 s to recover at the longest, 1 LATE"


@pytest.mark.parametrize(("fine", "code"), [(True, 0), (False, 3)])
def test_the_last_line_and_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fine: bool, code: int
) -> None:
    asked: list[tuple[int, int]] = []

    def rehearsed(count: int, seed: int, _: Any) -> tuple[bool, dict[str, Any]]:
        asked.append((count, seed))
        return fine, {"summary": "20 of 20 survived, …", "picture": "t.png"}

    monkeypatch.setattr(rehearse, "rehearse", rehearsed)
    monkeypatch.setattr("sys.argv", ["trainstack", "rehearse", "--faults", "7", "--seed", "3"])
    assert ops.main() == code
    assert capsys.readouterr().out.splitlines()[-1] == "20 of 20 survived, …"
    monkeypatch.setattr("sys.argv", ["trainstack", "--json", "rehearse"])
    assert ops.main() == code
    assert json.loads(capsys.readouterr().out)["picture"] == "t.png"
    assert asked == [(7, 3), (20, 1)]
    monkeypatch.setattr("sys.argv", ["trainstack", "rehearse", "--faults", "0"])
    assert ops.main() == 1


def test_the_picture_is_drawn_also_of_a_training_that_hung(tmp_path: Path) -> None:
    run = rehearse.Rehearsed(MIRRORED, "faults")
    run.points = [Point(100.0, 50), Point(101.0, 100), Point(120.0, 100), Point(121.0, 150)]
    fault = Fault(MIRRORED, KILL, ("worker-0",))
    rehearsal.draw([run], [Survival(fault, 101.5, 18.0, 0), Survival(fault, 130.0, None)], tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_what_the_training_can_do_without_is_waited_for_itself() -> None:
    assert not Fault(PARAMETER_SERVER, KILL, (TENSORBOARD,)).pauses
    assert not Fault(MIRRORED, KILL, ("evaluator-0",)).pauses
    assert Fault(MULTI_WORKER_MIRRORED, KILL, ("worker-1",)).pauses


def test_a_training_that_failed_or_hangs_is_not_survived_and_nothing_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults that it would still have had to suffer are not survived either."""
    run = rehearse.Rehearsed(MIRRORED, "faults")
    states = iter(["running", "running", "failed"])
    monkeypatch.setattr(rehearsal, "settle", lambda *_: None)
    monkeypatch.setattr(run, "inject", lambda _: None)
    monkeypatch.setattr(run, "incarnation", lambda _: 1)
    monkeypatch.setattr(run, "state", lambda: (next(states), "out of restarts"))
    said: list[str] = []
    fault = Fault(MIRRORED, KILL, ("worker-0",))
    found = list(rehearsal.suffer(run, [fault, fault], random.Random(1), said.append))
    assert [each.recovered for each in found] == [None, None]
    assert said == ["  kill worker-0: NOT SURVIVED"] * 2


def test_steps_that_are_done_over_do_not_lead_back_in_time(tmp_path: Path) -> None:
    run = rehearse.Rehearsed(MIRRORED, "faults")
    run.plan = {**run.plan, "log_dir": str(tmp_path)}
    for written in ([(1.0, 50), (2.0, 100)], [(1.0, 50)], [(1.0, 50), (9.0, 100)]):  # a lead that came back has dropped the second
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"time": at, "step": step}) + "\n" for at, step in written))
        run.look()
    assert run.points == [Point(2.0, 100), Point(9.0, 100)]
