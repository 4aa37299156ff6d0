"""Kubernetes' rules: one for every type, and the fields that pulumi-kubernetes cannot change in place.

Objects are checked against the API's own schemas and kept, and nothing more: no controller runs, a Job never has pods, everything counts
as ready at once. The same plugin on a real server is in server.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.cloud import google
from tests.cloud.kinds import Fields, Kind, Parent, Values, at

if TYPE_CHECKING:  # they take their time, and the simulated gcloud, which is started anew for each command, has no use for them
    import jsonschema
    import referencing

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

# The fields that the options of a provider make changeable, as long as the object is not immutable.
CHANGEABLE = {"ConfigMap": ("enableConfigMapMutable", ("data", "binaryData")), "Secret": ("enableSecretMutable", ("data", "stringData"))}

# What the plugin would change in place and the server refuses to: a program that changes one of these has to ask for a replacement.
IMMUTABLE = {
    "Job": ("spec.backoffLimitPerIndex", "spec.completionMode", "spec.managedBy", "spec.podFailurePolicy", "spec.successPolicy"),
    "PersistentVolumeClaim": ("spec.dataSource", "spec.volumeMode"),
}

SCHEMAS = "kubernetes-json-schema/v1.36.0-local-strict"

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


def changeable(name: str, inputs: Values, configuration: Mapping[str, str]) -> tuple[str, ...]:
    option, fields = CHANGEABLE.get(name, ("", ()))
    return fields if configuration.get(option) == "true" and not inputs.get("immutable") else ()


@functools.cache
def definitions() -> referencing.Registry[Any]:
    import kubernetes_validate.utils as schemas
    import referencing

    return referencing.Resource.from_contents(schemas.schema_contents(f"{SCHEMAS}/_definitions.json", "1.36")) @ referencing.Registry()


@functools.cache
def validator(api_version: str, name: str) -> jsonschema.Draft202012Validator | None:
    """None for a kind that Kubernetes itself does not have."""
    import jsonschema
    import kubernetes_validate.utils as schemas

    group, _, version = api_version.rpartition("/")
    file = "-".join(part for part in (name.lower(), group.partition(".")[0], version) if part)
    try:
        schema = schemas.schema_contents(f"{SCHEMAS}/{file}.json", "1.36")
    except FileNotFoundError:
        return None
    return jsonschema.Draft202012Validator(schema, registry=definitions())


def refuses(type: str, inputs: Values, old: Values | None) -> str:
    """What a server with strict field validation says of an object, or of a change of it."""
    _, module, name = type.split(":")
    whole = {"apiVersion": module.removeprefix("core/"), "kind": name, **inputs}
    for field in IMMUTABLE.get(name, ()):
        if old and at(old, field) != at(inputs, field):
            return f'{name} "{at(inputs, "metadata.name")}" is invalid: {field}: Invalid value: {at(inputs, field)}: field is immutable'
    from jsonschema.exceptions import best_match

    found = validator(whole["apiVersion"], whole["kind"])
    error = best_match(found.iter_errors(whole)) if found else None
    if not error:
        return ""
    where = ".".join(str(part) for part in error.absolute_path)
    return f'{name} in version "{whole["apiVersion"]}" cannot be handled as a {name}: {where}: {error.message}'


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
        changeable=functools.partial(changeable, name),
        refuses=functools.partial(refuses, type),
        outputs=object_outputs,
        taken=f'{name} "{{id}}" already exists',
        missing='namespaces "{id}" not found',
        scope="cluster",
    )
