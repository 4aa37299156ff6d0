"""From Jobs and pods to what a run and its tasks are doing."""

from __future__ import annotations

from typing import Any

import pytest

from ops import states
from tests.ops.objects import condition, ended, held, job, pod, unscheduled

TOPOLOGY = {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}
ROLES = tuple(TOPOLOGY)


def record(**changes: Any) -> dict[str, Any]:
    return {"training": "digits", "run": "1", "strategy": "parameter_server", "topology": TOPOLOGY, **changes}


def jobs(**changed: Any) -> list[Any]:
    """All Jobs of the topology; a role that is given as None is not there."""
    return [made for role in ROLES if (made := changed.get(role, job(role))) is not None]


FAILED = condition("Failed", "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes")
COMPLETE = condition("Complete", "CompletionsReached")


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({}, "running"),
        ({"chief": job("chief", COMPLETE, completionTime="2026-11-17T04:30:00Z")}, "succeeded"),
        ({"chief": job("chief", COMPLETE), "worker": job("worker", FAILED)}, "succeeded"),
        ({"chief": job("chief", FAILED)}, "failed"),
        ({"ps": job("ps", FAILED)}, "failed"),
        ({"worker": job("worker", FAILED)}, "failed"),
        ({"evaluator": job("evaluator", FAILED)}, "running"),
        ({"evaluator": None}, "running"),
        ({"chief": None}, "vanished"),
        ({"ps": None}, "vanished"),
        ({"ps": job("ps", FAILED), "chief": job("chief", suspend=True)}, "failed"),
        ({role: job(role, suspend=True) for role in ROLES}, "cancelled"),
        ({role: job(role, condition("Suspended", "JobSuspended"), suspend=True) for role in ROLES}, "cancelled"),
        ({"chief": job("chief", condition("Failed", status="False"))}, "running"),
    ],
)
def test_the_state_of_a_run(changed: dict[str, Any], state: str) -> None:
    assert states.verdict(record(), jobs(**changed), []).state == state


def test_without_a_chief_worker_0_decides() -> None:
    topology = record(topology={"worker": 3}, strategy="multi_worker_mirrored")
    assert states.verdict(topology, [job("worker", completedIndexes="1-2")], []).state == "running"
    assert states.verdict(topology, [job("worker", completedIndexes="0,2")], []).state == "succeeded"


def test_the_first_failure_is_the_reason_and_not_what_followed_from_it() -> None:
    found = states.verdict(
        record(),
        jobs(
            chief=job("chief", condition("Failed", "MaxFailedIndexesExceeded", at="2026-11-17T04:45:00Z"), failedIndexes="0"),
            ps=job("ps", condition("Failed", "MaxFailedIndexesExceeded", at="2026-11-17T04:30:00Z"), failedIndexes="0"),
        ),
        [pod("chief", 0, "Failed", state=ended(69)), pod("ps", 0, "Failed", state=ended(1))],
    )
    assert found.reason == "ps-0 is out of restarts: it ended with 1"
    assert found.culprit == "digits-ps-0-abcde"
    assert found.ended == states.seconds("2026-11-17T04:30:00Z")
    assert found.started == states.seconds("2026-11-17T04:00:10Z")


def test_a_lead_that_stays_until_all_have_heard_is_the_reason() -> None:
    """Though the others, which only say the same, have ended before it."""
    early, late = (condition("Failed", "PodFailurePolicy", at=f"2026-11-17T04:30:0{second}Z") for second in (1, 4))
    found = states.verdict(
        record(),
        jobs(chief=job("chief", late), worker=job("worker", early), ps=job("ps", early)),
        [pod(role, index, "Failed", state=ended(78)) for role, index in (("worker", 0), ("worker", 1), ("ps", 0), ("chief", 0))],
    )
    assert found.culprit == "digits-chief-0-abcde"
    together = states.verdict(
        record(topology={"worker": 2}, strategy="multi_worker_mirrored"),
        [job("worker", early)],
        [pod("worker", index, "Failed", state=ended(78)) for index in (0, 1)],
    )
    assert together.culprit == "digits-worker-0-abcde"


@pytest.mark.parametrize(
    ("reason", "end", "expected"),
    [
        ("PodFailurePolicy", ended(78), "chief-0 ended with 78 (a configuration error)"),
        ("MaxFailedIndexesExceeded", ended(69), "chief-0 ended with 69 (gave up: the lead or a peer was not there for peer_timeout)"),
        ("MaxFailedIndexesExceeded", ended(137, "OOMKilled"), "chief-0 is out of restarts: it ran out of memory"),
        ("MaxFailedIndexesExceeded", ended(139), "chief-0 is out of restarts: it ended with 139 (a crash in native code)"),
        ("DeadlineExceeded", ended(143), "it was not done after its deadline of 7200 s"),
    ],
)
def test_why_a_run_failed(reason: str, end: dict[str, Any], expected: str) -> None:
    chief = job("chief", condition("Failed", reason), failedIndexes="0")
    assert states.verdict(record(), jobs(chief=chief), [pod("chief", 0, "Failed", state=end)]).reason == expected


