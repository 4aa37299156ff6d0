"""The report of a change: four pull requests through the real engine on the simulated cloud, and what each kind of change says."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops import __main__ as main
from ops import changes, report
from ops.changes import Step
from ops.target import OpsError
from tests.conftest import ROOT
from tests.infra.simulation import Simulation, simulation

GOLDEN = Path(__file__).parent / "golden"
TRAINING: dict[str, Any] = {
    "program": "digits",
    "worker": {"replicas": 2, "gpus": 1, "accelerator": "l4", "spot": True},
    "ps": {"replicas": 1},
    "deadline": "2h",
}


# ---------------------------------------------------------------------------------------------------- the real engine


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulation]:
    """The stack dev, up. Tests write its settings anew, and take nothing up."""
    with simulation(tmp_path_factory.mktemp("report") / "dev") as made:
        made.up()
        yield made


def preview(dev: Simulation, **training: Any) -> str:
    """What `trainstack report` makes of a preview of the training `digits` with changes."""
    before = dict(dev.config)
    dev.training(**training)
    try:
        printed = dev.pulumi("preview", "--json").stdout
    finally:
        dev.config = before
        dev.write()
    return reported(printed)


def reported(printed: str) -> str:
    return report.page(changes.read(printed))


def of_workers(dev: Simulation, **changed: Any) -> dict[str, Any]:
    return {"worker": {**dev.config["trainstack:trainings"]["digits"]["worker"], **changed}}


@pytest.mark.engine
@pytest.mark.parametrize("name", ["workers", *(pytest.param(name, marks=pytest.mark.full) for name in ("ps", "accelerator", "docs"))])
def test_a_pull_request_as_its_reviewer_reads_it(dev: Simulation, name: str) -> None:
    """One scales workers, one changes ps, one the accelerator, and one only touches docs, which no resource is made of."""
    what: dict[str, dict[str, Any]] = {
        "workers": of_workers(dev, replicas=4),
        "ps": {"ps": {"replicas": 2, "cpu": 1, "memory": "2Gi"}},
        "accelerator": of_workers(dev, accelerator="t4"),
        "docs": {},
    }
    page = preview(dev, **what[name])
    golden = GOLDEN / f"{name}.md"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(page)
    assert page == golden.read_text()


def test_the_documentation_shows_the_report_as_it_is() -> None:
    shown = [line[2:] for line in (ROOT / "docs" / "reviews.md").read_text().splitlines() if line.startswith(">")]
    golden = (GOLDEN / "workers.md").read_text().splitlines()
    assert shown == golden[: len(shown)]
    assert shown[-1].startswith("<details>")


@pytest.mark.full
@pytest.mark.engine
def test_what_was_done_reads_as_what_was_announced_and_no_secret_is_in_it(tmp_path: Path) -> None:
    """A finished `up` carries the same, a stack that goes says what it loses, and neither shows a secret."""
    with simulation(tmp_path / "dev") as stack:
        stack.add_secrets()
        stack.training(
            tensorboard={"expose": "load_balancer", "allowed_cidrs": ["203.0.113.0/24"]}, env={"TOKEN": "hunter3"}, args={"filters": 8}
        )
        made = stack.pulumi("up", "--json", "--yes", "--skip-preview").stdout
        page = reported(made)
        assert "## What `up` did to stack `dev`" in page
        assert "**A new stack: all of it is made.**" in page
        assert "a **service account key** is made" in page
        assert "**digits-tensorboard** can be reached from outside, by `203.0.113.0/24`" in page
        stack.training(args={"filters": 32}, env={"TOKEN": "hunter4"})
        printed = stack.pulumi("preview", "--json").stdout
        other = reported(printed)
        assert "args.filters `8` → `32`" in other
        assert "`args.filters` of **digits** changes: if that changes the model's shape, **its checkpoint will not load**" in other
        gone = reported(stack.pulumi("destroy", "--json", "--preview-only").stdout)
        assert "**The whole stack goes.**" in gone
        assert "bucket **some-project-dev-checkpoints** is deleted, **with everything in it**" in gone
        for text in (page, other, gone):
            assert not [secret for secret in ("hunter2", "hunter3", "hunter4", "PRIVATE KEY", "eyJ") if secret in text]
        stack.write(budget={"per_hour": 0.5})
        refused = stack.pulumi("preview", "--json", check=False)
        assert refused.returncode
        assert "**The preview failed, so nothing can be applied:**" in (failed := reported(refused.stdout))
        assert "budget.per_hour: the stack costs $" in failed


# ------------------------------------------------------------------------------------------------------------ by hand


def told(*steps: dict[str, Any], before: dict[str, Any] | None = None, after: dict[str, Any] | None = None, op: str = "update") -> str:
    """The page of a preview with these steps; settings are those of the only training."""

    def stack(training: dict[str, Any]) -> dict[str, Any]:
        return {"target": "gke", "cluster": {"location": "us-central1-a"}, "trainings": {"a": {**TRAINING, **training}}}

    outputs = {} if before is None else {"stack_settings": {"gcp": {"project": "p"}, **stack(before)}}
    config = {f"trainstack:{key}": value if isinstance(value, str) else json.dumps(value) for key, value in stack(after or {}).items()}
    root = {"op": op, "urn": "urn:pulumi:prod::trainstack::pulumi:pulumi:Stack::trainstack-prod", "oldState": {"outputs": outputs}}
    return report.page(changes.read(json.dumps({"config": {"gcp:project": "p", **config}, "steps": [root, *steps]})))


def step(op: str, kind: str, name: str, old: Any = None, new: Any = None, **more: Any) -> dict[str, Any]:
    states = {"oldState": {"inputs": old, **more} if old is not None else None, "newState": {"inputs": new} if new is not None else None}
    return {"op": op, "urn": f"urn:pulumi:prod::trainstack::{kind}::{name}", **states}


SERVICE = {"metadata": {"name": "a-tensorboard"}, "spec": {"type": "ClusterIP"}}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            step("delete", report.BUCKET, "storage-data", {"name": "p-data"}, retainOnDelete=True),
            "bucket **p-data** is given up: it stays with all that is in it, and costs on",
        ),
        (step("delete", report.BUCKET, "storage-data", {"name": "p-data"}), "bucket **p-data** is deleted, **with everything in it**"),
        (
            step(
                "update", report.BUCKET, "storage-data", {"name": "p-data", "forceDestroy": False}, {"name": "p-data", "forceDestroy": True}
            ),
            "bucket **p-data** was kept by a destroy and will not be any more",
        ),
        (
            step("delete", report.CLAIM, "ckpt", {"metadata": {"name": "ckpt"}}),
            "the disk of claim **ckpt** is deleted, **with everything on it**",
        ),
        (
            step("replace", report.POOL, "pool-cpu", {"name": "cpu", "nodeConfig": {"machineType": "e2-standard-4"}}, {"name": "cpu"}),
            "node pool **cpu** (e2-standard-4) is replaced: what runs on it stops",
        ),
        (
            step("replace", report.CLUSTER, "cluster-gke", {"name": "c"}, {"name": "c"}),
            "the **cluster** is replaced: everything on it stops",
        ),
        (
            step("update", report.CLUSTER, "cluster-gke", {"deletionProtection": True}, {"deletionProtection": False}),
            "**cluster-gke** is no longer protected from being deleted",
        ),
        (
            step("same", report.BUCKET, "storage-data", {"name": "p-data"}, {"name": "p-data"}, protect=True),
            "**storage-data** is no longer protected from being deleted",
        ),
        (
            step(
                "update",
                report.CLUSTER,
                "cluster-gke",
                {"masterAuthorizedNetworksConfig": {"cidrBlocks": [{"cidrBlock": "10.0.0.0/8"}]}},
                {},
            ),
            "the **control plane** can be reached by its DNS endpoint only, with Google's login; before by `10.0.0.0/8`",
        ),
        (
            step("update", report.SERVICE, "a", SERVICE, {**SERVICE, "spec": {"type": "LoadBalancer"}}),
            "**a-tensorboard** can be reached from outside, by **everybody (0.0.0.0/0)**",
        ),
        (
            step(
                "update",
                report.ARMOR,
                "guard-a",
                {"name": "g", "rules": ["10.0.0.0/8"]},
                {"name": "g", "rules": ["10.0.0.0/8", "192.0.2.0/24"]},
            ),
            "Cloud Armor policy **g** lets `10.0.0.0/8`, `192.0.2.0/24` through; before `10.0.0.0/8`",
        ),
        (step("delete", report.POLICY, "a-policy", {"metadata": {"name": "a-tasks"}}), "network policy **a-tasks** is removed"),
        (
            step("update", report.POLICY, "a-policy", {"metadata": {"name": "a"}}, {"metadata": {"name": "a"}, "to": "192.0.2.0/24"}),
            "network policy **a** changes: adds `192.0.2.0/24`",
        ),
        (
            step("create", "gcp:projects/iAMMember:IAMMember", "x", None, {"role": "roles/owner", "member": "user:a"}),
            "1 IAM role is granted: `roles/owner`",
        ),
        (step("create", report.SECRET, "secrets-K", None, {"secretId": "p-k"}), "secret p-k is added"),
    ],
)
def test_what_opens_and_what_is_lost_is_said(change: dict[str, Any], sentence: str) -> None:
    page = told(change, before={}, after={})
    assert f"- {sentence}" in page
    assert page.index(sentence) < page.index("an hour, all trainings"), "above the figures"


@pytest.mark.parametrize(
    ("guarded", "goes", "said"), [("tasks", "worker", False), ("serving", "serving", False), ("serving", "worker", True)]
)
def test_a_policy_that_goes_with_what_it_guards_opens_nothing(guarded: str, goes: str, said: bool) -> None:
    labels = {"app.kubernetes.io/name": "a", "app.kubernetes.io/component": guarded}
    policy = step("delete", report.POLICY, "a-policy", {"metadata": {"name": "a-policy", "labels": labels}})
    page = told(policy, job("delete", goes), before={}, after={})
    assert ("network policy **a-policy** is removed" in page) == said


def job(op: str, role: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "a", "app.kubernetes.io/component": role}
    return step(op, report.JOB, f"a-{role}", {"metadata": {"name": f"a-{role}", "labels": labels}}, {} if op == "replace" else None)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            {},
            {"worker": {**TRAINING["worker"], "replicas": 1}},
            ["**workers 2 → 1** (-1 × l4 spot)", "run `1` goes on from its last checkpoint"],
        ),
        ({}, {"worker": {"replicas": 2}}, ["**workers 2 × l4 spot → 2 × CPU on demand**"]),
        ({}, {"worker": {**TRAINING["worker"], "spot": False}}, ["**workers 2 × l4 spot → 2 × l4**", "$"]),
        ({}, {"run": "2"}, ["run `1` → `2`", "run `2` begins from nothing; run `1` ends where it is"]),
        ({}, {"run": "2", "resume_from": "1"}, ["run `2` begins from the checkpoint of `1`"]),
        ({}, {"args": {"epochs": 3}}, ["args.epochs nothing → `3`"]),
        ({"args": {"filters": 8}}, {"args": {"filters": 9}}, ["**its checkpoint will not load**"]),
        ({}, {"program": "mnist"}, ["`program` of **a** changes: if that changes the model's shape"]),
        ({}, {"deadline": "4h"}, ["deadline `7200` → `14400`", "(2 h) | at most", "(4 h)"]),
        ({}, {"strategy": "parameter_server", "evaluator": {"mode": "sidecar"}}, ["**evaluator 0 → 1**"]),
        ({}, {"env": {"TOKEN": "hunter2"}}, []),
    ],
)
def test_a_training_before_and_after(before: dict[str, Any], after: dict[str, Any], words: list[str]) -> None:
    page = told(job("replace", "worker"), before=before, after=after)
    assert [each for each in words if each not in page] == []
    assert "hunter2" not in page
    assert ("will not load" in page) == ("filters" in str(after) or "program" in after), "epochs and the like are no other model"


def test_what_else_of_the_stack_differs_is_said() -> None:
    def stack(**more: Any) -> dict[str, Any]:
        return {"target": "gke", "cluster": {"location": "us-central1-a"}, "trainings": {"a": TRAINING}, **more}

    old, new = stack(budget={"per_hour": 10}), stack(budget={"per_hour": 20}, network={"flow_logs": True})
    outputs = {"stack_settings": {"gcp": {"project": "p"}, **old}}
    config = {f"trainstack:{key}": value if isinstance(value, str) else json.dumps(value) for key, value in new.items()}
    root = {"op": "same", "urn": "urn:pulumi:prod::trainstack::pulumi:pulumi:Stack::trainstack-prod", "oldState": {"outputs": outputs}}
    page = report.page(changes.read(json.dumps({"config": {"gcp:project": "p", **config}, "steps": [root]})))
    assert "- the stack: budget.per_hour `10` → `20` · network.flow_logs `false` → `true`" in page
    assert "(budget 20)" in page
    assert "**No resource changes.**" in page


def test_settings_that_cannot_be_read_are_no_training_that_goes() -> None:
    page = told(job("replace", "worker"), before={}, after={"deadline": "[secret]"})
    assert "what it becomes cannot be read" in page
    assert "is taken away" not in page


def test_a_stack_that_has_not_written_down_what_it_was() -> None:
    page = told(job("replace", "worker"), before=None)
    assert "what it was is not known" in page
    assert "| **a** | chief 1, workers 2 (1 × l4 spot each), ps 1 |" in page
    assert "→" not in page.split("<details>")[0]


def test_an_unknown_price_is_said_on_top() -> None:
    page = told(job("replace", "worker"), before={}, after={"worker": {"replicas": 2, "gpus": 1, "accelerator": "l4", "flex_start": True}})
    assert "at least $" in page
    assert "- no price is known for g2-standard-4 with 1 × l4, flex-start (pool gpu-l4-1-flex)" in page


def test_the_command_takes_a_file_or_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps({"config": {"trainstack:target": "local"}, "steps": []})
    file = tmp_path / "preview.json"
    file.write_text(text)
    for arguments in (["report", str(file)], ["report", "-"], ["--json", "report", "-"]):
        monkeypatch.setattr(sys, "argv", ["trainstack", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        assert main.main() == 0
        printed = capsys.readouterr().out
        assert "**Nothing changes.**" in (json.loads(printed)["markdown"] if "--json" in arguments else printed)
    monkeypatch.setattr(sys, "argv", ["trainstack", "report", str(tmp_path / "none.json")])
    assert main.main() == 1
    assert "none.json cannot be read (No such file or directory); name the file with the preview" in capsys.readouterr().err


def test_a_long_list_is_cut_so_that_it_fits_into_a_comment() -> None:
    page = told(*(step("create", report.JOB, f"job-{number:05}", None, {}) for number in range(3000)), before={})
    assert len(page) < 65_000
    assert "lines more" in page


def test_values_that_look_secret_are_not_shown() -> None:
    old = {
        "spec": {"env": [{"name": "A", "value": "hunter2"}], "password": "hunter3"},
        "registries": [{"token": "hunter4"}],
        "plan": {"env": {"A": "hunter5"}},
    }
    known = Step(
        "update",
        "some:kind:Thing",
        "x",
        old,
        {"spec": {"env": []}},
        ("spec", "spec.password", "registries[0].token", "spec.env[0].value", "plan", "plan.env.A", "spec.env[0]"),
    )
    lines = "\n".join(changes.diff((known,)))
    assert "hunter" not in lines
    assert "spec.password: changed" in lines


@pytest.mark.parametrize("text", ["", "no preview", "[1, 2]", '{"a": 1}'])
def test_what_is_no_preview_is_one_sentence(text: str) -> None:
    with pytest.raises(OpsError, match="that is no preview; give the output of"):
        changes.read(text)
