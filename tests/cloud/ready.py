"""When pulumi-kubernetes 4.34 takes an object for ready, from its annotations and its kind. Pure: other objects are looked up by the caller.

What is not as one would expect is the plugin's way and kept on purpose: a Job counts as failed for two of Kubernetes' reasons only and is
waited for until the time-out with any other, and a Service without a single pod is ready as long as no pod of it is unready.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.cloud.kinds import CloudError, Values, at

PREFIX = "pulumi.com/"
SERVICE_SETTLES = 3.0  # seconds without a change of a Service's endpoints; the plugin gives them 10

# The kinds whose deletion is not waited for either where `skipAwait` is set.
SKIPS_DELETION = ("Namespace", "Pod", "ReplicationController", "DaemonSet", "Deployment", "StatefulSet", "Job")

# The kinds that a refresh looks at as well, whatever their `waitFor` says.
READ = ("DaemonSet", "Deployment", "Ingress", "Job", "Pod", "Service", "StatefulSet")

Look = Callable[[str, str, str, str], Values | None]  # apiVersion, kind, namespace and name of another object


@dataclass(frozen=True)
class Verdict:
    done: bool
    reasons: tuple[str, ...] = ()  # why not
    failed: bool = False  # and it never will be
    settling: str = ""  # what must stay as it is for a while


def annotation(object: Values, name: str) -> str:
    value = (at(object, "metadata.annotations") or {}).get(PREFIX + name)
    return value if isinstance(value, str) else ""


def skips(inputs: Values) -> bool:
    return annotation(inputs, "skipAwait") == "true"


def propagation(inputs: Values) -> str:
    """What becomes of the objects that belong to one that is deleted."""
    named = annotation(inputs, "deletionPropagationPolicy").capitalize()
    return named if named in ("Orphan", "Background") else "Foreground"


def patience(timeout: float, inputs: Values) -> float:
    """How long to wait: what the resource's options say, else its annotation, else 10 minutes."""
    seconds = annotation(inputs, "timeoutSeconds")
    return timeout or (float(seconds) if seconds.isdigit() else 600.0)


# The annotation `waitFor`.


def expressions(inputs: Values) -> list[str]:
    text = annotation(inputs, "waitFor")
    if not text.startswith("["):
        return [text] if text else []
    found = json.loads(text)
    if not found:
        raise CloudError("at least one condition must be specified")
    return [str(one) for one in found]


def matches(expression: str, live: Values) -> bool:
    """Whether an object is what one expression of `waitFor` waits for."""
    kind, _, text = expression.partition("=")
    if kind == "condition":
        name, _, status = text.partition("=")
        return condition(live, name).get("status") == (status or "True")
    if kind != "jsonpath":
        raise CloudError(f'expected a "jsonpath=" or "condition=" prefix, got "{expression}"')
    found = re.fullmatch(r"\{\$?(\..*?)\}(?:=(.+))?", text)
    if not found:
        raise CloudError(f"{text} should be wrapped in brackets {{ ... }}")
    value = selected(live, found[1])
    if found[2] is None or value is None:
        return value is not None
    if isinstance(value, dict | list):
        raise CloudError(f'"{found[1]}" has a non-primitive value')
    return found[2] == (json.dumps(value) if isinstance(value, bool) else str(value))


def selected(value: Any, path: str) -> Any:
    """The value at a JSONPath of names and indexes; filters and wildcards are not known here."""
    parts = re.findall(r"\.([\w-]+)|\[(\d+)\]|\[['\"](.+?)['\"]\]", path)
    if "".join(re.findall(r"\.[\w-]+|\[\d+\]|\[['\"].+?['\"]\]", path)) != path:
        raise CloudError(f"the simulated cloud does not know the JSONPath {path}: it needs more in tests/cloud/ready.py")
    for name, index, quoted in parts:
        if index:
            value = value[int(index)] if isinstance(value, list) and int(index) < len(value) else None
        else:
            value = value.get(name or quoted) if isinstance(value, dict) else None
    return value


# By kind.


def condition(live: Values, type: str) -> Values:
    found = [one for one in at(live, "status.conditions") or [] if one.get("type", "").lower() == type.lower()]
    return found[0] if found else {}


def holds(live: Values, type: str) -> bool:
    return bool(condition(live, type).get("status") == "True")


def observed(live: Values) -> bool:
    """Whether the controller has seen the object as it is now."""
    return bool(at(live, "status.observedGeneration") == at(live, "metadata.generation"))


def job(live: Values, _: Look) -> Verdict:
    failed = condition(live, "Failed")
    if failed.get("status") == "True" and failed.get("reason") in ("BackoffLimitExceeded", "DeadlineExceeded"):
        return Verdict(False, (f"[{failed['reason']}] {failed.get('message', '')}",), failed=True)
    return Verdict(bool(at(live, "status.startTime")) and holds(live, "Complete"))


def pod(live: Values, _: Look) -> Verdict:
    ready = holds(live, "Ready") or at(live, "status.phase") == "Succeeded"
    return Verdict(holds(live, "PodScheduled") and holds(live, "Initialized") and ready, tuple(pod_messages([live])))


