"""The policy pack behind the real engine, on the simulated cloud: `--policy-pack`, over gRPC, in the pack's own virtual environment.

It is the pack as toolchain/install.py prepares it for a CLI that was built from Go modules, with another name for its runtime; all else is as people use it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.infra.simulation import UP, Simulation, simulation
from tests.test_workflows import WORKFLOWS

pytestmark = pytest.mark.engine
PACK = ROOT / "policy" / ".venv" / "attached"


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulation]:
    done = subprocess.run([sys.executable, "toolchain/install.py", "policy"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with simulation(tmp_path_factory.mktemp("dev")) as made:
        made.env["PATH"] = f"{PACK}:{made.env['PATH']}"
        yield made


def test_a_preview_that_breaks_a_rule_is_refused(dev: Simulation, tmp_path: Path) -> None:
    training, budget = dev.config["trainstack:trainings"]["digits"], dev.config["trainstack:budget"]
    deadline = training.pop("deadline")
    dev.training(credentials={"mode": "key_secret", "secret": "credential", "key": "key.json"})
    dev.write(budget={"per_hour": 20})
    done = dev.pulumi("preview", "--policy-pack", str(PACK), check=False)
    dev.training(credentials={"mode": "workload_identity"}, deadline=deadline)
    dev.write(budget=budget)
    assert done.returncode != 0
    assert "[mandatory]  gpus-have-an-end  (kubernetes:batch/v1:Job: digits-worker)" in done.stdout
    assert "write deadline: 6h in the training." in done.stdout
    assert "[mandatory]  no-service-account-keys  (gcp:serviceaccount:Key: identity-trainer-key)" in done.stdout
    assert "[mandatory]  budget-per-hour" in done.stdout
    assert "The budget of the stack dev is $20 an hour, and $10 are allowed" in done.stdout
    assert done.stdout.count("[mandatory]") == 3
    assert "can't run policy" not in done.stdout, "what is not known yet is no news"
    comment = commented(done.stdout, tmp_path)
    assert comment.startswith("### The rules of the team do not allow it in `dev`\n~~~\nPolicies:\n")
    assert comment.count("[mandatory]") == 3
    assert comment.endswith("~~~\n")
    assert "Diagnostics" not in comment


def commented(preview: str, folder: Path) -> str:
    """What the workflow's step puts into the comment of a pull request, with this as what `make preview` says."""
    (step,) = (each for each in WORKFLOWS["preview"]["jobs"]["preview"]["steps"] if each.get("id") == "rules")
    (folder / "said.txt").write_text(preview)
    make = folder / "make"
    make.write_text("#!/bin/sh\ncat said.txt\nexit 1\n")
    make.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "STACK": "dev"}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    return (folder / "reports" / "dev.md").read_text()


@pytest.mark.full
def test_an_environment_that_keeps_the_rules_comes_up(dev: Simulation) -> None:
    """Everything is known to this one: the image by its digest, the accounts of the nodes."""
    done = dev.pulumi(*UP, "--policy-pack", str(PACK))
    assert "✅ trainstack@v" in done.stdout
    assert "[mandatory]" not in done.stdout
