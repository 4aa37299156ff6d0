"""The resources of whole stacks as the rules of the policy pack read them: from the program on mocks."""

from __future__ import annotations

import copy
import functools
from typing import Any

import yaml

from policy.rules import RULES, STACK, Resource
from tests.conftest import ROOT
from tests.infra.program import PROJECT, plain, run, settings_of
from tests.kubernetes.made import DIGITS, DIRECTORIES, ON

CONFIG: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "policy" / "config.yaml").read_text())
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.yaml"))


def config_of(name: str) -> dict[str, Any]:
    """Of an environment; of an example, on a cluster that the stack makes; of `kind`, on one that is there."""
    if name == "kind":
        written = {**ON["context"], "trainings": {"digits": {**DIGITS, **DIRECTORIES, "tensorboard": {}, "serving": {}}}}
        return {f"trainstack:{key}": value for key, value in written.items()}
    if name in EXAMPLES:
        example = yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())["config"]
        here = {"gcp:project": PROJECT, "trainstack:target": "gke", "trainstack:cluster": {"location": "us-central1-a"}}
        return {**example, **here}
    return settings_of(name)


@functools.cache
def _resources(stack: str) -> tuple[Resource, ...]:
    recorded, outputs = run(config_of(stack), stack)
    made = (
        Resource(stack, args.typ, args.name, plain(args.inputs), recorded.options[args.name].protect)
        for args in recorded.resources.values()
        if args.name in recorded.options  # what is read and not made has no options
    )
    return (Resource(stack, STACK, f"trainstack-{stack}", outputs), *made)


def resources(stack: str) -> list[Resource]:
    """All that a stack asks for, made once for all tests."""
    return copy.deepcopy(list(_resources(stack)))


def broken(resource: Resource, **settings: dict[str, Any]) -> dict[str, list[str]]:
    """What each rule says of a resource, with policy/config.yaml; of rules given by name, with other settings."""
    said = {rule.name: list(rule.check(resource, **settings.get(rule.name, CONFIG.get(rule.name, {})))) for rule in RULES}
    return {name: sentences for name, sentences in said.items() if sentences}
