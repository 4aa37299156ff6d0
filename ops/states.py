"""What a run and its tasks are doing, from the Jobs and pods of a cluster. Pure: plain dicts as the API gives them.

| the run is | when |
|---|---|
| succeeded | the lead is done: its Job is complete, or its index is |
| failed | a Job that the run needs has failed; the evaluator's is never needed |
| vanished | a Job that the run needs is not there, though the training is |
| cancelled | its Jobs are suspended |
| running | otherwise |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ops.target import TaskStatus
from workloads import outcome
from workloads.kubernetes.names import COMPONENT
from workloads.topology import ROLES, Task, Topology

Object = dict[str, Any]

JOB, OWNER = "batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid"
INDEX = "batch.kubernetes.io/job-completion-index"
# How often the Job controller started an index again; pods that are gone with their node are in it, too.
COUNTED, NOT_COUNTED = "batch.kubernetes.io/job-index-failure-count", "batch.kubernetes.io/job-index-ignored-failure-count"

FOR_ALL = {outcome.GAVE_UP, outcome.CONFIGURATION}  # how a lead ends with which the others end, too
MEANINGS = {
    outcome.GAVE_UP: "gave up: the lead or a peer was not there for peer_timeout",
    outcome.STALLED: "no progress for stall_timeout",
    outcome.RETRY: "saved after it was told to stop, or a peer was lost; not counted",
    outcome.CONFIGURATION: "a configuration error",
    126: "the command cannot be executed",
    127: "the command was not found",
    134: "it aborted itself",
    137: "killed without warning",
    139: "a crash in native code",
    143: "told to stop, and it did not save",
}


@dataclass(frozen=True)
class Verdict:
    """What a run is doing."""

    state: str
    reason: str = ""
    culprit: str = ""  # the pod whose last words say more
    started: float | None = None
    ended: float | None = None


# ------------------------------------------------------------------------------------------------------- reading


def seconds(time: str | None) -> float | None:
    return datetime.fromisoformat(time).timestamp() if time else None


def labels(thing: Object) -> dict[str, str]:
    found: dict[str, str] = thing["metadata"].get("labels") or {}
    return found


def created(thing: Object) -> tuple[str, str]:
    """For sorting by age; what was made in the same second stays in one order."""
    return thing["metadata"].get("creationTimestamp") or "", thing["metadata"]["name"]


def task_of(pod: Object) -> str:
    """worker-1, or tensorboard, data-prep, serving, inspector for what is no task of the topology."""
    component = labels(pod).get(COMPONENT, "")
    return f"{component}-{labels(pod).get(INDEX, '0')}" if component in ROLES else component


def condition(thing: Object, kind: str) -> Object | None:
    """A condition that holds."""
    found = (each for each in (thing.get("status") or {}).get("conditions") or () if each["type"] == kind and each["status"] == "True")
    return next(found, None)


def indexes(text: str | None) -> set[int]:
    """From 0-2,5 to the numbers it stands for."""
    found: set[int] = set()
    for part in filter(None, (text or "").split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def of_job(job: Object, pods: Iterable[Object]) -> list[Object]:
    """The pods of a Job, oldest first. A Job of the same name that was there before may have left some, which still save."""
    name, uid = job["metadata"]["name"], job["metadata"].get("uid")
    mine = (pod for pod in pods if labels(pod).get(JOB) == name and labels(pod).get(OWNER, uid) == uid)
    return sorted(mine, key=created)


def is_finished(job: Object) -> bool:
    return bool(condition(job, "Complete") or condition(job, "Failed"))


def container_status(pod: Object) -> Object:
    """How the pod's own container is, beside which a cluster may have put others."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((each for each in statuses if each.get("name") == container_name(pod)), {})


def container_name(pod: Object) -> str:
    component = labels(pod).get(COMPONENT, "")
    return "task" if component in ROLES else component


def container(pod: Object) -> Object:
    return next((each for each in pod["spec"]["containers"] if each["name"] == container_name(pod)), pod["spec"]["containers"][0])


def terminated(pod: Object) -> Object | None:
    status = container_status(pod)
    for place in ("state", "lastState"):
        if found := (status.get(place) or {}).get("terminated"):
            return found  # type: ignore[no-any-return]
    return None


def exit_code(pod: Object) -> int | None:
    ended = terminated(pod)
    return int(ended["exitCode"]) if ended else None


def meaning(code: int) -> str:
    """What an exit code says, for people."""
    return f"ended with {code}" + (f" ({MEANINGS[code]})" if code in MEANINGS else "")


def last_words(lines: Sequence[str], most: int = 3) -> str:
    """The last lines of a log that say something."""
    said = [line.strip() for line in lines if line.strip() and not line.startswith("launcher: the task ended with")]
    return " | ".join(said[-most:])


