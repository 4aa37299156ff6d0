"""The kubernetes plugin of the simulated cloud on a real server does what pulumi-kubernetes does, seen from the real engine."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pulumi
import pulumi.automation as automation
import pulumi_kubernetes as k8s
import pytest
from kubernetes import client, config

from tests.cloud.cloud import Cloud
from tests.cloud.provider import serve
from tests.conftest import ROOT, eventually, own_backend

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")]

AT_ONCE = {"pulumi.com/waitFor": "jsonpath={.metadata.uid}"}
GRACE = 6  # seconds that a pod takes to end
SLOW_TO_END = f"trap 'sleep {GRACE}; exit 0' TERM; while :; do sleep 0.2; done"


class World:
    """A stack whose program a test writes as it goes, in a namespace of its own on the cluster."""

    def __init__(self, cluster: Any, folder: Path, environment: dict[str, str]) -> None:
        self.cluster, self.folder = cluster, folder
        self.namespace = f"provider-{uuid.uuid4().hex[:8]}"
        self.options: dict[str, Any] = {}
        self.declare: Callable[[pulumi.ResourceOptions], None] = lambda _: None
        (folder / "state").mkdir()
        values = {**environment, **own_backend(folder)}
        engine = automation.PulumiCommand(root=str(ROOT / ".venv"))
        workspace = automation.LocalWorkspaceOptions(work_dir=str(folder), env_vars=values, pulumi_command=engine)
        self.stack = automation.create_or_select_stack("test", project_name="provider", program=self.program, opts=workspace)
        self.api = config.new_client_from_config(str(cluster.kubeconfig))
        self.core, self.batch = client.CoreV1Api(self.api), client.BatchV1Api(self.api)

    def program(self) -> None:
        provider = k8s.Provider("cluster", kubeconfig=str(self.cluster.kubeconfig), **self.options)
        inside = pulumi.ResourceOptions(provider=provider)
        namespace = k8s.core.v1.Namespace("namespace", metadata={"name": self.namespace}, opts=inside)
        self.declare(pulumi.ResourceOptions(provider=provider, depends_on=namespace))

    def up(self, declare: Callable[[pulumi.ResourceOptions], None] | None = None) -> dict[str, int]:
        """What `up` did, by kind of operation, without what stayed the same."""
        self.declare = declare or self.declare
        return {name: count for name, count in (self.stack.up().summary.resource_changes or {}).items() if name != "same"}

    def refused(self, declare: Callable[[pulumi.ResourceOptions], None] | None = None) -> str:
        with pytest.raises(automation.CommandError) as caught:
            self.up(declare)
        return str(caught.value)

    def metadata(self, name: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "namespace": self.namespace, **more}

    def settings(self, inside: pulumi.ResourceOptions, data: dict[str, str]) -> k8s.core.v1.ConfigMap:
        return k8s.core.v1.ConfigMap("settings", metadata=self.metadata("settings"), data=data, opts=inside)

    def job(
        self,
        inside: pulumi.ResourceOptions,
        script: str,
        annotations: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
        timeout: int = 120,
        **spec: Any,
    ) -> k8s.batch.v1.Job:
        """One pod that runs a script of the shell, with MODE from the settings in its environment."""
        mode = {"config_map_key_ref": {"name": "settings", "key": "mode", "optional": True}}
        container = {
            "name": "task",
            "image": self.cluster.image,
            "command": ["sh", "-c", script],
            "env": [{"name": "MODE", "value_from": mode}],
            "termination_message_policy": "FallbackToLogsOnError",
            "resources": {"requests": {"cpu": "0.01", "memory": "16Mi"}, "limits": {"memory": "65536Ki"}},
        }
        pod = {"restart_policy": "Never", "termination_grace_period_seconds": 30, "host_network": False, "containers": [container]}
        return k8s.batch.v1.Job(
            "job",
            metadata=self.metadata("job", annotations=annotations or {}, labels=labels or {}),
            spec={"backoff_limit": 0, "template": {"spec": pod}, **spec},
            opts=pulumi.ResourceOptions.merge(inside, pulumi.ResourceOptions(custom_timeouts=pulumi.CustomTimeouts(create=f"{timeout}s"))),
        )

    def uid(self) -> str:
        found = self.batch.read_namespaced_job("job", self.namespace).metadata.uid
        assert isinstance(found, str)
        return found

    def pods(self) -> list[Any]:
        return list(self.core.list_namespaced_pod(self.namespace).items)

    def running(self) -> bool:
        return any(one.status.phase == "Running" for one in self.pods())


@pytest.fixture
def world(cluster: Any, tmp_path: Path) -> Iterator[World]:
    with serve(Cloud(tmp_path / "cloud.json"), real=True) as environment:
        made = World(cluster, tmp_path, environment)
        yield made
        made.stack.destroy()
        with pytest.raises(client.ApiException, match="404"):
            made.core.read_namespace(made.namespace)


def test_objects_come_change_and_go(world: World) -> None:
    world.options = {"enable_config_map_mutable": True}

    def declare(
        data: dict[str, str], labels: dict[str, str] | None = None, script: str = "sleep 1000"
    ) -> Callable[[pulumi.ResourceOptions], None]:
        def objects(inside: pulumi.ResourceOptions) -> None:
            world.settings(inside, data)
            world.job(inside, script, AT_ONCE, labels)
            headless = {"cluster_ip": "None", "selector": {"job-name": "job"}, "publish_not_ready_addresses": True}
            k8s.core.v1.Service("service", metadata=world.metadata("service"), spec={**headless, "ports": [{"port": 2222}]}, opts=inside)
            k8s.core.v1.Secret("secret", metadata=world.metadata("secret"), string_data={"key": "hush"}, opts=inside)
            k8s.core.v1.ConfigMap("unnamed", metadata={"namespace": world.namespace}, opts=inside)

        return objects

    world.declare = declare({"a": "1", "b": "2"})
    assert world.stack.preview().change_summary == {"create": 8}
    with pytest.raises(client.ApiException, match="404"):
        world.core.read_namespace(world.namespace)
    assert world.up() == {"create": 8}
    assert world.up() == {}, "amounts, empty and unset fields and a secret's texts are what the server made of them"
    before = world.core.read_namespaced_config_map("settings", world.namespace)

    assert world.up(declare({"a": "3"})) == {"update": 1}
    after = world.core.read_namespaced_config_map("settings", world.namespace)
    assert (after.data, after.metadata.uid) == ({"a": "3"}, before.metadata.uid)

    uid = world.uid()
    assert world.up(declare({"a": "3"}, {"colour": "red"})) == {"update": 1}
    assert world.up(declare({"a": "3"}, {"colour": "blue"})) == {"update": 1}
    labels = world.batch.read_namespaced_job("job", world.namespace).metadata.labels
    assert (labels["colour"], world.uid()) == ("blue", uid)

    world.core.delete_namespaced_config_map("settings", world.namespace)
    assert world.stack.refresh().summary.resource_changes["delete"] == 1
    kept = (world.folder / "state/.pulumi/stacks/provider/test.json").read_text()
    assert "kubernetes:core/v1:Secret" in kept
    assert "aHVzaA==" not in kept, "the secret can be read in the state"
    # The Job is not complete: the plugin says so at every refresh, and looks at it again with the next `up`.
    assert world.up() == {"create": 1, "update": 1}
    assert world.uid() == uid
    assert world.up() == {}


def test_a_field_that_does_not_exist_is_refused_and_so_is_an_object_that_is_there(world: World) -> None:
    def wrong(inside: pulumi.ResourceOptions) -> None:
        k8s.core.v1.ConfigMap("settings", metadata=world.metadata("settings", colour="red"), opts=inside)

    assert 'unknown field "metadata.colour"' in world.refused(wrong)
    with pytest.raises(automation.CommandError, match=r'unknown field "metadata\.colour"'):
        world.stack.preview()  # the namespace is there by now
    world.core.create_namespaced_config_map(world.namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="settings")))
    assert 'configmaps "settings" already exists' in world.refused(lambda inside: world.settings(inside, {}) and None)


def test_a_replacement_waits_for_the_old_pods(world: World) -> None:
    world.up(lambda inside: world.job(inside, SLOW_TO_END, AT_ONCE) and None)
    eventually(world.running, 30, "the pod does not run")
    (old,), started, uid = world.pods(), time.monotonic(), world.uid()
    assert world.up(lambda inside: world.job(inside, "sleep 1000", AT_ONCE) and None) == {"replace": 1}
    assert time.monotonic() - started > GRACE
    assert world.uid() != uid
    assert old.metadata.uid not in [one.metadata.uid for one in world.pods()]


def test_a_job_that_failed_is_reported_and_runs_again(world: World) -> None:
    world.options = {"enable_config_map_mutable": True}

    def declare(mode: str) -> Callable[[pulumi.ResourceOptions], None]:
        def objects(inside: pulumi.ResourceOptions) -> None:
            settings = world.settings(inside, {"mode": mode})
            after = pulumi.ResourceOptions.merge(inside, pulumi.ResourceOptions(depends_on=settings))
            world.job(after, 'echo "the mode is $MODE"; [ "$MODE" = good ]', {"pulumi.com/replaceUnready": "true"})

        return objects

    said = world.refused(declare("bad"))
    assert "[BackoffLimitExceeded]" in said
    assert "the mode is bad" in said
    uid = world.uid()
    assert world.up(declare("good")) == {"update": 1, "replace": 1}
    assert world.uid() != uid
    assert world.up() == {}


def test_a_job_that_failed_by_its_policy_is_waited_for_until_the_timeout(world: World) -> None:
    """Not what one wants, but what the plugin does: a Job that `up` waits for must fail by its back-off or its deadline."""
    rule = {"action": "FailJob", "on_exit_codes": {"operator": "In", "values": [78]}}
    said = world.refused(lambda inside: world.job(inside, "exit 78", timeout=20, pod_failure_policy={"rules": [rule]}) and None)
    assert "'job' timed out waiting to be Ready" in said
    assert world.batch.read_namespaced_job("job", world.namespace).status.conditions[-1].reason == "PodFailurePolicy"


def test_a_change_by_another_hand_is_a_conflict(world: World) -> None:
    world.up(lambda inside: world.job(inside, "sleep 1000", AT_ONCE, suspend=False) and None)
    world.batch.patch_namespaced_job("job", world.namespace, {"spec": {"suspend": True}})
    said = world.refused(lambda inside: world.job(inside, "sleep 1000", AT_ONCE, {"colour": "red"}, suspend=False) and None)
    assert "Server-Side Apply field conflict detected" in said
    assert world.batch.read_namespaced_job("job", world.namespace).spec.suspend is True
    # What the program does not speak of is nobody's business.
    assert world.up(lambda inside: world.job(inside, "sleep 1000", AT_ONCE, {"colour": "red"}) and None) == {"update": 1}
    assert world.batch.read_namespaced_job("job", world.namespace).spec.suspend is True


def test_ctrl_c_ends_a_wait(world: World) -> None:
    failures: list[str] = []

    def up() -> None:
        failures.append(world.refused(lambda inside: world.job(inside, "sleep 1000", timeout=600) and None))

    thread = threading.Thread(target=up)
    thread.start()
    eventually(world.running, 60, "the pod does not run")
    (engine,) = (one for one in psutil.Process().children(recursive=True) if one.name() == "pulumi")
    engine.send_signal(signal.SIGINT)
    thread.join(60)
    assert 'Resource operation was cancelled for "job"' in failures[0]
    kept = [one["type"] for one in world.stack.export_stack().deployment["resources"]]
    assert "kubernetes:batch/v1:Job" in kept, "it was created, and the state knows it"


def test_a_service_waits_for_its_pods(world: World) -> None:
    def declare(inside: pulumi.ResourceOptions) -> None:
        probe = {"exec": {"command": ["test", "-f", "/tmp/ready"]}, "period_seconds": 1}
        command = ["sh", "-c", f"sleep {GRACE}; touch /tmp/ready; sleep 1000"]
        container = {"name": "server", "image": world.cluster.image, "command": command, "readiness_probe": probe}
        spec = {"termination_grace_period_seconds": 1, "containers": [container]}
        pod = k8s.core.v1.Pod(
            "pod", metadata=world.metadata("pod", labels={"app": "server"}, annotations={"pulumi.com/waitFor": "condition=PodScheduled"}),
            spec=spec, opts=inside,
        )  # fmt: skip
        ports = {"selector": {"app": "server"}, "ports": [{"port": 80}]}
        after = pulumi.ResourceOptions.merge(inside, pulumi.ResourceOptions(depends_on=pod))
        k8s.core.v1.Service("service", metadata=world.metadata("service"), spec=ports, opts=after)

    assert world.up(declare) == {"create": 5}
    conditions = {one.type: one.status for one in world.pods()[0].status.conditions}
    assert conditions["Ready"] == "True"
