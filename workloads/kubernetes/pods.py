"""The pods of a training, as Pod Security `restricted` wants them: no root, nothing to write to but memory and volumes, no token. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from workloads import reach
from workloads.kubernetes import names
from workloads.kubernetes.placement import GPU, affinity
from workloads.kubernetes.quantities import canonical
from workloads.kubernetes.wanted import INDEX, Wanted

if TYPE_CHECKING:
    from settings import Volume

USER = 10001
GRACE = 120  # seconds a task has to save
FILES = "/trainstack"  # where the launcher is
HOME = "/home/trainer"
KEYS = "/var/run/secrets/trainstack"
REVISION = "TRAINSTACK_REVISION"
GIBIBYTE_OF_DISK = {"ephemeral-storage": "1Gi"}
GKE_FUSE = {"gke-gcsfuse/volumes": "true"}
SCANNERS = {
    "checkov.io/skip1": "CKV_K8S_15=The image is named by its digest, so pulling it again could not bring another one",
    "kube-score/ignore": "container-image-pull-policy",
}


def literal(text: str) -> str:
    """Kubernetes expands $(NAME) in commands and values, and makes one dollar sign of two; what a person wrote stays as it is."""
    return text.replace("$", "$$")


def template(
    wanted: Wanted,
    component: str,
    command: Iterable[str],
    *,
    env: Iterable[Mapping[str, Any]] = (),
    ports: Mapping[str, int] | None = None,
    probes: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    gpus: int = 0,
    apart: bool = False,
    writes: bool = True,
    **spec: Any,
) -> dict[str, Any]:
    """A pod template with one container; what else a pod's `spec` says comes as keywords."""
    training = wanted.training
    volumes = reach.mounts(training, component, wanted.where)
    placement = wanted.placement(component)
    selector = {**placement.selector, **training.node_selector}
    tolerations = [dict(each) for each in placement.tolerations]
    tolerations += [each.model_dump(exclude_none=True) for each in training.tolerations]
    container = {
        "name": "task" if component in wanted.counts else component.replace("_", "-"),
        "image": wanted.image(component),
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "env": [*_environment(wanted), *env],
        **({"envFrom": [{"secretRef": {"name": names.SECRETS}}]} if wanted.around.secrets else {}),
        **({"ports": [{"name": name, "containerPort": port} for name, port in ports.items()]} if ports else {}),
        "resources": _resources(wanted, component, gpus),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",  # whoever waits for the pod hears its last words
        **(probes or {}),
        "volumeMounts": [*_own_mounts(wanted), *(_mount(_handle(wanted, volume), volume, writes) for volume in volumes)],
    }
    annotations = {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        **(GKE_FUSE if any(volume.bucket for volume in volumes) else {}),
    }
    return {
        "metadata": {"labels": {**wanted.labels(component), **(labels or {})}, "annotations": annotations},
        "spec": {
            "serviceAccountName": names.SERVICE_ACCOUNT,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **({"nodeSelector": selector} if selector else {}),
            **({"tolerations": tolerations} if tolerations else {}),
            "affinity": affinity({key: wanted.labels()[key] for key in (names.PART_OF, names.NAME)}, apart),
            "containers": [container],
            "volumes": [*_own_volumes(wanted), *(_volume(_handle(wanted, volume), volume) for volume in volumes)],
            **spec,
        },
    }


def run_by_launcher(wanted: Wanted, options: Iterable[str], command: Iterable[str]) -> list[str]:
    """A command under the launcher, which is mounted into whatever image it is."""
    common = [f"--peer-timeout={wanted.training.peer_timeout}", f"--revision=$({REVISION})"]
    return ["python3", f"{FILES}/launcher.py", *common, *options, "--", *(literal(word) for word in command)]


def task_environment(wanted: Wanted, role: str) -> list[dict[str, Any]]:
    """What tells a task who it is. An Indexed Job has one template for all: the number is filled in by Kubernetes, from what stands before it."""
    index = {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']"}}
    config = wanted.tf_config(role)
    return [{"name": INDEX, "valueFrom": index}, *([{"name": "TF_CONFIG", "value": config}] if config else [])]


def _environment(wanted: Wanted) -> list[dict[str, Any]]:
    fixed = {"HOME": HOME, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    credentials = wanted.training.credentials
    if credentials.mode == "key_secret":
        fixed["GOOGLE_APPLICATION_CREDENTIALS"] = f"{KEYS}/{credentials.key}"
    written = {name: literal(value) for name, value in wanted.training.env.items()}
    return [{"name": name, "value": value} for name, value in {**fixed, **written}.items()]


def _resources(wanted: Wanted, component: str, gpus: int) -> dict[str, Any]:
    """What is asked for is what there is: nobody's memory is taken away because a neighbour wants it."""
    cpu, memory = wanted.training.needs(component)
    amounts = {
        "cpu": canonical(cpu),
        "memory": canonical(memory),
        **(GIBIBYTE_OF_DISK if wanted.around.on_gke else {}),
        **({GPU: str(gpus)} if gpus else {}),
    }
    return {"requests": amounts, "limits": amounts}


def _own_mounts(wanted: Wanted) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": name, "mountPath": path} for name, path in (("tmp", "/tmp"), ("shm", "/dev/shm"), ("home", HOME))
    ]
    mounts.append({"name": "launcher", "mountPath": FILES, "readOnly": True})
    if wanted.training.credentials.mode == "key_secret":
        mounts.append({"name": "credentials", "mountPath": KEYS, "readOnly": True})
    return mounts


def _own_volumes(wanted: Wanted) -> list[dict[str, Any]]:
    """/dev/shm would have 64 MB by itself, which is too little for NCCL."""
    volumes: list[dict[str, Any]] = [{"name": name, "emptyDir": {"medium": "Memory"}} for name in ("tmp", "shm", "home")]
    volumes.append({"name": "launcher", "configMap": {"name": wanted.named("launcher")}})
    if wanted.training.credentials.mode == "key_secret":
        volumes.append({"name": "credentials", "secret": {"secretName": wanted.training.credentials.secret}})
    return volumes


def _handle(wanted: Wanted, volume: Volume) -> str:
    """What a volume is called within a pod; the name of a bucket may have characters that are not allowed there."""
    return f"volume-{wanted.training.volumes.index(volume)}"


def _mount(handle: str, volume: Volume, writes: bool) -> dict[str, Any]:
    return {"name": handle, "mountPath": volume.path, **({} if writes else {"readOnly": True})}


def _volume(handle: str, volume: Volume) -> dict[str, Any]:
    if volume.bucket:
        attributes = {"bucketName": volume.bucket, "mountOptions": f"implicit-dirs,uid={USER},gid={USER}"}
        return {"name": handle, "csi": {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": attributes}}
    return {"name": handle, "persistentVolumeClaim": {"claimName": volume.claim}}
