"""The kubernetes part of the simulated cloud: what it refuses, what it replaces, where a kubeconfig leads, and what is waited for."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pulumi
import pulumi.automation as automation
import pulumi_kubernetes as k8s
import pytest
from kubernetes import client, config
from pulumi.runtime.proto import provider_pb2 as protocol

from tests.cloud import google, kubernetes, ready, server
from tests.cloud.cloud import Cloud
from tests.cloud.kinds import UNKNOWN, CloudError
from tests.cloud.provider import Kubernetes, difference, serve, to_struct
from tests.conftest import ROOT, own_backend

HERE = {"project": "demo", "region": "europe-west4"}
JOB = "kubernetes:batch/v1:Job"
CLAIM = "kubernetes:core/v1:PersistentVolumeClaim"


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    made = Cloud(tmp_path / "cloud.json")
    made.enable("demo", *google.API_TITLES)
    return made


@pytest.fixture
def inside(cloud: Cloud) -> dict[str, str]:
    """The configuration of a provider for a cluster."""
    made = cloud.create(google.CLUSTER, {"name": "main", "deletionProtection": False}, HERE)
    return {"kubeconfig": f"server: https://{made.outputs['endpoint']}"}


def job(**spec: Any) -> dict[str, Any]:
    pod = {"restartPolicy": "Never", "containers": [{"name": "task", "image": "trainer", "resources": {"limits": {"cpu": 1}}}]}
    return {"metadata": {"name": "job"}, "spec": {"template": {"spec": pod}, **spec}}


# In the simulation.


def test_an_object_that_the_api_does_not_know_is_refused(cloud: Cloud, inside: dict[str, str]) -> None:
    with pytest.raises(CloudError, match=r'Job in version "batch/v1" cannot be handled as a Job: spec: .*paralelism'):
        cloud.create(JOB, job(paralelism=2), inside)
    with pytest.raises(CloudError, match=r"spec\.completions: 'two'"):
        cloud.create(JOB, job(completions="two"), inside)
    cloud.create(JOB, job(completions=2), inside)
    with pytest.raises(CloudError, match="paralelism"):
        cloud.update(JOB, "default/job", job(completions=2, paralelism=2), inside)
    assert cloud.resources(JOB)[0].inputs == job(completions=2)
    # Google's own kinds are nowhere in Kubernetes.
    cloud.create("kubernetes:cloud.google.com/v1:BackendConfig", {"metadata": {"name": "backend"}, "spec": {"securityPolicy": {}}}, inside)


def test_a_field_that_the_plugin_would_change_and_the_server_would_not_is_refused(cloud: Cloud, inside: dict[str, str]) -> None:
    cloud.create(JOB, job(backoffLimitPerIndex=3, completionMode="Indexed", completions=1), inside)
    with pytest.raises(CloudError, match=r'Job "job" is invalid: spec.backoffLimitPerIndex: Invalid value: 4: field is immutable'):
        cloud.update(JOB, "default/job", job(backoffLimitPerIndex=4, completionMode="Indexed", completions=1), inside)


@pytest.mark.parametrize(
    ("kind", "change", "configuration", "replaces"),
    [
        ("ConfigMap", {"data": {"a": "1"}}, {}, True),
        ("ConfigMap", {"data": {"a": "1"}}, {"enableConfigMapMutable": "true"}, False),
        ("ConfigMap", {"data": {"a": "1"}}, {"enableSecretMutable": "true"}, True),
        ("ConfigMap", {"data": {"a": "1"}, "immutable": True}, {"enableConfigMapMutable": "true"}, True),
        ("Secret", {"stringData": {"a": "1"}}, {}, True),
        ("Secret", {"stringData": {"a": "1"}}, {"enableSecretMutable": "true"}, False),
        ("Secret", {"type": "kubernetes.io/tls"}, {"enableSecretMutable": "true"}, True),
        ("ConfigMap", {"metadata": {"name": "other"}}, {"enableConfigMapMutable": "true"}, True),
    ],
)
def test_what_a_provider_may_change_in_place(kind: str, change: dict[str, Any], configuration: dict[str, str], replaces: bool) -> None:
    answer = difference(
        f"kubernetes:core/v1:{kind}", {"metadata": {"name": "a"}}, {"metadata": {"name": "a"}, **change}, configuration, True
    )
    assert bool(answer.replaces) == bool(answer.deleteBeforeReplace) == replaces
    assert answer.changes == answer.DIFF_SOME


def test_a_volume_is_there_as_long_as_its_claim(cloud: Cloud, inside: dict[str, str]) -> None:
    claim = {"metadata": {"name": "data", "namespace": "runs"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    with serve(cloud) as environment:
        core = client.CoreV1Api(config.new_client_from_config(environment["TRAINSTACK_KUBECONFIG"]))
        assert core.list_persistent_volume().items == []
        cloud.create(kubernetes.NAMESPACE, {"metadata": {"name": "runs"}}, inside)
        made = cloud.create(CLAIM, claim, inside)
        (volume,) = core.list_persistent_volume().items
        assert volume.metadata.name == f"pvc-{made.outputs['metadata']['uid']}"
        assert (volume.spec.claim_ref.namespace, volume.spec.claim_ref.name) == ("runs", "data")
        assert (volume.spec.persistent_volume_reclaim_policy, volume.status.phase) == ("Delete", "Bound")
        cloud.delete(kubernetes.NAMESPACE, "runs", inside)
        assert core.list_persistent_volume().items == []
        with pytest.raises(client.ApiException, match="404"):
            core.list_node()


def test_a_security_policy_and_a_zone_with_records(cloud: Cloud) -> None:
    made = cloud.create("gcp:compute/securityPolicy:SecurityPolicy", {"name": "allowed"}, HERE)
    assert made.id == "projects/demo/global/securityPolicies/allowed"
    zone = cloud.create(google.ZONE, {"name": "private", "dnsName": "googleapis.com."}, HERE).id
    record = cloud.create("gcp:dns/recordSet:RecordSet", {"managedZone": "private", "name": "googleapis.com.", "type": "A"}, HERE).id
    with pytest.raises(CloudError, match="is already being used by"):
        cloud.delete(google.ZONE, zone, HERE)
    cloud.delete("gcp:dns/recordSet:RecordSet", record, HERE)
    cloud.delete(google.ZONE, zone, HERE)
    assert cloud.resources(google.ZONE) == []


# Where a kubeconfig leads.


def kubeconfig(**servers: str) -> str:
    """One context, of the same name, for each address; the first one counts."""
    return json.dumps(
        {
            "current-context": next(iter(servers)),
            "contexts": [{"name": name, "context": {"cluster": f"{name}-cluster"}} for name in servers],
            "clusters": [{"name": f"{name}-cluster", "cluster": {"server": address}} for name, address in servers.items()],
        }
    )


GONE = f"https://{google.dns_endpoint('a cluster that was', 'demo')}"


@pytest.mark.parametrize(
    ("configuration", "simulated"),
    [
        ({}, True),
        ({"kubeconfig": UNKNOWN}, True),
        ({"kubeconfig": kubeconfig(one=f"https://{UNKNOWN}")}, True),
        ({"kubeconfig": kubeconfig(one=GONE)}, True),
        ({"kubeconfig": f"server: https://{google.endpoint('a cluster')}"}, True),
        ({"kubeconfig": kubeconfig(one="https://127.0.0.1:6443")}, False),
        ({"kubeconfig": kubeconfig(one=GONE, two="https://127.0.0.1:6443")}, True),
        ({"kubeconfig": kubeconfig(one=GONE, two="https://127.0.0.1:6443"), "context": "two"}, False),
        ({"kubeconfig": kubeconfig(one="https://gke-0123456789abcdef0123456789abcdef-512345678901.us-central1.gke.goog")}, False),
    ],
)
def test_where_a_kubeconfig_leads(configuration: dict[str, str], simulated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert server.simulated(configuration) is simulated
    file = tmp_path / "kubeconfig"
    file.write_text(configuration.get("kubeconfig", ""))
    assert server.simulated({**configuration, "kubeconfig": str(file)}) is simulated
    monkeypatch.setenv("KUBECONFIG", str(file))
    assert server.simulated({name: value for name, value in configuration.items() if name == "context"}) is simulated


@pytest.mark.engine
def test_somebodys_own_cluster_is_left_alone(tmp_path: Path) -> None:
    """A simulated stack may carry a kubeconfig that leads to a real cluster: nobody gave leave to touch it."""
    (tmp_path / "state").mkdir()
    with serve(Cloud(tmp_path / "cloud.json")) as environment, socket.create_server(("127.0.0.1", 0)) as cluster:
        cluster.settimeout(0)

        def program() -> None:
            provider = k8s.Provider("cluster", kubeconfig=kubeconfig(mine=f"http://127.0.0.1:{cluster.getsockname()[1]}"))
            k8s.core.v1.ConfigMap("settings", metadata={"name": "a"}, opts=pulumi.ResourceOptions(provider=provider))

        workspace = automation.LocalWorkspaceOptions(
            work_dir=str(tmp_path),
            env_vars={**environment, **own_backend(tmp_path)},
            pulumi_command=automation.PulumiCommand(root=str(ROOT / ".venv")),
        )
        stack = automation.create_or_select_stack("test", project_name="cloud", program=program, opts=workspace)
        with pytest.raises(automation.CommandError, match="configured Kubernetes cluster is unreachable"):
            stack.up()
        with pytest.raises(BlockingIOError):
            cluster.accept()


@pytest.mark.parametrize(
    ("olds", "news", "replaces"),
    [
        ({"kubeconfig": kubeconfig(one="https://10.0.0.1")}, {"kubeconfig": kubeconfig(one="https://10.0.0.2")}, ["kubeconfig"]),
        ({"kubeconfig": kubeconfig(one="https://10.0.0.1")}, {"kubeconfig": kubeconfig(one="https://10.0.0.1"), "namespace": "a"}, []),
        (
            {"kubeconfig": kubeconfig(one="https://10.0.0.1"), "clusterIdentifier": "mine"},
            {"kubeconfig": kubeconfig(one="https://10.0.0.2"), "clusterIdentifier": "mine"},
            [],
        ),
        ({"clusterIdentifier": "mine"}, {"clusterIdentifier": "yours"}, ["clusterIdentifier"]),
        ({"kubeconfig": kubeconfig(one="https://10.0.0.1")}, {"kubeconfig": UNKNOWN}, []),
    ],
)
def test_another_cluster_replaces_everything(cloud: Cloud, olds: dict[str, str], news: dict[str, str], replaces: list[str]) -> None:
    request = protocol.DiffRequest(old_inputs=to_struct(olds), news=to_struct(news))
    assert list(Kubernetes("kubernetes", cloud, real=False).DiffConfig(request, None).replaces) == replaces


# What is waited for, and what a change is.

METADATA = {"name": "a", "namespace": "runs", "generation": 1, "uid": "1234"}


def live(api_version: str, kind: str, **parts: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": METADATA, **parts}


def conditions(**types: tuple[str, str] | str) -> list[dict[str, str]]:
    pairs = {name: (value, "") if isinstance(value, str) else value for name, value in types.items()}
    return [{"type": name, "status": status, "reason": reason, "message": "so it is"} for name, (status, reason) in pairs.items()]


OTHERS = {
    ("Endpoints", "a"): {"metadata": {"resourceVersion": "7"}, "subsets": [{"addresses": [{}]}]},
    ("StorageClass", "late"): {"volumeBindingMode": "WaitForFirstConsumer"},
    ("StorageClass", "soon"): {"volumeBindingMode": "Immediate"},
}
STARTED = {"startTime": "now"}
ROLLED = {"Progressing": ("True", "NewReplicaSetAvailable")}


def claim(phase: str, storage: str) -> dict[str, Any]:
    return live("v1", "PersistentVolumeClaim", spec={"storageClassName": storage}, status={"phase": phase})


@pytest.mark.parametrize(
    ("object", "done"),
    [
        (live("v1", "ConfigMap"), True),
        (live("batch/v1", "Job", status=STARTED), False),
        (live("batch/v1", "Job", status={**STARTED, "conditions": conditions(Complete="True")}), True),
        (live("batch/v1", "Job", status={**STARTED, "conditions": conditions(Failed=("True", "PodFailurePolicy"))}), False),
        (live("apps/v1", "Deployment", status={"observedGeneration": 1, "conditions": conditions(Available="True", **ROLLED)}), True),
        (live("apps/v1", "Deployment", status={"observedGeneration": 0, "conditions": conditions(Available="True", **ROLLED)}), False),
        (live("apps/v1", "Deployment", status={"observedGeneration": 1, "conditions": conditions(Available="False", **ROLLED)}), False),
        (live("v1", "Pod", status={"conditions": conditions(PodScheduled="True", Initialized="True", Ready="True")}), True),
        (live("v1", "Pod", status={"conditions": conditions(PodScheduled="True", Initialized="True", Ready="False")}), False),
        (live("v1", "Service", spec={"selector": {"a": "b"}, "clusterIP": "10.0.0.1"}), True),
        (live("v1", "Service", spec={"selector": {"a": "b"}, "type": "LoadBalancer"}), False),
        (
            live("v1", "Service", spec={"selector": {"a": "b"}, "type": "LoadBalancer"}, status={"loadBalancer": {"ingress": [{}]}}),
            True,
        ),
        (live("v1", "Service", spec={"type": "ExternalName"}), True),
        (claim("Pending", "late"), True),
        (claim("Bound", "late"), True),
        (claim("Pending", "soon"), False),
        (claim("Bound", "soon"), True),
    ],
)
def test_what_counts_as_ready(object: dict[str, Any], done: bool) -> None:
    assert ready.by_kind(object, lambda _version, kind, _namespace, name: OTHERS.get((kind, name))).done is done


def test_a_headless_service_waits_for_nobody_and_another_for_every_unready_pod() -> None:
    spec = {"selector": {"a": "b"}, "clusterIP": "10.0.0.1"}
    unready = {"metadata": {}, "subsets": [{"notReadyAddresses": [{}]}]}
    assert not ready.by_kind(live("v1", "Service", spec=spec), lambda *_: unready).done
    assert not ready.by_kind(live("v1", "Service", spec=spec), lambda *_: None).done
    assert ready.by_kind(live("v1", "Service", spec={**spec, "clusterIP": "None"}), lambda *_: unready).done


def test_a_job_that_can_only_fail_fails_at_once() -> None:
    verdict = ready.by_kind(
        live("batch/v1", "Job", status={"conditions": conditions(Failed=("True", "DeadlineExceeded"))}), lambda *_: None
    )
    assert (verdict.failed, verdict.reasons) == (True, ("[DeadlineExceeded] so it is",))


@pytest.mark.parametrize(
    ("wanted", "done"),
    [
        ("jsonpath={.metadata.uid}", True),
        ("jsonpath={$.metadata.uid}=1234", True),
        ("jsonpath={.metadata.uid}=12", False),
        ("jsonpath={.status.phase}", False),
        ("jsonpath={.spec.list[0].name}=first", True),
        ("jsonpath={.metadata['uid']}", True),
        ("jsonpath={.spec.on}=true", True),
        ("condition=Ready", True),
        ("condition=Done=False", True),
        ("condition=Done", False),
        ('["jsonpath={.metadata.uid}", "condition=Ready"]', True),
        ('["jsonpath={.metadata.uid}", "condition=Done"]', False),
    ],
)
def test_what_an_annotation_waits_for(wanted: str, done: bool) -> None:
    inputs = {"metadata": {"annotations": {"pulumi.com/waitFor": wanted}}}
    object = live(
        "batch/v1", "Job", spec={"list": [{"name": "first"}], "on": True}, status={"conditions": conditions(Ready="True", Done="False")}
    )
    assert ready.asked_for(inputs, object, lambda *_: None).done is done


@pytest.mark.parametrize("wanted", ["{.metadata.uid}", "jsonpath=.metadata.uid", "jsonpath={.a[?(@.b)]}", "[]", "jsonpath={.metadata}=a"])
def test_an_annotation_that_means_nothing_is_an_error(wanted: str) -> None:
    with pytest.raises(CloudError):
        ready.asked_for({"metadata": {"annotations": {"pulumi.com/waitFor": wanted}}}, live("v1", "Pod"), lambda *_: None)


def test_the_last_words_of_a_container_are_shown() -> None:
    def pod(message: str) -> dict[str, Any]:
        state = {"terminated": {"reason": "Error", "exitCode": 3, "message": message}}
        return live("v1", "Pod", status={"containerStatuses": [{"name": "task", "ready": False, "state": state}]})

    assert ready.pod_messages([pod("no data"), pod("")]) == [
        "[Pod runs/a]: [Error] no data",
        '[Pod runs/a]: container "task" completed with exit code 3',
    ]


@pytest.mark.parametrize(
    ("object", "inputs", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 0}, {"a": 1}),
        ({}, {"hostNetwork": False, "labels": {}, "name": "x"}, {"hostNetwork": False, "labels": {}}),
        ({"limits": {"cpu": "1", "memory": "2Gi"}}, {"limits": {"cpu": "1000m", "memory": "2048Mi"}}, {"limits": {"cpu": "1000m", "memory": "2048Mi"}}),
        ({"limits": {"cpu": "2"}}, {"limits": {"cpu": "1000m"}}, {"limits": {"cpu": "2"}}),
        ({"value": "1"}, {"value": "1000m"}, {"value": "1"}),
        ({"list": [{"a": 1, "b": 2}, {"a": 3}]}, {"list": [{"a": 1}]}, {"list": [{"a": 1}]}),
    ],
)  # fmt: skip
def test_a_live_object_is_seen_as_far_as_the_inputs_speak_of_it(object: Any, inputs: Any, expected: Any) -> None:
    assert server.pruned(object, inputs) == expected