def test_a_failed_job_whose_pods_are_gone_says_what_kubernetes_says() -> None:
    found = states.verdict(record(), jobs(ps=job("ps", FAILED)), [])
    assert found.reason == "Job digits-ps failed: Job has exceeded the specified maximal number of failed indexes"


def test_a_suspended_job_forgets_when_it_started() -> None:
    suspended = [job(role, condition("Suspended"), suspend=True) for role in ROLES]
    for each in suspended:
        del each["status"]["startTime"]
    found = states.verdict(record(), suspended, [])
    assert found.started is not None
    assert found.ended is not None
    assert found.ended > found.started


def task(name: str, pods: list[Any], waiting: dict[str, str] | None = None, **changed: Any) -> Any:
    found = states.tasks(record(), jobs(**changed), pods, waiting or {})
    return next(each for each in found if each.name == name)


def test_the_tasks_of_a_run_in_order() -> None:
    beside = [pod("tensorboard"), pod("serving", ready=False), pod("data-prep", phase="Succeeded")]
    found = states.tasks(record(), jobs(), beside, {})
    assert [each.name for each in found] == [
        "data-prep",
        "chief-0",
        "worker-0",
        "worker-1",
        "ps-0",
        "evaluator-0",
        "tensorboard",
        "serving",
    ]
    assert {each.name: each.state for each in found} == {
        "data-prep": "succeeded",
        **dict.fromkeys(("chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0"), "pending"),
        **dict.fromkeys(("tensorboard", "serving"), "running"),
    }
    assert found[-1].detail == "not ready yet"


def test_pods_of_an_index_are_its_restarts_and_the_last_one_counts() -> None:
    pods = [
        pod("worker", 1, suffix="zzzzz", created="2026-11-17T04:02:00Z"),
        pod("worker", 1, "Failed", suffix="aaaaa", created="2026-11-17T04:01:00Z", state=ended(1)),
        pod("worker", 0),
    ]
    assert (task("worker-1", pods).state, task("worker-1", pods).restarts) == ("running", 1)
    assert task("worker-0", pods).restarts == 0


def test_a_restart_counts_though_its_pod_went_with_its_node() -> None:
    notes = {"batch.kubernetes.io/job-index-failure-count": "1", "batch.kubernetes.io/job-index-ignored-failure-count": "2"}
    assert task("worker-1", [pod("worker", 1, annotations=notes)]).restarts == 3


def test_pods_of_an_earlier_job_of_that_name_are_not_its_tasks() -> None:
    old = pod("worker", 0, owner="another", deleted=120)
    assert task("worker-0", [old]).detail == "its pod is about to be made"


@pytest.mark.parametrize(
    ("one", "changed", "state", "detail"),
    [
        (pod(phase="Pending", conditions=unscheduled("0/1 nodes are available")), {}, "pending", "no node fits yet"),
        (pod(phase="Pending", state=held("ContainerCreating")), {}, "pending", "its container is being made"),
        (pod(phase="Pending", state=held("ImagePullBackOff")), {}, "pending", "its image cannot be pulled"),
        (pod(), {}, "running", ""),
        (pod(deleted=120), {}, "running", "told to stop, and saving"),
        (pod(deleted=0), {}, "running", "being removed"),
        (pod(phase="Succeeded", state=ended(0, "Completed")), {}, "succeeded", ""),
        (pod(phase="Succeeded", state=ended(0)), {"worker": job("worker", completedIndexes="0")}, "succeeded", ""),
        (pod(phase="Failed", state=ended(1)), {}, "pending", "ended with 1; it starts again"),
        (pod(phase="Failed", state=ended(1)), {"worker": job("worker", failedIndexes="0")}, "failed", "ended with 1"),
        (pod(phase="Failed", state=ended(143)), {"worker": job("worker", suspend=True)}, "stopped", ""),
        (pod(phase="Failed", state=ended(1)), {"worker": job("worker", FAILED)}, "failed", "ended with 1"),
        (pod(), {"worker": None}, "stopped", "its Job is gone"),
    ],
)
def test_what_a_task_is_doing(one: Any, changed: dict[str, Any], state: str, detail: str) -> None:
    found = task("worker-0", [one], **changed)
    assert (found.state, found.detail) == (state, detail)


def test_a_task_that_waits() -> None:
    found = task("chief-0", [pod("chief")], {"chief-0": "ps-0"})
    assert (found.state, found.detail) == ("waiting", "waiting for ps-0")
    assert task("chief-0", [pod("chief", phase="Pending")], {"chief-0": "ps-0"}).state == "pending"


@pytest.mark.parametrize(("text", "numbers"), [(None, set()), ("", set()), ("0", {0}), ("1-3,7,9-10", {1, 2, 3, 7, 9, 10})])
def test_indexes(text: str | None, numbers: set[int]) -> None:
    assert states.indexes(text) == numbers


def test_last_words_are_the_tasks_own() -> None:
    lines = ["Traceback (most recent call last):", "  …", "ValueError: no", "", "launcher: the task ended with 1"]
    assert states.last_words(lines) == "Traceback (most recent call last): | … | ValueError: no"
    assert states.last_words([]) == ""
