"""A stack of one's own: it previews and trains as it is written, and every option in its comments can be had."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import settings
from ops import new
from ops.target import OpsError
from settings import parse
from tests.conftest import ROOT, Stack

OPTION = re.compile(r"^( +)# ((?:[a-z]+:)?[a-z_]+: .*)$")


def written(tmp_path: Path, name: str = "mine") -> tuple[Path, Path]:
    return new.new(name, tmp_path)


def text_of(tmp_path: Path) -> str:
    """The settings with the program by its absolute path, because it is not below the project's folder here."""
    file, program = written(tmp_path)
    return file.read_text().replace("trainer/own/mine.py", str(program))


def uncommented(text: str, only: int | None = None) -> tuple[str, list[str]]:
    """The text with one of its options, or with all, and what they are. One that is there instead of the line above takes its place."""
    lines: list[str] = []
    found: list[str] = []
    for line in text.splitlines():
        if (option := OPTION.match(line)) is None:
            lines.append(line)
            continue
        found.append(option[2])
        if only in (None, len(found) - 1):
            if "# instead" in line:
                assert lines.pop().split(":")[:1] == [f"{option[1]}{option[2]}".split(":")[0]]
            lines.append(option[1] + option[2])
    return "\n".join(lines), found


def check(text: str) -> Any:
    config = yaml.safe_load(text)["config"]
    google = {key.removeprefix("gcp:"): value for key, value in config.items() if key.startswith("gcp:")}
    return parse({key.removeprefix("trainstack:"): value for key, value in config.items() if key.startswith("trainstack:")}, google)


def test_both_files_are_written_and_never_overwritten(tmp_path: Path) -> None:
    file, program = written(tmp_path, "my-model")
    assert (file, program) == (tmp_path / "Pulumi.my-model.yaml", tmp_path / "trainer/own/my_model.py")
    assert "program: trainer/own/my_model.py" in file.read_text()
    assert not re.search(r"my.training", file.read_text() + program.read_text())
    program.write_text("mine")
    with pytest.raises(OpsError, match=r"Pulumi.my-model.yaml and trainer/own/my_model.py are there already"):
        written(tmp_path, "my-model")
    file.unlink()
    with pytest.raises(OpsError, match=r"my_model.py is there already and left alone"):
        written(tmp_path, "my-model")
    assert not file.exists(), "all or nothing"
    assert program.read_text() == "mine"


@pytest.mark.parametrize("name", ["", "Mine", "my_model", "1st", "mine-", "a/b", "../a", "a b", "ä", "a" * 41])
def test_a_name_that_cannot_be_a_host_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OpsError, match=r"as in `make new NAME=mine`\.$"):
        written(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_every_option_can_be_had_alone_and_all_together(tmp_path: Path) -> None:
    text = text_of(tmp_path)
    plain = check(text)
    assert plain.target == "local"
    options = uncommented(text)[1]
    assert len(options) > 15
    for index, option in enumerate(options):
        if option.startswith("trainstack:target"):
            continue  # needs the project and the place at the end of the file
        assert check(uncommented(text, index)[0]) != plain, option


def test_all_options_together_are_a_stack_on_google_cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the program's path as it is written: it is in the image, too."""
    monkeypatch.setattr(settings, "ROOT", tmp_path)
    everything = check(uncommented(written(tmp_path)[0].read_text())[0])
    assert (everything.target, everything.gcp.project) == ("gke", "my-project")


@pytest.mark.engine
def test_it_previews_clean_on_local(tmp_path: Path, stack: Stack) -> None:
    stack.settings.write_text(text_of(tmp_path / "checkout"))
    steps = json.loads(stack.pulumi("preview", "--json").stdout)["steps"]
    assert [(step["op"], step["urn"].rpartition("::")[2]) for step in steps if step["urn"].endswith("::mine")] == [("create", "mine")]


@pytest.mark.full
@pytest.mark.engine
@pytest.mark.training
def test_it_trains_as_it_is(tmp_path: Path, stack: Stack) -> None:
    stack.settings.write_text(text_of(tmp_path / "checkout"))
    stack.up()
    stack.wait("mine", "succeeded", 90)
    evaluation = [json.loads(line) for line in (stack.folder_of("mine") / "logs" / "evaluation.jsonl").read_text().splitlines()]
    assert evaluation[-1]["accuracy"] > 0.8


# ------------------------------------------------------------------------------------------------------------- make


@pytest.fixture
def name() -> Iterator[str]:
    """Of a stack in this checkout, whose settings git ignores."""
    chosen = f"test-{uuid.uuid4().hex[:8]}"
    yield chosen
    (ROOT / f"Pulumi.{chosen}.yaml").unlink(missing_ok=True)


def made(*arguments: str) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "PULUMI", "MFLAGS"))}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=clean, capture_output=True, text=True).stdout


@pytest.mark.parametrize(("target", "own"), [("local", True), ("gke", False), ("kubernetes", False)])
def test_a_stack_of_this_machine_has_the_projects_own_backend(name: str, target: str, own: bool) -> None:
    (ROOT / f"Pulumi.{name}.yaml").write_text(f"config:\n  trainstack:target: {target} # where\n  # trainstack:target: local\n")
    shown = made("--dry-run", "up", f"STACK={name}")
    assert (f"--config-file {ROOT}/.trainstack/project/Pulumi.{name}.yaml" in shown) == own
    assert (f"python -m ops --stack {name} watch" in shown) == own
    assert ("pulumi up --yes" in shown) == own


def test_clean_ends_every_stack_of_this_machine_and_none_of_the_cloud(name: str, tmp_path: Path) -> None:
    """Also one whose settings have become those of a cloud stack since: what it left here is meant, not what it has there."""
    stacks = tmp_path / "state" / ".pulumi" / "stacks" / "trainstack"
    stacks.mkdir(parents=True)
    (stacks / f"{name}.json").write_text("{}")
    (ROOT / f"Pulumi.{name}.yaml").write_text("config:\n  trainstack:target: gke\n")
    shown = made("--dry-run", "clean", f"STATE={tmp_path}")
    assert f"pulumi destroy --yes --stack {name} --config-file {tmp_path}/project/Pulumi.{name}.yaml" in shown
    assert f"rm -rf runs/local runs/{name} {tmp_path}" in shown
    assert (stacks / f"{name}.json").exists(), "it was only asked what would be done"


def test_the_command_says_what_to_do_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from ops import __main__ as main

    monkeypatch.setattr(main, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["trainstack", "new", "mine"])
    assert main.main() == 0
    assert "`make up STACK=mine`" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["trainstack", "--json", "new", "other"])
    assert main.main() == 0
    assert json.loads(capsys.readouterr().out) == {"stack": "other", "settings": "Pulumi.other.yaml", "program": "trainer/own/other.py"}
