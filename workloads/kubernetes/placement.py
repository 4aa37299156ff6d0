"""On which nodes a pod runs. Pure.

What computes gradients goes to worker nodes, everything else to the CPU nodes (infra/pools.py says which). On a cluster that this stack does not
make, the training's own selectors and tolerations decide, and the labels that every GKE cluster has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

POOL = "trainstack/pool"  # label and taint of the node pools that this project makes
GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class Placement:
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, str], ...] = ()


def on_pool(pool: str, gpus: int, tainted: bool) -> Placement:
    """On a node pool of this stack."""
    taints = ({"key": POOL, "operator": "Equal", "value": pool, "effect": "NoSchedule"},) if tainted else ()
    return Placement({POOL: pool}, taints + _for_gpus(gpus))


def on_labels(gpus: int, accelerator: str | None, spot: bool) -> Placement:
    """On a cluster of somebody else: by the labels that GKE gives its nodes, where they are known."""
    selector = {"cloud.google.com/gke-accelerator": accelerator} if gpus and accelerator else {}
    return Placement({**selector, **({"cloud.google.com/gke-spot": "true"} if spot else {})}, _for_gpus(gpus))


def _for_gpus(gpus: int) -> tuple[Mapping[str, str], ...]:
    return ({"key": GPU, "operator": "Exists", "effect": "NoSchedule"},) if gpus else ()


def affinity(labels: Mapping[str, str], apart: bool) -> dict[str, Any]:
    """The tasks of a training are better off in one zone; those that hold something, on different nodes."""
    here = {"labelSelector": {"matchLabels": dict(labels)}}
    wishes: dict[str, Any] = {
        "podAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 50, "podAffinityTerm": {**here, "topologyKey": "topology.kubernetes.io/zone"}}
            ]
        }
    }
    if apart:
        wishes["podAntiAffinity"] = {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "podAffinityTerm": {**here, "topologyKey": "kubernetes.io/hostname"}}
            ]
        }
    return wishes
