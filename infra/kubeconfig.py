"""The kubeconfig of a GKE cluster. It holds no credential: the gcloud plug-in of whoever uses it says who that is. Pure."""

from __future__ import annotations

import json
from typing import Any


def kubeconfig(name: str, endpoint: str, ca: str | None) -> str:
    """A DNS endpoint has a certificate that everybody knows; an address needs the cluster's own authority beside it."""
    cluster: dict[str, Any] = {"server": f"https://{endpoint}", **({"certificate-authority-data": ca} if ca else {})}
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "gke-gcloud-auth-plugin",
        "installHint": "install it with `gcloud components install gke-gcloud-auth-plugin`, or your system's package of that name",
        "interactiveMode": "IfAvailable",
        "provideClusterInfo": True,
    }
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": {"exec": plugin}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
    )
