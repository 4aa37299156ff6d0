"""All trainings of a stack on one cluster: the step that waits for disks, the namespace, then each training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pulumi
from pulumi_kubernetes import Provider

from workloads.kubernetes.declare import declare
from workloads.kubernetes.disks import Disks
from workloads.kubernetes.namespace import Namespace
from workloads.kubernetes.training import KubernetesTraining
from workloads.kubernetes.wanted import Around, Wanted

if TYPE_CHECKING:
    import settings


class Trainings:
    def __init__(
        self,
        wanted: settings.Settings,
        around: Around,
        cluster: Provider,
        kubeconfig: pulumi.Input[str],
        annotations: Mapping[str, pulumi.Input[str]],
        before: Sequence[pulumi.Resource] = (),
        shared_class: Mapping[str, Any] | None = None,
    ) -> None:
        """`before`: what has to be there first, and to stay until everything here is gone. `shared_class`: a storage class to make."""
        first = list(before)
        if any(volume.create for training in wanted.trainings.values() for volume in training.volumes):
            waits = pulumi.ResourceOptions(depends_on=[*before, cluster])
            first.append(Disks("disks", around.namespace, kubeconfig, wanted.kubernetes.context, waits))
        on_cluster = pulumi.ResourceOptions(provider=cluster, depends_on=first)
        self.namespace = Namespace(
            "trainings", around.namespace, annotations, wanted.secrets, pulumi.ResourceOptions(providers=[cluster], depends_on=first)
        )
        if shared_class:
            first.append(declare("shared-class", shared_class, on_cluster))
        self.trainings = {
            name: KubernetesTraining(
                Wanted(name, training, around), pulumi.ResourceOptions(providers=[cluster], depends_on=[*first, self.namespace])
            )
            for name, training in wanted.trainings.items()
        }

    def outputs(self) -> dict[str, dict[str, str]]:
        """Where each training reads and writes, and how its TensorBoard is reached."""
        return {name: {**made.wanted.where, "namespace": made.wanted.around.namespace} for name, made in self.trainings.items()}


def filestore_class(name: str, network: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """ReadWriteMany on GKE is Filestore, and the classes that GKE brings make it in the network `default` only."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "labels": dict(labels)},
        "provisioner": "filestore.csi.storage.gke.io",
        "parameters": {"tier": "standard", "network": network},
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": True,
    }
