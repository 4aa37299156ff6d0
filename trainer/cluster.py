"""Who this task is, read from TF_CONFIG. No TensorFlow is imported here."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

CONFIGURATION_ERROR, TRY_AGAIN = 78, 75


class ConfigurationError(Exception):
    """A mistake that a person has to mend: starting again would not help. One sentence."""


@dataclass(frozen=True)
class Cluster:
    """This task's role and index, and how many tasks of each role there are."""

    role: str
    index: int
    counts: dict[str, int]
    lead: str = ""  # the address of the lead's TensorFlow server

    @property
    def is_lead(self) -> bool:
        """Whether this task writes checkpoints, logs and the model: the chief, or worker 0 where there is none."""
        return self.role == "chief" or (self.role == "worker" and self.index == 0 and not self.counts.get("chief"))

    @property
    def strategy(self) -> str:
        """The strategy that such a cluster is for."""
        if self.counts.get("ps"):
            return "parameter_server"
        trains = self.counts.get("chief", 0) + self.counts.get("worker", 0)
        return "multi_worker_mirrored" if trains > 1 else "mirrored"


def configuration() -> dict[str, Any]:
    """What TF_CONFIG says; without it: one worker, alone."""
    text = os.environ.get("TF_CONFIG", "")
    config: dict[str, Any] = json.loads(text) if text else {"cluster": {"worker": ["localhost:0"]}, "task": {"type": "worker", "index": 0}}
    return config


def from_environment() -> Cluster:
    config = configuration()
    spec: dict[str, list[str]] = config["cluster"]
    counts = {role: len(addresses) for role, addresses in spec.items()}
    lead = (spec.get("chief") or spec.get("worker") or [""])[0]
    return Cluster(config["task"]["type"], int(config["task"]["index"]), counts, lead)
