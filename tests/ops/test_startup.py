"""A command is there at once: it loads what it uses and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from settings import parse
from tests.conftest import ROOT
from workloads.local import runs
from workloads.local.plan import RUNS, plan

HEAVY = {
    *(
        "google",
        "grpc",
        "infra",
        "keras",
        "kubernetes",
        "matplotlib",
        "numpy",
        "pulumi",
        "pulumi_docker_build",
        "pulumi_gcp",
        "pulumi_kubernetes",
    ),
    *("pydantic", "settings", "sklearn", "tensorboard", "tensorflow", "tf_keras", "urllib3"),
}
LOADED = """
import json, runpy, sys
sys.argv = ["trainstack", *json.loads(sys.argv[1])]
try:
    runpy.run_module("ops", run_name="__main__")
except SystemExit as ended:
    assert not ended.code, ended.code
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.fixture(scope="module")
def finished() -> Iterator[str]:
    """A stack with a run that has ended: `status` has something to show."""
    stack = "test-startup"
    folder = RUNS / stack / "t" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    training = parse({"trainings": {"t": {"program": "digits", "worker": {"replicas": 1}, "ps": {"replicas": 1}}}}).trainings["t"]
    runs.write_whole(folder / "plan.json", plan(stack, "t", training))
    runs.write_whole(folder / "status.json", {"state": "succeeded", "reason": "", "started": 1.0, "ended": 2.0, "tasks": []})
    yield stack
    shutil.rmtree(RUNS / stack)


def loaded(*arguments: str, bare: bool = False) -> tuple[set[str], str]:
    """The packages that a command loads, and what it prints; `bare`: by a Python with no packages."""
    command = [sys.executable, *(["-S"] if bare else []), "-c", LOADED, json.dumps(arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    *printed, names = done.stdout.splitlines()
    return set(json.loads(names)), "\n".join(printed)


def test_help_needs_no_package_at_all() -> None:
    names, printed = loaded("--help", bare=True)
    assert "doctor" in printed
    assert not names & (HEAVY | {"yaml", "rich", "psutil"})


def test_a_package_that_is_missing_is_one_sentence() -> None:
    done = subprocess.run([sys.executable, "-S", "-m", "ops", "status"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == f"trainstack: yaml is not installed for {sys.executable}; run `make ready`, then .venv/bin/trainstack.\n"


@pytest.mark.parametrize("json_only", [True, False])
def test_status_of_a_local_stack_loads_nothing_heavy(finished: str, json_only: bool) -> None:
    settings = str(Path("Pulumi.local.yaml"))
    names, printed = loaded(*(["--json"] if json_only else []), "--stack", finished, "--config-file", settings, "status")
    assert "succeeded" in printed
    assert "yaml" in names  # the list sees what is loaded
    assert not names & HEAVY
    assert ("rich" in names) != json_only  # which only draws


def test_the_packages_that_are_called_heavy_are_there() -> None:
    """A name that is spelled wrongly would forbid nothing."""
    from importlib.util import find_spec

    assert [name for name in HEAVY if find_spec(name) is None] == []
