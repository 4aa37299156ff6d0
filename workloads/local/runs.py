"""The folder of a run on this machine, and the processes that belong to it.

    runs/<stack>/<training>/<run>/
      plan.json        what the run was told           status.json    what it is doing; always whole
      tasks/*.log      one log per task                 supervisor.log
      checkpoints/  logs/ (run.json, metrics)  model/<step>/   plot.png  SUMMARY.md

Every process of a run has TRAINSTACK_RUN in its environment, so that all of them are found even when nobody remembers their numbers.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from workloads.local.plan import ROOT, RUNS, Plan

MARK = "TRAINSTACK_RUN"
RELEASED = ".released"  # this file in a run's folder says that the run is no longer in its stack
ENDED = ("succeeded", "failed", "cancelled")
GRACE = 6.0  # seconds a task has to save after SIGTERM
Status = dict[str, Any]


class RunError(Exception):
    """Something that kept a run from starting; its text is for people."""


def write_whole(path: Path, value: object) -> None:
    """Readers see the old file or the new one, never half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(value, indent=2) + "\n")
    beside.replace(path)


def read_plan(folder: Path) -> Plan:
    plan: Plan = json.loads((folder / "plan.json").read_text())
    return plan


def read_status(folder: Path) -> Status:
    """The status as the supervisor wrote it; a run whose supervisor is gone without an end has vanished."""
    try:
        status: Status = json.loads((folder / "status.json").read_text())
    except FileNotFoundError:
        return {"state": "vanished", "reason": "it has no status file", "tasks": []}
    if (process := supervisor(status)) is None:
        if status["state"] not in ENDED:
            status["state"], status["reason"] = "vanished", "its supervisor is gone"
        status["tensorboard"] = status["serving"] = None  # they go with it
    elif process.status() == psutil.STATUS_STOPPED:
        status["reason"] = f"its supervisor is stopped; wake it with `kill -CONT {process.pid}`, or end the run with `trainstack cancel`"
    return status


def model_folder(model_dir: str) -> str:
    """Where the newest version of an exported model is, or will be: the trainer numbers them by their step."""
    found = [path.parent for path in Path(model_dir).glob("*/saved_model.pb") if path.parent.name.isdecimal()]
    return str(max(found, key=lambda path: int(path.name), default=model_dir))


def read_records(path: Path) -> list[dict[str, Any]]:
    """The lines of a .jsonl file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def supervisor(status: Mapping[str, Any]) -> psutil.Process | None:
    """The supervisor's process, unless it is gone or its number belongs to another process by now."""
    with contextlib.suppress(psutil.Error, KeyError):
        process = psutil.Process(status["pid"])
        if abs(process.create_time() - status["created"]) < 1 and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def folders(stack: str, training: str = "*") -> list[Path]:
    """The runs of a stack, oldest first."""
    return sorted(
        (path.parent for path in (RUNS / stack).glob(f"{training}/*/plan.json")), key=lambda path: (path / "plan.json").stat().st_mtime
    )


def processes(folder: Path, task: str | None = None) -> Iterator[psutil.Process]:
    """Every process of a run, or of one of its tasks, children included."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            mine = environment.get(MARK) == str(folder) and (task is None or environment.get("TRAINSTACK_TASK") == task)
            if mine and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def kill(folder: Path, task: str | None = None) -> None:
    """Ends at once whatever is left, until nothing is."""
    for _ in range(50):
        left = list(processes(folder, task))
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.1)


def start(plan: Plan, secrets: Mapping[str, str]) -> Status:
    """Starts the supervisor of a run, which goes on where the run stopped. Returns once it has taken over."""
    folder = ROOT / plan["folder"]
    if supervisor(read_status(folder)) is not None and read_status(folder)["state"] not in ENDED:
        raise RunError(f"the run in {plan['folder']} is going on already; end it with `trainstack cancel`")
    stop(folder)
    for directory in (folder / "tasks", *map(Path, plan["volumes"])):
        directory.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "plan.json", plan)
    for name in ("status.json", RELEASED):
        (folder / name).unlink(missing_ok=True)
    # What Pulumi needs, its passphrase among it, is no business of the tasks.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PULUMI")}
    environment |= {MARK: str(folder), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with (folder / "supervisor.log").open("ab") as log:
        command = [sys.executable, "-m", "workloads.local.supervisor", str(folder)]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )
    assert process.stdin is not None
    process.stdin.write(json.dumps(dict(secrets)).encode())  # through a pipe: secrets are on no disk and in no process list
    process.stdin.close()
    for _ in range(200):
        status = read_status(folder)
        if status.get("pid") == process.pid:
            return status
        if process.poll() is not None:
            break
        time.sleep(0.1)
    kill(folder)
    last = (folder / "supervisor.log").read_text().strip().splitlines()[-1:]
    raise RunError(f"the supervisor of {plan['folder']} did not start: {' '.join(last) or 'it said nothing'}")


def stop(folder: Path) -> None:
    """Ends a run: asks first, so that it saves; then makes sure. Leaves the folder and its files."""
    running = supervisor(read_status(folder))
    if running is not None:
        with contextlib.suppress(psutil.Error):
            running.send_signal(signal.SIGTERM)
            running.wait(GRACE + 2)
    kill(folder)
    if (folder / "status.json").exists() and read_status(folder)["state"] not in ENDED:
        status = json.loads((folder / "status.json").read_text())
        write_whole(folder / "status.json", {**status, "state": "cancelled", "reason": "it was stopped", "ended": time.time()})


def release(folder: Path) -> None:
    """Ends a run that leaves its stack. Its files stay."""
    stop(folder)
    if folder.exists():
        (folder / RELEASED).touch()


def clear(folder: Path) -> None:
    """Forgets what a run has learned, for one that starts from nothing."""
    plan = read_plan(folder)
    places = [plan["checkpoint_dir"], plan["log_dir"], plan["model_dir"]]
    if elsewhere := [place for place in places if "://" in place]:
        raise RunError(
            f"{' and '.join(elsewhere)} is not on this machine, and nothing was deleted; start from nothing with another `run` instead"
        )
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
    shutil.rmtree(folder / "tasks", ignore_errors=True)
    for name in ("plot.png", "SUMMARY.md", "status.json"):
        (folder / name).unlink(missing_ok=True)
