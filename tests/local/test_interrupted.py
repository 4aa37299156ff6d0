"""Pulumi on the local stack, interrupted at any moment of `up` and `destroy`: the next one converges, and nothing is left or lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT, Stack, alive, eventually
from tests.local.test_stack import running, training
from workloads.local import runs

pytestmark = pytest.mark.engine

# From the engine's first moments to its end, in parts of what the whole takes.
MOMENTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95)
SIGNALS = pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, id="ctrl-c"), pytest.param(signal.SIGKILL, id="kill -9")])


@pytest.fixture
def stack(stack: Stack) -> Iterator[Stack]:
    stack.write({"t": training()})
    yield stack
    stack.pulumi("cancel", "--yes", check=False)


def engine(stack: Stack) -> list[psutil.Process]:
    """Engines, language hosts and plugins that work on the stack."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PULUMI_BACKEND_URL") == stack.env["PULUMI_BACKEND_URL"] and runs.MARK not in process.environ():
                found.append(process)
        except psutil.Error:
            continue
    return found


def start(stack: Stack, command: str) -> subprocess.Popen[bytes]:
    words = ["pulumi", command, "--yes", "--skip-preview", "--stack", stack.name, "--config-file", str(stack.settings)]
    return subprocess.Popen(words, cwd=ROOT, env=stack.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def interrupted(stack: Stack, command: str, number: int, after: float) -> int:
    """Starts a command and signals it after so many seconds: Ctrl-C reaches all of a terminal's processes, kill -9 the one."""
    process = start(stack, command)
    time.sleep(after)
    if process.poll() is None:
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    return process.wait(60)


def locks(stack: Stack) -> list[Path]:
    return list((stack.folder / "state").glob(f".pulumi/locks/**/{stack.name}/*.json"))


def mend(stack: Stack) -> None:
    """What `make` does before its commands."""
    if locks(stack):
        stack.run(sys.executable, "-m", "ops", "--stack", stack.name, "recover")


def took(stack: Stack, command: str) -> float:
    began = time.monotonic()
    stack.pulumi(command, "--yes", "--skip-preview")
    return time.monotonic() - began


@pytest.mark.full
@SIGNALS
@pytest.mark.parametrize("then", ["up", "destroy"])
def test_an_interrupted_up(stack: Stack, number: int, then: str) -> None:
    """Each moment takes an `up` that is interrupted, one that is not, and a `destroy`."""
    whole = took(stack, "up")
    stack.destroy()
    for moment in MOMENTS:
        interrupted(stack, "up", number, moment * whole)
        mend(stack)
        if then == "up":
            stack.up()
            running(stack)
            assert len(alive(stack.folder_of("t"))) == 7, "one supervisor, and a launcher with its command for each of three tasks"
            assert stack.preview("t") == "same"
        stack.destroy()
        assert alive(stack.folder_of("t")) == [], moment
        assert stack.resources() == []
        eventually(lambda: engine(stack) == [], 5, f"{engine(stack)} are left")
        assert locks(stack) == []


@pytest.mark.full
@SIGNALS
@pytest.mark.parametrize("then", ["up", "destroy"])
def test_an_interrupted_destroy(stack: Stack, number: int, then: str) -> None:
    """Each moment takes an `up`, a `destroy` that is interrupted, and one that is not."""
    stack.up()
    whole = took(stack, "destroy")
    for moment in MOMENTS:
        stack.up()
        (stack.folder_of("t") / "checkpoints").mkdir(exist_ok=True)
        interrupted(stack, "destroy", number, moment * whole)
        mend(stack)
        if then == "up":
            stack.up()
            if stack.status("t")["state"] != "cancelled":  # one that the interrupted command has ended stays so, or is made anew
                running(stack)
                assert len(alive(stack.folder_of("t"))) == 7
            assert stack.preview("t") == "same"
        stack.destroy()
        assert alive(stack.folder_of("t")) == [], moment
        assert stack.resources() == []
        assert (stack.folder_of("t") / "checkpoints").exists(), "what was trained is not lost"
        eventually(lambda: engine(stack) == [], 5, f"{engine(stack)} are left")


@pytest.mark.full
@SIGNALS
def test_a_run_goes_on_while_an_up_that_changes_nothing_is_interrupted(stack: Stack, number: int) -> None:
    """An `up` for each moment."""
    whole = took(stack, "up")
    running(stack)
    first = stack.status("t")["pid"]
    for moment in MOMENTS:
        interrupted(stack, "up", number, moment * whole)
        mend(stack)
    assert stack.preview("t") == "same"
    assert (stack.status("t")["pid"], stack.status("t")["state"]) == (first, "running")


def test_a_run_that_a_killed_up_did_not_write_down_is_found_and_ended(stack: Stack) -> None:
    """The engine is killed as soon as the supervisor is there: the state knows of a creation without an end."""
    process = start(stack, "up")
    while not (stack.folder_of("t") / "plan.json").exists():
        time.sleep(0.005)
    process.kill()
    process.wait()
    eventually(lambda: stack.status("t")["state"] == "running", 10, "the run was not started")
    mend(stack)
    stack.destroy()
    assert alive(stack.folder_of("t")) == []
    assert engine(stack) == []


def test_a_destroy_that_was_killed_is_finished_by_the_next(stack: Stack) -> None:
    """The engine is killed as soon as the run is told to stop, when the state still has it."""
    stack.up()
    running(stack)
    (stack.folder_of("t") / "checkpoints").mkdir()
    process = start(stack, "destroy")
    while stack.status("t")["state"] == "running":
        time.sleep(0.005)
    process.kill()
    process.wait()
    mend(stack)
    stack.destroy()
    assert alive(stack.folder_of("t")) == []
    assert stack.resources() == []
    assert (stack.folder_of("t") / "checkpoints").exists(), "what was trained is not lost"
    eventually(lambda: engine(stack) == [], 5, f"{engine(stack)} are left")


def test_a_stack_that_somebody_works_on_is_not_taken_from_them(stack: Stack) -> None:
    stubborn = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
    stack.up({"t": {"command": stubborn, "strategy": "mirrored"}})
    eventually(lambda: len(alive(stack.folder_of("t"))) == 3, 10, "it does not run")
    process = start(stack, "destroy")
    eventually(lambda: locks(stack), 10, "it takes no lock")
    done = stack.run(sys.executable, "-m", "ops", "--stack", stack.name, "recover", check=False)
    assert done.returncode == 1
    assert f"another pulumi (process {process.pid}) is at work on this stack" in done.stderr
    assert process.wait(90) == 0
