"""Kubernetes' rules: one for every type, and the fields that pulumi-kubernetes cannot change in place.

Objects are kept, and nothing more: no controller runs, a Job never has pods, everything counts as ready at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.cloud import google
from tests.cloud.kinds import Fields, Kind, Parent, Values, at

NAMESPACE = "kubernetes:core/v1:Namespace"

# In every cluster from its start.
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")

# The kinds that live in no namespace.
CLUSTER_WIDE = (
    *("APIService", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "MutatingWebhookConfiguration", "Namespace", "Node"),
    *("PersistentVolume", "PriorityClass", "RuntimeClass", "StorageClass", "ValidatingWebhookConfiguration", "VolumeAttributesClass"),
)

REPLACES = {
    "ClusterRoleBinding": ("roleRef",),
    "ConfigMap": ("data", "binaryData"),
    "DaemonSet": ("spec.selector",),
    "Deployment": ("spec.selector",),
    "Job": ("spec.completions", "spec.parallelism", "spec.selector", "spec.template"),
    "PersistentVolumeClaim": ("spec.accessModes", "spec.selector", "spec.storageClassName", "spec.volumeName"),
    "Pod": ("spec",),
    "RoleBinding": ("roleRef",),
    "Secret": ("type", "data", "stringData"),
    "Service": ("spec.clusterIP",),
    "StatefulSet": ("spec.podManagementPolicy", "spec.selector", "spec.serviceName", "spec.volumeClaimTemplates"),
    "StorageClass": ("parameters", "provisioner"),
}

UNREACHABLE = (
    "configured Kubernetes cluster is unreachable: unable to load schema information from the API server. If the cluster has been deleted, "
    "you can edit the pulumi state to remove this resource or retry with the PULUMI_K8S_DELETE_UNREACHABLE environment variable set to true"
)


def object_fields(inputs: Values) -> Mapping[str, Any]:
    return {"name": at(inputs, "metadata.name"), "namespace": at(inputs, "metadata.namespace") or "default"}


def object_outputs(fields: Fields, inputs: Values) -> Values:
    uid = google.number(fields["cluster"] + fields["id"])
    outputs: Values = {"metadata": {"uid": uid, "creationTimestamp": fields["now"], "resourceVersion": "1", "generation": 1}}
    if at(inputs, "spec.type") == "LoadBalancer":
        outputs["status"] = {"loadBalancer": {"ingress": [{"ip": google.endpoint(uid)}]}}
    return outputs


def kind(type: str) -> Kind:
    name = type.rpartition(":")[2]
    in_cluster = Parent("cluster", google.CLUSTER, "remove")
    in_namespace = Parent("namespace", NAMESPACE, "remove", identify=lambda value, _: "" if value in NAMESPACES else value)
    return Kind(
        id="{name}" if name in CLUSTER_WIDE else "{namespace}/{name}",
        fields=object_fields,
        parents=(in_cluster,) if name in CLUSTER_WIDE else (in_cluster, in_namespace),
        autonamed="metadata.name",
        replaces=("apiVersion", "kind", "metadata.name", "metadata.namespace", *REPLACES.get(name, ())),
        outputs=object_outputs,
        taken=f'{name} "{{id}}" already exists',
        missing='namespaces "{id}" not found',
        scope="cluster",
    )
