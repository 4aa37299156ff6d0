"""What stands beside the tasks: claims, data preparation, TensorBoard, serving, the inspector; what is there with which settings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kubernetes.made import CLAIM, DIGEST, DIGITS, DIRECTORIES, Manifest, container_of, manifests, of_kind, stack, wanted
from workloads.kubernetes import beside
from workloads.prepare import inputs

RANGES = ["203.0.113.0/24", "198.51.100.0/24"]
DAY = 86400


def names(found: list[Manifest], kind: str) -> set[str]:
    return set(of_kind(found, kind))


# ------------------------------------------------------------------------------------------------------- volumes


def test_only_claims_that_are_to_be_created_are() -> None:
    volumes = [
        CLAIM | {"roles": ["chief"]},
        {"claim": "theirs", "path": "/theirs", "roles": ["chief"]},
        {"bucket": "b-1", "path": "/b"},
        {"claim": "wide", "create": True, "size": "1024Gi", "access": "ReadWriteMany", "class": "nfs", "path": "/wide"},
    ]
    made = beside.claims(wanted(volumes=volumes))
    assert {name: each["spec"] for name, each in made.items()} == {
        "ckpt": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}},
        "wide": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Ti"}}, "storageClassName": "nfs"},
    }


def test_a_claim_for_many_on_gke_has_a_class_that_reaches_the_stacks_network() -> None:
    made = stack("gke", a={**DIGITS, "volumes": [{**CLAIM, "access": "ReadWriteMany"}]})
    (storage,) = of_kind(made.manifests(), "StorageClass").values()
    assert storage["parameters"]["network"] == "trainstack-dev"
    assert of_kind(made.manifests(), "PersistentVolumeClaim")["ckpt"]["spec"]["storageClassName"] == storage["metadata"]["name"]
    assert "kubernetes:storage.k8s.io/v1:StorageClass::shared-class" in made.comes_after("a-claim-ckpt")
    once = stack("gke", a={**DIGITS, "volumes": [{**CLAIM, "roles": ["chief"]}]}).manifests()
    assert of_kind(once, "StorageClass") == {}
    assert "storageClassName" not in of_kind(once, "PersistentVolumeClaim")["ckpt"]["spec"]
    elsewhere = manifests("context", None, a={**DIGITS, "volumes": [{**CLAIM, "access": "ReadWriteMany"}]})
    assert of_kind(elsewhere, "StorageClass") == {}, "on a cluster of somebody else its own classes are used"


def test_an_inspector_has_all_volumes_and_nothing_to_do() -> None:
    made = wanted(deploy=False, inspector=True, volumes=[CLAIM | {"roles": ["ps"]}, {"bucket": "b-1", "path": "/b"}])
    pod = beside.inspector(made)
    assert {mount["mountPath"] for mount in container_of(pod)["volumeMounts"]} >= {"/ckpt", "/b"}
    assert container_of(pod)["command"][:2] == ["sh", "-c"]
    assert pod["metadata"]["annotations"]["gke-gcsfuse/volumes"] == "true", "the annotations of a pod are its own"


def test_without_deploy_there_are_claims_and_data_and_no_training() -> None:
    training = {**DIGITS, "deploy": False, "volumes": [CLAIM], "tensorboard": {}, "data_prep": {"command": ["true"]}}
    found = manifests("gke", None, resnet=training)
    assert names(found, "Job") == {"resnet-data-prep"}
    assert names(found, "Service") == set()
    assert names(found, "PersistentVolumeClaim") == {"ckpt"}
    assert names(found, "NetworkPolicy") == {"default-deny", "resnet-tasks", "resnet-data-prep"}


# ---------------------------------------------------------------------------------------------- preparing the data


def test_data_is_prepared_before_anything_waits_for_it() -> None:
    prepare = {"program": "digits.prepare", "args": {"examples": 5}, "deadline": "30m"}
    made = stack("gke", a={**DIGITS, "data_prep": prepare, "tensorboard": {}, "serving": {}})
    (job,) = (each for name, each in of_kind(made.manifests(), "Job").items() if name == "a-data-prep")
    assert job["spec"]["activeDeadlineSeconds"] == 1800
    timeout = made.options["a-data-prep"].customTimeouts.create
    assert int(timeout.rstrip("s")) > 1800, "Pulumi waits longer than Kubernetes lets it run, and hears why it failed"
    for role in ("a-chief", "a-worker", "a-ps", "a-service", "a-tensorboard", "a-serving"):
        assert "kubernetes:batch/v1:Job::a-data-prep" in made.comes_after(role)
    policy = of_kind(made.manifests(), "NetworkPolicy")["a-data-prep"]["metadata"]["name"]
    assert f"kubernetes:networking.k8s.io/v1:NetworkPolicy::a-policy-{policy.removeprefix('a-').replace('-', '_')}" in made.comes_after(
        "a-data-prep"
    )


def test_data_that_is_there_is_not_prepared_again() -> None:
    made = wanted(data_dir="gs://bucket/d", data_prep={"program": "digits.prepare", "args": {"examples": 5}})
    command = container_of(beside.data_prep(made))["command"]
    assert command == [
        *("python3", "/trainstack/prepare.py", "--marker=gs://bucket/d"),
        f"--inputs={inputs(('digits.prepare',), {'examples': 5}, 'gs://bucket/d')}",
        *("--", "python", "-m", "trainer.prepare", "digits", "--data-dir=gs://bucket/d", "--examples=5"),
    ]
    other = wanted(data_dir="gs://bucket/d", data_prep={"program": "digits.prepare", "args": {"examples": 6}})
    assert container_of(beside.data_prep(other))["command"][3] != command[3], "other arguments are other data"


def test_an_eviction_of_the_preparation_is_not_counted() -> None:
    """And nothing else is said: a Job that a rule has failed is no failure to Pulumi, which would wait for it until its deadline."""
    spec = beside.data_prep(wanted(data_prep={"command": ["true"]}))["spec"]
    assert spec["podFailurePolicy"]["rules"] == [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    assert spec["backoffLimit"] == 2


# ---------------------------------------------------------------------------------------------------- TensorBoard


@pytest.mark.parametrize(
    ("where", "tensorboard", "service"),
    [
        ("gke", {}, {"type": "ClusterIP"}),
        (
            "gke",
            {"expose": "load_balancer", "allowed_cidrs": RANGES},
            {"type": "LoadBalancer", "loadBalancerSourceRanges": RANGES, "externalTrafficPolicy": "Local"},
        ),
        ("gke", {"expose": "ingress", "allowed_cidrs": RANGES}, {"type": "NodePort"}),
        ("context", {"expose": "ingress", "allowed_cidrs": RANGES}, {"type": "NodePort"}),
    ],
    ids=["port forward", "load balancer", "ingress on GKE", "ingress elsewhere"],
)
def test_how_tensorboard_is_exposed(where: str, tensorboard: dict[str, Any], service: dict[str, Any]) -> None:
    found = manifests(where, None, resnet={**DIGITS, **DIRECTORIES, "tensorboard": tensorboard})
    made = of_kind(found, "Service")["resnet-tensorboard"]
    assert {key: value for key, value in made["spec"].items() if key not in ("selector", "ports")} == service
    assert made["spec"]["ports"] == [{"name": "http", "port": 80, "targetPort": "http"}]
    assert container_of(of_kind(found, "Job")["resnet-tensorboard"])["ports"] == [{"name": "http", "containerPort": 6006}]
    ingresses, guards = of_kind(found, "Ingress"), of_kind(found, "BackendConfig")
    assert bool(ingresses) == (tensorboard.get("expose") == "ingress")
    assert bool(guards) == (bool(ingresses) and where == "gke")
    if ingresses:
        ingress = ingresses["resnet-tensorboard"]
        assert ingress["spec"]["defaultBackend"]["service"] == {"name": "resnet-tensorboard", "port": {"name": "http"}}
        annotations = ingress["metadata"]["annotations"]
        if where == "gke":
            assert annotations["kubernetes.io/ingress.class"] == "gce"
            assert json.loads(made["metadata"]["annotations"]["cloud.google.com/backend-config"]) == {"default": "resnet-tensorboard"}
            assert guards["resnet-tensorboard"]["spec"]["securityPolicy"] == {"name": "trainstack-dev-resnet"}
        else:
            assert {value for key, value in annotations.items() if key.endswith("-source-range")} == {",".join(RANGES)}


def test_tensorboard_ends_some_time_after_the_run() -> None:
    made = wanted(tensorboard={"keep": "4h"})
    job = beside.tensorboard(made, "r")
    command = container_of(job)["command"]
    assert command[command.index("--") + 1 :] == [
        *("python3", "-m", "tensorboard.main", "--logdir=gs://some-project-dev-logs/resnet/1", "--bind_all", "--port=6006")
    ]
    assert {"--beside=tensorboard", "--linger=14400", "--lead=chief-0@resnet-chief-0.resnet.trainstack-dev.svc:2223"} <= set(command)
    assert job["kind"] == "Job", "a Deployment cannot end"
    assert f"--linger={DAY}" in container_of(beside.tensorboard(wanted(tensorboard={}), "r"))["command"]


def test_tensorboard_beside_a_command_runs_in_the_projects_image() -> None:
    other = "example.com/theirs@sha256:" + "1" * 64
    made = wanted("context", command=["python", "x.py"], image=other, worker={}, ps={}, log_dir="gs://b/l", tensorboard={})
    assert made.image("worker") == other
    assert made.image("tensorboard") == DIGEST


# --------------------------------------------------------------------------------------------------------- serving


def test_serving_serves_the_exported_model_of_the_run() -> None:
    made = wanted(serving={"replicas": 3}, run="2")
    deployment = beside.serving(made)
    command = container_of(deployment)["command"]
    assert "--model_base_path=gs://some-project-dev-checkpoints/resnet/models/2" in command
    assert {"--model_name=resnet", "--rest_api_port=8501", "--port=8500"} <= set(command)
    assert deployment["spec"]["replicas"] == 3
    probe = container_of(deployment)["readinessProbe"]["httpGet"]
    assert probe == {"path": "/v1/models/resnet", "port": "rest"}, "ready when the model is"
    service = beside.serving_service(made)
    assert [(port["name"], port["port"], port["targetPort"]) for port in service["spec"]["ports"]] == [
        ("rest", 8501, "rest"),
        ("grpc", 8500, "grpc"),
    ]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert "trainstack/run" not in deployment["spec"]["selector"]["matchLabels"], "a selector cannot change, and a run does"


def test_a_server_may_wait_long_for_its_model() -> None:
    """Days of training come before it, and it is started again only after them."""
    startup = container_of(beside.serving(wanted(serving={})))["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 7 * DAY
    assert beside.serving(wanted(serving={}))["spec"]["progressDeadlineSeconds"] >= 7 * DAY


@pytest.mark.parametrize(
    ("serving", "image"),
    [({}, "tensorflow/serving:2.19.0"), ({"gpus": 1, "accelerator": "l4"}, "tensorflow/serving:2.19.0-gpu"), ({"image": DIGEST}, DIGEST)],
)
def test_the_image_of_the_server(serving: dict[str, Any], image: str) -> None:
    deployment = beside.serving(wanted(deploy=False, serving=serving))
    assert container_of(deployment)["image"] == image
    assert ("checkov.io/skip2" in deployment["metadata"]["annotations"]) == (image != DIGEST)


@pytest.mark.parametrize("replicas", [1, 2])
def test_one_server_of_several_may_be_away(replicas: int) -> None:
    found = manifests("gke", None, resnet={**DIGITS, "serving": {"replicas": replicas}})
    budgets = of_kind(found, "PodDisruptionBudget")
    assert len(budgets) == (replicas > 1), "of one server none may be away, and its node could never be drained"
    for budget in budgets.values():
        assert budget["spec"]["maxUnavailable"] == 1
        labels = of_kind(found, "Deployment")["resnet-serving"]["spec"]["template"]["metadata"]["labels"]
        assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_two_trainings_do_not_meet() -> None:
    found = manifests("gke", None, a={**DIGITS, "tensorboard": {}, "serving": {}}, b={**DIGITS, "tensorboard": {}, "serving": {}})
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in found if each["kind"] in ("Job", "Deployment")]
    for service in of_kind(found, "Service").values():
        owners = {each["app.kubernetes.io/name"] for each in labels if service["spec"]["selector"].items() <= each.items()}
        assert owners == {service["metadata"]["labels"]["app.kubernetes.io/name"]}
