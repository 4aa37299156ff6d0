"""What a task's end means for the task and for the run. Pure; every target follows these rules.

| exit code | meaning | then |
|---|---|---|
| 0 | done | |
| 75 | saved after SIGTERM, or a peer was lost | started again, not counted |
| 78 | configuration error | never started again, the run fails |
| 69 | gave up: the lead or a peer was not there for `peer_timeout` | never started again |
| 70 | the lead made no progress for `stall_timeout` | all tasks are started again, the lead's restart is counted |
| anything else | failed | started again, counted in `max_restarts` of that task |
"""

from __future__ import annotations

from collections.abc import Iterable

from workloads.topology import PARAMETER_SERVER, Task, Topology

DONE, GAVE_UP, STALLED, RETRY, CONFIGURATION = 0, 69, 70, 75, 78


def final(exit_code: int) -> bool:
    """Whether a task that ended so is never started again."""
    return exit_code in (DONE, GAVE_UP, CONFIGURATION)


def counts(exit_code: int) -> bool:
    """Whether a restart after this exit code is one of the `max_restarts`."""
    return exit_code not in (DONE, RETRY)


def back_off(failures: int) -> float:
    """Seconds to wait before a task is started again, from how often it failed in a row: what fails once may begin again at once."""
    return float(min(30, 2 ** (failures - 2))) if failures > 1 else 0.0


def why_the_run_fails(topology: Topology, strategy: str, failed: Iterable[Task]) -> str:
    """Why the run cannot go on without these tasks, which are out of restarts; empty when it can.

    The chief and the parameter servers are needed always. Workers that train together need each other; workers of parameter servers do not,
    until none is left. The evaluator is never needed.
    """
    gone = set(failed)
    for task in sorted(gone):
        if task.role == "ps" or task == topology.lead or (task.role == "worker" and strategy != PARAMETER_SERVER):
            return f"{task.name} is out of restarts"
    workers = {task for task in topology.tasks() if task.role == "worker"}
    if workers and workers <= gone:
        return "no worker is left, all are out of restarts"
    return ""
