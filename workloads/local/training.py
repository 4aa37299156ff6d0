"""A training as a Pulumi resource on this machine: its processes come up with the stack and go down with it.

What Pulumi sees of it:

- another topology, command or setting replaces it: the tasks end, the new ones go on from the last checkpoint;
- a run that has ended, however it did, is left alone; one that is gone without an end is started again and resumes;
- deleting it ends every process and leaves the run's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

from workloads.local import runs
from workloads.local.plan import ROOT, Plan


def plain(value: Any) -> Any:
    """Whole numbers travel to a provider as floats; this makes them whole again."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def essence(value: Any) -> Any:
    """A plan without the settings as they were written: some of them do nothing on this machine and are no reason to start again."""
    return {key: inner for key, inner in plain(value or {}).items() if key != "settings"}


def seen(status: runs.Status) -> dict[str, str]:
    """What a stack shows of a run."""
    return {"state": status["state"], "tensorboard": status.get("tensorboard") or "", "serving": status.get("serving") or ""}


class Provider(ResourceProvider):
    serialize_as_secret_always = False  # it holds nothing; what is secret is in the inputs

    def create(self, props: dict[str, Any]) -> CreateResult:
        return CreateResult(props["plan"]["folder"], self.start(props))

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        folder = ROOT / id_
        if not (folder / "plan.json").exists():
            return ReadResult("", {})
        return ReadResult(id_, {**props, **seen(runs.read_status(folder))})

    def diff(self, id_: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        changed = [name for name in ("plan", "secrets") if essence(olds.get(name)) != essence(news.get(name))]
        vanished = runs.read_status(ROOT / id_)["state"] == "vanished"
        return DiffResult(changes=bool(changed) or vanished, replaces=changed, delete_before_replace=True)

    def update(self, _id: str, _olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        return UpdateResult(self.start(news))

    def delete(self, id_: str, _props: dict[str, Any]) -> None:
        runs.release(ROOT / id_)

    def start(self, props: dict[str, Any]) -> dict[str, Any]:
        plan = plain(props["plan"])
        runs.stop(ROOT / plan["folder"])  # somebody may have started the same run by hand
        status = runs.start(plan, props["secrets"])
        return {"plan": props["plan"], "secrets": props["secrets"], **seen(status)}


class LocalTraining(Resource, module="trainstack", name="LocalTraining"):
    state: pulumi.Output[str]
    tensorboard: pulumi.Output[str]
    serving: pulumi.Output[str]

    def __init__(self, name: str, plan: Plan, secrets: Mapping[str, str], opts: pulumi.ResourceOptions | None = None) -> None:
        hidden: Any = pulumi.Output.secret(dict(secrets)) if secrets else {}
        computed = dict.fromkeys(("state", "tensorboard", "serving"))
        super().__init__(Provider(), name, {"plan": plan, "secrets": hidden, **computed}, opts)
