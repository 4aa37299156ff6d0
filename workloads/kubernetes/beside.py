"""What stands beside the tasks of a training: claims, data preparation, TensorBoard, serving, the inspector. Pure."""

from __future__ import annotations

import json
from typing import Any

from workloads import commands
from workloads.kubernetes import names, pods
from workloads.kubernetes.quantities import canonical
from workloads.kubernetes.wanted import Wanted

TENSORBOARD_PORT = 6006
REST_PORT, GRPC_PORT = 8501, 8500
WEEK = 7 * 24 * 3600  # seconds; so long a server may wait for its model before it is started again


# ------------------------------------------------------------------------------------------------------- volumes


def claims(wanted: Wanted) -> dict[str, dict[str, Any]]:
    """The claims that the training makes, by name."""
    return {
        volume.claim: {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            # A class may bind only when the first pod comes.
            "metadata": wanted.metadata("volume", names.AT_ONCE, name=volume.claim),
            "spec": {
                "accessModes": [volume.access],
                "resources": {"requests": {"storage": canonical(volume.size or "")}},
                **_class(volume.storage_class or (wanted.around.shared_class if volume.access == "ReadWriteMany" else None)),
            },
        }
        for volume in wanted.training.volumes
        if volume.claim and volume.create
    }


def _class(name: str | None) -> dict[str, str]:
    return {"storageClassName": name} if name else {}


def inspector(wanted: Wanted) -> dict[str, Any]:
    """A pod that does nothing, with the training's volumes, to look into them."""
    wait = "trap 'exit 0' TERM; while :; do sleep 3600 & wait; done"
    template = pods.template(wanted, "inspector", ["sh", "-c", wait], restartPolicy="Always", terminationGracePeriodSeconds=5)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": wanted.metadata("inspector", {**template["metadata"]["annotations"], **pods.SCANNERS}),
        "spec": template["spec"],
    }


# --------------------------------------------------------------------------------------------- preparing the data


def data_prep(wanted: Wanted) -> dict[str, Any]:
    """A Job that `pulumi up` waits for, so that nobody pays for GPUs during a download. One that failed runs again at the next `up`."""
    assert wanted.training.data_prep is not None
    command = commands.data_prep(wanted.training, wanted.where.get("data_dir"))
    deadline = wanted.training.data_prep.deadline
    marked = []
    if where := wanted.where.get("data_dir"):
        inputs = commands.data_prep_inputs(wanted.training, where)
        marked = ["python3", f"{pods.FILES}/prepare.py", f"--marker={pods.literal(where)}", f"--inputs={inputs}", "--"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": wanted.metadata("data_prep", {"pulumi.com/replaceUnready": "true", **pods.SCANNERS}),
        "spec": {
            "backoffLimit": 2,
            "activeDeadlineSeconds": deadline,
            # Only what Pulumi understands as a failure: a Job that fails for another reason would be waited for until its deadline.
            "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]},
            "template": pods.template(
                wanted,
                "data_prep",
                [*marked, *(pods.literal(word) for word in command)],
                restartPolicy="Never",
                terminationGracePeriodSeconds=30,
            ),
        },
    }


# ---------------------------------------------------------------------------------------------------- TensorBoard


def tensorboard(wanted: Wanted, revision: Any) -> dict[str, Any]:
    """A Job and not a Deployment, because it ends by itself: `keep` after the run has."""
    assert wanted.training.tensorboard is not None
    command = ["python3", "-m", "tensorboard.main", f"--logdir={wanted.where['log_dir']}", "--bind_all", f"--port={TENSORBOARD_PORT}"]
    options = ["--beside=tensorboard", f"--lead={wanted.lead}", f"--linger={wanted.training.tensorboard.keep}"]
    ready = {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 10, "timeoutSeconds": 5}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": wanted.metadata("tensorboard", {**names.AT_ONCE, **pods.SCANNERS}),
        "spec": {
            "backoffLimit": 10,
            "template": pods.template(
                wanted,
                "tensorboard",
                pods.run_by_launcher(wanted, options, command),
                env=[{"name": pods.REVISION, "value": revision}],
                ports={"http": TENSORBOARD_PORT},
                probes={"readinessProbe": ready},
                writes=False,
                restartPolicy="OnFailure",
                terminationGracePeriodSeconds=10,
            ),
        },
    }


