"""What the objects of a training say of its run, and the run's Jobs made anew. Pure."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from naming import Names
from ops import states
from ops.connection import MANAGER
from ops.states import Object
from ops.target import OpsError, Run, TaskStatus
from settings import PROJECT, SettingsError, parse
from workloads.kubernetes.names import COMPONENT, RUN
from workloads.reach import directories

BESIDE = ("data-prep", "tensorboard", "serving", "inspector")


def anew(job: Object) -> tuple[Object, str, bool]:
    """The same Job to be made again: without what the server wrote into it. With it, in whose name, and whether by server-side apply."""
    entries = [
        entry for entry in job["metadata"].get("managedFields") or () if not entry.get("subresource") and entry["manager"] != MANAGER
    ]
    first = next((entry for entry in entries if entry["operation"] == "Apply"), next(iter(entries), None))
    metadata = {
        key: copy.deepcopy(job["metadata"][key]) for key in ("name", "namespace", "labels", "annotations") if key in job["metadata"]
    }
    spec = copy.deepcopy(job["spec"])
    generated = ("controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name")
    for place in (metadata, spec["template"].get("metadata") or {}):
        for label in generated:
            (place.get("labels") or {}).pop(label, None)
        place.pop("creationTimestamp", None)
    (metadata.get("annotations") or {}).pop("batch.kubernetes.io/job-tracking", None)
    for key in ("selector", "suspend"):
        spec.pop(key, None)
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    return body, first["manager"] if first else MANAGER, bool(first and first["operation"] == "Apply")


def kept_records(stack: str, written: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What is known of trainings with `deploy: false` from their settings: there is no Service that says it, but the files of the run may be there."""
    settings = {key.removeprefix(f"{PROJECT}:"): value for key, value in written.items() if key.startswith(f"{PROJECT}:")}
    google = {key.removeprefix("gcp:"): value for key, value in written.items() if key in ("gcp:project", "gcp:region", "gcp:zone")}
    try:
        parsed = parse({key: value for key, value in settings.items() if key != "secrets"}, {"project": "none", **google})
    except SettingsError:
        return {}  # `pulumi up` says what is wrong with them
    roots = None
    if parsed.target == "gke":
        names = Names(parsed.gcp.project or "", stack)
        roots = {kind: f"gs://{getattr(parsed.storage, kind).existing or names.bucket(kind)}" for kind in ("data", "checkpoints", "logs")}
    return {
        name: {
            "training": name,
            "run": training.run,
            "settings": training.model_dump(mode="json", exclude_unset=True, by_alias=True, exclude_none=True),
            **directories(name, training, roots),
        }
        for name, training in parsed.trainings.items()
        if not training.deploy
    }


def kept_run(record: Mapping[str, Any], namespace: str) -> Run:
    where = f"namespace {namespace}"
    return Run(record["training"], record["run"], "kept", "deploy is false", where, record.get("model_dir", ""), in_stack=False)


def record_of(service: Object) -> dict[str, Any] | None:
    """What a training's headless Service says of its run."""
    text = (service["metadata"].get("annotations") or {}).get(RUN)
    if not text:
        return None
    record: dict[str, Any] = json.loads(text)
    return record


def address_of(services: Iterable[Object], name: str) -> str | None:
    """Where a load balancer answers for a Service."""
    for service in services:
        if service["metadata"]["name"] == name and service["spec"].get("type") == "LoadBalancer":
            for point in ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ():
                port = service["spec"]["ports"][0]["port"]
                return f"http://{point.get('ip') or point.get('hostname')}{'' if port == 80 else f':{port}'}/"
    return None


def chosen(pods: Sequence[Object], task: str | None, tasks: Iterable[TaskStatus]) -> list[Object]:
    """The pods of a task, of a role, or all, oldest first. A task that has none yet is a task, too."""
    known = {*(each.name for each in tasks), *map(states.task_of, pods)}
    names = {*known, *(name.rpartition("-")[0] for name in known if name not in BESIDE)}
    if task is not None and task not in names:
        shown = sorted(known, key=lambda name: (name.rpartition("-")[0], len(name), name))
        raise OpsError(f"there is no task {task!r}; the tasks are {', '.join(shown)}.")
    return [pod for pod in pods if task is None or task in (states.task_of(pod), states.labels(pod).get(COMPONENT))]


def on_a_bucket(record: dict[str, Any], directory: str) -> str | None:
    """The gs:// address of a directory, also of one on a bucket that is mounted."""
    if directory.startswith("gs://"):
        return directory
    for volume in (record.get("settings") or {}).get("volumes") or ():
        root = str(volume["path"]).rstrip("/")
        if volume.get("bucket") and f"{directory}/".startswith(f"{root}/"):
            return f"gs://{volume['bucket']}{directory[len(root) :]}"
    return None


def mounts(pod: Object, directory: str, writes: bool) -> bool:
    """Whether a directory is on a volume of a pod."""
    kept = {volume["name"] for volume in pod["spec"].get("volumes") or () if volume.get("persistentVolumeClaim")}
    return any(
        mount["name"] in kept
        and f"{directory}/".startswith(f"{mount['mountPath'].rstrip('/')}/")
        and not (writes and mount.get("readOnly"))
        for mount in states.container(pod).get("volumeMounts") or ()
    )


def is_ready(pod: Object) -> bool:
    return pod["status"].get("phase") == "Running" and bool(states.condition(pod, "Ready")) and not pod["metadata"].get("deletionTimestamp")


def statuses_beside(training: str, jobs: Iterable[Object], pods: Sequence[Object]) -> list[TaskStatus]:
    """What stands beside the topology, each by its newest pod; one that is to have a pod and has none is pending."""
    named = {job["metadata"]["name"] for job in jobs}
    found = []
    for name in BESIDE:
        mine = [pod for pod in pods if states.task_of(pod) == name]
        if mine:
            found.append(TaskStatus(name, states.state_of(mine[-1])[0]))
        elif f"{training}-{name}" in named:
            found.append(TaskStatus(name, "pending"))
    return found
