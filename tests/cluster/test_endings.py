"""How trainings end, and how they are replaced: real pods, with small commands in place of TensorFlow."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster
from tests.cluster.stack import TINY, ClusterStack, cluster_stack
from tests.conftest import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")]

# Servers listen, as TensorFlow's do, and never end by themselves; what the chief does is the test's.
SCRIPT = """
import json, os, pathlib, signal, socket, sys, time
config = json.loads(os.environ['TF_CONFIG'])
role, port = config['task']['type'], 2222
print('started', role, flush=True)
if role != 'chief':
    {others}
    server = socket.create_server(('', port))
    while True:
        server.accept()[0].close()
{chief}
"""
PEER_TIMEOUT = 25


def training(chief: str, others: str = "pass", **changes: Any) -> dict[str, Any]:
    return {
        "command": ["python3", "-c", SCRIPT.format(chief=chief, others=others)],
        "strategy": "parameter_server",
        "chief": TINY,
        "worker": {**TINY, "replicas": 2},
        "ps": {**TINY, "replicas": 1},
        "peer_timeout": f"{PEER_TIMEOUT}s",
        **changes,
    }


@pytest.fixture
def stack(cluster: Cluster, tmp_path: Path) -> Iterator[ClusterStack]:
    with cluster_stack(cluster, tmp_path) as made:
        yield made


def everyone(state: str) -> dict[str, str]:
    return {f"a-{role}": state for role in ("chief", "worker", "ps")}


def test_a_chief_with_a_configuration_error_ends_everybody(stack: ClusterStack) -> None:
    stack.up({"a": training("print('there is no data', flush=True); sys.exit(78)")})
    stack.wait_for_jobs(everyone("Failed"), PEER_TIMEOUT)
    assert len(stack.pods("chief")) == 1, "it is never started again"
    run = json.loads(stack.ops("--json", "status", code=3))[0]
    assert run["state"] == "failed"
    assert "there is no data" in run["reason"]
    assert stack.preview() == {}, "a failed run is left alone"


def test_a_parameter_server_out_of_restarts_ends_everybody(stack: ClusterStack) -> None:
    lost = "role == 'ps' and (time.sleep(4), sys.exit(1))"
    stack.up({"a": training("time.sleep(600)", lost, max_restarts=1)})
    stack.wait_for_jobs({"a-ps": "Failed"}, 60)
    stack.wait_for_jobs(everyone("Failed"), PEER_TIMEOUT + 20)
    assert len(stack.pods("ps")) == 2, "one restart was allowed"


@pytest.mark.full
def test_an_unexpected_failure_is_counted_and_a_retry_is_not(stack: ClusterStack) -> None:
    """75 may come any number of times; 1 as often as max_restarts says."""
    count = "counter = pathlib.Path('/runs/count'); n = len(counter.read_text()) if counter.exists() else 0; counter.write_text('x' * (n + 1)); sys.exit(75 if n < 2 else 1 if n == 2 else 0)"
    claim = {"claim": "runs", "create": True, "size": "1Gi", "path": "/runs", "roles": ["chief"]}
    stack.up({"a": training(count, max_restarts=1, volumes=[claim], peer_timeout="120s")})
    stack.wait_for_jobs(everyone("Complete"), 150)
    assert len(stack.pods("chief")) == 4


def test_a_worker_that_starts_only_after_the_end(stack: ClusterStack) -> None:
    """A quota keeps its pod from being created until the chief has finished."""
    stack.up({"a": training("time.sleep(8)", peer_timeout="90s")})
    stack.wait_for_line("chief", "started chief", 60)
    stack.core.create_namespaced_resource_quota(stack.namespace, {"metadata": {"name": "no-more-pods"}, "spec": {"hard": {"pods": "0"}}})
    stack.delete_pod("worker")
    eventually(lambda: "the task ended with 0" in stack.log("chief"), 60, "the chief is not done")
    time.sleep(2)
    assert stack.jobs()["a-chief"] == "Running", "it stays for the worker that is away"
    stack.core.delete_namespaced_resource_quota("no-more-pods", stack.namespace)
    stack.wait_for_jobs(everyone("Complete"), 60)


def test_a_replacement_waits_for_tasks_that_save_and_goes_on_where_they_stopped(stack: ClusterStack) -> None:
    chief = """
