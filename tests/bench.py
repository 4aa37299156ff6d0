"""Measurements, as ratios of things measured side by side in one run: `make bench`.

    start-up      from `pulumi up` to the first training step, beside the same processes started by hand
    preview       `pulumi preview` of prod on the simulated cloud, beside an empty program with the same imports: time and memory
    up + destroy  of prod, beside as many resources that need nothing of each other, with the same imports
    workers       `pulumi preview` of one training on Kubernetes with 4 to 4,096 workers: objects, time, the largest object
    commands      `trainstack --help` and `trainstack status`, beside a Python that loads what a stack and a training need

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
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml

from settings import parse
from tests.cloud.cloud import Cloud
from tests.cloud.provider import serve
from tests.conftest import ROOT, Stack, own_backend
from tests.infra.program import settings_of
from workloads.local import ports, runs
from workloads.local.plan import RUNS, plan
from workloads.topology import Topology, encode, loopback, tf_config

ROUNDS = int(os.environ.get("ROUNDS") or 3)
MORE_ROUNDS = int(os.environ.get("ROUNDS") or 5)  # of what takes seconds
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


# --------------------------------------------------------------------------------------------------- environment

IMPORTS = """
import infra.environment, workloads.kubernetes.namespace, workloads.places
from pulumi_gcp import artifactregistry, compute, container, organizations, projects, secretmanager, serviceaccount, storage
from pulumi_kubernetes.core import v1

# They are loaded when they are first used.
used = [artifactregistry.Repository, compute.Network, container.Cluster, organizations.get_client_config_output, projects.Service,
        secretmanager.Secret, serviceaccount.Account, storage.Bucket, v1.Namespace]
"""
ALIKE = (
    IMPORTS
    + """
for number in range({count}):
    projects.Service(f"service-{{number}}", service=f"number-{{number}}.googleapis.com", disable_on_destroy=False)
