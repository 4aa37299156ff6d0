"""A real Kubernetes for the tests: the user's, or one of their own that ends with them."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kubernetes import client, config

from tests.conftest import ROOT

NOT_HERE = 3  # node.py's exit code on a machine that can have no node


@dataclass(frozen=True)
class Cluster:
    kubeconfig: Path
    image: str  # the trainer's, by digest
    api: client.ApiClient
    own: bool  # the node of toolchain/node.py, which is known to the last detail; not somebody's cluster


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """With KUBECONFIG and TRAINSTACK_TEST_IMAGE that cluster; without, the node of toolchain/node.py, started for this process."""
    kubeconfig, image = os.environ.get("KUBECONFIG"), os.environ.get("TRAINSTACK_TEST_IMAGE")
    if kubeconfig:
        if not image:
            pytest.skip("not run: KUBECONFIG is set, and TRAINSTACK_TEST_IMAGE, the trainer's image by digest on that cluster, is not")
        yield Cluster(Path(kubeconfig), image, config.new_client_from_config(kubeconfig), own=False)
        return
    # The first time takes many minutes, and what it says meanwhile should be seen.
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        kubeconfig = node("up", str(os.getpid()))
        image = node("image")
    yield Cluster(Path(kubeconfig), image, config.new_client_from_config(kubeconfig), own=True)
    node("down", str(os.getpid()))


def node(*arguments: str) -> str:
    """Runs a command of the node and returns what it printed; its progress goes to the terminal."""
    command = [sys.executable, str(ROOT / "toolchain" / "node.py"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said = line
            print(line, end="", file=sys.stderr, flush=True)
        printed = process.stdout.read().strip()
    if process.returncode == NOT_HERE:
        pytest.skip(f"not run: {said.removeprefix('setup: ').strip()}")
    assert process.returncode == 0, f"node.py {' '.join(arguments)} ended with {process.returncode}; what it said is above"
    return printed


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace that refuses what Pod Security `restricted` refuses, and that goes after the test."""
    core = client.CoreV1Api(cluster.api)
    name = f"test-{uuid.uuid4().hex[:8]}"
    core.create_namespace({"metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    yield name
    if name in [found.metadata.name for found in core.list_namespace().items]:
        core.delete_namespace(name)
