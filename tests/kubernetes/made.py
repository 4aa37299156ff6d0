"""What the tests of the Kubernetes objects share: trainings as `Wanted`, whole stacks on mocks."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Mapping
from typing import Any

from settings import Settings, parse
from tests.infra.program import PROJECT, Recorded, run
from workloads.kubernetes.wanted import Around, Wanted, around

Manifest = dict[str, Any]

DIGEST = "example.com/team/image@sha256:" + "0" * 64
NAMESPACE = "trainstack-dev"
BUCKETS = {kind: f"gs://{PROJECT}-dev-{kind}" for kind in ("data", "checkpoints", "logs")}
DIRECTORIES = {f"{kind}_dir": f"gs://bucket/{kind}" for kind in ("checkpoint", "log", "model")}
DIGITS: dict[str, Any] = {"program": "digits", "worker": {"replicas": 2}, "ps": {"replicas": 1}}
MIRRORED: dict[str, Any] = {"program": "digits", "strategy": "multi_worker_mirrored", "worker": {"replicas": 3}}
CLAIM = {"claim": "ckpt", "create": True, "size": "10Gi", "path": "/ckpt"}

# The three clusters that a training can be on: as a stack's settings say it.
ON: dict[str, dict[str, Any]] = {
    "context": {"target": "kubernetes", "kubernetes": {"context": "kind"}, "image": {"reference": DIGEST}},
    "stack": {"target": "kubernetes", "kubernetes": {"stack": "acme/trainstack/shared"}, "image": {"reference": DIGEST}},
    "gke": {"target": "gke", "cluster": {"location": "us-central1-a"}},
}


def settings(on: str = "gke", /, **trainings: Mapping[str, Any]) -> Settings:
    return parse({**ON[on], "trainings": trainings}, {"project": PROJECT})


def wanted(on: str = "gke", /, name: str = "resnet", more: Mapping[str, Any] | None = None, **training: Any) -> Wanted:
    """One training, without the engine: `digits` with parameter servers unless something else is said. `more` is what it finds around it."""
    written = training if "program" in training or "command" in training else {**DIGITS, **training}
    stack = settings(on, **{name: written})
    roots = BUCKETS if on == "gke" else None
    found: Around = around("dev", stack, DIGEST, roots, **{"on_gke": on == "gke", **(more or {})})
    return Wanted(name, stack.trainings[name], found)


def stack(on: str = "gke", /, *, secrets: Mapping[str, str] | None = None, **trainings: Mapping[str, Any]) -> Recorded:
    """A whole stack on mocks."""
    values = {**ON[on], "trainings": trainings, **({"secrets": secrets} if secrets else {})}
    return run({"gcp:project": PROJECT, **{f"trainstack:{key}": value for key, value in values.items()}})[0]


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each for each in manifests if each["kind"] == kind}


def template_of(manifest: Manifest) -> Manifest | None:
    """The pods of an object: labels, annotations and spec."""
    if manifest["kind"] == "Pod":
        return manifest
    return manifest["spec"]["template"] if manifest["kind"] in ("Job", "Deployment") else None


def container_of(manifest: Manifest) -> Manifest:
    template = template_of(manifest)
    assert template
    (container,) = template["spec"]["containers"]
    return container


def environment_of(manifest: Manifest) -> dict[str, Any]:
    """The variables that are written out."""
    return {each["name"]: each["value"] for each in container_of(manifest)["env"] if "value" in each}


# ------------------------------------------------------------------------------------------ as a kubelet reads them


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """What Kubernetes makes of a command or a value: $(NAME) is the variable if there is one, and $$ is one dollar sign."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", value, text)


def environment_of_task(job: Manifest, index: int) -> dict[str, str]:
    """The environment of one pod of an Indexed Job. A variable sees those that are before it."""
    known: dict[str, str] = {}
    for each in container_of(job)["env"]:
        if "valueFrom" in each:
            assert each["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['batch.kubernetes.io/job-completion-index']"
            known[each["name"]] = str(index)
        else:
            known[each["name"]] = expanded(each["value"], known)
    return known


def command_of_task(job: Manifest, index: int) -> list[str]:
    variables = environment_of_task(job, index)
    return [expanded(word, variables) for word in container_of(job)["command"]]


# ---------------------------------------------------------------------------------------------------- whole stacks


@functools.cache
def _of_case(text: str) -> list[Manifest]:
    case = json.loads(text)
    return stack(case["on"], secrets=case["secrets"], **case["trainings"]).manifests()


def manifests(on: str, secrets: Mapping[str, str] | None = None, **trainings: Mapping[str, Any]) -> list[Manifest]:
    """The objects of a whole stack, made once for all tests that ask for the same."""
    return copy.deepcopy(_of_case(json.dumps({"on": on, "secrets": secrets, "trainings": trainings}, sort_keys=True)))