# ----------------------------------------------------------------------------------------------------- the run


def verdict(record: Object, jobs: Iterable[Object], pods: Iterable[Object]) -> Verdict:
    """What a run is doing. `record` is the annotation of the training's Service."""
    training, topology = record["training"], Topology(**record["topology"])
    named = {job["metadata"]["name"]: job for job in jobs}
    roles = {role: named.get(f"{training}-{role}") for role, count in topology.counts().items() if count}
    there = {role: job for role, job in roles.items() if job is not None}
    needed = {role: job for role, job in roles.items() if role != "evaluator"}
    # A Job that is suspended forgets when it started.
    begun = ((job.get("status") or {}).get("startTime") or job["metadata"].get("creationTimestamp") for job in there.values())
    started = min(filter(None, map(seconds, begun)), default=None)
    lead = there.get(topology.lead.role)
    if lead is not None and _is_done(lead, topology.lead):
        ended = seconds((lead.get("status") or {}).get("completionTime")) or _newest_end(pods, topology.lead)
        return Verdict("succeeded", started=started, ended=ended)
    failures = [(each["lastTransitionTime"], role) for role, job in needed.items() if job and (each := condition(job, "Failed"))]
    if failures:
        when, role = min(failures, key=lambda failure: (failure[0], failure[1] != topology.lead.role))
        # A lead that gives up, or has a configuration error, stays until the others have heard of it and ended so themselves.
        codes = {role: set(map(exit_code, of_job(there[role], pods))) for _, role in failures}
        if codes[role] & codes.get(topology.lead.role, set()) & FOR_ALL:
            role = topology.lead.role
        reason, culprit = _why(there[role], of_job(there[role], pods), topology.lead)
        return Verdict("failed", reason, culprit, started, seconds(when))
    if gone := [f"{training}-{role}" for role, job in needed.items() if job is None]:
        return Verdict("vanished", f"{'Job' if len(gone) == 1 else 'Jobs'} {', '.join(gone)} not there", started=started)
    suspended = [job for job in needed.values() if job and job["spec"].get("suspend")]
    if suspended:
        since = condition(suspended[0], "Suspended")
        return Verdict("cancelled", "it was told to stop", started=started, ended=seconds(since["lastTransitionTime"]) if since else None)
    return Verdict("running", started=started)


def _is_done(job: Object, lead: Task) -> bool:
    done = indexes((job.get("status") or {}).get("completedIndexes"))
    return bool(condition(job, "Complete")) or lead.index in done


def _newest_end(pods: Iterable[Object], task: Task) -> float | None:
    ends = [ended.get("finishedAt") for pod in pods if task_of(pod) == task.name and (ended := terminated(pod))]
    return seconds(max(filter(None, ends), default=None))


def _why(job: Object, pods: Sequence[Object], lead: Task) -> tuple[str, str]:
    """Why a Job has failed, and the pod that says more: the lead's, where the others have it from there."""
    failed = condition(job, "Failed")
    assert failed is not None
    reason = failed.get("reason", "")
    if reason == "DeadlineExceeded":
        return f"it was not done after its deadline of {job['spec'].get('activeDeadlineSeconds')} s", ""
    ended = [pod for pod in pods if pod["status"].get("phase") == "Failed"]
    out = indexes((job.get("status") or {}).get("failedIndexes"))
    blamed = [pod for pod in ended if int(labels(pod).get(INDEX, "0")) in out] or ended
    if reason == "PodFailurePolicy":
        blamed = [pod for pod in ended if exit_code(pod) == outcome.CONFIGURATION] or blamed
    if not blamed:
        return f"Job {job['metadata']['name']} failed: {failed.get('message') or reason}", ""
    code = exit_code(blamed[-1])
    told = [pod for pod in blamed if task_of(pod) == lead.name and exit_code(pod) == code and code in FOR_ALL]
    pod = (told or blamed)[-1]
    what = end(pod) if code is None or outcome.final(code) else f"is out of restarts: it {end(pod)}"
    return f"{task_of(pod)} {what}", pod["metadata"]["name"]


def end(pod: Object) -> str:
    """How a pod ended, in words that follow the name of its task."""
    ended = terminated(pod)
    if ended and ended.get("reason") == "OOMKilled":
        return "ran out of memory"
    if ended:
        return meaning(int(ended["exitCode"]))
    return f"failed ({pod['status'].get('reason') or 'no container ran'})"


# --------------------------------------------------------------------------------------------------- its tasks