def tensorboard_service(wanted: Wanted) -> dict[str, Any]:
    assert wanted.training.tensorboard is not None
    expose, allowed = wanted.training.tensorboard.expose, list(wanted.training.tensorboard.allowed_cidrs)
    kinds: dict[str, dict[str, Any]] = {
        "port_forward": {"type": "ClusterIP"},
        "load_balancer": {"type": "LoadBalancer", "loadBalancerSourceRanges": allowed, "externalTrafficPolicy": "Local"},
        "ingress": {"type": "NodePort"},
    }
    guarded = wanted.around.on_gke and expose == "ingress"
    backend = {"cloud.google.com/backend-config": json.dumps({"default": wanted.named("tensorboard")})} if guarded else {}
    return _service(wanted, "tensorboard", {"http": 80}, {"http": "http"}, backend, **kinds[expose])


def ingress(wanted: Wanted) -> dict[str, Any]:
    """TensorBoard behind the cluster's own ingress. Who may see it is said to Google's by a policy beside it, to NGINX's by an annotation."""
    assert wanted.training.tensorboard is not None
    allowed = ",".join(wanted.training.tensorboard.allowed_cidrs)
    google = {"kubernetes.io/ingress.class": "gce"}
    nginx = {f"nginx.ingress.kubernetes.io/{key}-source-range": allowed for key in ("whitelist", "allowlist")}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": wanted.metadata("tensorboard", {**names.AT_ONCE, **(google if wanted.around.on_gke else nginx)}),
        "spec": {"defaultBackend": {"service": {"name": wanted.named("tensorboard"), "port": {"name": "http"}}}},
    }


def backend_config(wanted: Wanted) -> dict[str, Any]:
    """What GKE's load balancer asks before it lets anybody through to TensorBoard."""
    return {
        "apiVersion": "cloud.google.com/v1",
        "kind": "BackendConfig",
        "metadata": wanted.metadata("tensorboard"),
        "spec": {
            "securityPolicy": {"name": wanted.around.policies[wanted.name]},
            "healthCheck": {"type": "HTTP", "requestPath": "/", "port": TENSORBOARD_PORT},
        },
    }


# -------------------------------------------------------------------------------------------------------- serving


def serving(wanted: Wanted) -> dict[str, Any]:
    """TensorFlow Serving on the exported model. It opens its port when there is one, and until then `up` does not wait for it."""
    assert wanted.training.serving is not None
    replicas = wanted.training.serving.replicas
    command = [
        "tensorflow_model_server",
        f"--port={GRPC_PORT}",
        f"--rest_api_port={REST_PORT}",
        f"--model_name={wanted.name}",
        f"--model_base_path={pods.literal(wanted.where['model_dir'])}",
    ]
    answers = {"httpGet": {"path": f"/v1/models/{wanted.name}", "port": "rest"}, "periodSeconds": 10, "timeoutSeconds": 5}
    by_digest = (
        {}
        if "@sha256:" in str(wanted.image("serving"))
        else {
            "checkov.io/skip2": "CKV_K8S_43=TensorFlow Serving's own image by its version, unless serving.image names another one by its digest"
        }
    )
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": wanted.metadata("serving", {**names.AT_ONCE, **pods.SCANNERS, **by_digest}),
        "spec": {
            "replicas": replicas,
            "progressDeadlineSeconds": WEEK,
            "selector": {"matchLabels": _selected(wanted, "serving")},
            "template": pods.template(
                wanted,
                "serving",
                command,
                ports={"rest": REST_PORT, "grpc": GRPC_PORT},
                probes={
                    "startupProbe": {**answers, "failureThreshold": WEEK // 10},
                    "readinessProbe": answers,
                    "livenessProbe": {"tcpSocket": {"port": "rest"}, "periodSeconds": 20, "failureThreshold": 6},
                },
                gpus=wanted.training.serving.gpus,
                apart=replicas > 1,
                writes=False,
                terminationGracePeriodSeconds=30,
            ),
        },
    }


def serving_service(wanted: Wanted) -> dict[str, Any]:
    ports = {"rest": REST_PORT, "grpc": GRPC_PORT}
    return _service(wanted, "serving", ports, {name: name for name in ports}, {}, type="ClusterIP")


def disruption_budget(wanted: Wanted) -> dict[str, Any]:
    """One server of several may be away while its node is upgraded, not all."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": wanted.metadata("serving"),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _selected(wanted, "serving")}},
    }


def _selected(wanted: Wanted, component: str) -> dict[str, str]:
    labels = wanted.labels(component)
    return {key: labels[key] for key in (names.PART_OF, names.NAME, names.COMPONENT)}


def _service(
    wanted: Wanted, component: str, ports: dict[str, int], targets: dict[str, str], annotations: dict[str, str], **spec: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": wanted.metadata(component, {**names.AT_ONCE, **annotations}),
        "spec": {
            "selector": _selected(wanted, component),
            "ports": [{"name": name, "port": port, "targetPort": targets[name]} for name, port in ports.items()],
            **spec,
        },
    }