def deployment(live: Values, _: Look) -> Verdict:
    progressing = condition(live, "Progressing")
    rolled = progressing.get("status") == "True" and progressing.get("reason") == "NewReplicaSetAvailable"
    done = observed(live) and rolled and holds(live, "Available")
    messages = [f"[{one['reason']}] {one.get('message', '')}" for one in (condition(live, "Available"), progressing) if one]
    return Verdict(done, () if done else (*messages, "Minimum number of live Pods was not attained"))


def stateful_set(live: Values, _: Look) -> Verdict:
    wanted, status = at(live, "spec.replicas"), live.get("status", {})
    current = status.get("currentRevision") == status.get("updateRevision")
    done = observed(live) and current and status.get("readyReplicas", 0) == wanted
    return Verdict(done, () if done else ("Failed to observe the expected number of ready replicas",))


def daemon_set(live: Values, _: Look) -> Verdict:
    status = live.get("status", {})
    wanted = status.get("desiredNumberScheduled", 0)
    return Verdict(observed(live) and wanted == status.get("updatedNumberScheduled", 0) == status.get("numberAvailable", 0))


def service(live: Values, look: Look) -> Verdict:
    external = at(live, "spec.type") == "LoadBalancer" and not at(live, "status.loadBalancer.ingress")
    reasons = ("Service was not allocated an IP address; does your cloud provider support this?",) if external else ()
    targets_pods = at(live, "spec.selector") and at(live, "spec.clusterIP") != "None" and at(live, "spec.type") != "ExternalName"
    if not targets_pods:
        return Verdict(not external, reasons)
    endpoints = look("v1", "Endpoints", live["metadata"]["namespace"], live["metadata"]["name"])
    unready = endpoints is None or any(one.get("notReadyAddresses") for one in endpoints.get("subsets") or [])
    if unready:
        reasons = (
            "Service does not target any Pods. Selected Pods may not be ready, or field '.spec.selector' may not match labels on any Pods",
            *reasons,
        )
    return Verdict(not unready and not external, reasons, settling=str(at(endpoints or {}, "metadata.resourceVersion")))


def ingress(live: Values, _: Look) -> Verdict:
    done = bool(at(live, "status.loadBalancer.ingress"))
    return Verdict(done, () if done else ("Ingress .status.loadBalancer field was not updated with a hostname/IP address",))


def volume(live: Values, _: Look) -> Verdict:
    return Verdict(at(live, "status.phase") in ("Available", "Bound"))


def claim(live: Values, look: Look) -> Verdict:
    name = at(live, "spec.storageClassName")
    mode = (look("storage.k8s.io/v1", "StorageClass", "", name) or {}).get("volumeBindingMode") if name else ""
    phase = at(live, "status.phase")
    return Verdict(phase == "Bound" or (phase == "Pending" and mode == "WaitForFirstConsumer"))


def quota(live: Values, _: Look) -> Verdict:
    return Verdict(at(live, "spec.hard") == at(live, "status.hard"))


READY: dict[str, Callable[[Values, Look], Verdict]] = {
    "apps/v1/DaemonSet": daemon_set,
    "apps/v1/Deployment": deployment,
    "apps/v1/StatefulSet": stateful_set,
    "batch/v1/Job": job,
    "networking.k8s.io/v1/Ingress": ingress,
    "v1/PersistentVolume": volume,
    "v1/PersistentVolumeClaim": claim,
    "v1/Pod": pod,
    "v1/ResourceQuota": quota,
    "v1/Service": service,
}


def by_kind(live: Values, look: Look) -> Verdict:
    rule = READY.get(f"{live['apiVersion']}/{live['kind']}")
    return rule(live, look) if rule else Verdict(True)


def asked_for(inputs: Values, live: Values, look: Look) -> Verdict:
    """What a creation or a change waits for: the annotation, where there is one, else what the kind says."""
    if skips(inputs):
        return Verdict(True)
    if wanted := expressions(inputs):
        missing = tuple(f"Waiting for {one}" for one in wanted if not matches(one, live))
        return Verdict(not missing, missing)
    return by_kind(live, look)


def pod_messages(pods: Iterable[Values]) -> list[str]:
    """What is wrong with the containers of some pods, in the plugin's words; a container's termination message is the only log it shows."""
    found = []
    for one in pods:
        name = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
        for status in at(one, "status.containerStatuses") or []:
            waiting, ended = at(status, "state.waiting") or {}, at(status, "state.terminated") or {}
            if status.get("ready") or waiting.get("reason") == "ContainerCreating" or not (waiting or ended.get("reason")):
                continue
            message = waiting.get("message", "") if waiting else ended.get("message", "")
            if waiting or message:
                found.append(f"[Pod {name}]: [{(waiting or ended).get('reason')}] {message}")
            else:
                found.append(f'[Pod {name}]: container "{status["name"]}" completed with exit code {ended.get("exitCode")}')
    return found
