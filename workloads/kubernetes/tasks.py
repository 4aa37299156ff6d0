"""The tasks of a training: one Indexed Job a role, and the headless Service that gives them their addresses. Pure.

The number of objects does not grow with the replicas, and the addresses are known before anything runs. What a task's exit code means is
workloads/outcome.py's; a Job says it with its pod failure policy.
"""

from __future__ import annotations

from typing import Any

from workloads import outcome
from workloads.kubernetes import names, pods
from workloads.kubernetes.wanted import INDEX, Wanted
from workloads.topology import PARAMETER_SERVER

# A change of these makes another Job: the API server refuses to change them.
FIXED = [
    f"spec.{key}"
    for key in (
        "template",
        "completions",
        "parallelism",
        "completionMode",
        "backoffLimitPerIndex",
        "podFailurePolicy",
        "podReplacementPolicy",
    )
]


def service(wanted: Wanted) -> dict[str, Any]:
    """Names for the tasks' addresses, also before they are ready: they wait for each other."""
    port = wanted.training.port
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": wanted.metadata("tasks", {**names.AT_ONCE, "trainstack/run": wanted.about()}, name=wanted.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.PART_OF: wanted.around.namespace, names.TASKS: wanted.name},
            "ports": [{"name": "tensorflow", "port": port}, {"name": "launcher", "port": port + 1}],
        },
    }


def files(wanted: Wanted) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": wanted.metadata("launcher"), "data": wanted.files}


def job(wanted: Wanted, role: str, revision: Any) -> dict[str, Any]:
    training, count = wanted.training, wanted.counts[role]
    limits = {"activeDeadlineSeconds": training.deadline, "ttlSecondsAfterFinished": training.ttl_after_finished}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": wanted.metadata(role, {**names.AT_ONCE, **pods.SCANNERS}),
        "spec": {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            "backoffLimitPerIndex": training.max_restarts,
            "maxFailedIndexes": _may_fail(role, count, training.chosen_strategy),
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": failure_rules()},
            **{key: seconds for key, seconds in limits.items() if seconds is not None},
            "template": _template(wanted, role, revision),
        },
    }


def failure_rules() -> list[dict[str, Any]]:
    """The first that matches counts: a configuration error stays one when its node is being drained, too."""
    codes = {outcome.CONFIGURATION: "FailJob", outcome.GAVE_UP: "FailIndex", outcome.RETRY: "Ignore"}
    rules: list[dict[str, Any]] = [
        {"action": action, "onExitCodes": {"containerName": "task", "operator": "In", "values": [code]}} for code, action in codes.items()
    ]
    return [*rules, {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]


def _may_fail(role: str, count: int, strategy: str) -> int:
    """How many tasks may be out of restarts before the Job fails: workers of parameter servers all but one, of everything else none."""
    return count - 1 if role == "worker" and strategy == PARAMETER_SERVER else 0


def _probes() -> dict[str, Any]:
    """Ready is who can be asked; the addresses do not wait for it. A launcher looks after its command, and the kubelet after the launcher: who does
    not answer for half a minute is stopped or worse, and would not save anything if it had the time."""
    often = {"periodSeconds": 10, "timeoutSeconds": 5}
    patience = {"initialDelaySeconds": 30, "failureThreshold": 3, "terminationGracePeriodSeconds": 10}
    return {
        "readinessProbe": {"httpGet": {"path": "/", "port": "launcher"}, **often},
        "livenessProbe": {"httpGet": {"path": "/alive", "port": "launcher"}, **often, **patience},
    }


def _template(wanted: Wanted, role: str, revision: Any) -> dict[str, Any]:
    training = wanted.training
    options = [f"--grace={pods.GRACE}"]
    lead = training.topology.lead
    if role == lead.role:  # of which only number 0 is the lead
        # The evaluator is not among those whom the lead knows.
        options += [f"--farewell={training.peer_timeout}", f"--stall-timeout={training.stall_timeout}"]
        options += ["--tell=evaluator-0"] if "evaluator" in wanted.counts else []
    if role == "evaluator":
        options.append(f"--lead={wanted.lead}")
    elif wanted.tf_config(role) is None:
        options += [f"--cluster={pods.FILES}/cluster.json", f"--task={role}-$({INDEX})"]
    if training.command:
        options.append("--wait-for-servers")
    port, written = training.port, getattr(training, role)
    return pods.template(
        wanted,
        role,
        pods.run_by_launcher(wanted, options, wanted.command),
        env=[*pods.task_environment(wanted, role), {"name": pods.REVISION, "value": revision}],
        ports={"tensorflow": port, "launcher": port + 1},
        probes=_probes(),
        labels={names.TASKS: wanted.name},
        gpus=getattr(written, "gpus", 0),
        apart=role == "ps",
        subdomain=wanted.name,
        restartPolicy="Never",
        terminationGracePeriodSeconds=pods.GRACE,
    )