def tasks(record: Object, jobs: Iterable[Object], pods: Iterable[Object], waiting: Mapping[str, str]) -> tuple[TaskStatus, ...]:
    """What every task is doing, with what stands beside the topology: data-prep first, TensorBoard and serving last.

    `waiting`: from a task to the peer that it waits for, as its launcher says.
    """
    pods, named = sorted(pods, key=created), {job["metadata"]["name"]: job for job in jobs}
    beside: dict[str, list[Object]] = {}
    for pod in pods:
        beside.setdefault(task_of(pod), []).append(pod)
    topology = []
    for role, count in Topology(**record["topology"]).counts().items():
        job = named.get(f"{record['training']}-{role}")
        mine: dict[str, list[Object]] = {}
        for pod in of_job(job, pods) if job else ():
            mine.setdefault(task_of(pod), []).append(pod)
        for task in (Task(role, index) for index in range(count)):
            topology.append(_of_index(task, job, mine.get(task.name, []), waiting.get(task.name, "")))
    first, last = (
        [_of_pods(name, beside[name]) for name in names if name in beside] for names in (("data-prep",), ("tensorboard", "serving"))
    )
    return (*first, *topology, *last)


def _of_index(task: Task, job: Object | None, pods: Sequence[Object], waiting_for: str) -> TaskStatus:
    name, restarts = task.name, restarts_of(pods)
    code = exit_code(pods[-1]) if pods else None
    if job is None:
        return TaskStatus(name, "stopped", "its Job is gone", restarts, code)
    status = job.get("status") or {}
    if task.index in indexes(status.get("completedIndexes")):
        return TaskStatus(name, "succeeded", "", restarts, 0)
    phase = pods[-1]["status"].get("phase") if pods else None
    if phase in ("Pending", "Running") and not condition(job, "Failed"):
        state, detail = ("waiting", f"waiting for {waiting_for}") if waiting_for and phase == "Running" else state_of(pods[-1])
        return TaskStatus(name, state, detail, restarts)
    if task.index in indexes(status.get("failedIndexes")) or condition(job, "Failed"):
        detail = end(pods[-1]) if phase == "Failed" else "ended with its Job"
        return TaskStatus(name, "failed", detail, restarts, code)
    if phase == "Succeeded":
        return TaskStatus(name, "succeeded", "", restarts, code)
    if job["spec"].get("suspend"):
        return TaskStatus(name, "stopped", "", restarts, code)
    return TaskStatus(
        name, "pending", f"{end(pods[-1])}; it starts again" if phase == "Failed" else "its pod is about to be made", restarts, code
    )


def _of_pods(name: str, pods: Sequence[Object]) -> TaskStatus:
    """Serving has several pods at once, and the others one after another; all of them may start a container again in its pod."""
    state, detail = state_of(pods[-1])
    if state == "running" and not container_status(pods[-1]).get("ready", True):
        detail = "not ready yet"
    again = sum(container_status(pod).get("restartCount", 0) for pod in pods) + (len(pods) - 1 if name != "serving" else 0)
    return TaskStatus(name, state, detail, again, exit_code(pods[-1]) if state == "failed" else None)


def restarts_of(pods: Sequence[Object]) -> int:
    """Pods of an index are started again as new pods; one that went with its node is not in the list, but the controller counted it."""
    if not pods:
        return 0
    notes = pods[-1]["metadata"].get("annotations") or {}
    return max(len(pods) - 1, int(notes.get(COUNTED, 0)) + int(notes.get(NOT_COUNTED, 0)))


def state_of(pod: Object) -> tuple[str, str]:
    """What one pod is doing, in a word and a few more."""
    status = pod["status"]
    phase = status.get("phase")
    if phase == "Succeeded":
        return "succeeded", ""
    if phase == "Failed":
        return "failed", end(pod)
    if pod["metadata"].get("deletionTimestamp"):
        return "running", "told to stop, and saving" if pod["metadata"].get("deletionGracePeriodSeconds") else "being removed"
    held = (container_status(pod).get("state") or {}).get("waiting") or {}
    if phase == "Running" and not held:
        return "running", ""
    if is_unscheduled(pod):
        return "pending", "no node fits yet"
    return "pending", {
        "": "",
        "ContainerCreating": "its container is being made",
        "PodInitializing": "its container is being made",
        "ErrImagePull": "its image cannot be pulled",
        "ImagePullBackOff": "its image cannot be pulled",
        "CrashLoopBackOff": "it ends again and again",
    }.get(held.get("reason", ""), str(held.get("reason", "")))


def is_unscheduled(pod: Object) -> bool:
    found = (each for each in pod["status"].get("conditions") or () if each["type"] == "PodScheduled" and each["status"] == "False")
    return next(found, None) is not None
