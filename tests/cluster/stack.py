"""A stack of target kubernetes on a real cluster, typed as a person would type it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client

from tests.cloud.cloud import Cloud
from tests.cloud.provider import serve
from tests.cluster.conftest import Cluster
from tests.conftest import ROOT, eventually, own_backend
from workloads.kubernetes.names import namespace_of

SMALL = {"cpu": "200m", "memory": "2Gi"}  # the node of the tests has two CPUs for everybody
TINY = {"cpu": "50m", "memory": "128Mi"}


class ClusterStack:
    def __init__(self, cluster: Cluster, folder: Path, environment: dict[str, str]) -> None:
        self.cluster, self.folder = cluster, folder
        self.name = f"test-{uuid.uuid4().hex[:8]}"
        self.namespace = namespace_of(self.name)
        self.settings = folder / f"Pulumi.{self.name}.yaml"
        (folder / "state").mkdir()
        (folder / "Pulumi.yaml").write_text((ROOT / "Pulumi.yaml").read_text())
        kubeconfig = {"KUBECONFIG": str(cluster.kubeconfig), "TRAINSTACK_KUBECONFIG": str(cluster.kubeconfig)}
        self.env = {**os.environ, **environment, **own_backend(folder), **kubeconfig}
        self.core, self.batch = client.CoreV1Api(cluster.api), client.BatchV1Api(cluster.api)
        self.run("pulumi", "-C", str(folder), "stack", "select", "--create", self.name)

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=400)
        assert not check or done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}\n{self.story()}"
        return done

    def write(self, trainings: dict[str, Any]) -> None:
        context = yaml.safe_load(self.cluster.kubeconfig.read_text())["current-context"]
        values = {
            "target": "kubernetes",
            "kubernetes": {"context": context},
            "image": {"reference": self.cluster.image},
            "trainings": trainings,
        }
        self.settings.write_text(yaml.safe_dump({"config": {f"trainstack:{key}": value for key, value in values.items()}}))

    def pulumi(self, command: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run("pulumi", command, "--stack", self.name, "--config-file", str(self.settings), *arguments, check=check)

    def up(self, trainings: dict[str, Any] | None = None, check: bool = True) -> str:
        if trainings is not None:
            self.write(trainings)
        done = self.pulumi("up", "--yes", "--skip-preview", check=check)
        return done.stdout + done.stderr

    def preview(self) -> dict[str, set[str]]:
        """What would change: from the kind of operation to the logical names."""
        found: dict[str, set[str]] = {}
        for step in json.loads(self.pulumi("preview", "--json").stdout).get("steps", []):
            if step["op"] != "same":
                found.setdefault(step["op"], set()).add(step["urn"].rpartition("::")[2])
        return found

    def destroy(self) -> None:
        self.pulumi("destroy", "--yes")

    def ops(self, *arguments: str, code: int | None = 0) -> str:
        command = [sys.executable, "-m", "ops", "--stack", self.name, "--config-file", str(self.settings), *arguments]
        done = self.run(*command, check=False)
        assert code is None or done.returncode == code, f"{arguments} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    # ------------------------------------------------------------------------------------- what the cluster says

    def jobs(self) -> dict[str, str]:
        """From every Job to how it ended, or that it runs."""
        found = {}
        for job in self.batch.list_namespaced_job(self.namespace).items:
            ended = [each.type for each in job.status.conditions or [] if each.status == "True" and each.type in ("Complete", "Failed")]
            found[job.metadata.name] = ended[0] if ended else "Running"
        return found

    def wait_for_jobs(self, expected: dict[str, str], seconds: float) -> None:
        def reached() -> bool:
            now = self.jobs()
            wrong = {name: now.get(name) for name, state in expected.items() if now.get(name) not in (state, "Running", None)}
            assert not wrong, f"{wrong}, expected {expected}\n{self.story()}"
            return all(now.get(name) == state for name, state in expected.items())

        try:
            eventually(reached, seconds, "the Jobs are not as expected")
        except BaseException:
            print(self.story())
            raise

    def pods(self, component: str) -> list[Any]:
        selector = f"app.kubernetes.io/component={component}"
        pods: list[Any] = self.core.list_namespaced_pod(self.namespace, label_selector=selector).items
        return sorted(pods, key=lambda pod: pod.metadata.creation_timestamp)

    def log(self, component: str) -> str:
        """What all pods of a component have printed."""
        texts = []
        for pod in self.pods(component):
            try:
                texts.append(self.core.read_namespaced_pod_log(pod.metadata.name, self.namespace) or "")
            except client.ApiException:
                continue
        return "\n".join(texts)

    def wait_for_line(self, component: str, line: str, seconds: float) -> None:
        eventually(lambda: line in self.log(component), seconds, f"{component} never said {line!r}:\n{self.log(component)}\n{self.story()}")

    def delete_pod(self, component: str) -> None:
        running = [pod for pod in self.pods(component) if pod.status.phase == "Running"]
        self.core.delete_namespaced_pod(running[-1].metadata.name, self.namespace)

    def ask(self, service: str, path: str, body: Any = None) -> Any:
        """What a Service answers, through the API server; None while it does not."""
        place = f"/api/v1/namespaces/{self.namespace}/services/{service}/proxy/{path}"
        api = self.cluster.api
        try:
            request = api.param_serialize("POST" if body else "GET", place, body=body, auth_settings=["BearerToken"])
            data = api.call_api(*request).read().decode()
        except client.ApiException:
            return None
        return json.loads(data) if data.startswith("{") else data

    def story(self) -> str:
        """What somebody wants to read who looks for the reason of a failure."""
        lines = [f"jobs: {self.jobs()}"]
        for pod in self.core.list_namespaced_pod(self.namespace).items:
            lines.append(f"== {pod.metadata.name}: {pod.status.phase}")
            try:
                lines.append(self.core.read_namespaced_pod_log(pod.metadata.name, self.namespace, tail_lines=12) or "(nothing)")
            except client.ApiException as error:
                lines.append(str(error.reason))
        for event in self.core.list_namespaced_event(self.namespace).items[-15:]:
            lines.append(f"{event.involved_object.kind} {event.involved_object.name}: {event.reason}: {event.message}")
        return "\n".join(lines)

    def gone(self) -> None:
        """Nothing is left: no namespace, and so no pod, and no disk of its claims."""
        namespaces = [each.metadata.name for each in self.core.list_namespace().items]
        assert self.namespace not in namespaces
        volumes = self.core.list_persistent_volume().items
        assert [each.metadata.name for each in volumes if each.spec.claim_ref and each.spec.claim_ref.namespace == self.namespace] == []


@contextmanager
def cluster_stack(cluster: Cluster, folder: Path) -> Iterator[ClusterStack]:
    with serve(Cloud(folder / "cloud.json"), real=True) as environment:
        made = ClusterStack(cluster, folder, environment)
        try:
            yield made
        finally:
            made.pulumi("destroy", "--yes", "--skip-preview", check=False)
            made.gone()


def seconds_since(moment: Any) -> float:
    return time.time() - moment.timestamp()
