"""The README's stack on kind, with its commands as they are typed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from kubernetes import client

from tests.cloud.cloud import Cloud
from tests.cloud.provider import serve
from tests.cluster.conftest import Cluster
from tests.cluster.stack import TINY
from tests.conftest import ROOT, own_backend

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")]

STACK = "test-kind"


def test_up_render_and_down(cluster: Cluster, tmp_path: Path) -> None:
    """With the cluster's context and image, and with requests that fit a small node. Nobody waits for the training."""
    block = re.search(r"```yaml\n# Pulumi.kind.yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block
    config = yaml.safe_load(block[1])["config"]
    config["trainstack:kubernetes"] = {"context": yaml.safe_load(cluster.kubeconfig.read_text())["current-context"]}
    config["trainstack:image"] = {"reference": cluster.image}
    training = config["trainstack:trainings"]["digits"]
    for role in ("chief", "worker", "ps"):
        training[role] = {**training.get(role, {}), **TINY}
    settings = ROOT / f"Pulumi.{STACK}.yaml"
    (tmp_path / "state").mkdir()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PULUMI", "MFLAGS"))}
    with serve(Cloud(tmp_path / "cloud.json"), real=True) as served:
        kubeconfig = {"KUBECONFIG": str(cluster.kubeconfig), "TRAINSTACK_KUBECONFIG": str(cluster.kubeconfig)}
        env = {**inherited, **served, **own_backend(tmp_path), **kubeconfig, "PULUMI_SKIP_CONFIRMATIONS": "true"}

        def make(*words: str) -> str:
            done = subprocess.run(["make", *words, f"STACK={STACK}"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        try:
            settings.write_text(yaml.safe_dump({"config": config}))
            subprocess.run([ROOT / ".venv/bin/pulumi", "stack", "init", STACK], cwd=ROOT, env=env, check=True, capture_output=True)
            make("up")
            jobs = client.BatchV1Api(cluster.api).list_namespaced_job(f"trainstack-{STACK}").items
            assert {job.metadata.name for job in jobs} == {"digits-chief", "digits-worker", "digits-ps"}
            make("render", f"OUT={tmp_path}/rendered")
            assert "08-job-digits-chief.yaml" in {file.name for file in (tmp_path / "rendered").iterdir()}
        finally:
            make("down")
            settings.unlink()
        names = [each.metadata.name for each in client.CoreV1Api(cluster.api).list_namespace().items]
        assert f"trainstack-{STACK}" not in names
