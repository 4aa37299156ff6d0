"""Who may talk to whom. Pure. Network policies only add: everything is denied first, and what stands here is let through.

They know addresses and labels, no names of hosts, so Google's services are reached by the range of private.googleapis.com, to which the stack's
private zones lead. Whether they are enforced is the cluster's: GKE's Dataplane V2 does, a plain bridge network does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from workloads.kubernetes import names
from workloads.kubernetes.beside import GRPC_PORT, REST_PORT, TENSORBOARD_PORT
from workloads.kubernetes.wanted import Wanted

# Workload Identity's metadata server, on GKE with and without Dataplane V2
METADATA = {"169.254.169.254/32": 80, "169.254.169.252/32": 988}
# The cluster's own DNS is in some namespace; node-local caches and Google's resolver have addresses
RESOLVERS = ("169.254.20.10/32", "169.254.169.254/32")
GOOGLE_APIS = "199.36.153.8/30"
HEALTH_CHECKS = ("130.211.0.0/22", "35.191.0.0/16")
ANYWHERE = "0.0.0.0/0"


def denied(namespace: str) -> dict[str, Any]:
    """Nothing comes in and nothing goes out, for every pod of the stack."""
    return _policy({"name": "default-deny", "namespace": namespace, "labels": names.of_stack(namespace)}, {}, [], [])


def of_training(wanted: Wanted) -> dict[str, dict[str, Any]]:
    """The policies of one training, by what they are for."""
    everything = {names.PART_OF: wanted.around.namespace, names.NAME: wanted.name}
    each_other = [{"podSelector": {"matchLabels": everything}}]
    out = [
        {"to": each_other},
        {
            "to": [{"namespaceSelector": {}}, *_ranges(RESOLVERS)],
            "ports": [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")],
        },
        *({"to": _ranges([address]), "ports": _tcp(port)} for address, port in METADATA.items()),
        {"to": _ranges([GOOGLE_APIS]), "ports": _tcp(443)},
        *([{"to": _ranges(wanted.training.egress)}] if wanted.training.egress else []),
    ]
    found = {"tasks": _policy(wanted.metadata("tasks"), everything, [{"from": each_other}], out)}
    if wanted.training.data_prep:
        anywhere = [{"to": _ranges([ANYWHERE]), "ports": _tcp(443)}]
        found["data_prep"] = _policy(wanted.metadata("data_prep"), wanted.labels("data_prep"), None, anywhere)
    tensorboard = wanted.training.tensorboard
    if tensorboard and wanted.training.deploy and tensorboard.expose != "port_forward":
        sources = [*tensorboard.allowed_cidrs, *(HEALTH_CHECKS if tensorboard.expose == "ingress" else ())]
        guests = [{"from": _ranges(sources), "ports": _tcp(TENSORBOARD_PORT)}]
        found["tensorboard"] = _policy(wanted.metadata("tensorboard"), wanted.labels("tensorboard"), guests, None)
    if wanted.training.serving:
        guests = [{"from": [{"podSelector": {}}], "ports": [*_tcp(REST_PORT), *_tcp(GRPC_PORT)]}]
        found["serving"] = _policy(wanted.metadata("serving"), wanted.labels("serving"), guests, None)
    return found


def _policy(
    metadata: Mapping[str, Any], selected: Mapping[str, str], ingress: list[dict[str, Any]] | None, egress: list[dict[str, Any]] | None
) -> dict[str, Any]:
    """None: this policy has nothing to say about that direction."""
    directions = {"Ingress": ingress, "Egress": egress}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            "podSelector": {"matchLabels": dict(selected)} if selected else {},
            "policyTypes": [direction for direction, rules in directions.items() if rules is not None],
            **{direction.lower(): rules for direction, rules in directions.items() if rules},
        },
    }


def _ranges(cidrs: Iterable[str]) -> list[dict[str, Any]]:
    return [{"ipBlock": {"cidr": cidr}} for cidr in cidrs]


def _tcp(port: int) -> list[dict[str, Any]]:
    return [{"port": port, "protocol": "TCP"}]
