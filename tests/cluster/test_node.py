"""What the other tests on a real Kubernetes take for granted: pods, names, addresses, volumes, limits, and ways in."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes import client, stream

from tests.cluster.conftest import Cluster
from tests.conftest import eventually

pytestmark = pytest.mark.cluster

USER = 10001

# Each of two pods answers at its own name, asks the other one, and ends when both have written to the volume that they share.
MEET = f"""
import http.server, os, pathlib, socket, threading, time, urllib.request
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(socket.gethostname().encode())
threading.Thread(target=http.server.HTTPServer(("", 2222), Answer).serve_forever, daemon=True).start()
assert os.getuid() == {USER}, os.getuid()
mine = int(os.environ["JOB_COMPLETION_INDEX"])
other = f"meet-{{1 - mine}}"
answer = ""
while answer != other:
    try:
        answer = urllib.request.urlopen(f"http://{{other}}.friends.{{os.environ['NAMESPACE']}}.svc:2222", timeout=2).read().decode()
    except OSError as error:
        print(error)
        time.sleep(0.2)
(pathlib.Path("/data") / str(mine)).write_text(answer)
while not (pathlib.Path("/data") / str(1 - mine)).exists():
    time.sleep(0.2)
print(socket.gethostname(), "met", answer)
"""

SERVE = "import http.server; http.server.HTTPServer(('', 8000), http.server.SimpleHTTPRequestHandler).serve_forever()"


def pod_spec(
    image: str, script: str, volumes: dict[str, tuple[str, dict[str, Any]]] | None = None, memory: str = "128Mi"
) -> dict[str, Any]:
    """One container that runs a Python script, as `restricted` wants it; volumes are given by name, with their path and their source."""
    volumes = volumes or {}
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "script",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["python", "-c", script],
                "env": [{"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}],
                "resources": {"requests": {"cpu": "50m", "memory": memory}, "limits": {"cpu": "1", "memory": memory}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [{"name": name, "mountPath": path} for name, (path, _) in volumes.items()],
            }
        ],
        "volumes": [{"name": name, **source} for name, (_, source) in volumes.items()],
    }


def claim(cluster: Cluster, namespace: str, mode: str) -> dict[str, Any]:
    body = {"metadata": {"name": "data"}, "spec": {"accessModes": [mode], "resources": {"requests": {"storage": "10Mi"}}}}
    client.CoreV1Api(cluster.api).create_namespaced_persistent_volume_claim(namespace, body)
    return {"persistentVolumeClaim": {"claimName": "data"}}


def run_pod(cluster: Cluster, namespace: str, script: str, **more: Any) -> Any:
    """The pod when it has ended."""
    core = client.CoreV1Api(cluster.api)
    core.create_namespaced_pod(namespace, {"metadata": {"name": "pod"}, "spec": pod_spec(cluster.image, script, **more)})

    def ended() -> Any:
        pod = core.read_namespaced_pod("pod", namespace)
        return pod if pod.status.phase in ("Succeeded", "Failed") else None

    return eventually(ended, 30, "the pod did not end")


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteMany"])
def test_tasks_find_each_other_and_share_a_volume_that_goes_with_them(cluster: Cluster, namespace: str, mode: str) -> None:
    if mode == "ReadWriteMany" and not cluster.own:
        pytest.skip("not every cluster's default class has ReadWriteMany")
    core, batch = client.CoreV1Api(cluster.api), client.BatchV1Api(cluster.api)
    labels = {"job-name": "meet"}
    service = {"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": True}
    core.create_namespaced_service(namespace, {"metadata": {"name": "friends"}, "spec": service})
    volumes = {"data": ("/data", claim(cluster, namespace, mode))}
    template = {"metadata": {"labels": labels}, "spec": {"subdomain": "friends", **pod_spec(cluster.image, MEET, volumes)}}
    job = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 0, "template": template}
    batch.create_namespaced_job(namespace, {"metadata": {"name": "meet"}, "spec": job})

    def logs() -> list[str]:
        pods = core.list_namespaced_pod(namespace, label_selector="job-name=meet").items
        ended = [pod.metadata.name for pod in pods if pod.status.phase in ("Succeeded", "Failed")]
        return [core.read_namespaced_pod_log(name, namespace) for name in ended] if len(ended) == 2 else []

    said = sorted(log.splitlines()[-1] for log in eventually(logs, 40, "the two pods did not end"))
    assert said == ["meet-0 met meet-1", "meet-1 met meet-0"]

    [volume] = [found for found in core.list_persistent_volume().items if found.spec.claim_ref.namespace == namespace]
    assert volume.spec.persistent_volume_reclaim_policy == "Delete"
    core.delete_namespace(namespace)
    eventually(lambda: namespace not in [found.metadata.name for found in core.list_namespace().items], 40, "the namespace stays")
    gone = lambda: volume.metadata.name not in [found.metadata.name for found in core.list_persistent_volume().items]
    eventually(gone, 20, "the volume stays after its claim")


def test_a_service_answers_to_its_name_and_to_ways_in_from_outside(cluster: Cluster, namespace: str) -> None:
    core = client.CoreV1Api(cluster.api)
    metadata = {"name": "server", "labels": {"app": "server"}}
    core.create_namespaced_pod(namespace, {"metadata": metadata, "spec": pod_spec(cluster.image, SERVE)})
    service = {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8000}]}
    core.create_namespaced_service(namespace, {"metadata": {"name": "files"}, "spec": service})

    asking = "import time, urllib.request\nfor _ in range(50):\n  try: print(urllib.request.urlopen('http://files', timeout=2).status); break\n  except OSError: time.sleep(0.2)\nelse: raise SystemExit(1)"
    assert run_pod(cluster, namespace, asking).status.phase == "Succeeded"
    assert core.read_namespaced_pod_log("pod", namespace).strip() == "200"

    assert "trainer/" in core.connect_get_namespaced_service_proxy("files:80", namespace)
    told = stream.stream(core.connect_get_namespaced_pod_exec, "server", namespace, command=["id", "-u"], stdout=True)
    assert told.strip() == str(USER)
    forwarded = stream.portforward(core.connect_get_namespaced_pod_portforward, "server", namespace, ports="8000")
    connection = forwarded.socket(8000)
    connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
    answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert b"200 OK" in answer


def test_memory_volumes_have_their_size_and_memory_has_its_limit(cluster: Cluster, namespace: str) -> None:
    volumes = {"shared-memory": ("/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": "100Mi"}})}
    script = "import os; size = os.statvfs('/dev/shm'); print(size.f_blocks * size.f_frsize, flush=True); bytearray(os.urandom(300 << 20))"
    pod = run_pod(cluster, namespace, script, volumes=volumes)
    assert client.CoreV1Api(cluster.api).read_namespaced_pod_log("pod", namespace).strip() == str(100 << 20)
    assert pod.status.container_statuses[0].state.terminated.reason == "OOMKilled"


def test_a_pod_of_root_is_refused(cluster: Cluster, namespace: str) -> None:
    spec = pod_spec(cluster.image, "")
    spec["securityContext"]["runAsNonRoot"] = False
    spec["securityContext"]["runAsUser"] = 0
    with pytest.raises(client.ApiException, match="restricted"):
        client.CoreV1Api(cluster.api).create_namespaced_pod(namespace, {"metadata": {"name": "pod"}, "spec": spec})
