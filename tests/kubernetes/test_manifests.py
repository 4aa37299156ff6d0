"""Every object of a wide range of stacks is valid for the API of Kubernetes 1.36, strictly, and keeps the rules of the house."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable
from typing import Any

import pytest

from tests.infra.program import run
from tests.infra.random_settings import random_settings
from tests.kubernetes.made import CLAIM, DIGEST, DIGITS, DIRECTORIES, MIRRORED, ON, Manifest, manifests, of_kind, template_of
from tests.kubernetes.rules import broken
from workloads.kubernetes.declare import KINDS

L4 = {"gpus": 1, "accelerator": "l4"}
OWN = {"command": ["python", "train.py", "$(HOME)"], "image": DIGEST, "worker": {"replicas": 2}, "ps": {}}
EXPOSED = {"allowed_cidrs": ["203.0.113.0/24"]}
PREPARED = {"data_prep": {"program": "digits.prepare", "args": {"examples": 5}, "deadline": "30m"}, "data_dir": "gs://bucket/data"}
KEY = {"mode": "key_secret", "secret": "credential", "key": "key.json"}
EVERYTHING: dict[str, Any] = {
    **DIGITS,
    **PREPARED,
    "evaluator": {"mode": "sidecar"},
    "tensorboard": {"expose": "load_balancer", **EXPOSED},
    "serving": {"replicas": 3, "cpu": 0.5},
    "credentials": KEY,
    "egress": ["10.1.0.0/16"],
    "node_selector": {"disk": "ssd"},
    "tolerations": [{"key": "team", "operator": "Exists"}, {"key": "x", "value": "y", "effect": "NoExecute"}],
    "deadline": "6h",
    "ttl_after_finished": "1h",
    "run": "Second_run.2",
    "resume_from": "1",
    "env": {"LOG_LEVEL": "info"},
    "mixed_precision": True,
}

# From a name to where it runs, and a training.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "parameter servers": ("gke", DIGITS),
    "with GPUs on spot nodes": ("gke", {**DIGITS, "worker": {"replicas": 4, **L4, "spot": True, "cpu": 3}}),
    "multi_worker_mirrored": ("gke", {**MIRRORED, "chief": L4, "worker": {"replicas": 2, **L4}}),
    "multi_worker_mirrored without a chief": ("gke", MIRRORED),
    "mirrored": ("gke", {"program": "digits", "strategy": "mirrored", "worker": {"gpus": 4, "accelerator": "t4"}}),
    "tier basic": ("gke", {"program": "digits", "tier": "basic"}),
    "tier standard_1": ("gke", {"program": "digits", "tier": "standard_1"}),
    "tier premium_1": ("gke", {"program": "digits", "tier": "premium_1"}),
    "a claim of the chief's": ("gke", {**DIGITS, "volumes": [{**CLAIM, "roles": ["chief"]}], "checkpoint_dir": "/ckpt/c"}),
    "a claim that everybody mounts": ("gke", {**DIGITS, "volumes": [{**CLAIM, "access": "ReadWriteMany"}]}),
    "a claim that is there": ("gke", {**DIGITS, "volumes": [{"claim": "theirs", "access": "ReadWriteMany", "path": "/c", "class": "nfs"}]}),
    "a bucket as a volume": ("gke", {**DIGITS, "volumes": [{"bucket": "a.bucket_1", "path": "/data", "roles": ["worker"]}]}),
    "a key": ("gke", {**DIGITS, "credentials": KEY}),
    "data that is prepared": ("gke", {**DIGITS, **PREPARED}),
    "data prepared by a command": ("gke", {**DIGITS, "data_prep": {"command": ["sh", "-c", "echo $(date)"]}}),
    "TensorBoard": ("gke", {**DIGITS, "tensorboard": {}}),
    "TensorBoard behind a load balancer": ("gke", {**DIGITS, "tensorboard": {"expose": "load_balancer", **EXPOSED}}),
    "TensorBoard behind an ingress": ("gke", {**DIGITS, "tensorboard": {"expose": "ingress", **EXPOSED}}),
    "serving": ("gke", {**DIGITS, "serving": {}}),
    "serving on GPUs": ("gke", {**DIGITS, "deploy": False, "serving": {"replicas": 2, **L4}}),
    "serving with an image of its own": ("gke", {**DIGITS, "serving": {"image": DIGEST}}),
    "an inspector": ("gke", {**DIGITS, "deploy": False, "inspector": True, "volumes": [CLAIM, {"bucket": "b-1", "path": "/b"}]}),
    "nothing but claims": ("gke", {**DIGITS, "deploy": False, "volumes": [CLAIM]}),
    "a command in an image": ("gke", OWN),
    "a command without a chief": ("gke", {**OWN, "chief": {"replicas": 0}, "deadline": "1h", "evaluator": {"mode": "sidecar"}}),
    "4,096 workers": ("gke", {**DIGITS, "worker": {"replicas": 4096}, "ps": {"replicas": 64}, "evaluator": {"mode": "sidecar"}}),
    "everything": ("gke", EVERYTHING),
    "on a context": ("context", {**DIGITS, **DIRECTORIES}),
    "on a context, with a claim": ("context", {**DIGITS, "volumes": [{**CLAIM, "roles": ["chief"]}], "max_restarts": 0}),
    "on a context, behind an ingress": ("context", {**DIGITS, **DIRECTORIES, "tensorboard": {"expose": "ingress", **EXPOSED}}),
    "on a context, everything": ("context", {**EVERYTHING, **DIRECTORIES}),
    "on a context, with GPUs": ("context", {**DIGITS, **DIRECTORIES, "worker": {"replicas": 2, "gpus": 1}}),
    "on another stack's cluster": ("stack", {**DIGITS, **DIRECTORIES, "worker": {"replicas": 2, **L4, "spot": True}}),
    "on another stack's cluster, everything": ("stack", {**EVERYTHING, **DIRECTORIES}),
    "the longest names": (
        "gke",
        {**DIGITS, "run": "r" * 40, "evaluator": {"mode": "sidecar"}, "tensorboard": {}, "serving": {}, **PREPARED},
    ),
}


def objects(case: str) -> list[Manifest]:
    on, training = CASES[case]
    name = "a" * 40 if case == "the longest names" else "resnet"
    return manifests(on, {"API_KEY": "hunter2"} if case.endswith("everything") else None, **{name: training})


@pytest.mark.parametrize("case", CASES)
def test_objects_are_valid_and_keep_the_rules(case: str) -> None:
    found = objects(case)
    assert {each["metadata"]["name"]: problems for each in found if (problems := broken(each))} == {}
    assert len(found) >= 5, "a namespace, its account and its policy, and something of the training"
    identities = [(each["apiVersion"], each["kind"], each["metadata"]["name"]) for each in found]
    assert len(set(identities)) == len(identities), "two objects of one name"


def test_the_cases_have_every_kind_there_is() -> None:
    some = ("everything", "a claim that everybody mounts", "TensorBoard behind an ingress", "an inspector")
    kinds = {each["kind"] for case in some for each in objects(case)}
    assert kinds == {*KINDS, "Secret", "ServiceAccount"}, "a kind that no case makes is not tested"
    assert {on for on, _ in CASES.values()} == set(ON)


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.full), pytest.param(2, marks=pytest.mark.full)])
def test_objects_of_random_stacks_keep_the_rules(part: int) -> None:
    """A few in `make test`, other ones every day."""
    today = datetime.date.today().toordinal()
    for seed in range((part + today) % 3, 36, 3):
        for each in run(random_settings(seed))[0].manifests():
            assert broken(each) == [], f"seed {seed}: {each['kind']} {each['metadata']['name']}"


# ------------------------------------------------------------------------------------------ the rules themselves


def security(job: Manifest) -> Manifest:
    return job["spec"]["template"]["spec"]["containers"][0]["securityContext"]


def pod(job: Manifest) -> Manifest:
    return job["spec"]["template"]["spec"]


BREAKING: dict[str, Callable[[Manifest], Any]] = {
    "a field that does not exist": lambda job: job["spec"].update(replica=3),
    "a number as a text": lambda job: job["spec"].update(completions="2"),
    "another kind": lambda job: job.update(apiVersion="batch/v9"),
    "a name with capitals": lambda job: job["metadata"].update(name="Job"),
    "another namespace": lambda job: job["metadata"].update(namespace="default"),
    "no labels": lambda job: job["metadata"].update(labels={}),
    "no labels on its pods": lambda job: job["spec"]["template"]["metadata"].update(labels={"app.kubernetes.io/name": "resnet"}),
    "a label that is too long": lambda job: job["metadata"]["labels"].update({"x/y": "z" * 64}),
    "root": lambda job: security(job).update(runAsUser=0),
    "a small user": lambda job: pod(job)["securityContext"].update(runAsUser=1000),
    "runAsNonRoot": lambda job: security(job).pop("runAsNonRoot"),
    "escalation": lambda job: security(job).update(allowPrivilegeEscalation=True),
    "privileged": lambda job: security(job).update(privileged=True),
    "a root that can be written": lambda job: security(job).pop("readOnlyRootFilesystem"),
    "capabilities": lambda job: security(job).update(capabilities={"drop": ["ALL"], "add": ["NET_ADMIN"]}),
    "seccomp": lambda job: pod(job)["securityContext"].update(seccompProfile={"type": "Unconfined"}),
    "fsGroup": lambda job: pod(job)["securityContext"].pop("fsGroup"),
    "host path": lambda job: pod(job)["volumes"].append({"name": "x", "hostPath": {"path": "/"}}),
    "/tmp on disk": lambda job: pod(job)["volumes"][0].update(emptyDir={}),
    "no /dev/shm": lambda job: pod(job)["containers"][0]["volumeMounts"].pop(1),
    "the network of the node": lambda job: pod(job).update(hostNetwork=True),
    "a token": lambda job: pod(job).update(automountServiceAccountToken=True),
    "another account": lambda job: pod(job).update(serviceAccountName="default"),
    "less than it may have": lambda job: pod(job)["containers"][0]["resources"].update(requests={"cpu": "1m", "memory": "1Mi"}),
    "no limits": lambda job: pod(job)["containers"][0].update(resources={}),
    "an image by its tag": lambda job: pod(job)["containers"][0].update(image="team/image:latest"),
    "no time to save": lambda job: pod(job).update(terminationGracePeriodSeconds=30),
    "a variable twice": lambda job: pod(job)["containers"][0]["env"].append({"name": "HOME", "value": "/"}),
    "evictable": lambda job: job["spec"]["template"]["metadata"].pop("annotations"),
}


@pytest.mark.parametrize("how", BREAKING)
def test_the_rules_find_what_is_wrong(how: str) -> None:
    job = of_kind(objects("parameter servers"), "Job")["resnet-worker"]
    assert broken(job) == []
    worse = copy.deepcopy(job)
    BREAKING[how](worse)
    assert broken(worse)


# -------------------------------------------------------------------------------------------- what they look like


def test_pods_mount_what_they_need_and_no_more() -> None:
    """TensorBoard and serving only read; the launcher and a key are read by everybody."""
    volume = {**CLAIM, "access": "ReadWriteMany", "roles": ["chief"]}
    found = manifests(
        "gke", None, resnet={**DIGITS, "volumes": [volume], "log_dir": "/ckpt/l", "tensorboard": {}, "serving": {}, "credentials": KEY}
    )
    mounted = {
        each["metadata"]["name"]: {
            mount["mountPath"]: mount.get("readOnly", False)
            for mount in template["spec"]["containers"][0]["volumeMounts"]
            if mount["mountPath"] not in ("/tmp", "/dev/shm", "/home/trainer")
        }
        for each in found
        if (template := template_of(each))
    }
    shared = {"/trainstack": True, "/var/run/secrets/trainstack": True}
    assert mounted == {
        "resnet-chief": {**shared, "/ckpt": False},
        "resnet-worker": shared,
        "resnet-ps": shared,
        "resnet-tensorboard": {**shared, "/ckpt": True},
        "resnet-serving": shared,
    }


def test_a_bucket_is_mounted_by_gkes_driver_as_the_user_of_the_tasks() -> None:
    jobs = of_kind(objects("a bucket as a volume"), "Job")
    worker, chief = jobs["resnet-worker"]["spec"]["template"], jobs["resnet-chief"]["spec"]["template"]
    (volume,) = (each for each in worker["spec"]["volumes"] if "csi" in each)
    assert volume["csi"] == {
        "driver": "gcsfuse.csi.storage.gke.io",
        "volumeAttributes": {"bucketName": "a.bucket_1", "mountOptions": "implicit-dirs,uid=10001,gid=10001"},
    }
    assert worker["metadata"]["annotations"]["gke-gcsfuse/volumes"] == "true"
    assert "gke-gcsfuse/volumes" not in chief["metadata"]["annotations"]


def test_secrets_reach_every_pod_by_reference_and_are_in_none() -> None:
    found = objects("everything")
    assert of_kind(found, "Secret")["secrets"]["stringData"] == {"API_KEY": "hunter2"}
    for each in found:
        if template := template_of(each):
            assert template["spec"]["containers"][0]["envFrom"] == [{"secretRef": {"name": "secrets"}}]
        if each["kind"] != "Secret":
            assert "hunter2" not in str(each)


def test_what_is_waited_for() -> None:
    """Nobody waits for a training; everybody for its data. And what waits for nothing still waits when it is deleted."""
    found = objects("everything")
    patient = {"Namespace", "ServiceAccount", "Secret", "NetworkPolicy", "ConfigMap", "PodDisruptionBudget"}  # there at once by themselves
    for each in found:
        annotations = each["metadata"].get("annotations", {})
        if each["metadata"]["name"] == "resnet-data-prep" and each["kind"] == "Job":
            assert annotations["pulumi.com/replaceUnready"] == "true"
            assert "pulumi.com/waitFor" not in annotations
        elif each["kind"] not in patient:
            assert annotations["pulumi.com/waitFor"] == "jsonpath={.metadata.uid}", each["metadata"]["name"]
        assert "pulumi.com/skipAwait" not in annotations
