"""The GitHub workflows: what actionlint and zizmor say of them, the rules of the house, and their steps that write for people, with a GitHub made here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT

FOLDER = ROOT / ".github"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((FOLDER / "workflows").glob("*.yml"))}
FILES = [*(FOLDER / "workflows").glob("*.yml"), *(FOLDER / "actions").glob("*/action.yml")]


def test_actionlint_finds_nothing() -> None:
    made = subprocess.run([sys.executable, "toolchain/install.py", "actionlint"], cwd=ROOT, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(made.stderr.strip())
    done = subprocess.run([ROOT / ".venv" / "bin" / "actionlint"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_zizmor_finds_nothing() -> None:
    zizmor = [ROOT / ".venv" / "bin" / "zizmor", "--offline", "--strict-collection", "--persona", "auditor", "--quiet", FOLDER]
    done = subprocess.run(zizmor, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_action_is_pinned_once() -> None:
    """By a commit, the same everywhere, with the version that it is."""
    pinned: dict[str, set[str]] = {}
    for path in FILES:
        for action in re.findall(r"uses: ([^.\s].*)", path.read_text()):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)
            pinned.setdefault(action.split("@")[0], set()).add(action)
    assert {name for name, versions in pinned.items() if len(versions) > 1} == set()
    assert "actions/checkout" in pinned


@pytest.mark.parametrize("name", WORKFLOWS)
def test_nothing_may_more_or_run_longer_than_it_says(name: str) -> None:
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {}
    for job in workflow["jobs"].values():
        assert "permissions" in job
        assert "uses" in job or job["timeout-minutes"] <= 240


def test_an_up_is_never_cancelled_and_never_beside_another() -> None:
    changes = [(name, key) for name, workflow in WORKFLOWS.items() for key, job in workflow["jobs"].items() if "make up" in yaml.dump(job)]
    assert changes == [("up", "up")]
    job = WORKFLOWS["up"]["jobs"]["up"]
    assert job["concurrency"] == {"group": "up-${{ inputs.stack }}", "cancel-in-progress": False}
    assert job["environment"] == "${{ inputs.stack }}"
    assert not {"concurrency"} & {*WORKFLOWS["up"], *WORKFLOWS["deploy"]}, "one of a whole workflow would cancel what waits for a person"


def test_only_jobs_that_run_nothing_of_a_pull_request_may_write() -> None:
    for workflow in WORKFLOWS.values():
        for job in workflow["jobs"].values():
            written = {key for key, value in job["permissions"].items() if value == "write"} - {"id-token"}
            runs_code = "actions/checkout" in yaml.dump(job)
            assert not (written and runs_code)
            assert not (written and "id-token" in job["permissions"])


def test_every_environment_is_previewed_brought_up_and_looked_at() -> None:
    files = {path.name.split(".")[1]: yaml.safe_load(path.read_text())["config"] for path in ROOT.glob("Pulumi.*.yaml")}
    environments = {name for name, config in files.items() if config["trainstack:target"] == "gke"}
    assert set(WORKFLOWS["preview"]["jobs"]["preview"]["strategy"]["matrix"]["stack"]) == environments
    assert set(WORKFLOWS["drift"]["jobs"]["look"]["strategy"]["matrix"]["stack"]) == environments
    assert {job["with"]["stack"] for job in WORKFLOWS["deploy"]["jobs"].values()} == environments


def test_the_commands_of_the_workflows_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {target for path in FILES for target in re.findall(r"\bmake ([a-z-]+)", path.read_text())}
    assert {"lint", "test", "preview", "report", "up", "drift"} <= used <= targets


# ------------------------------------------------------------------------------------------- what people read

# `gh api`, of which it knows what the steps use: a list filtered by the text in its expression, a new thing, a changed one.
GH = """#!{python}
import json, re, sys
from pathlib import Path

