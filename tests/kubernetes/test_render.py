"""The objects of a stack as files: what is written, what is left out, and in which order; at the end through the engine, as a person asks for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops import render
from tests.conftest import ROOT
from tests.infra.simulation import Simulation, simulation
from tests.kubernetes.made import NAMESPACE
from tests.kubernetes.rules import broken


def step(kind: str, name: str, op: str = "create", **inputs: Any) -> dict[str, Any]:
    """A line of `pulumi preview --json`."""
    metadata = {"name": name, "namespace": NAMESPACE, **inputs.pop("metadata", {})}
    urn = f"urn:pulumi:dev::trainstack::kubernetes:{kind}::{name}"
    return {"op": op, "urn": urn, "newState": {"urn": urn, "type": f"kubernetes:{kind}", "inputs": {"metadata": metadata, **inputs}}}


def written(folder: Path, *steps: dict[str, Any]) -> dict[str, Any]:
    files = render.write({"steps": list(steps)}, folder)
    assert sorted(files) == sorted(folder.iterdir())
    return {file.name: yaml.safe_load(file.read_text()) for file in files}


def test_an_object_is_written_as_kubectl_takes_it(tmp_path: Path) -> None:
    job = step(
        "batch/v1:Job",
        "digits-chief",
        metadata={
            "annotations": {"pulumi.com/waitFor": "jsonpath={.metadata.uid}", "checkov.io/skip1": "CKV=a reason"},
            "labels": {"a": "b"},
        },
        spec={"completions": 1},
        __defaults=[],
    )
    assert written(tmp_path, job) == {
        "08-job-digits-chief.yaml": {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": "digits-chief",
                "namespace": NAMESPACE,
                "labels": {"a": "b"},
                "annotations": {"checkov.io/skip1": "CKV=a reason"},
            },
            "spec": {"completions": 1},
        }
    }


def test_annotations_that_are_pulumis_alone_leave_none(tmp_path: Path) -> None:
    (made,) = written(tmp_path, step("core/v1:Service", "digits", metadata={"annotations": {"pulumi.com/waitFor": "x"}})).values()
    assert "annotations" not in made["metadata"]


@pytest.mark.parametrize(
    ("token", "api_version", "kind"),
    [
        ("core/v1:Service", "v1", "Service"),
        ("apps/v1:Deployment", "apps/v1", "Deployment"),
        ("networking.k8s.io/v1:NetworkPolicy", "networking.k8s.io/v1", "NetworkPolicy"),
        ("cloud.google.com/v1:BackendConfig", "cloud.google.com/v1", "BackendConfig"),
    ],
)
def test_kinds_and_versions(tmp_path: Path, token: str, api_version: str, kind: str) -> None:
    (made,) = written(tmp_path, step(token, "x")).values()
    assert (made["apiVersion"], made["kind"]) == (api_version, kind)


def test_what_is_not_known_yet_is_said(tmp_path: Path) -> None:
    image = {"containers": [{"image": render.UNKNOWN, "env": [{"name": "A", "value": f"abc {render.UNKNOWN}"}]}]}
    (made,) = written(tmp_path, step("core/v1:Pod", "x", spec=image)).values()
    assert made["spec"] == {"containers": [{"image": "KNOWN-AFTER-UP", "env": [{"name": "A", "value": "abc KNOWN-AFTER-UP"}]}]}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"stringData": {"API_KEY": "hunter2", "TOKEN": "hunter2"}}, ": API_KEY, TOKEN."),
        ({"data": {"key.json": "aHVudGVyMg=="}}, ": key.json."),
        ({"stringData": "[secret]"}, "."),
        ({"stringData": render.UNKNOWN}, "."),
        ({}, "."),
    ],
)
def test_of_a_secret_only_the_names_are_written(tmp_path: Path, values: dict[str, Any], says: str) -> None:
    (file,) = render.write({"steps": [step("core/v1:Secret", "secrets", **values)]}, tmp_path)
    text = file.read_text()
    assert text.startswith(f"# The values are left out{says}\n")
    assert "hunter2" not in text
    assert "aHVudGVyMg" not in text
    assert yaml.safe_load(text) == {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "secrets", "namespace": NAMESPACE}}


def test_what_others_need_comes_first(tmp_path: Path) -> None:
    kinds = [
        "batch/v1:Job",
        "core/v1:Service",
        "core/v1:Secret",
        "core/v1:Namespace",
        "core/v1:ServiceAccount",
        "networking.k8s.io/v1:NetworkPolicy",
    ]
    kinds += ["core/v1:ConfigMap", "core/v1:PersistentVolumeClaim", "storage.k8s.io/v1:StorageClass", "apps/v1:Deployment"]
    written(tmp_path, *(step(kind, "x") for kind in kinds))
    order = [file.name.split("-")[1] for file in sorted(tmp_path.iterdir())]  # as `kubectl apply -f FOLDER` reads them
    assert order == [
        *("namespace", "storageclass", "serviceaccount", "secret", "configmap", "networkpolicy", "persistentvolumeclaim", "service"),
        *("deployment", "job"),
    ]


@pytest.mark.parametrize(
    ("op", "there"), [("create", True), ("same", True), ("update", True), ("replace", True), ("delete", False), ("delete-replaced", False)]
)
def test_only_what_is_there_after_an_up_is_written(tmp_path: Path, op: str, there: bool) -> None:
    assert bool(written(tmp_path, step("core/v1:Service", "x", op=op))) == there


def test_other_resources_are_none_of_kubernetes(tmp_path: Path) -> None:
    bucket = {"op": "create", "urn": "u", "newState": {"type": "gcp:storage/bucket:Bucket", "inputs": {"name": "b"}}}
    provider = {"op": "create", "urn": "u", "newState": {"type": "pulumi:providers:kubernetes", "inputs": {"kubeconfig": "x"}}}
    assert written(tmp_path, bucket, provider, {"op": "delete", "urn": "u", "oldState": {}}) == {}


def test_files_of_before_go_and_others_stay(tmp_path: Path) -> None:
    written(tmp_path, step("core/v1:Service", "old"))
    (tmp_path / "mine.yaml").write_text("x")
    render.write({"steps": [step("core/v1:Service", "new")]}, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"07-service-new.yaml", "mine.yaml"}


def run(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ops.render", *arguments], input=text, cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_what_a_person_reads(tmp_path: Path) -> None:
    done = run(json.dumps({"steps": [step("core/v1:Service", "x")]}), str(tmp_path / "out"))
    assert (done.returncode, done.stdout) == (0, f"1 manifests are in {tmp_path / 'out'}\n")
    assert run(json.dumps({"steps": []}), str(tmp_path)).stdout == "the stack has no Kubernetes objects; local has none\n"
    refused = run("error: no stack", str(tmp_path))
    assert refused.returncode == 1
    assert refused.stderr == "trainstack: there is no preview to render; see what `make preview` says.\n"
    assert run("{}").returncode == 2


# ----------------------------------------------------------------------------------------------- through the engine


def valid(folder: Path) -> dict[str, Any]:
    """The files of a folder, each of which keeps the rules of the house."""
    found = {file.name: yaml.safe_load(file.read_text()) for file in sorted(folder.iterdir())}
    assert {name: problems for name, manifest in found.items() if (problems := broken(manifest))} == {}
    return found


@pytest.mark.full
@pytest.mark.engine
def test_make_render_writes_the_objects_of_dev(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PULUMI", "MFLAGS", "GOOGLE", "CLOUDSDK"))}
    command = ["make", "render", "STACK=dev", "CLOUD=simulated", f"STATE={tmp_path}/state", f"OUT={tmp_path}/out"]
    done = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    found = valid(tmp_path / "out")
    assert done.stdout.splitlines()[-1] == f"{len(found)} manifests are in {tmp_path}/out"
    assert {"00-namespace-trainstack-dev.yaml", "07-service-digits.yaml", "08-deployment-digits-serving.yaml"} <= set(found)
    assert {f"08-job-digits-{role}.yaml" for role in ("chief", "worker", "ps", "evaluator", "tensorboard")} <= set(found)
    everything = "".join(file.read_text() for file in (tmp_path / "out").iterdir())
    assert "KNOWN-AFTER-UP" not in everything, "on the simulated cloud all is known"
    assert "pulumi.com/" not in everything


@pytest.mark.full
@pytest.mark.engine
def test_no_secret_is_in_any_file(tmp_path: Path) -> None:
    with simulation(tmp_path / "dev") as dev:
        dev.add_secrets()
        new = rendered(dev, tmp_path / "new")
        dev.up()
        dev.training(args={"epochs": 7})
        changed = rendered(dev, tmp_path / "changed")
    assert set(new) == set(changed), "the same objects, whether they are to be made, there or to be replaced"
    assert {"03-secret-secrets.yaml", "03-secret-credential.yaml"} <= set(new)
    assert new["02-serviceaccount-trainer.yaml"]["metadata"]["namespace"] == NAMESPACE, "names are known before anything is there"
    assert all(each["metadata"].get("namespace", NAMESPACE) == NAMESPACE for each in new.values())
    texts = [file.read_text() for folder in ("new", "changed") for file in (tmp_path / folder).iterdir()]
    for hidden in ("hunter2", "service_account", "PRIVATE KEY", "[secret]"):
        assert not [text for text in texts if hidden in text]
    command = new["08-job-digits-chief.yaml"]["spec"]["template"]["spec"]["containers"][0]["command"]
    other = changed["08-job-digits-chief.yaml"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert "--epochs=20" in command
    assert "--epochs=7" in other, "what it will be, and not what it was"


def rendered(stack: Simulation, folder: Path) -> dict[str, Any]:
    render.write(json.loads(stack.pulumi("preview", "--json", "--show-sames").stdout), folder)
    return {file.name: yaml.safe_load(file.read_text()) for file in folder.iterdir()}
