"""From a manifest to the Pulumi resource of its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pulumi
from pulumi_kubernetes import apiextensions
from pulumi_kubernetes.apps import v1 as apps
from pulumi_kubernetes.batch import v1 as batch
from pulumi_kubernetes.core import v1 as core
from pulumi_kubernetes.networking import v1 as networking
from pulumi_kubernetes.policy import v1 as policy
from pulumi_kubernetes.storage import v1 as storage

KINDS: Mapping[str, Callable[..., pulumi.CustomResource]] = {
    "BackendConfig": apiextensions.CustomResource,
    "ConfigMap": core.ConfigMap,
    "Deployment": apps.Deployment,
    "Ingress": networking.Ingress,
    "Job": batch.Job,
    "Namespace": core.Namespace,
    "NetworkPolicy": networking.NetworkPolicy,
    "PersistentVolumeClaim": core.PersistentVolumeClaim,
    "Pod": core.Pod,
    "PodDisruptionBudget": policy.PodDisruptionBudget,
    "Service": core.Service,
    "StorageClass": storage.StorageClass,
}


def declare(name: str, manifest: Mapping[str, Any], opts: pulumi.ResourceOptions) -> pulumi.CustomResource:
    """Manifests are written as Kubernetes writes them, so the fields go to the SDK under the same names."""
    kind = manifest["kind"]
    known = ("apiVersion", "kind") if KINDS[kind] is not apiextensions.CustomResource else ()
    fields = {_snake(key): value for key, value in manifest.items() if key not in known}
    return KINDS[kind](name, **fields, opts=opts)


def _snake(key: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)
