"""The commands as they are typed, and the new ones on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ops import __main__ as main
from ops import local
from ops.local import LocalTarget
from ops.target import Finding, OpsError, Run, Site, settings_of, target_of


class Told:
    """A target that says what a test wants."""

    pause = 0.0

    def __init__(self, *findings: Finding, site: Site | None = None, code: int = 0) -> None:
        self.findings, self.site, self.code = findings, site or Site("http://here/"), code
        self.commands: list[tuple[Sequence[str], bool]] = []

    def explain(self, _: str | None) -> list[Finding]:
        return list(self.findings)

    def inspect(self, _: str | None, command: Sequence[str], captured: bool) -> tuple[int, str, str]:
        self.commands.append((command, captured))
        return self.code, "out", "err"

    @contextmanager
    def tensorboard(self, *_: Any) -> Iterator[Site]:
        yield self.site


def run(monkeypatch: pytest.MonkeyPatch, told: Told, *arguments: str) -> int:
    monkeypatch.setattr(main, "target_of", lambda *_: told)
    monkeypatch.setattr(sys, "argv", ["trainstack", *arguments])
    return main.main()


def test_tasks_with_one_reason_are_told_together(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    workers = [Finding("digits", f"worker-{index}", "pending", "no node fits.") for index in range(9)]
    told = Told(Finding("digits", "chief-0", "failed", "it ended."), *workers)
    assert run(monkeypatch, told, "explain") == 0
    assert capsys.readouterr().out.splitlines() == [
        "digits chief-0: it ended.",
        "digits worker-0, worker-1, worker-2, worker-3, worker-4 and 4 more: no node fits.",
    ]
    run(monkeypatch, told, "--json", "explain")
    assert len(json.loads(capsys.readouterr().out)) == 10
    run(monkeypatch, Told(), "explain")
    assert capsys.readouterr().out == "every task runs or is done\n"


def test_inspect_takes_a_command_with_its_own_options(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(code=7)
    assert run(monkeypatch, told, "inspect", "--", "ls", "-l", "--all") == 7
    assert run(monkeypatch, told, "inspect") == 7
    assert told.commands == [(["ls", "-l", "--all"], False), ([], False)]
    assert run(monkeypatch, told, "--json", "inspect", "--", "ls") == 7
    assert json.loads(capsys.readouterr().out) == {"exit_code": 7, "output": "out", "errors": "err"}
    assert run(monkeypatch, told, "--json", "inspect") == 1
    assert "--json shows what one command prints" in capsys.readouterr().err


def test_tensorboard_opens_a_browser_unless_told_not_to(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import webbrowser

    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert run(monkeypatch, Told(), "tensorboard", "--no-browser") == 0
    assert opened == []
    assert run(monkeypatch, Told(), "--json", "tensorboard") == 0
    assert opened == ["http://here/"]
    assert capsys.readouterr().out.splitlines() == ["TensorBoard is at http://here/", '{"url": "http://here/"}']


def test_a_run_that_somebody_takes_down_while_it_is_followed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Gone(Told):
        looks = 0

        def runs(self, _: str | None = None) -> list[Run]:
            self.looks += 1
            return [Run("digits", "1", "running", "", "", "")] if self.looks <= 2 else []

    assert run(monkeypatch, Gone(), "watch") == 1
    assert "no longer in the stack" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "watch"])
@pytest.mark.parametrize(
    ("states", "code"), [(["succeeded"], 0), (["failed"], 3), (["vanished"], 3), (["cancelled"], 4), (["succeeded", "failed"], 3)]
)
def test_the_exit_code_says_how_the_runs_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, states: list[str], code: int
) -> None:
    class Ended(Told):
        def runs(self, _: str | None = None) -> list[Run]:
            return [Run(f"t{number}", "1", state, "", "", "") for number, state in enumerate(states)]

    assert run(monkeypatch, Ended(), "--json", command) == code
    assert [shown["state"] for shown in json.loads(capsys.readouterr().out)] == states


# ------------------------------------------------------------------------------------------------------ settings


def test_a_settings_file_may_be_anywhere(tmp_path: Path) -> None:
    settings = tmp_path / "Pulumi.elsewhere.yaml"
    settings.write_text("config: {trainstack:target: local}\n")
    assert settings_of("elsewhere", settings) == {"trainstack:target": "local"}
    assert isinstance(target_of("elsewhere", settings), LocalTarget)
    with pytest.raises(OpsError, match="there is no settings file"):
        settings_of("elsewhere", tmp_path / "nowhere")
    settings.write_text("config: {trainstack:target: moon}\n")
    with pytest.raises(OpsError, match="write one of local, kubernetes, gke"):
        target_of("elsewhere", settings)


# --------------------------------------------------------------------------------------------------------- local


def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, tasks: list[dict[str, Any]], **status: Any) -> LocalTarget:
    """A run's folder as a supervisor leaves it."""
    (tmp_path / "tasks").mkdir(exist_ok=True)
    plan = {"training": "digits", "run": "1", "model_dir": str(tmp_path / "model"), "log_dir": str(tmp_path / "logs")}
    whole = [{"detail": "", "restarts": 0, "exit_code": None, **task} for task in tasks]
    monkeypatch.setattr(local.runs, "folders", lambda *_: [tmp_path])
    monkeypatch.setattr(local.runs, "read_plan", lambda _: plan)
    monkeypatch.setattr(local.runs, "read_status", lambda _: {"state": state, "reason": "", "tasks": whole, **status})
    return LocalTarget("local")


