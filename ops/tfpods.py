"""The pods of one role of a TFJob, as far as a role of a training can be that. Pure; ops/tfjob.py puts the roles together.

Nothing is left out in silence: what has no equal here, or another one than it had there, is said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

from ops.target import OpsError
from settings import ACCELERATOR_LABELS

Document = Mapping[str, Any]
Say = Callable[[str, str], None]  # what it is about, and what becomes of it

CONTAINER, PORT_NAME, PORT = "tensorflow", "tfjob-port", 2222  # the names that Kubeflow's operator looks for, and its default
ENTRYPOINT = "ENTRYPOINT-OF-THE-IMAGE"
KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
ALWAYS_THERE = ("/tmp", "/dev/shm")  # every task has them, in memory
ACCELERATOR, SPOT = "cloud.google.com/gke-accelerator", ("cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible")
GPUS = ("nvidia.com/gpu", "alpha.kubernetes.io/nvidia-gpu")
MEMORY_UNITS = {
    **{unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), 1)},
    **{unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T", "P"), 1)},
}

NO_EQUAL = "it has no equal here and is left out."
RESTRICTED = "Pod Security `restricted`, under which all tasks run, does not have it; it is left out."
POD = {
    "serviceAccountName": "tasks run as an account of Trainstack's own and without a token; on GKE it is a Google identity (docs/security.md).",
    "serviceAccount": "tasks run as an account of Trainstack's own and without a token; on GKE it is a Google identity (docs/security.md).",
    "automountServiceAccountToken": "tasks have no token of the cluster, so nothing in them can ask its API.",
    "initContainers": "what they prepare is a data_prep, which runs once and before all tasks, or belongs into the image; they are left out.",
    "hostNetwork": RESTRICTED,
    "hostPID": RESTRICTED,
    "hostIPC": RESTRICTED,
    "dnsPolicy": "tasks find each other by the cluster's DNS; it is left out.",
    "dnsConfig": "tasks find each other by the cluster's DNS; it is left out.",
    "priorityClassName": "tasks have the cluster's default priority; it is left out.",
    "affinity": "tasks prefer one zone, and parameter servers different nodes; what more is needed is a node_selector or a toleration.",
    "topologySpreadConstraints": "tasks prefer one zone, and parameter servers different nodes; they are left out.",
    "schedulerName": "the cluster's default scheduler places the tasks; it is left out.",
    "securityContext": "every task runs as user 10001, with no rights and a root that cannot be written to; what the image needs must be so.",
    "imagePullSecrets": "tasks have none: the nodes, or the account `trainer` of the stack's namespace, must be able to pull the image.",
    "terminationGracePeriodSeconds": "every task has 120 s to save when it is told to end.",
}
CONTAINER_KEYS = {
    "securityContext": POD["securityContext"],
    "envFrom": "what it brings is not known here; write it in env, and what is secret with `pulumi config set --secret --path trainstack:secrets.NAME`.",
    "livenessProbe": "the launcher answers for its command, and Kubernetes asks it; it is left out.",
    "readinessProbe": "the launcher answers for its command, and Kubernetes asks it; it is left out.",
    "startupProbe": "the launcher answers for its command, and Kubernetes asks it; it is left out.",
    "lifecycle": "a command is told of the end by SIGTERM and has 120 s to save; it is left out.",
}
VOLUMES = {
    "emptyDir": "what a task writes has to be on a claim or gs:// to outlive it, and /tmp is there for the rest; it is left out.",
    "hostPath": RESTRICTED,
    "configMap": "files of the program belong into the image, and values into env; it is left out.",
    "secret": "secrets are environment variables here, by `pulumi config set --secret --path trainstack:secrets.NAME`; it is left out.",
    "nfs": "make a persistent volume and a claim for it, and write the claim in volumes; it is left out.",
}


@dataclass
class Pods:
    """What the pods of one role are."""

    title: str  # as the TFJob calls the role: Worker
    replicas: int
    restart_policy: str
    image: str = ""
    command: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    port: int = PORT
    amounts: dict[str, Any] = field(default_factory=dict)  # cpu, memory, gpus, accelerator and spot of the role
    volumes: list[dict[str, str]] = field(default_factory=list)  # each a claim or a bucket, and its path
    credentials: dict[str, str] = field(default_factory=dict)
    selector: dict[str, str] = field(default_factory=dict)
    tolerations: list[dict[str, Any]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)

    def say(self, about: str, sentence: str) -> None:
        self.notes.append((about, sentence))


def read(title: str, spec: Document) -> Pods:
    """The pods of a replica spec."""
    template = mapping(spec.get("template"), f"{title}.template")
    pod = mapping(template.get("spec"), f"{title}.template.spec")
    pods = Pods(title, _replicas(title, spec), str(spec.get("restartPolicy") or "Never"))
    left_out(spec, ("replicas", "restartPolicy", "template"), {}, pods.say)
    metadata_left_out(mapping(template.get("metadata"), f"{title}.template.metadata"), pods.say)
    container = _container(title, pod, pods.say)
    pods.image = str(container.get("image") or "")
    secret = _environment(pods, container)
    pods.command = _command(pods, container, secret)
    pods.port = _port(pods, container)
    _amounts(pods, mapping(container.get("resources"), f"{title}.resources"))
    _placement(pods, pod)
    _volumes(pods, pod, container)
    # The operator does not heed a pod's own restartPolicy, and an image by digest is always the same.
    left_out(pod, ("containers", "volumes", "nodeSelector", "tolerations", "restartPolicy"), POD, pods.say)
    handled = ("name", "image", "command", "args", "env", "ports", "resources", "volumeMounts", "workingDir")
    left_out(container, (*handled, "imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy"), CONTAINER_KEYS, pods.say)
    return pods


# ------------------------------------------------------------------------------------------------------ YAML


def mapping(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise OpsError(f"{where} is {value!r}, not a mapping of keys to values; correct the TFJob.")
    return value


def listing(value: Any, where: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise OpsError(f"{where} is {value!r}, not a list; correct the TFJob.")
    return [mapping(each, f"{where}.{index}") for index, each in enumerate(value)]


def words(value: Any, where: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, str | int | float) for each in value):
        raise OpsError(f"{where} is {value!r}, not a list of words; correct the TFJob.")
    return [str(each) for each in value]


def whole(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise OpsError(f"{where} is {value!r}, not a whole number; correct the TFJob.")
    return value


def left_out(found: Document, handled: Iterable[str], reasons: Mapping[str, str], say: Say, of: str = "") -> None:
    """Says of every key that nobody has handled what becomes of it. What is empty, 0 or false asks for nothing."""
    for key, value in found.items():
        if key not in handled and value:
            say(f"{of}{key}", reasons.get(key, NO_EQUAL))


def metadata_left_out(metadata: Document, say: Say) -> None:
    """Labels and annotations; what a server adds, and what keeps Istio away, which never comes here, asks for nothing."""
    left_out(metadata, ("name", "generateName", "namespace", "labels", "annotations", *ADDED_BY_THE_SERVER), {}, say)
    for kind in ("labels", "annotations"):
        for key, value in mapping(metadata.get(kind), kind).items():
            if (key, str(value)) != ("sidecar.istio.io/inject", "false") and key != "kubectl.kubernetes.io/last-applied-configuration":
                say(f"{kind} {key}", f"the objects of a training have {kind} of Trainstack's own; it is left out.")


ADDED_BY_THE_SERVER = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink")


# ------------------------------------------------------------------------------------------------- the container


def _replicas(title: str, spec: Document) -> int:
    written = spec.get("replicas")
    return 1 if written is None else whole(written, f"{title}.replicas")


def _container(title: str, pod: Document, say: Say) -> dict[str, Any]:
    containers = listing(pod.get("containers"), f"{title}.containers")
    found = next((each for each in containers if each.get("name") == CONTAINER), None)
    if found is None:
        raise OpsError(f"{title} has no container named {CONTAINER}, which Kubeflow wants, too; name the one that trains so.")
    for other in containers:
        if other is not found:
            say(f"container {other.get('name')}", "a task has one container; start what it does with the command, or leave it out as here.")
    return found


def _environment(pods: Pods, container: Document) -> set[str]:
    """Fills in what is known, and returns the names of what is not."""
    unknown = set()
    for each in listing(container.get("env"), f"{pods.title}.env"):
        name, source = str(each.get("name")), mapping(each.get("valueFrom"), f"{pods.title}.env.valueFrom")
        if name in ("TF_CONFIG", "TF_USE_LEGACY_KERAS") or name.startswith("TRAINSTACK_"):
            pods.say(f"env {name}", "Trainstack sets it itself; it is left out.")
        elif source:
            unknown.add(name)
            pods.say(f"env {name}", _unknown(name, source))
        else:
            pods.env[name] = expanded(str(each.get("value") or ""), pods.env)
    return unknown


def _unknown(name: str, source: Document) -> str:
    kind, reference = next(iter(source.items()))
    reference = reference if isinstance(reference, dict) else {}
    where = f"{reference.get('key')} of {reference.get('name')}"
    if kind == "secretKeyRef":
        return f"its value is {where}, a Secret that is not read here; run `pulumi config set --secret --path trainstack:secrets.{name}`."
    if kind == "configMapKeyRef":
        return f"its value is {where}, a ConfigMap that is not read here; write the value in env."
    return f"its value comes by {kind}, which has no equal here; it is left out."


def expanded(text: str, env: Mapping[str, str]) -> str:
    """With $(NAME) filled in as Kubernetes does it: what is not known stays, and two dollar signs are one. Here they are never filled in later."""
    return re.sub(r"\$\$|\$\(([^)]+)\)", lambda found: "$" if found[1] is None else env.get(found[1], found[0]), text)


def _command(pods: Pods, container: Document, unknown: set[str]) -> list[str]:
    start, rest = (words(container.get(key), f"{pods.title}.{key}") for key in ("command", "args"))
    for name in sorted(unknown):
        if any(f"$({name})" in word for word in (*start, *rest)):
            pods.say(
                "command", f"$({name}) in it is not known here and stays as it is; let a shell fill it in (sh -c), or the script read it."
            )
    if not start:
        pods.say("command", f"the image's own entrypoint is not known here; write it in place of {ENTRYPOINT} (`docker inspect` shows it).")
        start = [ENTRYPOINT]
    if folder := container.get("workingDir"):
        pods.say("workingDir", "it is written as `env --chdir`, which GNU's env understands.")
        start = ["env", f"--chdir={folder}", *start]
    return [expanded(word, pods.env) for word in (*start, *rest)]


def _port(pods: Pods, container: Document) -> int:
    found = PORT
    for each in listing(container.get("ports"), f"{pods.title}.ports"):
        if each.get("name") == PORT_NAME:
            found = whole(each.get("containerPort"), f"{pods.title}.ports.containerPort")
        else:
            pods.say(
                f"port {each.get('containerPort')}", "tasks can be reached at their one port, and by each other alone; it is left out."
            )
    return found


# ------------------------------------------------------------------------------------------------------- amounts


def _amounts(pods: Pods, resources: Document) -> None:
    asked, most = (mapping(resources.get(key), f"{pods.title}.resources.{key}") for key in ("requests", "limits"))
    left_out(resources, ("requests", "limits"), {}, pods.say)
    for name in dict.fromkeys((*most, *asked)):
        value = most.get(name, asked.get(name))
        if name in GPUS:
            if str(value).isdecimal() and int(str(value)):
                pods.amounts["gpus"] = int(str(value))
        elif name in ("cpu", "memory") and (amount := (cpus if name == "cpu" else memory)(value)) is not None:
            pods.amounts[name] = amount
            if name in asked and name in most and str(asked[name]) != str(most[name]):
                pods.say(name, f"it asks for {asked[name]} and may use {most[name]}; here a task has what it asks for, so it is {amount}.")
        else:
            pods.say(f"resource {name}", f"{value} is left out; a task has cpu, memory and gpus of NVIDIA.")


def cpus(value: Any) -> int | str | None:
    """CPUs as the settings write them; nothing where they cannot."""
    text = str(value)
    if not re.fullmatch(r"\d+(\.\d+)?|\d+m", text) or not float(text.rstrip("m")):
        return None
    return int(text) if text.isdecimal() else text


def memory(value: Any) -> str | None:
    """Memory as the settings write it: a whole number with a unit, rounded up where it has to be."""
    if re.fullmatch(r"[1-9]\d*(Ki|Mi|Gi|Ti|k|M|G|T)", str(value)):
        return str(value)
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:[eE]\d+)?)([A-Za-z]*)", str(value))
    if not found or (found[2] and found[2] not in MEMORY_UNITS):
        return None
    size = Decimal(found[1]) * MEMORY_UNITS.get(found[2], 1)
    unit, name = (1024**2, "Mi") if size >= 1024**2 else (1024, "Ki")
    return f"{math.ceil(size / unit)}{name}" if size else None


# ----------------------------------------------------------------------------------------------------- placement


def _placement(pods: Pods, pod: Document) -> None:
    known = "the labels of the nodes are known on target gke and on another stack's cluster; elsewhere a task with gpus goes where there are GPUs."
    for key, value in ((key, str(value)) for key, value in mapping(pod.get("nodeSelector"), f"{pods.title}.nodeSelector").items()):
        if key == ACCELERATOR and value in ACCELERATOR_LABELS and pods.amounts.get("gpus"):
            pods.amounts["accelerator"] = ACCELERATOR_LABELS[value]
            pods.say("nodeSelector", f"{value} is accelerator: {ACCELERATOR_LABELS[value]} here; {known}")
        elif key in SPOT and value.lower() == "true":
            pods.amounts["spot"] = True
            pods.say("nodeSelector", f"{key} is spot: true here; {known}")
        else:
            pods.selector[key] = value
    for toleration in listing(pod.get("tolerations"), f"{pods.title}.tolerations"):
        pods.tolerations.append(
            {key: value for key, value in toleration.items() if key in ("key", "operator", "value", "effect") and value}
        )
        left_out(toleration, ("key", "operator", "value", "effect"), {}, pods.say, "tolerations, ")


# ------------------------------------------------------------------------------------------------------- volumes


def _volumes(pods: Pods, pod: Document, container: Document) -> None:
    volumes = {str(each.get("name")): each for each in listing(pod.get("volumes"), f"{pods.title}.volumes")}
    mounted = set()
    for mount in listing(container.get("volumeMounts"), f"{pods.title}.volumeMounts"):
        name, path = str(mount.get("name")), str(mount.get("mountPath"))
        if name not in volumes:
            raise OpsError(f"{pods.title} mounts {name}, and has no volume of this name; correct the TFJob.")
        mounted.add(name)
        if _mount(pods, volumes[name], path):
            if mount.get("readOnly"):
                pods.say(f"volume {name}", "it is mounted for reading there, and for writing here.")
            left_out(mount, ("name", "mountPath", "readOnly"), SUBPATH, pods.say, f"volume {name}, ")
    for name in (name for name in volumes if name not in mounted):
        pods.say(f"volume {name}", "the task does not mount it; it is left out.")


SUBPATH = {"subPath": "the whole volume is mounted at the path; write the folder behind the path where the program is told of it."}


def _mount(pods: Pods, volume: Document, path: str) -> bool:
    """Mounts a volume, or says why not."""
    kind = next((key for key in volume if key != "name"), "emptyDir")
    of = mapping(volume.get(kind), f"{pods.title}.volumes.{kind}")
    if kind == "persistentVolumeClaim":
        pods.volumes.append({"claim": str(of.get("claimName")), "path": path})
        return True
    if kind == "csi" and of.get("driver") == "gcsfuse.csi.storage.gke.io":
        pods.volumes.append({"bucket": str(mapping(of.get("volumeAttributes"), "volumeAttributes").get("bucketName")), "path": path})
        return True
    if kind == "secret" and PurePosixPath(pods.env.get(KEY_FILE, "/")).parent == PurePosixPath(path):
        file = PurePosixPath(pods.env.pop(KEY_FILE)).name
        key = next((str(each.get("key")) for each in listing(of.get("items"), "items") if each.get("path") == file), file)
        pods.credentials = {"mode": "key_secret", "secret": str(of.get("secretName")), "key": key}
        pods.say(f"volume {volume['name']}", f"it is credentials here, with {KEY_FILE} set; the Secret must be in the stack's namespace.")
    elif not (kind == "emptyDir" and path.rstrip("/") in ALWAYS_THERE):
        pods.say(f"volume {volume['name']}", f"{path} ({kind}): {VOLUMES.get(kind, NO_EQUAL)}")
    return False
