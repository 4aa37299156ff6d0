"""The step between a stack's namespace and its cluster: it is deleted only when no disk of the stack is left.

Deleting a claim is not deleting its disk: Kubernetes does that later, and only while there is a cluster. So what stands before the namespace waits, when
the namespace is gone, until every PersistentVolume that a claim in it had is gone too. Volumes that their class retains are nobody's to wait for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider, UpdateResult

PATIENCE = 900.0  # seconds
LOOK_EVERY = 3.0


class DisksError(Exception):
    """Disks that stay; its text says which, and what to do."""


def client(kubeconfig: str, context: str | None) -> Any:
    """The official client. TRAINSTACK_KUBECONFIG names another kubeconfig to use, where a tunnel leads to the cluster."""
    import yaml
    from kubernetes import client as api
    from kubernetes import config

    if other := os.environ.get("TRAINSTACK_KUBECONFIG"):
        return api.CoreV1Api(config.new_client_from_config(other))
    if kubeconfig:
        return api.CoreV1Api(config.new_client_from_config_dict(yaml.safe_load(kubeconfig), context))
    return api.CoreV1Api(config.new_client_from_config(context=context))


def left(volumes: list[Any], namespace: str) -> list[str]:
    """The volumes that claims in a namespace had, and that go with them."""
    return [
        volume.metadata.name
        for volume in volumes
        if volume.spec.claim_ref
        and volume.spec.claim_ref.namespace == namespace
        and volume.spec.persistent_volume_reclaim_policy == "Delete"
    ]


def wait(look: Callable[[], list[str]], patience: float = PATIENCE, every: float = LOOK_EVERY) -> None:
    until = time.monotonic() + patience
    while found := look():
        if time.monotonic() > until:
            raise DisksError(
                f"these disks are still there and would be paid for after the cluster is gone: {', '.join(found)}; see why with `kubectl describe pv "
                f"{found[0]}`, delete them, and run `pulumi destroy` again"
            )
        time.sleep(every)


class Provider(ResourceProvider):
    serialize_as_secret_always = False  # it holds nothing

    def create(self, props: dict[str, Any]) -> CreateResult:
        return CreateResult(props["namespace"], props)

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        return DiffResult(changes=olds != news, replaces=["namespace"] if olds["namespace"] != news["namespace"] else [])

    def update(self, _id: str, _olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        return UpdateResult(news)

    def delete(self, _id: str, props: dict[str, Any]) -> None:
        from kubernetes.client import ApiException
        from kubernetes.config import ConfigException
        from urllib3.exceptions import HTTPError

        try:
            connection = client(props["kubeconfig"], props["context"] or None)
            wait(lambda: left(connection.list_persistent_volume().items, props["namespace"]))
        except (ApiException, ConfigException, HTTPError) as error:
            raise DisksError(
                f"the cluster does not say which disks are left ({getattr(error, 'reason', None) or error}); see that `kubectl get pv` works and run `pulumi destroy` "
                "again, or, if the cluster is gone, look for disks in the console and run `pulumi state delete` with this step's URN first"
            ) from None


class Disks(Resource, module="trainstack", name="Disks"):
    def __init__(self, name: str, namespace: str, kubeconfig: pulumi.Input[str], context: str | None, opts: pulumi.ResourceOptions) -> None:
        super().__init__(Provider(), name, {"namespace": namespace, "kubeconfig": kubeconfig, "context": context or ""}, opts)