def test_the_model_is_the_newest_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = folder(tmp_path, monkeypatch, "succeeded", [])
    assert target.runs()[0].model == ""
    (tmp_path / "model").mkdir()
    assert target.runs()[0].model == "", "a folder with no version has no model"
    for version in ("9", "880"):
        (tmp_path / "model" / version).mkdir()
        (tmp_path / "model" / version / "saved_model.pb").write_text(version)
    (run,) = target.runs()
    assert run.model == str(tmp_path / "model" / "880")
    target.fetch_model(run, tmp_path / "fetched")
    assert (tmp_path / "fetched" / "saved_model.pb").read_text() == "880"
    target.delete_model(run)
    assert target.runs()[0].model == ""


def test_why_a_task_on_this_machine_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "ps-0.log").write_text("ValueError: no\nlauncher: the task ended with 1\n")
    target = folder(
        tmp_path,
        monkeypatch,
        "running",
        [
            {"name": "chief-0", "state": "waiting", "detail": "waiting for ps-0"},
            {"name": "worker-0", "state": "running"},
            {"name": "ps-0", "state": "failed", "exit_code": 1},
            {"name": "evaluator-0", "state": "succeeded"},
        ],
    )
    assert {finding.task: finding.sentence for finding in target.explain(None)} == {
        "chief-0": "it is waiting for ps-0; look at why that task does not run.",
        "ps-0": 'it ended with 1; its last words: "ValueError: no"; mend what its log says, then `trainstack rerun`.',
    }
    stopped = [{"name": "worker-0", "state": "stopped"}]
    assert folder(tmp_path, monkeypatch, "succeeded", stopped).explain(None) == []
    for state, words in (("cancelled", "the run was cancelled"), ("failed", "because the run failed"), ("vanished", "`make up` does")):
        assert words in folder(tmp_path, monkeypatch, state, stopped).explain(None)[0].sentence


def test_tensorboard_and_inspect_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = [{"name": "tensorboard", "state": "running"}]
    with folder(tmp_path, monkeypatch, "running", board, tensorboard="http://127.0.0.1:7/").tensorboard(None, None, 0) as site:
        assert site == Site("http://127.0.0.1:7/")
    without = folder(tmp_path, monkeypatch, "succeeded", [])
    with (
        pytest.raises(OpsError, match=rf"start one with `.venv/bin/tensorboard --logdir {tmp_path}/logs`"),
        without.tensorboard(None, None, 0),
    ):
        pass
    with pytest.raises(OpsError, match=f"look into the run's folder, {tmp_path}"):
        without.inspect(None, [], captured=False)
