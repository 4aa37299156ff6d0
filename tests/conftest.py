"""What the tests share: a stack of its own for each test, on the real engine, with its runs in a place of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from xdist.scheduler import LoadScopeScheduling

from workloads.local import runs
from workloads.local.plan import RUNS

ROOT = Path(__file__).resolve().parent.parent

# What a TensorFlow server does first, for small commands in its place: it listens at its address in TF_CONFIG.
LISTEN = (
    "import json, os, socket; config = json.loads(os.environ['TF_CONFIG']); "
    "server = socket.create_server(('127.0.0.1', int(config['cluster'][config['task']['type']][config['task']['index']].split(':')[1])))"
)


PATIENCE = 3  # a busy machine is no bug


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", help="K/N: the tests of one part of several, chosen by a hash of their names")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if part := config.getoption("part"):
        number, parts = (int(word) for word in part.split("/"))
        of_part = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts == number - 1]
        config.hook.pytest_deselected(items=[item for item in items if item not in of_part])
        items[:] = of_part


class ByClass(LoadScopeScheduling):
    """Tests of a class look at one thing that is expensive to make, so they stay in one process; other tests go to any."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.rpartition("::")[0] if nodeid.count("::") > 1 else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return ByClass(config, log) if config.getvalue("dist") == "loadscope" else None


def eventually(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Waits until the condition is true and returns its value; `seconds` is what it takes on a machine that has nothing else to do."""
    until = time.monotonic() + PATIENCE * seconds
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.1)
    pytest.fail(f"after {PATIENCE * seconds} s: {what}")


def alive(folder: Path) -> list[str]:
    """Every process that has the run's folder in its arguments or its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and (
                str(folder) in " ".join(process.cmdline()) or process.environ().get(runs.MARK) == str(folder)
            ):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def own_backend(folder: Path) -> dict[str, str]:
    """The environment of an engine that keeps everything in a folder, and downloads nothing."""
    return {
        "PULUMI_BACKEND_URL": f"file://{folder}/state",
        "PULUMI_HOME": str(folder / "home"),
        "PULUMI_CONFIG_PASSPHRASE": "test",
        "PULUMI_SKIP_UPDATE_CHECK": "1",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "1",
    }


class Stack:
    """A stack on the real engine, typed as a person would type it."""

    def __init__(self, folder: Path) -> None:
        self.name = f"test-{uuid.uuid4().hex[:8]}"
        self.folder = folder
        self.settings = folder / f"Pulumi.{self.name}.yaml"
        (folder / "state").mkdir()
        self.env = {
            **os.environ,
            "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}",
            **own_backend(folder),
        }
        shutil.copy(ROOT / "Pulumi.yaml", folder)
        self.run("pulumi", "-C", str(folder), "stack", "select", "--create", self.name)

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=180)
        assert not check or done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done

    def write(self, trainings: dict[str, Any], **settings: Any) -> None:
        values = {"target": "local", "trainings": trainings, **settings}
        self.settings.write_text(yaml.safe_dump({"config": {f"trainstack:{key}": value for key, value in values.items()}}))

    def pulumi(self, command: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run("pulumi", command, "--stack", self.name, "--config-file", str(self.settings), *arguments, check=check)

    def up(self, trainings: dict[str, Any] | None = None, check: bool = True, **settings: Any) -> subprocess.CompletedProcess[str]:
        if trainings is not None:
            self.write(trainings, **settings)
        return self.pulumi("up", "--yes", "--skip-preview", check=check)

    def preview(self, training: str) -> str:
        """What would happen to a training; the engine lists only what would change."""
        steps = json.loads(self.pulumi("preview", "--json").stdout).get("steps", [])
        return next((step["op"] for step in steps if step["urn"].endswith(f"::{training}")), "same")

    def destroy(self) -> None:
        self.pulumi("destroy", "--yes")

    def outputs(self) -> dict[str, Any]:
        return json.loads(self.run("pulumi", "stack", "output", "--json", "--stack", self.name).stdout)

    def resources(self) -> list[dict[str, Any]]:
        exported = self.run("pulumi", "stack", "export", "--stack", self.name).stdout
        return json.loads(exported)["deployment"].get("resources", [])

    def folder_of(self, training: str, run: str = "1") -> Path:
        return RUNS / self.name / training / run

    def status(self, training: str, run: str = "1") -> dict[str, Any]:
        return runs.read_status(self.folder_of(training, run))

    def wait(self, training: str, state: str, seconds: float, run: str = "1") -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            status = self.status(training, run)
            if status["state"] in runs.ENDED and status["state"] != state:
                logs = "\n".join(
                    f"== {path.name}\n{path.read_text()[-2000:]}" for path in self.folder_of(training, run).glob("tasks/*.log")
                )
                pytest.fail(f"{training} is {status['state']} ({status['reason']}), not {state}\n{logs}")
            return status if status["state"] == state else None

        return eventually(reached, seconds, f"{training} is {self.status(training, run)}, not {state}")

    def task(self, training: str, name: str) -> dict[str, Any]:
        return next(task for task in self.status(training)["tasks"] if task["name"] == name)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    made = Stack(tmp_path)
    yield made
    for folder in runs.folders(made.name):
        runs.stop(folder)
        assert alive(folder) == []
    shutil.rmtree(RUNS / made.name, ignore_errors=True)
