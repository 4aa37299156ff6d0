from __future__ import annotations

import pytest

from workloads.outcome import back_off, counts, why_the_run_fails
from workloads.topology import MULTI_WORKER_MIRRORED, PARAMETER_SERVER, Task, Topology

SERVERS = Topology(chief=1, worker=2, ps=2, evaluator=1)
TOGETHER = Topology(worker=2, evaluator=1)


@pytest.mark.parametrize(
    ("topology", "strategy", "failed", "fails"),
    [
        (SERVERS, PARAMETER_SERVER, ["chief-0"], True),
        (SERVERS, PARAMETER_SERVER, ["ps-1"], True),
        (SERVERS, PARAMETER_SERVER, ["worker-1"], False),
        (SERVERS, PARAMETER_SERVER, ["worker-0"], False),
        (SERVERS, PARAMETER_SERVER, ["worker-0", "worker-1"], True),
        (SERVERS, PARAMETER_SERVER, ["evaluator-0"], False),
        (SERVERS, PARAMETER_SERVER, [], False),
        (TOGETHER, MULTI_WORKER_MIRRORED, ["worker-1"], True),
        (TOGETHER, MULTI_WORKER_MIRRORED, ["evaluator-0"], False),
        (Topology(worker=2, ps=1), PARAMETER_SERVER, ["worker-0"], True),  # no chief: worker 0 decides
        (Topology(worker=2, ps=1), PARAMETER_SERVER, ["worker-1"], False),
    ],
)
def test_which_lost_tasks_end_a_run(topology: Topology, strategy: str, failed: list[str], fails: bool) -> None:
    tasks = [Task(name.split("-")[0], int(name.split("-")[1])) for name in failed]
    assert bool(why_the_run_fails(topology, strategy, tasks)) is fails


@pytest.mark.parametrize(("code", "counted"), [(0, False), (75, False), (1, True), (137, True), (78, True)])
def test_which_exit_codes_count(code: int, counted: bool) -> None:
    assert counts(code) is counted


def test_back_off_grows_and_has_an_end() -> None:
    delays = [back_off(failures) for failures in range(1, 20)]
    assert delays == sorted(delays)
    assert delays[:4] == [0, 1, 2, 4]
    assert delays[-1] == 30