state = pathlib.Path('/runs/state.json')
if state.exists():
    print('resumed', state.read_text(), flush=True)
    sys.exit(0)
def save(*_):
    time.sleep(40)
    host, port = config['cluster']['ps'][0].rsplit(':', 1)
    socket.create_connection((host, int(port)), timeout=5).close()
    state.write_text('saved with the parameter server still there')
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print('training', flush=True)
time.sleep(600)
"""
    claim = {"claim": "runs", "create": True, "size": "1Gi", "path": "/runs", "roles": ["chief"]}
    first = training(chief, volumes=[claim], peer_timeout="90s")
    stack.up({"a": first})
    stack.wait_for_line("chief", "training", 60)
    old = {pod.metadata.uid for role in ("chief", "worker", "ps") for pod in stack.pods(role)}
    stack.write({"a": {**first, "worker": {**TINY, "replicas": 3}}})
    would = stack.preview()
    assert would.pop("update") == {"a-service"}, "which says how many there are now"
    assert would == {"replace": {"a-chief", "a-worker", "a-ps"}}, "what stands beside the tasks stays"
    began = time.monotonic()
    stack.up()
    assert time.monotonic() - began > 35, "the old tasks were waited for"
    stack.wait_for_jobs(everyone("Complete"), 90)
    assert "resumed saved with the parameter server still there" in stack.log("chief")
    assert not old & {pod.metadata.uid for role in ("chief", "worker", "ps") for pod in stack.pods(role)}
    assert len(stack.pods("worker")) == 3


def test_cancel_and_rerun(stack: ClusterStack) -> None:
    stack.up({"a": training("time.sleep(3); sys.exit(0 if pathlib.Path('/runs/go').exists() else (pathlib.Path('/runs/go').touch(), time.sleep(600)))",
                            volumes=[{"claim": "runs", "create": True, "size": "1Gi", "path": "/runs", "roles": ["chief"]}])})  # fmt: skip
    stack.wait_for_line("chief", "started chief", 60)
    time.sleep(5)
    stack.ops("cancel")
    assert json.loads(stack.ops("--json", "status", code=4))[0]["state"] == "cancelled"
    eventually(
        lambda: not [pod for role in ("chief", "worker", "ps") for pod in stack.pods(role) if pod.status.phase == "Running"],
        60,
        "pods run on",
    )
    assert stack.preview() == {}, "a cancelled run is left alone"
    stack.ops("rerun")
    stack.wait_for_jobs(everyone("Complete"), 90)


def test_what_is_stuck_is_explained(stack: ClusterStack) -> None:
    nowhere = "localhost/nowhere@sha256:" + "0" * 64
    stack.up(
        {
            "gpus": training("pass", worker={**TINY, "gpus": 8}, peer_timeout="10m"),
            "image": training("pass", image=nowhere, peer_timeout="10m"),
            "claim": training("pass", volumes=[{"claim": "missing", "path": "/data", "access": "ReadWriteMany"}], peer_timeout="10m"),
        }
    )

    def explained(name: str, *words: str) -> bool:
        said = stack.ops("--training", name, "explain", code=None)
        return all(word in said for word in words)

    eventually(lambda: explained("gpus", "worker-0", "nvidia.com/gpu"), 40, "the missing GPU is not explained")
    eventually(lambda: explained("gpus", "chief-0", "waits for worker-0"), 40, "whom the chief waits for is not explained")
    eventually(lambda: explained("image", "chief-0", nowhere), 60, "the missing image is not explained")
    eventually(lambda: explained("claim", "chief-0", "missing"), 40, "the missing claim is not explained")
