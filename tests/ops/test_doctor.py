"""The doctor: every situation has its sentence, with what to do in it. The tools are asked for real once; what their answers mean is pure."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops import __main__ as main
from ops.answers import Answer, ask
from ops.doctor import OK, PROBLEM, UNKNOWN, Finding, cluster, examine, google, machine, stack
from ops.doctor.stack import Subject
from ops.target import OpsError
from tests.conftest import ROOT, own_backend
from tests.infra.program import settings_of

BIN = ROOT / "tests" / "cloud" / "bin"
NOBODY = "ERROR: (gcloud.projects.describe) You do not currently have an active account selected.\nPlease run:\n\n  $ gcloud auth login\n\nto obtain new credentials."
NO_PERMISSION = (
    "ERROR: (gcloud.projects.describe) [person@example.com] does not have permission to access projects instance [some-project] (or it may not exist): "
    "The caller does not have permission. This command is authenticated as person@example.com which is the active account specified by the [core/account] property"
)
DISABLED = (
    "ERROR: (gcloud.compute.regions.describe) Could not fetch resource:\n - Compute Engine API has not been used in project some-project before or it is disabled. "
    "Enable it by visiting https://console.developers.google.com/apis/api/compute.googleapis.com/overview?project=some-project then retry."
)
OFFLINE = "ERROR: gcloud crashed (MaxRetryError): HTTPSConnectionPool(host='oauth2.googleapis.com', port=443): Max retries exceeded with url: /token"
NO_DEFAULT = "ERROR: (gcloud.auth.application-default.print-access-token) Your default credentials were not found."


def tool(folder: Path, name: str, *lines: str) -> None:
    """A command of this name that a test wants on PATH."""
    (folder / name).write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with everything, and the simulated cloud; the folder has the tools, and gcloud.json says what gcloud does otherwise."""
    tool(tmp_path, "docker", """echo '{"Client":{"Version":"28.1.0"},"Server":{"Version":"28.1.0"}}'""")
    tool(tmp_path, "kubectl", """echo '{"clientVersion":{"gitVersion":"v1.34.1"}}'""")
    tool(tmp_path, "gke-gcloud-auth-plugin", "echo 'Kubernetes v1.30.0+abc'")
    (tmp_path / "state").mkdir()
    for name, value in {**own_backend(tmp_path), "TRAINSTACK_CLOUD": str(tmp_path / "cloud.json")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), str(BIN), str(Path(sys.executable).parent), "/usr/bin", "/bin"]))
    return tmp_path


def written(folder: Path, name: str = "dev", **changes: Any) -> Path:
    file = folder / f"Pulumi.{name}.yaml"
    file.write_text(yaml.safe_dump({"config": {**settings_of(name), **{key.replace("__", ":"): value for key, value in changes.items()}}}))
    return file


def of(found: list[Finding], subject: str) -> Finding:
    (finding,) = (each for each in found if each.subject == subject)
    return finding


# ------------------------------------------------------------------------------------------------------ as a person runs it


@pytest.mark.engine
def test_a_machine_with_everything_is_ready(tools: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tools)
    shutil.copy(ROOT / "Pulumi.yaml", tools)
    subprocess.run(["pulumi", "--cwd", str(tools), "stack", "init", "dev"], check=True, capture_output=True)
    monkeypatch.setattr(sys, "argv", ["trainstack", "--stack", "dev", "--config-file", str(file), "doctor"])
    assert main.main() == 0
    shown = capsys.readouterr()
    assert "Everything is ready." in shown.out
    assert "asking docker, gcloud" in shown.err
    assert "ya29" not in shown.out + shown.err

    (tools / "gcloud.json").write_text(json.dumps({"billing projects describe": {"output": {"billingEnabled": False}}}))
    monkeypatch.setattr(sys, "argv", ["trainstack", "--json", "--stack", "dev", "--config-file", str(file), "doctor"])
    assert main.main() == 1
    found = json.loads(capsys.readouterr().out)
    assert [each["subject"] for each in found if each["state"] != "ok"] == ["billing"]


