"""What a stack and its runs cost, as `trainstack cost` says it, and what the end of a run says of the idle stack."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops import __main__ as main
from ops import spending
from ops.target import OpsError, Run
from tests.conftest import ROOT

DEV: dict[str, Any] = yaml.safe_load((ROOT / "Pulumi.dev.yaml").read_text())["config"]
START = 1_000_000.0


def run(state: str = "running", **more: Any) -> Run:
    metrics = [{"step": 100 * epoch, "time": START + 60 * epoch, "epoch": epoch, "steps": 1000} for epoch in range(1, 5)]
    return Run("digits", "1", state, "", "namespace x", "", **{"started": START, "metrics": metrics, **more})


class Told:
    """A target with one run."""

    pause = 0.0

    def __init__(self, *runs: Run) -> None:
        self.told = list(runs)

    def runs(self, _: str | None = None) -> list[Run]:
        return self.told

    def after(self, _: Run) -> list[tuple[str, str]]:
        return []

    def standing(self) -> str:
        return spending.standing("dev", DEV)


def typed(monkeypatch: pytest.MonkeyPatch, told: Told | OpsError, *arguments: str) -> int:
    def target_of(*_: Any) -> Told:
        if isinstance(told, OpsError):
            raise told
        return told

    monkeypatch.setattr(main, "target_of", target_of)
    monkeypatch.setattr(sys, "argv", ["trainstack", "--stack", "dev", *arguments])
    return main.main()


def test_a_run_that_goes_on_by_hand() -> None:
    """A minute an epoch, six minutes to go, four have passed."""
    stack = spending.parsed(DEV, "dev")
    found = spending.spent(stack, run(), START + 240)
    hour = found.per_hour.known
    assert 0.5 < hour < 1, "two spot L4 nodes and a CPU node"
    assert found.so_far
    assert found.so_far.known == pytest.approx(hour * 4 / 60)
    assert found.per_epoch
    assert found.per_epoch.known == pytest.approx(hour / 60)
    assert found.to_the_end
    assert found.to_the_end.known == pytest.approx(hour * 6 / 60)
    assert found.at_most
    assert found.at_most.known == pytest.approx(hour * 2), "deadline: 2h"


def test_a_run_that_is_over_or_has_not_begun() -> None:
    stack = spending.parsed(DEV, "dev")
    over = spending.spent(stack, run("succeeded", ended=START + 3600), START + 99_999)
    assert over.so_far
    assert over.so_far.known == pytest.approx(over.per_hour.known), "it cost what it cost when it ended"
    assert over.to_the_end is None
    waiting = spending.spent(stack, run(started=None, metrics=[]), START)
    assert (waiting.so_far, waiting.per_epoch, waiting.to_the_end) == (None, None, None)


def test_cost_shows_the_bill_and_the_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(monkeypatch, Told(run()), "--json", "cost") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["per_hour"]["running"]["usd"] > data["per_hour"]["idle"]["usd"] > 0.1
    assert {line["what"] for line in data["lines"]} >= {"e2-standard-4, on demand (pool cpu)", "control plane of the cluster"}
    (shown,) = data["runs"]
    assert shown["training"] == "digits"
    assert shown["per_epoch"]["usd"] > 0
    monkeypatch.setenv("COLUMNS", "200")
    assert typed(monkeypatch, Told(run()), "cost") == 0
    page = capsys.readouterr().out
    assert "pool gpu-l4-1-spot" in page
    assert "digits, 1" in page
    assert "billed by volume" in page


def test_a_stack_that_is_not_up_has_a_bill_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(monkeypatch, OpsError("there is no cluster yet."), "cost") == 0
    page = capsys.readouterr().out
    assert "together" in page
    assert "no run was looked at: there is no cluster yet." in page


def test_on_this_machine_it_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Pulumi.x.yaml"
    file.write_text("config: {trainstack:target: local}\n")
    assert typed(monkeypatch, Told(), "--config-file", str(file), "cost") == 0
    assert capsys.readouterr().out == "target local costs nothing on a cloud\n"


def test_the_end_of_a_run_says_what_stays_and_how_to_end_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "the idle stack still costs $0.25 an hour (list prices of 2025-07-01); `pulumi destroy --stack dev` ends it"
    for command in ("watch", "status"):
        typed(monkeypatch, Told(run("succeeded", ended=START + 60)), command)
        assert capsys.readouterr().out.rstrip().endswith(sentence), command
    typed(monkeypatch, Told(run()), "status")
    assert sentence not in capsys.readouterr().out, "it is not idle"
    assert spending.standing("x", {"trainstack:target": "local"}) == ""
    assert spending.standing("x", {"trainstack:target": "nowhere"}) == "", "`up` says what is wrong with the settings"
