"""What every object of a stack keeps, whatever the settings: the schema of Kubernetes 1.36, Pod Security `restricted`, and the rules of the house."""

from __future__ import annotations

import re
from collections.abc import Iterator

import jsonschema
from jsonschema.exceptions import best_match

from tests.cloud import kubernetes as cloud
from tests.kubernetes.made import NAMESPACE, Manifest, template_of

# Kinds that Kubernetes itself does not have, and how they are described where they come from.
OTHERS = {
    "BackendConfig": {
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"const": "cloud.google.com/v1"},
            "spec": {
                "type": "object",
                "additionalProperties": False,
                "required": ["securityPolicy"],
                "properties": {
                    "securityPolicy": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "minLength": 1}}},
                    "healthCheck": {"type": "object"},
                },
            },
        },
    }
}
VOLUMES = {"configMap", "csi", "emptyDir", "persistentVolumeClaim", "secret"}  # all of them allowed by Pod Security `restricted`
COMPONENTS = {"chief", "worker", "ps", "evaluator", "tensorboard", "serving", "data-prep", "inspector"}
BESIDE_PODS = {"tasks", "launcher", "volume"}  # objects that are no pod's
OF_THE_STACK = {"Namespace", "ServiceAccount", "Secret", "StorageClass"}
MEMORY = {"/tmp", "/dev/shm", "/home/trainer"}
GRACE = {"task": 120, "tensorboard": 10, "serving": 30, "data-prep": 30, "inspector": 5}
SERVING_IMAGE = re.compile(r"tensorflow/serving:\d+\.\d+\.\d+(-gpu)?")


def broken(manifest: Manifest) -> list[str]:
    """Everything that is wrong with an object: with its schema, or with the rules of the house."""
    found = [_invalid(manifest), *_names(manifest)]
    template = template_of(manifest)
    if template:
        found += _pod(template["metadata"], template["spec"])
    return [each for each in found if each]


def _invalid(manifest: Manifest) -> str:
    kind = manifest["kind"]
    validator = jsonschema.Draft202012Validator(OTHERS[kind]) if kind in OTHERS else cloud.validator(manifest["apiVersion"], kind)
    if validator is None:
        return f"{manifest['apiVersion']} {kind} is not in the API of Kubernetes 1.36"
    error = best_match(validator.iter_errors(manifest))
    return f"{'.'.join(map(str, error.absolute_path))}: {error.message}" if error else ""


def _names(manifest: Manifest) -> Iterator[str]:
    metadata, kind = manifest["metadata"], manifest["kind"]
    labels = metadata.get("labels", {})
    longest = 63 if kind in ("Service", "Job", "Pod", "Namespace") else 253
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", metadata["name"]) or len(metadata["name"]) > longest:
        yield f"name {metadata['name']}"
    if kind not in ("Namespace", "StorageClass") and metadata.get("namespace") != NAMESPACE:
        yield f"namespace {metadata.get('namespace')}"
    if labels.get("app.kubernetes.io/managed-by") != "trainstack" or labels.get("app.kubernetes.io/part-of") != NAMESPACE:
        yield f"labels of the stack: {labels}"
    if kind not in OF_THE_STACK and metadata["name"] != "default-deny":
        if not labels.get("app.kubernetes.io/name") or not labels.get("trainstack/run"):
            yield f"labels of the training: {labels}"
        if labels.get("app.kubernetes.io/component") not in COMPONENTS | BESIDE_PODS:
            yield f"component {labels.get('app.kubernetes.io/component')}"
    for key, value in labels.items():
        if len(value) > 63 or not re.fullmatch(r"([A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?)?", value):
            yield f"label {key}: {value!r}"
    if not all(isinstance(value, str) for value in metadata.get("annotations", {}).values()):
        yield "annotations are texts"


def _pod(metadata: Manifest, spec: Manifest) -> Iterator[str]:
    """Pod Security `restricted`, and what this project asks for besides."""
    labels = metadata["labels"]
    if (
        labels.get("app.kubernetes.io/component") not in COMPONENTS
        or not labels.get("app.kubernetes.io/name")
        or "trainstack/run" not in labels
    ):
        yield f"labels of the pod: {labels}"
    if metadata.get("annotations", {}).get("cluster-autoscaler.kubernetes.io/safe-to-evict") != "false":
        yield "a scale-down may evict it"
    if spec.get("automountServiceAccountToken") is not False or spec.get("serviceAccountName") != "trainer":
        yield "service account"
    if any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC", "hostUsers", "initContainers", "ephemeralContainers")):
        yield "host namespaces or other containers"
    security = spec.get("securityContext", {})
    if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "seccomp"
    if security.get("fsGroup", 0) < 10000:
        yield "fsGroup"
    (container,) = spec["containers"]
    for where in (security, container.get("securityContext", {})):
        if where.get("runAsNonRoot") is not True or where.get("runAsUser", 0) < 10000 or where.get("runAsGroup", 0) < 10000:
            yield f"user: {where}"
    own = container.get("securityContext", {})
    if own.get("allowPrivilegeEscalation") is not False or own.get("privileged") or own.get("readOnlyRootFilesystem") is not True:
        yield f"privileges: {own}"
    if own.get("capabilities") != {"drop": ["ALL"]}:
        yield f"capabilities: {own.get('capabilities')}"
    if any("hostPort" in port for port in container.get("ports", [])):
        yield "a port of the node"
    yield from _volumes(spec, container)
    resources = container["resources"]
    if resources.get("requests") != resources.get("limits") or not {"cpu", "memory"} <= set(resources.get("limits", {})):
        yield f"resources: {resources}"
    if not re.search(r"@sha256:[0-9a-f]{64}$", container["image"]) and not (
        container["name"] == "serving" and SERVING_IMAGE.fullmatch(container["image"])
    ):
        yield f"image {container['image']}"
    if spec.get("terminationGracePeriodSeconds") != GRACE[container["name"]]:
        yield f"grace of {container['name']}: {spec.get('terminationGracePeriodSeconds')}"
    if container.get("terminationMessagePolicy") != "FallbackToLogsOnError":
        yield "nobody hears its last words"
    names = [each["name"] for each in container["env"]]
    if len(set(names)) != len(names):
        yield f"variables that are there twice: {names}"


def _volumes(spec: Manifest, container: Manifest) -> Iterator[str]:
    volumes = {each["name"]: each for each in spec["volumes"]}
    if len(volumes) != len(spec["volumes"]):
        yield "two volumes of one name"
    for volume in volumes.values():
        kinds = set(volume) - {"name"}
        if len(kinds) != 1 or not kinds <= VOLUMES:
            yield f"volume of kind {kinds}"
    paths = [mount["mountPath"].rstrip("/") for mount in container["volumeMounts"]]
    if len(set(paths)) != len(paths):
        yield f"two volumes at one path: {paths}"
    if {mount["name"] for mount in container["volumeMounts"]} != set(volumes):
        yield "volumes and mounts do not agree"
    memory = {
        mount["mountPath"] for mount in container["volumeMounts"] if volumes.get(mount["name"], {}).get("emptyDir") == {"medium": "Memory"}
    }
    if memory != MEMORY:
        yield f"in memory: {memory}"
