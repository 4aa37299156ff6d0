"""What a cluster that is there already has to offer: it answers, it is new enough, and whoever runs `pulumi up` may make in it what a stack makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ops.doctor.finding import OK, PROBLEM, UNKNOWN, Finding
from ops.doctor.machine import numbers
from ops.doctor.stack import Subject
from ops.target import OpsError

if TYPE_CHECKING:
    from ops.connection import Cluster
    from settings import Settings

GROUP = "the cluster"
OLDEST = (1, 29)  # the first in which Jobs have backoffLimitPerIndex and podReplacementPolicy without being asked for
GPU = "nvidia.com/gpu"
# What is made of each kind, by its API group; a test holds the kinds equal to those that a stack can declare.
KINDS = {
    "ConfigMap": ("", "configmaps"),
    "Deployment": ("apps", "deployments"),
    "Ingress": ("networking.k8s.io", "ingresses"),
    "Job": ("batch", "jobs"),
    "Namespace": ("", "namespaces"),
    "NetworkPolicy": ("networking.k8s.io", "networkpolicies"),
    "PersistentVolumeClaim": ("", "persistentvolumeclaims"),
    "Pod": ("", "pods"),
    "PodDisruptionBudget": ("policy", "poddisruptionbudgets"),
    "Secret": ("", "secrets"),
    "Service": ("", "services"),
    "ServiceAccount": ("", "serviceaccounts"),
}
ALWAYS = ("Namespace", "ServiceAccount", "ConfigMap", "NetworkPolicy", "Service", "Job", "PodDisruptionBudget")


def findings(subject: Subject) -> list[Finding]:
    if subject.missing or not subject.written:
        return [Finding(GROUP, "connection", UNKNOWN, f"{subject.unread}.")]
    from ops.connection import connect

    try:
        cluster = connect(subject.name, subject.written)
        version = cluster.version()
    except OpsError as error:
        return [Finding(GROUP, "connection", PROBLEM, str(error))]
    found = [Finding(GROUP, "connection", OK, f"{cluster.configuration.host} answers"), _version(version)]
    try:
        found += [_permissions(cluster, subject.settings)]
        if subject.settings:
            found += _gpus(cluster, subject.settings)
    except OpsError as error:
        found.append(Finding(GROUP, "permissions", UNKNOWN, str(error)))
    return found


def silent(seconds: float) -> Finding:
    sentence = f"the cluster had not answered after {seconds:.0f} s; check that it is up and that this machine reaches it."
    return Finding(GROUP, "connection", PROBLEM, sentence)


def _version(version: str) -> Finding:
    if numbers(version)[:2] < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        sentence = f"{version} is too old: its Jobs cannot count restarts by index; upgrade the cluster to {oldest} or newer."
        return Finding(GROUP, "version", PROBLEM, sentence)
    return Finding(GROUP, "version", OK, version)


def _permissions(cluster: Cluster, settings: Settings | None) -> Finding:
    """A namespace is no namespace's, and so needs more than the role `admin` of one."""
    wanted = kinds(settings)
    missing = [kind for kind in wanted if not cluster.allows("create", *KINDS[kind], namespaced=kind != "Namespace")]
    if missing:
        sentence = (
            f"you may not create {', '.join(KINDS[kind][1] for kind in missing)} there; ask the cluster's owner for the role cluster-admin"
        )
        if "Namespace" not in missing:
            sentence = f"{sentence}, or admin in namespace {cluster.namespace}"
        return Finding(GROUP, "permissions", PROBLEM, f"{sentence}.")
    return Finding(GROUP, "permissions", OK, f"you may create all {len(wanted)} kinds of objects")


def kinds(settings: Settings | None) -> list[str]:
    """What the trainings of a stack are made of; all there can be where they are not known."""
    if settings is None:
        return list(KINDS)
    trainings = settings.trainings.values()
    more = {
        "Secret": bool(settings.secrets),
        "Deployment": any(each.serving for each in trainings),
        "Ingress": any(each.tensorboard and each.tensorboard.expose == "ingress" for each in trainings),
        "PersistentVolumeClaim": any(volume.create for each in trainings for volume in each.volumes),
        "Pod": any(each.inspector for each in trainings),
    }
    return [*ALWAYS, *(kind for kind, used in more.items() if used)]


def _gpus(cluster: Cluster, settings: Settings) -> Iterator[Finding]:
    """Whether some node has as many GPUs as one task asks for. Nodes that an autoscaler would make are not there yet, so this is no problem, only unknown."""
    asked = [getattr(each, role).gpus for each in settings.trainings.values() for role in ("chief", "worker") if getattr(each, role)]
    most = max(asked, default=0)
    if not most:
        return
    there = [int(node["status"].get("allocatable", {}).get(GPU, 0)) for node in cluster.nodes()]
    if max(there, default=0) >= most:
        yield Finding(GROUP, "GPUs", OK, f"{sum(there)} on its nodes, a task asks for {most}")
    else:
        sentence = f"no node that is there now offers the {most} that a task asks for; without an autoscaler that makes one, its pods would wait for ever."
        yield Finding(GROUP, "GPUs", UNKNOWN, sentence)
