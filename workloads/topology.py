"""From roles and replicas to addresses to TF_CONFIG. Pure: no Pulumi, no Kubernetes and no TensorFlow in it.

This is the only place that makes a TF_CONFIG. What TensorFlow expects of one:

- `chief`, `worker` and `ps` are in the cluster that every one of them sees; the evaluator is never in it and sees only itself;
- there is at most one chief and at most one evaluator;
- without a chief, worker 0 takes its place: that task is called the lead here, and it decides when a run is over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

CLUSTER_ROLES = ("chief", "worker", "ps")
ROLES = (*CLUSTER_ROLES, "evaluator")

PARAMETER_SERVER = "parameter_server"
MULTI_WORKER_MIRRORED = "multi_worker_mirrored"
MIRRORED = "mirrored"


@dataclass(frozen=True, order=True)
class Task:
    """One process of a training, such as worker 1."""

    role: str
    index: int

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"


Address = Callable[[Task], str]
"""From a task to the `host:port` its TensorFlow server listens on."""


@dataclass(frozen=True)
class Topology:
    """How many tasks of each role a training has."""

    chief: int = 0
    worker: int = 0
    ps: int = 0
    evaluator: int = 0

    def __post_init__(self) -> None:
        if min(self.counts().values()) < 0:
            raise ValueError("replicas cannot be negative")
        if self.chief > 1 or self.evaluator > 1:
            raise ValueError("TensorFlow allows one chief and one evaluator at the most")

    def counts(self) -> dict[str, int]:
        return {role: getattr(self, role) for role in ROLES}

    def tasks(self) -> tuple[Task, ...]:
        """Every task, in the order of the roles."""
        return tuple(Task(role, index) for role, count in self.counts().items() for index in range(count))

    @property
    def lead(self) -> Task:
        """The task whose end is the end of the run."""
        return Task("chief", 0) if self.chief else Task("worker", 0)


def cluster(topology: Topology, address: Address) -> dict[str, list[str]]:
    """The cluster specification that chief, workers and parameter servers share."""
    counts = topology.counts()
    return {role: [address(Task(role, index)) for index in range(counts[role])] for role in CLUSTER_ROLES if counts[role]}


def tf_config(topology: Topology, task: Task, address: Address) -> dict[str, Any]:
    """The TF_CONFIG of one task."""
    if task not in topology.tasks():
        raise ValueError(f"{task.name} is not in this topology")
    spec = {"evaluator": [address(task)]} if task.role == "evaluator" else cluster(topology, address)
    return {"cluster": spec, "task": {"type": task.role, "index": task.index}}


def encode(config: Mapping[str, Any]) -> str:
    """TF_CONFIG as the text of an environment variable, as short as JSON allows."""
    return json.dumps(config, separators=(",", ":"))


def for_any_index(topology: Topology, role: str, address: Address, index: str) -> str:
    """The TF_CONFIG that all tasks of a role share, with a text in place of the index that somebody fills in later."""
    if role == "evaluator":
        return encode(tf_config(topology, Task(role, 0), address))
    shared = encode({"cluster": cluster(topology, address)})
    return f'{shared[:-1]},"task":{{"type":"{role}","index":{index}}}}}'


def condensed(topology: Topology, pattern: Callable[[str], str]) -> dict[str, dict[str, Any]]:
    """The cluster in a few words: for each role how many, and the address with `{index}` in it. The launcher writes it out again."""
    counts = topology.counts()
    return {role: {"count": counts[role], "address": pattern(role)} for role in CLUSTER_ROLES if counts[role]}


def loopback(ports: Mapping[str, int]) -> Address:
    """Addresses on this machine, from a task's name to its port."""
    return lambda task: f"127.0.0.1:{ports[task.name]}"


def dns_pattern(training: str, namespace: str, port: int) -> Callable[[str], str]:
    """From a role to the address of its tasks in Kubernetes, known before anything runs: an Indexed Job names its pods, a headless Service its hosts."""
    return lambda role: f"{training}-{role}-{{index}}.{training}.{namespace}.svc:{port}"


def cluster_dns(training: str, namespace: str, port: int) -> Address:
    """Addresses in Kubernetes."""
    pattern = dns_pattern(training, namespace, port)
    return lambda task: pattern(task.role).format(index=task.index)
