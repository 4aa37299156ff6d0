"""Every command answers programs: with --json standard output is JSON and nothing else, whatever a person would read meanwhile."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops import __main__ as main
from ops import container, recover
from ops import new as new_stack
from ops.target import Finding, Run, Site, TaskStatus


class Everything:
    """A target with one run, which has ended when it is looked at again; it answers whatever is asked."""

    pause = 0.0

    def __init__(self) -> None:
        self.looks = 0

    def runs(self, _: str | None = None) -> list[Run]:
        self.looks += 1
        state = "running" if self.looks < 4 else "succeeded"
        metrics = [{"step": step, "loss": 0.5, "accuracy": 0.9} for step in range(3)]
        tasks = (TaskStatus("chief-0", state), TaskStatus("worker-0", state))
        return [Run("digits", "1", state, "", "/place", "/model", 0.0, 1.0, tasks=tasks, metrics=metrics, evaluation=metrics)]

    def logs(self, *_: Any) -> Iterator[tuple[str, str]]:
        yield from (("chief-0", "one"), ("worker-0", "two"))

    def explain(self, _: str | None) -> list[Finding]:
        return [Finding("digits", "worker-0", "pending", "no node fits.")]

    def inspect(self, *_: Any, captured: bool) -> tuple[int, str, str]:
        assert captured
        return 0, "out", "err"

    @contextmanager
    def tensorboard(self, *_: Any) -> Iterator[Site]:
        yield Site("http://here/")

    def model(self, run: Run) -> str:
        return run.model

    def predict(self, *_: Any) -> list[dict[str, Any]]:
        return [{"probabilities": [0.1, 0.9]}]

    def done(self, *_: Any) -> None: ...

    cancel = rerun = kill = fetch_model = delete_model = done


def trained(*_: Any) -> tuple[int, Path]:
    print("Step 1/8 : FROM python")
    return 0, Path("runs/container/digits/1")


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What needs a cluster, Docker, an engine or time does not need it."""
    monkeypatch.setattr(main, "target_of", lambda *_: Everything())
    monkeypatch.setattr(recover, "recover", lambda _: iter(["adopted a bucket"]))
    monkeypatch.setattr(container, "train", trained)
    monkeypatch.setattr(new_stack, "new", lambda name, root: (root / f"Pulumi.{name}.yaml", root / "mine.py"))
    (tmp_path / "inputs.json").write_text("[[1]]")
    spec = {"Worker": {"template": {"spec": {"containers": [{"name": "tensorflow", "image": "a:1", "command": ["python"]}]}}}}
    job = {"kind": "TFJob", "metadata": {"name": "a"}, "spec": {"tfReplicaSpecs": spec}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    return tmp_path


CASES: dict[str, list[str]] = {
    "status": [],
    "explain": [],
    "watch": [],
    "list": [],
    "logs": ["-f"],
    "cancel": [],
    "rerun": ["--fresh"],
    "models": ["list"],
    "predict": ["inputs.json"],
    "tensorboard": ["--no-browser"],
    "inspect": ["--", "ls"],
    "recover": [],
    "container": ["examples/demo.yaml"],
    "demo": [],
    "import-tfjob": ["job.yaml"],
    "new": ["mine"],
}
LINES = ("logs",)  # an answer a line, because it goes on


@pytest.mark.parametrize(
    ("command", "arguments"), [*CASES.items(), ("models", ["fetch", "folder"]), ("models", ["delete"])], ids=lambda value: str(value)
)
def test_the_answer_is_json_and_nothing_else(
    command: str, arguments: list[str], everywhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(everywhere)
    monkeypatch.setattr(sys, "argv", ["trainstack", "--json", command, *arguments])
    assert main.main() == 0
    answer = capsys.readouterr().out
    for part in answer.splitlines() if command in LINES else [answer]:
        assert json.loads(part)


def test_no_command_is_forgotten() -> None:
    """One that has no case here says in its own function what it does about --json."""
    (commands,) = (action for action in main.parser()._actions if isinstance(action, argparse._SubParsersAction))
    for name in set(commands.choices) - set(CASES):
        assert "json" in inspect.getsource(getattr(main, name.replace("-", "_"))), f"add a case for {name}"
