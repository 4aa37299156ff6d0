"""The volumes that the claims of the simulated clusters have, over HTTP as Kubernetes' API shows them.

A claim's deletion is not its disk's: whoever takes a cluster down asks for volumes that are left. This answers that one question and no
other, for all simulated clusters as if they were one. A volume is there as long as its claim is.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.cloud.cloud import Cloud, Resource
from tests.cloud.kinds import Values, at

CLAIM = "kubernetes:core/v1:PersistentVolumeClaim"


def volume(claim: Resource) -> Values:
    namespace, _, name = claim.id.rpartition("/")
    uid = claim.outputs["metadata"]["uid"]
    return {
        "metadata": {"name": f"pvc-{uid}", "uid": f"volume-{uid}"},
        "spec": {
            "accessModes": at(claim.inputs, "spec.accessModes") or [],
            "capacity": at(claim.inputs, "spec.resources.requests") or {},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name, "uid": uid},
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": at(claim.inputs, "spec.storageClassName") or "standard",
        },
        "status": {"phase": "Bound"},
    }


def answer(cloud: Cloud, path: str) -> tuple[int, Values]:
    if path != "/api/v1/persistentvolumes":
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
        return 404, {**status, "message": f"the simulated cloud does not answer {path}"}
    items = [volume(one) for one in cloud.resources(CLAIM)]
    return 200, {"kind": "PersistentVolumeList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}


@contextmanager
def serve_volumes(cloud: Cloud) -> Iterator[Path]:
    """Serves the volumes, and yields the kubeconfig that leads to them."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, values = answer(cloud, urlsplit(self.path).path)
            body = json.dumps(values).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Not into the output of the tests."""

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    kubeconfig = cloud.path.with_name(f"{cloud.path.stem}-kubeconfig.json")
    name = "simulated"
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": name, "cluster": {"server": f"http://127.0.0.1:{listener.server_port}"}}],
                "users": [{"name": name, "user": {}}],
                "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
                "current-context": name,
            }
        )
    )
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    try:
        yield kubeconfig
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
