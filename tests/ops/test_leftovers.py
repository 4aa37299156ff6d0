"""Leftovers: whatever can be left of a stack is found, with the command that deletes it, and nothing that is somebody else's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from naming import Names
from ops import leftovers
from ops.answers import Answer
from ops.leftovers import KINDS, Leftover, Stack, lines, questions, report, sweep
from ops.target import OpsError
from tests.cloud.cloud import Cloud
from tests.conftest import ROOT
from tests.infra.program import PROJECT, settings_of
from tests.infra.simulation import simulation

COMPUTE = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}"
ZONE, REGION, NETWORK = f"{COMPUTE}/zones/us-central1-a", f"{COMPUTE}/regions/us-central1", f"{COMPUTE}/global/networks/trainstack-dev"
DIGEST = f"sha256:{'0' * 64}"
OURS = {"managed-by": "trainstack", "stack": "dev"}
OF_CLUSTER = {"goog-k8s-cluster-name": "trainstack-dev", "goog-k8s-cluster-location": "us-central1-a"}
FOR_INGRESS = '{"kubernetes.io/ingress-name": "trainstack-dev/digits-tensorboard"}'
FOR_SERVICE = '{"kubernetes.io/service-name":"trainstack-dev/digits-tensorboard","kubernetes.io/service-port":"80"}'
FOR_CLAIM = json.dumps({"kubernetes.io/created-for/pv/name": "pvc-1", "kubernetes.io/created-for/pvc/namespace": "trainstack-dev"})

# From a kind to things as gcloud lists them, each with what the command that deletes it has in it.
LEFT: dict[str, list[tuple[dict[str, Any], str]]] = {
    "GKE cluster": [({"name": "trainstack-dev", "location": "us-central1-a", "zone": "us-central1-a", "resourceLabels": OURS}, "clusters delete trainstack-dev --location=us-central1-a")],
    "forwarding rule": [
        ({"name": "k8s2-fr-abcd1234-x", "description": FOR_INGRESS}, "forwarding-rules delete k8s2-fr-abcd1234-x --global"),
        ({"name": "a0123456789abcdef", "region": REGION, "description": '{"kubernetes.io/service-name":"trainstack-dev/t"}'}, "delete a0123456789abcdef --region=us-central1"),
    ],
    "target proxy (HTTP)": [({"name": "k8s2-tp-abcd1234-x", "description": FOR_INGRESS}, "target-http-proxies delete k8s2-tp-abcd1234-x --global")],
    "target proxy (HTTPS)": [({"name": "k8s2-ts-abcd1234-trainstack-dev-digits-tensorboard-x1"}, "target-https-proxies delete")],
    "URL map": [({"name": "k8s2-um-abcd1234-trainstack-dev-digits-tensorboard-x1"}, "url-maps delete")],
    "certificate": [({"name": "k8s2-cr-abcd1234-trainstack-dev-digits-tensorboard-x1"}, "ssl-certificates delete")],
    "target pool": [({"name": "a0123", "region": REGION, "description": '{"kubernetes.io/service-name":"trainstack-dev/t"}'}, "target-pools delete a0123 --region=us-central1")],
    "backend service": [({"name": "k8s1-abcd1234-x", "description": FOR_SERVICE}, "backend-services delete k8s1-abcd1234-x --global")],
    "health check": [({"name": "k8s1-abcd1234-trainstack-dev-digits-tensorboard-80-12345678"}, "health-checks delete")],
    "network endpoint group": [
        ({"name": "k8s1-neg", "zone": ZONE, "description": '{"cluster-uid":"1","namespace":"trainstack-dev","service-name":"t","port":"80"}'}, "--zone=us-central1-a"),
    ],
    "security policy": [({"name": "trainstack-dev-digits", "description": "TensorBoard of digits, stack dev"}, "security-policies delete trainstack-dev-digits --global")],
    "managed instance group": [({"name": "gke-trainstack-dev-gpu-l4-1-spot-1a2b3c4d-grp", "zone": ZONE, "location": "us-central1-a", "location_scope": "zone"}, "-grp --zone=us-central1-a")],
    "instance group": [({"name": "k8s-ig--abc", "zone": ZONE, "network": NETWORK}, "instance-groups unmanaged delete k8s-ig--abc --zone=us-central1-a")],
    "instance template": [({"name": "gke-trainstack-dev-cpu-1a2b3c4d", "properties": {"labels": OF_CLUSTER}}, "instance-templates delete")],
    "instance": [({"name": "gke-trainstack-dev-cpu-1a2b3c4d-x2x2", "zone": ZONE, "labels": {**OF_CLUSTER, "goog-gke-node": ""}}, "instances delete")],
    "disk": [
        ({"name": "pvc-1", "zone": ZONE, "sizeGb": "10", "type": f"{ZONE}/diskTypes/pd-balanced", "labels": OF_CLUSTER}, "compute disks delete pvc-1 --zone=us-central1-a"),
        ({"name": "pvc-2", "region": REGION, "sizeGb": "10", "description": FOR_CLAIM}, "compute disks delete pvc-2 --region=us-central1"),
    ],
    "snapshot": [({"name": "before", "diskSizeGb": "10", "labels": OF_CLUSTER}, "snapshots delete before --project")],
    "Filestore instance": [
        (
            {"name": f"projects/{PROJECT}/locations/us-central1-a/instances/pvc-3", "labels": OURS, "tier": "BASIC_HDD", "fileShares": [{"capacityGb": "1024"}]},
            "filestore instances delete pvc-3 --location=us-central1-a",
        )
    ],
    "address": [({"name": "a0123", "region": REGION, "addressType": "EXTERNAL", "description": '{"kubernetes.io/service-name":"trainstack-dev/t"}'}, "addresses delete")],
    "firewall rule": [
        ({"name": "gke-trainstack-dev-1a2b3c4d-all", "network": f"{COMPUTE}/global/networks/shared"}, "firewall-rules delete gke-trainstack-dev-1a2b3c4d-all --project"),
        ({"name": "k8s-fw-a0123", "network": NETWORK}, "firewall-rules delete k8s-fw-a0123"),
    ],
    "router with its NAT": [({"name": "trainstack-dev", "region": REGION, "network": NETWORK}, "routers delete trainstack-dev --region=us-central1")],
    "DNS zone": [({"name": "trainstack-dev-googleapis", "labels": OURS}, "record-sets import /dev/null --delete-all-existing --zone=trainstack-dev-googleapis")],
    "subnetwork": [({"name": "trainstack-dev-nodes", "region": REGION, "network": NETWORK}, "networks subnets delete trainstack-dev-nodes --region=us-central1")],
    "network": [({"name": "trainstack-dev"}, "networks delete trainstack-dev --project")],
    "secret": [({"name": "projects/1/secrets/trainstack-dev-api-key", "labels": OURS}, "secrets delete trainstack-dev-api-key")],
    "image repository": [
        ({"name": f"projects/{PROJECT}/locations/us-central1/repositories/trainstack-dev", "labels": OURS, "sizeBytes": str(3 * 2**30)}, "repositories delete trainstack-dev --location=us-central1"),
    ],
    "image": [({"package": f"us-docker.pkg.dev/{PROJECT}/gcr.io/trainer", "version": DIGEST, "tags": ["dev"]}, f"/gcr.io/trainer@{DIGEST} --delete-tags")],
    "bucket": [({"name": "some-project-dev-data", "location": "US-CENTRAL1", "storageClass": "STANDARD", "labels": OURS}, "storage rm --recursive gs://some-project-dev-data")],
    "service account": [({"name": "x", "email": f"ts-dev-nodes@{PROJECT}.iam.gserviceaccount.com"}, f"service-accounts delete ts-dev-nodes@{PROJECT}.iam")],
}  # fmt: skip

# What goes with something else, and is not looked for by itself.
WITH_OTHERS = (":NodePool", ":RouterNat", ":RecordSet", ":Key", ":SecretVersion", "IAMMember", "IamMember")
# What looks alike and is somebody else's: another stack whose name begins alike, another cluster, people's own.
OTHERS: dict[str, list[dict[str, Any]]] = {
    "disk": [
        {"name": "pvc-9", "zone": ZONE, "labels": {"goog-k8s-cluster-name": "trainstack-dev-2"}},
        {"name": "pvc-8", "zone": ZONE, "description": FOR_CLAIM.replace("trainstack-dev", "trainstack-dev-2")},
        {"name": "mine", "zone": ZONE, "labels": {"stack": "dev"}},
        {"name": "trainstack-dev-backup", "zone": ZONE, "description": "not { JSON"},
    ],
    "forwarding rule": [
        {"name": "a9", "description": '{"kubernetes.io/service-name":"trainstack-dev-2/t"}'},
        {"name": "b", "description": "[1]"},
    ],
    "firewall rule": [
        {"name": "gke-trainstack-dev-2-1a2b3c4d-all", "network": f"{NETWORK}-2"},
        {"name": "default-allow-ssh", "network": "x/default"},
    ],
    "managed instance group": [{"name": "gke-trainstack-dev-2-cpu-1a2b3c4d-grp", "zone": ZONE}],
    "URL map": [{"name": "k8s2-um-abcd1234-trainstack-dev-2-digits-x1"}],
    "security policy": [{"name": "x", "description": "TensorBoard of digits, stack dev-2"}],
    "network": [{"name": "default"}, {"name": "trainstack-dev-2"}],
    "bucket": [{"name": f"{PROJECT}-trainstack-state"}, {"name": "some-project-dev-2-data", "labels": {**OURS, "stack": "dev-2"}}],
    "service account": [{"email": f"ts-dev-2-nodes@{PROJECT}.iam.gserviceaccount.com"}],
    "image": [{"package": "x", "version": "sha256:def", "tags": "dev-2,latest"}],
}


def dev(**changes: Any) -> Stack:
    return Stack(Names(PROJECT, "dev"), {**settings_of("dev"), **{f"trainstack:{key}": value for key, value in changes.items()}})


GCR = {"domain": "gcr.io", "create": False}


def listed(items: Mapping[str, list[dict[str, Any]]]) -> dict[str, Answer]:
    return {kind.name: Answer(("gcloud",), 0, json.dumps(items.get(kind.name, []))) for kind in KINDS}


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_whatever_is_left_is_found_with_the_command_that_deletes_it(kind: str) -> None:
    for item, command in LEFT[kind]:
        (found,), unseen = sweep(dev(registry=GCR), listed({kind: [item]}))
        assert unseen == {}
        assert found.kind == kind
        assert command in found.delete
        assert found.delete.startswith("gcloud ")
        assert f"--project={PROJECT}" in found.delete or kind == "bucket"
        assert found.costs
        assert found.kept == ""


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_somebody_elses_is_not_named(kind: str) -> None:
    found, _ = sweep(dev(registry=GCR), listed({kind: OTHERS[kind]}))
    assert found == []


def test_what_it_costs_is_said_with_its_size() -> None:
    def costs(kind: str) -> str:
        return sweep(dev(), listed({kind: [LEFT[kind][0][0]]}))[0][0].costs

    assert costs("disk") == "by its size: 10 GB pd-balanced"
    assert costs("Filestore instance") == "by its size: 1024 GB BASIC_HDD"
    assert costs("image repository") == "by its size: 3.0 GB"
    assert costs("firewall rule") == "free"


def test_images_are_looked_for_only_in_a_repository_that_stays() -> None:
    assert "image" not in questions(dev())
    assert f"us-docker.pkg.dev/{PROJECT}/gcr.io/trainer" in questions(dev(registry=GCR))["image"]
    used = questions(dev(registry={"create": False, "name": "shared"}))["image"]
    assert f"us-central1-docker.pkg.dev/{PROJECT}/shared/trainer" in used


BUCKET = LEFT["bucket"][0][0]


@pytest.mark.parametrize(
    ("storage", "kept"),
    [
        ({"data": {"on_destroy": "keep"}}, "storage.data: on_destroy: keep"),
        ({}, "storage.data: on_destroy: keep"),  # which is what nothing written means
        ({"data": {"existing": "some-project-dev-data"}}, "storage.data uses it: existing"),
        ({"data": {"on_destroy": "delete"}}, ""),
        ({"data": {"existing": "another"}}, ""),  # the stack has given it up
    ],
)
def test_a_bucket_is_kept_on_purpose_as_the_settings_say(storage: Any, kept: str) -> None:
    subject = dev(storage=storage)
    (found,), _ = sweep(subject, listed({"bucket": [BUCKET]}))
    assert found.kept == kept
    shown = "\n".join(lines(subject, [found], {}))
    assert ("Kept on purpose:" in shown) == bool(kept)
    assert ("Nothing else is left of stack dev" in shown) == bool(kept)


def test_a_list_that_cannot_be_had_is_named_and_one_of_a_service_that_is_off_is_empty() -> None:
    denied = Answer(("gcloud",), 1, "[]", "ERROR: (gcloud.secrets.list) PERMISSION_DENIED: Permission 'secretmanager.secrets.list' denied")
    off = Answer(("gcloud",), 1, "", "ERROR: (gcloud.filestore.instances.list) API [file.googleapis.com] not enabled on project [p].")
    slow = Answer(("gcloud",), seconds=90)
    found, unseen = sweep(dev(), {**listed({}), "secret": denied, "Filestore instance": off, "disk": slow, "address": slow})
    assert found == []
    assert unseen == {
        "secret": "PERMISSION_DENIED: Permission 'secretmanager.secrets.list' denied",
        "disk": "gcloud had not answered after 90 s",
        "address": "gcloud had not answered after 90 s",
    }
    shown = list(lines(dev(), found, unseen))
    assert "  disk, address: gcloud had not answered after 90 s" in shown
    assert not [line for line in shown if line.startswith("Nothing")]


def test_without_gcloud_or_a_login_it_is_one_sentence() -> None:
    with pytest.raises(OpsError, match="gcloud is not installed"):
        sweep(dev(), {"disk": Answer(("gcloud",), missing=True)})
    nobody = Answer(("gcloud",), 1, "[]", "ERROR: (gcloud.x) You do not currently have an active account selected.")
    with pytest.raises(OpsError, match="run `gcloud auth login`"):
        sweep(dev(), {"disk": nobody})


def test_other_targets_have_nothing_on_google_cloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Pulumi.here.yaml"
    for target, words in (("local", "nothing on Google Cloud"), ("kubernetes", "kubectl get all,pvc --namespace=trainstack-here")):
        file.write_text(f"config: {{trainstack:target: {target}}}\n")
        assert report("here", file, None) == 0
        assert words in capsys.readouterr().out
    file.write_text("config: {trainstack:target: gke}\n")
    with pytest.raises(OpsError, match="stack here has no gcp:project"):
        report("here", file, None)


# -------------------------------------------------------------------------------------------------- on the simulated cloud


@pytest.mark.full
@pytest.mark.engine
def test_a_destroyed_stack_has_left_nothing_and_what_leaks_is_found(tmp_path: Path) -> None:
    with simulation(tmp_path / "dev") as stack:
        command = ["python", "-m", "ops", *stack.of_this_stack(), "--json", "leftovers"]

        def left() -> tuple[int, list[Leftover]]:
            done = stack.run(*command, check=False)
            answer = json.loads(done.stdout)
            assert answer["not_looked_at"] == {}, done.stderr
            return done.returncode, [Leftover(**each) for each in answer["left"]]

        stack.up()
        code, found = left()
        assert code == 1
        made = [one.id for one in stack.cloud.resources("gcp:*") if not one.type.endswith(WITH_OTHERS)]
        assert sorted(each.name for each in found) == sorted(id.rpartition("/")[2] for id in made)  # all that it made is looked for
        stack.destroy()
        assert left() == (0, [])
        for kind in KINDS:
            for item, _ in LEFT[kind.name]:
                stack.cloud.put_other(kind.words, item)
            for item in OTHERS.get(kind.name, []):
                stack.cloud.put_other(kind.words, item)
        stack.cloud.enable(PROJECT, "secretmanager.googleapis.com", "file.googleapis.com")
        code, found = left()
        assert code == 1
        wanted = [kind.name for kind in KINDS if kind.name != "image" for _ in LEFT[kind.name]]  # the repository is the stack's own
        assert [each.kind for each in found] == wanted  # in the order in which they can be deleted


@pytest.mark.full
@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_the_real_gcloud_knows_every_command(tmp_path: Path) -> None:
    """With nobody logged in it refuses each of them for that reason, after it has understood the words."""
    from concurrent.futures import ThreadPoolExecutor

    from ops import bootstrap
    from ops.doctor import google, stack
    from tests.ops.test_doctor import written

    subject = dev(registry=GCR)
    place = bootstrap.Place(PROJECT, "us-central1", "some-project-trainstack-state")
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps(bootstrap.LIFECYCLE))
    project = Answer(("gcloud",), 0, json.dumps({"projectNumber": "1"}))
    absent = Answer(("gcloud",), 1, "", "NOT_FOUND")
    nothing = {"project": project, "services": Answer(("gcloud",), 0, "[]"), "bucket": absent, "ring": absent, "key": absent}
    commands = [
        *questions(subject).values(),
        *google.questions(stack.read("dev", written(tmp_path))).values(),
        *bootstrap.questions(place).values(),
        *(list(step.command) for step in bootstrap.steps(place, nothing, str(rules))),
        *([*each.delete.split(" && ")[-1].split(), "--quiet"] for kind in KINDS for each in sweep(subject, listed({kind.name: [item for item, _ in LEFT[kind.name]]}))[0]),
    ]  # fmt: skip
    real = {**os.environ, "CLOUDSDK_CONFIG": str(tmp_path / "nobody"), "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"}

    def tried(command: list[str]) -> tuple[list[str], str]:
        return command, subprocess.run(command, env=real, capture_output=True, text=True, timeout=300).stderr

    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(tried, commands))
    words = ("not currently have an active account", "credentials were not found", "filter keys were not present")
    assert [(command, errors) for command, errors in answers if not any(each in errors for each in words)] == []


def test_the_report_as_a_person_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command, through the simulated gcloud: one disk that leaked."""
    cloud = Cloud(tmp_path / "cloud.json")
    cloud.enable(PROJECT, "compute.googleapis.com")
    cloud.put_other("compute disks", LEFT["disk"][0][0])
    file = tmp_path / "Pulumi.dev.yaml"
    file.write_text(yaml.safe_dump({"config": settings_of("dev")}))
    monkeypatch.setenv("TRAINSTACK_CLOUD", str(tmp_path / "cloud.json"))
    monkeypatch.setenv("PATH", f"{ROOT}/tests/cloud/bin:{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert leftovers.report("dev", file, None) == 1
    shown = capsys.readouterr().out
    assert (
        "Left of stack dev in some-project; the commands delete it, from top to bottom:\n  disk pvc-1 in us-central1-a: paid by its size: 10 GB pd-balanced\n"
        in shown
    )
    assert f"    gcloud compute disks delete pvc-1 --zone=us-central1-a --project={PROJECT}\n" in shown