store = Path("github.json")
things = json.loads(store.read_text()) if store.exists() else []
arguments = sys.argv[2:]
address = next(each for each in arguments if each.startswith("repos/"))
fields = dict(arguments[at + 1].split("=", 1) for at, each in enumerate(arguments) if each == "--field")
fields = {{key: Path(value[1:]).read_text() if value.startswith("@") else value for key, value in fields.items()}}
if "--jq" in arguments:
    wanted = re.findall(r'"([^"]*)"', arguments[arguments.index("--jq") + 1])[-1]
    for number, thing in enumerate(things):
        if thing.get("state") != "closed" and (thing["body"].startswith(wanted) or thing.get("title") == wanted):
            print(number)
elif "PATCH" in arguments:
    things[int(address.rpartition("/")[2])].update(fields)
else:
    things.append({{"at": address, **fields}})
store.write_text(json.dumps(things))
"""


class GitHub:
    """What a step leaves on GitHub, in a folder of its own."""

    def __init__(self, folder: Path, workflow: str, job: str) -> None:
        self.folder, self.job = folder, WORKFLOWS[workflow]["jobs"][job]
        gh = folder / "bin" / "gh"
        gh.parent.mkdir()
        gh.write_text(GH.format(python=sys.executable))
        gh.chmod(0o755)

    def run(self, **values: str) -> list[dict[str, Any]]:
        """Runs the last step; the values are those of its variables that expressions make."""
        written = {key: value for key, value in self.job["env"].items() if "${{" not in value}
        environment = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "LANG": "C.UTF-8", **written, **values}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", self.job["steps"][-1]["run"]]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        store = self.folder / "github.json"
        return json.loads(store.read_text()) if store.exists() else []

    def write(self, folder: str, **reports: str) -> None:
        (self.folder / folder).mkdir(exist_ok=True)
        for stack, text in reports.items():
            (self.folder / folder / f"{stack}.md").write_text(text)


PULL = {"COMMENTS": "repos/a/b/issues", "NUMBER": "7", "COMMIT": "abc", "RUN": "https://github.example/run"}


def test_a_pull_request_has_one_comment_that_is_updated(tmp_path: Path) -> None:
    github = GitHub(tmp_path, "preview", "comment")
    github.write("reports", dev="## dev $(id) `id`\n", prod="## prod\n")
    (first,) = github.run(**PULL)
    assert first["at"] == "repos/a/b/issues/7/comments"
    assert "## dev $(id) `id`" in first["body"], "what is in a report is text, and runs nowhere"
    assert first["body"].index("## dev") < first["body"].index("no preview of stack `staging`") < first["body"].index("## prod")
    github.write("reports", dev="## dev, again\n")
    (second,) = github.run(**PULL)
    assert "## dev, again" in second["body"]


def test_what_is_too_long_for_a_comment_is_left_out_where_it_is_folded(tmp_path: Path) -> None:
    github = GitHub(tmp_path, "preview", "comment")
    page = "## {}\n<details><summary>all</summary>\n" + "+ ein Stück\n" * 4000 + "</details>\n"
    github.write("reports", **{stack: page.format(stack) for stack in ("dev", "staging", "prod")})
    (comment,) = github.run(**PULL)
    assert len(comment["body"]) < 1000
    assert all(f"## {stack}" in comment["body"] for stack in ("dev", "staging", "prod"))
    assert "[The whole reports](https://github.example/run)" in comment["body"]


def test_drift_is_one_issue_that_is_closed_when_all_is_well(tmp_path: Path) -> None:
    github = GitHub(tmp_path, "drift", "issue")
    around = {"ISSUES": "repos/a/b/issues", "RUN": "https://github.example/run"}
    assert github.run(LOOKED="success", **around) == []
    github.write("found", prod="## Stack `prod`\n~ nodePool\n")
    (issue,) = github.run(LOOKED="success", **around)
    assert issue["title"].startswith("Drift")
    assert "~ nodePool" in issue["body"]
    github.write("found", prod="## Stack `prod`\n~ bucket\n")
    (issue,) = github.run(LOOKED="failure", **around)
    assert "~ bucket" in issue["body"]
    assert "Not every stack could be looked at." in issue["body"]
    (tmp_path / "found" / "prod.md").unlink()
    issue, comment = github.run(LOOKED="success", **around)
    assert issue["state"] == "closed"
    assert comment["at"] == "repos/a/b/issues/0/comments"
