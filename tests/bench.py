"""Measurements, as ratios of things measured side by side in one run: `make bench`.

    start-up    from `pulumi up` to the first training step, beside the same processes started by hand

Nothing here passes or fails; numbers of one machine say little about another, ratios more.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from settings import parse
from tests.conftest import ROOT, Stack
from workloads.local import ports, runs
from workloads.local.plan import RUNS, plan
from workloads.topology import Topology, encode, loopback, tf_config

ROUNDS = 3
# An epoch of one step, so that the first line of metrics is the first step.
TRAINING: dict[str, Any] = {
    "program": "digits",
    "worker": {"replicas": 2},
    "ps": {"replicas": 1},
    "evaluator": {"mode": "sidecar"},
    "args": {"epochs": 400, "steps_per_epoch": 1, "steps_per_execution": 1, "checkpoint_every": 400},
}


def first_step(logs: Path, begun: float) -> float:
    """Seconds from the beginning to the first step, by the trainer's own clock."""
    while not (logs / "metrics.jsonl").exists():
        if time.time() - begun > 180:
            raise SystemExit(f"no step after 180 s; see {logs.parent}")
        time.sleep(0.02)
    return float(json.loads((logs / "metrics.jsonl").read_text().splitlines()[0])["time"]) - begun


def by_hand(folder: Path) -> float:
    """The same tasks with the same TF_CONFIG, as five lines in a shell would start them."""
    training = parse({"trainings": {"t": TRAINING}}).trainings["t"]
    command = [word.replace(str(ROOT / "runs" / "bench" / "t" / "1"), str(folder)) for word in plan("bench", "t", training)["command"]]
    topology = Topology(**training.topology.counts())
    address = loopback(ports.reserve([task.name for task in topology.tasks()], 27000, os.getpid()))
    begun, processes = time.time(), []
    for task in topology.tasks():
        env = {**os.environ, "TF_CONFIG": encode(tf_config(topology, task, address))}
        log = (folder / f"{task.name}.log").open("wb")
        processes.append(subprocess.Popen([sys.executable, *command[1:]], cwd=ROOT, env=env, stdout=log, stderr=log))
    try:
        return first_step(folder / "logs", begun)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def by_pulumi(folder: Path) -> float:
    stack = Stack(folder)
    stack.write({"t": TRAINING})
    begun = time.time()
    stack.up()
    try:
        return first_step(stack.folder_of("t") / "logs", begun)
    finally:
        runs.stop(stack.folder_of("t"))
        shutil.rmtree(RUNS / stack.name)


def startup() -> None:
    measured: dict[str, list[float]] = {"pulumi up": [], "by hand": []}
    methods: dict[str, Callable[[Path], float]] = {"pulumi up": by_pulumi, "by hand": by_hand}
    for number in range(ROUNDS):
        for name, method in methods.items():
            with tempfile.TemporaryDirectory() as folder:
                measured[name].append(method(Path(folder)))
            print(f"  round {number + 1}: {name} {measured[name][-1]:.1f} s to the first step", flush=True)
    middle = {name: statistics.median(values) for name, values in measured.items()}
    print(
        f"start-up: {middle['pulumi up']:.1f} s with pulumi up, {middle['by hand']:.1f} s by hand: {middle['pulumi up'] / middle['by hand']:.2f} ×"
    )


if __name__ == "__main__":
    print("start-up, 2 workers, 1 parameter server, chief and evaluator:")
    startup()