"""
)


class Measured(NamedTuple):
    seconds: float
    megabytes: float


def measured(command: list[str], folder: Path, env: Mapping[str, str]) -> Measured:
    """How long a command takes, and the most memory that it and everything it starts have at once."""
    begun, peak = time.monotonic(), 0
    process = psutil.Popen(command, cwd=folder, env={**os.environ, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None:
        with suppress(psutil.Error):
            tree = [process, *process.children(recursive=True)]
            peak = max(peak, sum(resident(each) for each in tree))
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"{command} failed: {process.stderr.read().decode()}")
    return Measured(time.monotonic() - begun, peak / 2**20)


def resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def project(folder: Path, program: str | None, settings: Mapping[str, Any]) -> None:
    """A project folder beside ours: our program, or another one with our interpreter."""
    folder.mkdir()
    (folder / "state").mkdir()
    shutil.copy(ROOT / "Pulumi.yaml", folder)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    (folder / "Pulumi.prod.yaml").write_text(yaml.safe_dump({"config": dict(settings)}))
    (folder / "__main__.py").write_text(program or (ROOT / "__main__.py").read_text())


PROD = settings_of("prod")
UNPROTECTED = PROD | {"trainstack:cluster": {**PROD["trainstack:cluster"], "deletion_protection": False}}


def environment() -> None:
    names = {"ours": None, "empty": IMPORTS}
    previews: dict[str, list[Measured]] = {name: [] for name in names}
    whole: dict[str, list[float]] = {"ours": [], "alike": []}
    for number in range(ROUNDS):
        with tempfile.TemporaryDirectory() as place, serve(Cloud(Path(place) / "cloud.json")) as served:
            for name, program in names.items():
                previews[name].append(pulumi(Path(place) / name, program, served, ["preview"])[0])
            up, down = pulumi(Path(place) / "ours-whole", None, served, ["up", "--yes", "--skip-preview"], ["destroy", "--yes"])
            whole["ours"].append(up.seconds + down.seconds)
            count = sum(call.call == "create" for call in Cloud(Path(place) / "cloud.json").log)
            up, down = pulumi(
                Path(place) / "alike", ALIKE.format(count=count), served, ["up", "--yes", "--skip-preview"], ["destroy", "--yes"]
            )
            whole["alike"].append(up.seconds + down.seconds)
        shown = [f"{each.seconds:.1f} s and {each.megabytes:.0f} MB" for each in (previews["ours"][-1], previews["empty"][-1])]
        print(f"  round {number + 1}: preview {shown[0]} beside {shown[1]}", flush=True)
        print(
            f"  round {number + 1}: up + destroy of {count} resources {whole['ours'][-1]:.1f} s beside {whole['alike'][-1]:.1f} s",
            flush=True,
        )
    for what in Measured._fields:
        ours, empty = (statistics.median(getattr(each, what) for each in previews[name]) for name in names)
        print(f"preview of prod: {ours:.1f} {what}, an empty program with the same imports {empty:.1f}: {ours / empty:.2f} ×")
    ours, alike = (statistics.median(values) for values in whole.values())
    print(f"up + destroy of prod: {ours:.1f} s, as many resources that need nothing {alike:.1f} s: {ours / alike:.2f} ×")


def pulumi(folder: Path, program: str | None, served: Mapping[str, str], *commands: list[str]) -> list[Measured]:
    project(folder, program, UNPROTECTED)
    env = {**served, **own_backend(folder)}
    measured(["pulumi", "stack", "init", "prod"], folder, env)
    return [measured(["pulumi", *command, "--stack", "prod"], folder, env) for command in commands]


# ------------------------------------------------------------------------------------------------------- workers

SIZES = (4, 64, 1024, 4096)


def of_size(workers: int) -> dict[str, Any]:
    training = {
        "program": "digits",
        "worker": {"replicas": workers},
        "ps": {"replicas": 2},
        "checkpoint_dir": "gs://a/c",
        "log_dir": "gs://a/l",
    }
    return {
        "trainstack:target": "kubernetes",
        "trainstack:kubernetes": {"context": "bench"},
        "trainstack:image": {"reference": f"trainer@sha256:{'0' * 64}"},
        "trainstack:trainings": {"digits": {**training, "model_dir": "gs://a/m", "evaluator": {"mode": "sidecar"}, "tensorboard": {}}},
    }


def planned(folder: Path, env: Mapping[str, str]) -> tuple[int, int]:
    """How many Kubernetes objects a preview would make, and the bytes of the largest."""
    command = ["pulumi", "preview", "--json", "--stack", "prod"]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, check=True)
    made = [step["newState"] for step in json.loads(done.stdout)["steps"] if step["newState"]["type"].startswith("kubernetes:")]
    return len(made), max(len(json.dumps(each["inputs"])) for each in made)


def workers() -> None:
    seconds: dict[int, list[float]] = {size: [] for size in SIZES}
    counted: dict[int, tuple[int, int]] = {}
    with tempfile.TemporaryDirectory() as place, serve(Cloud(Path(place) / "cloud.json")) as served:
        folders = {size: Path(place) / str(size) for size in SIZES}
        for size, folder in folders.items():
            project(folder, None, of_size(size))
            measured(["pulumi", "stack", "init", "prod"], folder, {**served, **own_backend(folder)})
            counted[size] = planned(folder, {**served, **own_backend(folder)})
        for number in range(MORE_ROUNDS):
            for size, folder in folders.items():
                command = ["pulumi", "preview", "--stack", "prod"]
                seconds[size].append(measured(command, folder, {**served, **own_backend(folder)}).seconds)
            print(f"  round {number + 1}: " + ", ".join(f"{size} workers {seconds[size][-1]:.1f} s" for size in SIZES), flush=True)
    for size in SIZES:
        objects, largest = counted[size]
        ratio = statistics.median(seconds[size]) / statistics.median(seconds[SIZES[0]])
        print(
            f"{size} workers: {objects} objects, the largest {largest / 1024:.0f} KiB, {statistics.median(seconds[size]):.1f} s, {ratio:.2f} ×"
        )


# --------------------------------------------------------------------------------------------------------- commands

HEAVY = "import pulumi_gcp.compute, tensorflow"


def commands() -> None:
    """A training that was finished before is what `status` has to show."""
    stack, status = "bench-commands", {"state": "succeeded", "reason": "", "started": 1.0, "ended": 2.0, "tasks": []}
    folder = RUNS / stack / "t" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    runs.write_whole(folder / "plan.json", plan(stack, "t", parse({"trainings": {"t": TRAINING}}).trainings["t"]))
    runs.write_whole(folder / "status.json", status)
    typed = {"--help": ["-m", "ops", "--help"], "status": ["-m", "ops", "--stack", stack, "--config-file", "Pulumi.local.yaml", "status"]}
    seconds: dict[str, list[float]] = {name: [] for name in (*typed, "heavy")}
    try:
        for _ in range(MORE_ROUNDS):
            for name, arguments in {**typed, "heavy": ["-c", HEAVY]}.items():
                begun = time.monotonic()
                subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, check=True)
                seconds[name].append(time.monotonic() - begun)
    finally:
        shutil.rmtree(RUNS / stack)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    for name in typed:
        print(f"trainstack {name}: {middle[name]:.2f} s beside {middle['heavy']:.2f} s of imports: {middle[name] / middle['heavy']:.2f} ×")


if __name__ == "__main__":
    print("the commands:")
    commands()
    print("preview of one training on Kubernetes, by its workers:")
    workers()
    print("the environment prod on the simulated cloud:")
    environment()
    print("start-up, 2 workers, 1 parameter server, chief and evaluator:")
    startup()
