"""A real Kubernetes for the tests."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kubernetes import client, config


@dataclass(frozen=True)
class Cluster:
    kubeconfig: Path
    image: str  # the trainer's, by digest
    api: client.ApiClient
    own: bool  # the node of toolchain/node.py, which has volumes of every access mode; not somebody's cluster


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster of KUBECONFIG. `make test-cluster` starts a node of its own and names it there, unless the user has named one."""
    kubeconfig, image = os.environ.get("KUBECONFIG"), os.environ.get("TRAINSTACK_TEST_IMAGE")
    if not kubeconfig:
        pytest.skip("not run: KUBECONFIG is not set; `make test-cluster` sets it")
    if not image:
        pytest.skip("not run: KUBECONFIG is set, and TRAINSTACK_TEST_IMAGE, the trainer's image by digest on that cluster, is not")
    return Cluster(Path(kubeconfig), image, config.new_client_from_config(kubeconfig), own="TRAINSTACK_TEST_NODE" in os.environ)


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace that refuses what Pod Security `restricted` refuses, and that goes after the test."""
    core = client.CoreV1Api(cluster.api)
    name = f"test-{uuid.uuid4().hex[:8]}"
    core.create_namespace({"metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    yield name
    if name in [found.metadata.name for found in core.list_namespace().items]:
        core.delete_namespace(name)
