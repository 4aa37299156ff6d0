"""Objects as a cluster gives them, with what the tests need of them. The shapes and the messages are those of Kubernetes 1.36 and of GKE's autoscaler."""

from __future__ import annotations

import json
from typing import Any

NAMESPACE = "trainstack-test"
Object = dict[str, Any]


def labelled(training: str, component: str, **more: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/managed-by": "trainstack",
        "app.kubernetes.io/part-of": NAMESPACE,
        "app.kubernetes.io/name": training,
        "app.kubernetes.io/component": component,
        "trainstack/run": "1",
        **more,
    }


def service(training: str = "digits", **record: Any) -> Object:
    about = {"stack": "test", "training": training, "run": "1", "strategy": "parameter_server", "settings": {}, **record}
    metadata = {"name": training, "labels": labelled(training, "tasks"), "annotations": {"trainstack/run": json.dumps(about)}}
    return {"metadata": metadata, "spec": {"clusterIP": "None"}, "status": {}}


def condition(kind: str, reason: str = "", message: str = "", status: str = "True", at: str = "2026-11-17T04:27:46Z") -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def job(role: str, *conditions: Object, training: str = "digits", suspend: bool = False, uid: str = "", **status: Any) -> Object:
    name = f"{training}-{role}"
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": uid or f"uid-of-{name}",
            "creationTimestamp": "2026-11-17T04:00:00Z",
            "labels": labelled(training, role),
        },
        "spec": {"suspend": suspend, "backoffLimitPerIndex": 3, "activeDeadlineSeconds": 7200, "template": {"metadata": {}, "spec": {}}},
        "status": {"startTime": "2026-11-17T04:00:10Z", "conditions": list(conditions), **status},
    }


def pod(
    role: str = "worker",
    index: int = 0,
    phase: str = "Running",
    *,
    training: str = "digits",
    suffix: str = "abcde",
    created: str = "2026-11-17T04:00:20Z",
    conditions: tuple[Object, ...] = (),
    state: Object | None = None,
    last: Object | None = None,
    restarts: int = 0,
    ready: bool | None = None,
    owner: str = "",
    annotations: dict[str, str] | None = None,
    deleted: int | None = None,
    spec: Object | None = None,
    resources: Object | None = None,
    mounts: tuple[Object, ...] = (),
    reason: str | None = None,
    message: str | None = None,
) -> Object:
    task = role in ("chief", "worker", "ps", "evaluator")
    name = f"{training}-{role}-{index}-{suffix}" if task else f"{training}-{role}-{suffix}"
    indexed = {
        "batch.kubernetes.io/job-name": f"{training}-{role}",
        "batch.kubernetes.io/controller-uid": owner or f"uid-of-{training}-{role}",
        **({"batch.kubernetes.io/job-completion-index": str(index)} if task else {}),
    }
    metadata = {
        "name": name,
        "uid": f"uid-of-{name}",
        "creationTimestamp": created,
        "labels": labelled(training, role, **indexed),
        "annotations": annotations or {},
        **({"deletionTimestamp": "2026-11-17T05:00:00Z", "deletionGracePeriodSeconds": deleted} if deleted is not None else {}),
    }
    container = {
        "name": "task" if task else role,
        "image": "example.com/trainer@sha256:" + "0" * 64,
        "resources": resources or {},
        "volumeMounts": list(mounts),
    }
    statuses = []
    if state is not None or phase == "Running":
        shown = state if state is not None else {"running": {"startedAt": created}}
        is_ready = phase == "Running" if ready is None else ready
        statuses = [{"name": container["name"], "ready": is_ready, "restartCount": restarts, "state": shown, "lastState": last or {}}]
    status = {"phase": phase, "conditions": list(conditions), "containerStatuses": statuses, "reason": reason, "message": message}
    return {"metadata": metadata, "spec": {"containers": [container], **(spec or {})}, "status": status}


def ended(code: int, reason: str = "Error", message: str = "") -> Object:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": "2026-11-17T04:27:44Z"}}


def held(reason: str, message: str = "") -> Object:
    return {"waiting": {"reason": reason, "message": message}}


def unscheduled(message: str, reason: str = "Unschedulable") -> tuple[Object, ...]:
    return (condition("PodScheduled", reason, message, status="False"),)


def event(reason: str, message: str, about: Object, kind: str = "Pod", at: str = "2026-11-17T04:27:46Z") -> Object:
    involved = {
        "kind": kind,
        "name": about["metadata"]["name"],
        **({"uid": about["metadata"]["uid"]} if "uid" in about["metadata"] else {}),
    }
    return {"metadata": {"creationTimestamp": at}, "reason": reason, "message": message, "involvedObject": involved, "lastTimestamp": at}


def claim(name: str, phase: str = "Pending", storage_class: str | None = "standard") -> Object:
    return {"metadata": {"name": name, "uid": f"uid-of-{name}"}, "spec": {"storageClassName": storage_class}, "status": {"phase": phase}}


def node(name: str = "node-1", labels: dict[str, str] | None = None, **allocatable: str) -> Object:
    has = {"cpu": "4", "memory": "16Gi", **{key.replace("gpu", "nvidia.com/gpu"): value for key, value in allocatable.items()}}
    return {"metadata": {"name": name, "labels": labels or {}}, "status": {"allocatable": has}}