@pytest.mark.process
def test_a_network_that_hangs_costs_seconds(tools: Path) -> None:
    (tools / "gcloud.json").write_text(json.dumps({"projects describe": {"sleep": 60}, "services list": {"sleep": 60}}))
    begun = time.monotonic()
    found = examine("dev", written(tools), seconds=5)
    assert time.monotonic() - begun < 20
    assert of(found, "project") == Finding("Google Cloud", "project", UNKNOWN, "gcloud had not answered after 5 s.")
    assert of(found, "services").state == UNKNOWN


def test_what_hangs_is_ended_with_everything_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "slow", f"(sleep 300; touch {tmp_path}/late) &", f"echo $! > {tmp_path}/child", "wait")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert ask({"it": ["slow"]}, seconds=1)["it"].why == "slow had not answered after 1 s"
    child = int((tmp_path / "child").read_text())
    time.sleep(0.2)
    assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]


def test_with_nothing_installed_it_says_what_is_missing(tmp_path: Path) -> None:
    """A clean checkout, a Python without packages, and no tool on PATH."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "Pulumi*.yaml", "requirements.lock"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    file = written(tmp_path)
    command = [sys.executable, "-S", "-m", "ops", "--json", "--stack", "dev", "--config-file", str(file), "doctor"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PATH": str(tmp_path / "nothing"), "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1, done.stderr
    found = [Finding(**each) for each in json.loads(done.stdout)]
    assert of(found, "packages").state == PROBLEM
    assert "`make ready`, which installs everything" in of(found, "packages").sentence
    assert "pulumi is not installed; run `make ready`" in of(found, "pulumi").sentence
    assert "https://cloud.google.com/sdk/docs/install" in of(found, "gcloud").sentence
    assert "https://docs.docker.com/get-docker/" in of(found, "docker").sentence
    assert of(found, "project") == Finding("Google Cloud", "project", UNKNOWN, "gcloud is not installed.")
    assert of(found, "quota") == Finding("Google Cloud", "quota", UNKNOWN, "the packages that read the settings are missing.")
    assert {each.subject for each in found if each.state == OK} == {"Python", "kubectl"}


def test_an_unknown_stack_is_one_sentence() -> None:
    with pytest.raises(OpsError, match="there is no stack 'nowhere' here; write --stack with one of dev, local, "):
        examine("nowhere")


# ------------------------------------------------------------------------------------------------------------- what answers mean


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> tuple[Subject, dict[str, Answer]]:
    """A stack dev and the answers of a cloud that is ready for it, as the simulated gcloud gives them."""
    folder = tmp_path_factory.mktemp("ready")
    subject = stack.read("dev", written(folder))
    environment = {"TRAINSTACK_CLOUD": str(folder / "cloud.json"), "PATH": f"{BIN}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        answers = ask({**google.questions(subject), "gcloud": ["gcloud", "version", "--format=json"]}, 60)
    assert all(answer.fine for answer in answers.values()), answers
    return subject, answers


def said(output: Any = None, errors: str = "", code: int | None = None, command: str = "gcloud", **more: Any) -> Answer:
    return Answer((command,), (1 if errors else 0) if code is None else code, json.dumps(output), errors, **more)


def region(**quotas: tuple[float, float]) -> Answer:
    zones = [f"https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-{letter}" for letter in "abcf"]
    return said({"zones": zones, "quotas": [{"metric": name, "limit": limit, "usage": usage} for name, (limit, usage) in quotas.items()]})


AMPLE = {"CPUS": (1000.0, 0.0), "PREEMPTIBLE_CPUS": (1000.0, 0.0), "SSD_TOTAL_GB": (5000.0, 0.0), "PREEMPTIBLE_NVIDIA_L4_GPUS": (8.0, 0.0)}
GPU = "quota PREEMPTIBLE_NVIDIA_L4_GPUS"
SITUATIONS: list[tuple[dict[str, Answer], str, str, str]] = [
    ({"account": said([])}, "login", PROBLEM, "nobody is logged in to gcloud; run `gcloud auth login`"),
    ({"credentials": said(errors=NO_DEFAULT)}, "application default credentials", PROBLEM, "run `gcloud auth application-default login`"),
    ({"credentials": said(errors=OFFLINE)}, "application default credentials", UNKNOWN, "Google cannot be reached from here"),
    ({"project": said(errors=NO_PERMISSION)}, "project", PROBLEM, "some-project does not exist, or your account may not see it; correct gcp:project"),
    ({"project": said(errors=NOBODY)}, "project", UNKNOWN, "nobody is logged in to gcloud."),
    ({"project": said({"lifecycleState": "DELETE_REQUESTED"})}, "project", PROBLEM, "`gcloud projects undelete some-project`"),
    ({"project": Answer(("gcloud",), missing=True)}, "project", UNKNOWN, "gcloud is not installed."),
    ({"billing": said({"billingEnabled": False})}, "billing", PROBLEM, "`gcloud billing projects link some-project --billing-account=ACCOUNT`"),
    ({"billing": said(errors=NO_PERMISSION)}, "billing", UNKNOWN, "your account may not look at it"),
    ({"services": said([{"config": {"name": "compute.googleapis.com"}}])}, "services", OK, "the first `up` enables artifactregistry, cloudresourcemanager, container"),
    ({"services": said(errors=DISABLED)}, "services", PROBLEM, "`gcloud services enable serviceusage.googleapis.com --project=some-project`"),
    ({"region": said(errors=DISABLED)}, "location", UNKNOWN, "not enabled in the project yet; run `gcloud services enable compute.googleapis.com --project=…` and this again to see it."),
    ({"region": said(errors=DISABLED)}, "quota in us-central1", UNKNOWN, "not enabled in the project yet"),
    ({"region": said(errors="ERROR: (gcloud.compute.regions.describe) Could not fetch resource:\n - The resource 'x' was not found")}, "location", PROBLEM, "write another cluster.location"),
    ({"region": said({"zones": [".../us-central1-b"], "quotas": []})}, "location", PROBLEM, "us-central1 has no zone us-central1-a; write zones of us-central1-b"),
    ({"region": region(**AMPLE)}, GPU, OK, "2 needed, 8 free in us-central1"),
    ({"region": region(**AMPLE | {"PREEMPTIBLE_NVIDIA_L4_GPUS": (1.0, 0.0)})}, GPU, PROBLEM, "2 are needed in us-central1 and the project has 1; ask for more at https://"),
    ({"region": region(**AMPLE | {"PREEMPTIBLE_NVIDIA_L4_GPUS": (8.0, 7.0)})}, GPU, PROBLEM, "the project has 8, of which 7 are in use"),
    (
        {"region": region(**AMPLE | {"PREEMPTIBLE_NVIDIA_L4_GPUS": (8.0, 7.0)}), "stacks": said([{"name": "dev", "resourceCount": 60}])},
        *(GPU, OK, "2 needed, 8 in us-central1"),  # what is used may be its own
    ),
    ({"region": region(**AMPLE | {"PREEMPTIBLE_NVIDIA_L4_GPUS": (0.0, 0.0), "NVIDIA_L4_GPUS": (4.0, 0.0)})}, GPU, OK, "none, so spot nodes use NVIDIA_L4_GPUS"),
    ({"region": region(**AMPLE | {"PREEMPTIBLE_NVIDIA_L4_GPUS": (0.0, 0.0), "NVIDIA_L4_GPUS": (1.0, 0.0)})}, GPU, PROBLEM, "the project has 0;"),
    ({"region": region(CPUS=(1000.0, 0.0))}, GPU, UNKNOWN, "us-central1 does not list it; look for it at https://console.cloud.google.com"),
    ({"region": region(**AMPLE | {"SSD_TOTAL_GB": (250.0, 0.0)})}, "quota SSD_TOTAL_GB", PROBLEM, "500 are needed in us-central1 and the project has 250"),
    ({"region": region(**AMPLE | {"CPUS": (8.0, 0.0)})}, "quota CPUS", PROBLEM, "12 are needed"),
    ({"quotas": said({"quotas": [{"metric": "GPUS_ALL_REGIONS", "limit": 0.0, "usage": 0.0}]})}, "quota GPUS_ALL_REGIONS", PROBLEM, "2 are needed in all regions and the project has 0"),
    ({"gpus": said([{"name": "nvidia-l4", "zone": ".../us-central1-c"}])}, "GPU l4", PROBLEM, "us-central1-a has none; write cluster.location: us-central1-c"),
    ({"gpus": said([{"name": "nvidia-l4", "zone": ".../europe-west4-a"}])}, "GPU l4", PROBLEM, "us-central1 has none; write a cluster.location in one of europe-west4"),
    ({"gpus": said([])}, "GPU l4", PROBLEM, "us-central1 has none; write another accelerator"),
    ({"gpus": said(errors=DISABLED)}, "GPU l4", UNKNOWN, "not enabled"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "subject", "state", "words"), SITUATIONS, ids=[f"{row[1]}-{row[3][:30]}" for row in SITUATIONS])
def test_each_situation_of_the_cloud_has_its_sentence(
    ready: tuple[Subject, dict[str, Answer]], changed: Mapping[str, Answer], subject: str, state: str, words: str
) -> None:
    known, answers = ready
    found = of(google.findings(known, {**answers, **changed}), subject)
    assert (found.state, words in found.sentence) == (state, True), found


def test_nothing_is_wrong_in_the_cloud_that_is_ready(ready: tuple[Subject, dict[str, Answer]]) -> None:
    found = google.findings(*ready)
    assert {each.state for each in found} == {OK}
    assert {"login", "project", "billing", "services", "location", GPU, "GPU l4"} <= {each.subject for each in found}


def test_zones_of_a_region_without_the_gpu_are_named(tmp_path: Path, ready: tuple[Subject, dict[str, Answer]]) -> None:
    """A regional cluster has nodes in several zones, and GKE refuses a pool of which one has no such GPU."""
    _, answers = ready
    everywhere = stack.read("prod", written(tmp_path, "prod", trainstack__cluster={"location": "us-central1"}))
    found = of(google.findings(everywhere, answers), "GPU l4")
    assert found.state == PROBLEM
    assert "us-central1-f has none; write cluster.node_locations: [us-central1-a, us-central1-b, us-central1-c]" in found.sentence
    beside = {"location": "us-central1-a", "node_locations": ["us-central1-f"]}  # of a zonal cluster, which has nodes in its own zone, too
    found = of(google.findings(stack.read("prod", written(tmp_path, "prod", trainstack__cluster=beside)), answers), "GPU l4")
    assert found.sentence.startswith("us-central1-f has none; write cluster.node_locations")
    unknown = of(google.findings(everywhere, {**answers, "region": said(errors=DISABLED)}), "GPU l4")
    assert unknown.state == UNKNOWN
    chosen = stack.read("prod", written(tmp_path, "prod"))
    assert of(google.findings(chosen, answers), "GPU l4").state == OK


def test_without_a_project_the_rest_is_not_asked_for(ready: tuple[Subject, dict[str, Answer]]) -> None:
    subject = stack.read("dev", ROOT / "Pulumi.dev.yaml")
    assert not [command for command in google.questions(subject).values() if any("project=" in word for word in command)]
    found = google.findings(subject, ready[1])
    assert "`pulumi config set gcp:project MY-PROJECT --stack dev`" in of(found, "project").sentence
    assert "gcp:project" in of(machine.findings(subject, fine(subject)), "settings").sentence


def test_credentials_of_the_environment_are_enough(ready: tuple[Subject, dict[str, Answer]], monkeypatch: pytest.MonkeyPatch) -> None:
    subject, answers = ready
    monkeypatch.setenv("GOOGLE_CREDENTIALS", "{}")
    found = of(google.findings(subject, {**answers, "credentials": said(errors=NO_DEFAULT)}), "application default credentials")
    assert found == Finding("Google Cloud", "application default credentials", OK, "not needed: Pulumi uses GOOGLE_CREDENTIALS")


# ------------------------------------------------------------------------------------------------------------- this machine

FINE: dict[str, Answer] = {
    "pulumi": Answer(("pulumi",), 0, "v3.259.0\n"),
    "login": said({"user": "person", "url": "gs://team"}),
    "stacks": said([{"name": "organization/trainstack/dev", "resourceCount": 0}]),
    "gcloud": said({"Google Cloud SDK": "528.0.0"}),
    "plugin": Answer(("gke-gcloud-auth-plugin",), 0, "Kubernetes v1.30.0\n"),
    "docker": said({"Server": {"Version": "28.1.0"}}),
    "kubectl": said({"clientVersion": {"gitVersion": "v1.34.1"}}),
    "key": said({"primary": {"state": "ENABLED"}}),
    "secrets": said({}),
}


def fine(subject: Subject, **changed: Answer) -> dict[str, Answer]:
    return {name: {**FINE, **changed}[name] for name in machine.questions(subject)}


KEY = "gcpkms://projects/p/locations/l/keyRings/r/cryptoKeys/k"
ON_MACHINE: list[tuple[dict[str, Any], dict[str, Answer], str, str, str]] = [
    ({}, {"pulumi": Answer(("pulumi",), missing=True)}, "pulumi", PROBLEM, "pulumi is not installed; run `make ready`, which installs it"),
    ({}, {"pulumi": Answer(("pulumi",), 0, "v3.90.0")}, "pulumi", PROBLEM, "3.90.0 does not go with the packages, which want 3.259.0"),
    ({}, {"pulumi": Answer(("pulumi",), 0, "v4.0.0")}, "pulumi", PROBLEM, "4.0.0 does not go with"),
    ({}, {"gcloud": said({"Google Cloud SDK": "400.0.0"})}, "gcloud", PROBLEM, "400.0.0 is too old; run `gcloud components update`"),
    ({}, {"plugin": Answer(("x",), missing=True)}, "gke-gcloud-auth-plugin", PROBLEM, "`gcloud components install gke-gcloud-auth-plugin`"),
    ({}, {"docker": said({"Server": None}, "Cannot connect to the Docker daemon at unix:///x.", command="docker")}, "docker", PROBLEM, "does not answer (Cannot connect to the Docker daemon at unix:///x); start Docker, or let nothing be built"),
    ({}, {"docker": said({"Server": {"Version": "20.10.7"}})}, "docker", PROBLEM, "20.10.7 is too old to build the image"),
    ({}, {"kubectl": Answer(("kubectl",), missing=True)}, "kubectl", OK, "nothing here needs it"),
    ({}, {"login": said(errors="error: PULUMI_ACCESS_TOKEN must be set for login during non-interactive CLI sessions", command="pulumi")}, "login", PROBLEM, "run `pulumi login` with yours (`make bootstrap PROJECT=…`"),
    ({}, {"login": Answer(("pulumi",), seconds=30)}, "login", UNKNOWN, "pulumi had not answered after 30 s."),
    ({}, {"login": said(errors="error: unable to open bucket gs://team: no such bucket", command="pulumi")}, "login", PROBLEM, "the backend cannot be used: unable to open bucket gs://team: no such bucket; mend that"),
    ({}, {"pulumi": Answer(("pulumi",), seconds=30)}, "pulumi", UNKNOWN, "pulumi had not answered after 30 s."),
    ({}, {"gcloud": Answer(("gcloud",), seconds=30)}, "gcloud", UNKNOWN, "gcloud had not answered after 30 s."),
    ({}, {"stacks": said([])}, "stack", PROBLEM, "run `pulumi stack init dev --secrets-provider=gcpkms://…`"),
    ({}, {"stacks": said(errors="error: no network", command="pulumi")}, "stack", UNKNOWN, "no network."),
    ({}, {}, "secrets", PROBLEM, "none is set; export PULUMI_CONFIG_PASSPHRASE"),
    ({"has_secrets": True}, {}, "secrets", OK, "can be read, encrypted by a passphrase"),
    ({"has_secrets": True}, {"secrets": said(errors="error: incorrect passphrase", command="pulumi")}, "secrets", PROBLEM, "another than the one they were encrypted with"),
    ({"secrets_provider": KEY}, {}, "secrets", OK, f"encrypted by {KEY}"),
    ({"secrets_provider": KEY}, {"key": said({"primary": {"state": "DISABLED"}})}, "secrets", PROBLEM, f"{KEY}, which encrypts them, is DISABLED"),
    ({"secrets_provider": KEY}, {"key": said(errors="ERROR: (gcloud.kms.keys.describe) PERMISSION_DENIED: no")}, "secrets", PROBLEM, "ask its owner for the role cloudkms.cryptoKeyEncrypterDecrypter"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("stack_is", "changed", "subject", "state", "words"), ON_MACHINE, ids=[f"{row[2]}-{row[4][:30]}" for row in ON_MACHINE]
)
def test_each_situation_of_the_machine_has_its_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stack_is: Mapping[str, Any],
    changed: Mapping[str, Answer],
    subject: str,
    state: str,
    words: str,
) -> None:
    for name in ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE"):
        monkeypatch.delenv(name, raising=False)
    known = replace(stack.read("dev", written(tmp_path)), **stack_is)
    found = of(machine.findings(known, fine(known, **changed)), subject)
    assert (found.state, words in found.sentence) == (state, True), found


def test_a_passphrase_that_is_set_is_enough_and_a_file_of_one_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = stack.read("dev", written(tmp_path))
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "")
    assert of(machine.findings(known, fine(known)), "secrets").state == OK
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE_FILE", str(tmp_path / "none"))
    assert of(machine.findings(known, fine(known)), "secrets").state == PROBLEM


def test_docker_is_asked_for_only_where_an_image_is_built(tmp_path: Path) -> None:
    ready_made = stack.read("dev", written(tmp_path, trainstack__image={"reference": f"some/image@sha256:{'0' * 64}"}))
    assert "docker" not in machine.questions(ready_made)
    assert "docker" in machine.questions(stack.read("dev", written(tmp_path)))


def test_wrong_settings_are_a_finding(tmp_path: Path) -> None:
    known = stack.read("dev", written(tmp_path, trainstack__cluster={"place": "x"}, trainstack__imagine={}))
    found = of(machine.findings(known, fine(known)), "settings")
    assert found.state == PROBLEM
    assert "cluster.place: unknown key" in found.sentence
    assert "and 1 more" in found.sentence
    (tmp_path / "Pulumi.dev.yaml").write_text("config: [\n")
    assert "the file is no YAML" in stack.read("dev", tmp_path / "Pulumi.dev.yaml").problems[0]


def test_secrets_of_a_stack_do_not_have_to_be_read(tmp_path: Path) -> None:
    known = stack.read("dev", written(tmp_path, trainstack__secrets={"API_KEY": {"secure": "v1:abc"}}))
    assert known.settings is not None
    assert known.has_secrets
    assert "secretmanager" in known.settings.services


def test_a_local_stack_needs_memory_and_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    known = stack.read("local", ROOT / "Pulumi.local.yaml")
    assert list(machine.questions(known)) == ["pulumi"]
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 8 * 2**30}))
    assert {each.state for each in machine.findings(known, fine(known))} == {OK}
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 2**30}))
    found = of(machine.findings(known, fine(known)), "memory")
    assert found.sentence.startswith("1.0 GiB are free, and 5 TensorFlow processes take about 3.2 GiB; end other programs")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 2**20}))
    assert of(machine.findings(known, fine(known)), "disk").state == PROBLEM


# -------------------------------------------------------------------------------------------------------------- a cluster


class Answering:
    """A cluster that says what a test wants."""

    namespace = "trainstack-dev"

    def __init__(self, version: str = "v1.36.3", denied: tuple[str, ...] = (), gpus: int = 0) -> None:
        self.said, self.denied, self.gpus = version, denied, gpus
        self.configuration = type("Configuration", (), {"host": "https://cluster"})

    def version(self) -> str:
        return self.said

    def allows(self, _verb: str, _group: str, resource: str, namespaced: bool) -> bool:
        assert namespaced == (resource != "namespaces")
        return resource not in self.denied

    def nodes(self) -> list[Any]:
        return [{"status": {"allocatable": {"nvidia.com/gpu": str(self.gpus)}}}]


TRAINING = {"command": ["train"], "image": f"some/image@sha256:{'0' * 64}", "worker": {"replicas": 1, "gpus": 2}, "ps": {"replicas": 1}}
CLUSTERS: list[tuple[Answering, str, str, str]] = [
    (Answering(), "version", OK, "v1.36.3"),
    (Answering("v1.28.9-gke.100"), "version", PROBLEM, "upgrade the cluster to 1.29 or newer"),
    (Answering(), "permissions", OK, "you may create all 7 kinds"),
    (Answering(denied=("namespaces", "jobs")), "permissions", PROBLEM, "you may not create namespaces, jobs there; ask the cluster's owner for the role cluster-admin."),
    (Answering(denied=("networkpolicies",)), "permissions", PROBLEM, "or admin in namespace trainstack-dev"),
    (Answering(gpus=4), "GPUs", OK, "4 on its nodes"),
    (Answering(gpus=1), "GPUs", UNKNOWN, "no node that is there now offers the 2"),
]  # fmt: skip


@pytest.mark.parametrize(("answering", "subject", "state", "words"), CLUSTERS, ids=[f"{row[1]}-{row[2]}-{row[3][:20]}" for row in CLUSTERS])
def test_each_situation_of_a_cluster_has_its_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answering: Answering, subject: str, state: str, words: str
) -> None:
    monkeypatch.setattr("ops.connection.connect", lambda *_: answering)
    found = of(cluster.findings(on_kubernetes(tmp_path)), subject)
    assert (found.state, words in found.sentence) == (state, True), found


def on_kubernetes(folder: Path) -> Subject:
    file = folder / "Pulumi.dev.yaml"
    values = {"target": "kubernetes", "kubernetes": {"context": "kind"}, "trainings": {"t": TRAINING}}
    file.write_text(yaml.safe_dump({"config": {f"trainstack:{key}": value for key, value in values.items()}}))
    subject = stack.read("dev", file)
    assert subject.settings, subject.problems
    return subject


def test_a_context_that_is_not_there_and_a_cluster_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINSTACK_KUBECONFIG", raising=False)
    kubeconfig = {"apiVersion": "v1", "kind": "Config", "clusters": [], "contexts": [], "users": []}
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig))
    assert "the kubeconfig has no context 'kind'" in cluster.findings(on_kubernetes(tmp_path))[0].sentence
    kubeconfig |= {
        "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "kind", "context": {"cluster": "here", "user": "me"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig))
    (found,) = cluster.findings(on_kubernetes(tmp_path))
    assert found.state == PROBLEM
    assert "no connection to the cluster at http://127.0.0.1:9" in found.sentence


@pytest.mark.process
def test_a_cluster_that_says_nothing_costs_seconds(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = on_kubernetes(tools)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # which accepts, and never answers
        kubeconfig = {
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{silent.getsockname()[1]}"}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "kind", "context": {"cluster": "here", "user": "me"}}],
            "current-context": "kind",
        }
        (tools / "config").write_text(yaml.safe_dump(kubeconfig))
        monkeypatch.setenv("TRAINSTACK_KUBECONFIG", str(tools / "config"))
        begun = time.monotonic()
        found = examine("dev", subject.file, seconds=4)
        assert time.monotonic() - begun < 15
    assert of(found, "connection") == cluster.silent(4)


def test_the_kinds_that_are_asked_for_are_those_that_are_made() -> None:
    from workloads.kubernetes import declare

    of_gke = {"BackendConfig", "StorageClass"}  # only where the stack makes the cluster
    apart = {"Secret", "ServiceAccount"}  # namespace.py makes them without a manifest
    assert set(cluster.KINDS) == (set(declare.KINDS) - of_gke) | apart
    assert set(cluster.kinds(None)) == set(cluster.KINDS)


def test_the_services_and_quotas_are_those_of_the_stack(tmp_path: Path) -> None:
    """What the doctor asks for is computed from the settings by what also makes the stack."""
    settings = stack.read("dev", written(tmp_path)).settings
    assert settings is not None
    regional, everywhere = settings.quotas
    assert regional == {"CPUS": 12, "PREEMPTIBLE_CPUS": 8, "PREEMPTIBLE_NVIDIA_L4_GPUS": 2, "SSD_TOTAL_GB": 500}
    assert everywhere == {"CPUS_ALL_REGIONS": 20, "GPUS_ALL_REGIONS": 2}
