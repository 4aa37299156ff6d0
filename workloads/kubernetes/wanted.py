"""One training as Kubernetes should have it: its names, labels, directories, images and addresses. Pure; the objects are made from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads import commands, launcher, prepare, reach
from workloads.kubernetes import names
from workloads.kubernetes.placement import Placement
from workloads.topology import Address, cluster_dns, condensed, dns_pattern, for_any_index

if TYPE_CHECKING:
    from settings import Settings, Training

SERVING_IMAGE = "tensorflow/serving:2.19.0"
INDEX = "TRAINSTACK_INDEX"  # an environment variable with the number of the task among those of its role


@dataclass(frozen=True)
class Around:
    """What a training finds on its cluster."""

    stack: str
    namespace: str
    image: Any  # of this project, by digest; Pulumi may not know it yet
    roots: Mapping[str, str] | None  # of data, checkpoints and logs
    secrets: bool = False  # whether the stack has some
    on_gke: bool = False
    places: Mapping[tuple[str, str], Placement] = field(default_factory=dict)  # from a training and a component to its nodes
    shared_class: str | None = None  # the storage class of ReadWriteMany claims that name none
    policies: Mapping[str, Any] = field(default_factory=dict)  # from a training to the policy that guards its ingress


def around(stack: str, settings: Settings, image: Any, roots: Mapping[str, str] | None, **more: Any) -> Around:
    return Around(stack, names.namespace_of(stack), image, roots, secrets=bool(settings.secrets), **more)


@dataclass(frozen=True)
class Wanted:
    name: str
    training: Training
    around: Around

    @cached_property
    def where(self) -> dict[str, str]:
        """The directories of the run."""
        return reach.directories(self.name, self.training, self.around.roots)

    @cached_property
    def counts(self) -> dict[str, int]:
        """The roles that run, and how many tasks each has."""
        return {role: count for role, count in self.training.topology.counts().items() if count} if self.training.deploy else {}

    def named(self, component: str) -> str:
        return f"{self.name}-{component.replace('_', '-')}"

    def labels(self, component: str | None = None) -> dict[str, str]:
        more = {names.COMPONENT: component.replace("_", "-")} if component else {}
        return {**names.of_training(self.around.namespace, self.name), **more, names.RUN: self.training.run}

    def metadata(self, component: str, annotations: Mapping[str, Any] | None = None, name: str | None = None) -> dict[str, Any]:
        made: dict[str, Any] = {"name": name or self.named(component), "namespace": self.around.namespace, "labels": self.labels(component)}
        return {**made, "annotations": dict(annotations)} if annotations else made

    def placement(self, component: str) -> Placement:
        return self.around.places.get((self.name, component), Placement())

    def image(self, component: str) -> Any:
        """A training's own image is for its command; what is beside the tasks comes from this project's, where there is one."""
        if component == "serving" and self.training.serving:
            return self.training.serving.image or SERVING_IMAGE + ("-gpu" if self.training.serving.gpus else "")
        if component == "tensorboard":
            return self.around.image or self.training.image
        return self.training.image or self.around.image

    # ------------------------------------------------------------------------------------------------ the cluster

    @property
    def address(self) -> Address:
        return cluster_dns(self.name, self.around.namespace, self.training.port)

    @property
    def lead(self) -> str:
        """The lead's launcher, as launchers outside of the cluster are told of it."""
        task = self.training.topology.lead
        host, port = self.address(task).rsplit(":", 1)
        return f"{task.name}@{host}:{int(port) + 1}"

    def tf_config(self, role: str) -> str | None:
        """The TF_CONFIG of a role, or None where it is longer than an environment variable can be."""
        text = for_any_index(self.training.topology, role, self.address, f"$({INDEX})")
        return text if len(f"TF_CONFIG={text}".encode()) < launcher.LONGEST else None

    @cached_property
    def files(self) -> dict[str, str]:
        """What is mounted into every pod: the launcher, the preparation, and the cluster where TF_CONFIG cannot say it."""
        code = {f"{module.__name__.rpartition('.')[2]}.py": Path(str(module.__file__)).read_text() for module in (launcher, prepare)}
        if any(self.tf_config(role) is None for role in self.counts):
            pattern = dns_pattern(self.name, self.around.namespace, self.training.port)
            code["cluster.json"] = json.dumps(condensed(self.training.topology, pattern))
        return code

    @cached_property
    def command(self) -> list[str]:
        earlier = None
        if self.training.resume_from:
            earlier = reach.directories(self.name, self.training, self.around.roots, self.training.resume_from).get("checkpoint_dir")
        return commands.task(self.training, self.where, earlier)

    @cached_property
    def revision(self) -> str:
        """What all tasks must have in common to work together; the image, which Pulumi may not know yet, comes to it."""
        what = [
            self.command,
            self.counts,
            self.training.port,
            self.training.run,
            self.files,
            self.training.env,
            self.training.chosen_strategy,
        ]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:10]

    def about(self) -> str:
        """What a person or a tool wants to know of the run, as an annotation."""
        settings = self.training.model_dump(mode="json", exclude_unset=True, by_alias=True, exclude_none=True)
        known = {key: self.where[key] for key in ("checkpoint_dir", "log_dir", "model_dir") if key in self.where}
        facts = {"stack": self.around.stack, "training": self.name, "run": self.training.run, "strategy": self.training.chosen_strategy}
        return json.dumps({**facts, "topology": self.counts, **known, "settings": settings}, sort_keys=True)
