"""How fast the programs train, as ratios of things measured side by side in one run: part of `make bench`.

    waiting       the share of a step spent waiting for its input: the real pipeline beside one batch that is always there
    speed         examples a second of every program under each of its strategies, and where that is told, beside another way to do the same

Every figure is the median of windows that take turns, because a machine is not equally quick all the time. A window is a whole training with processes of
its own; its first epoch, in which functions are traced, does not count. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.conftest import ROOT
from trainer import arguments, data, programs
from workloads.local import ports
from workloads.topology import Topology, encode, loopback, tf_config

WINDOWS = 5
EPOCHS = 4  # of a window; the first does not count
TOPOLOGIES = {
    "parameter_server × 1": Topology(chief=1, worker=1, ps=1),
    "parameter_server × 2": Topology(chief=1, worker=2, ps=1),
    "multi_worker_mirrored × 2": Topology(worker=2),
    "mirrored": Topology(worker=1),
}
# How large a window is: the steps of an epoch, of which each takes from a millisecond to a few seconds.
SIZES: dict[str, dict[str, Any]] = {
    "digits": {"steps_per_epoch": 200},
    "mnist": {"steps_per_epoch": 100},
    "resnet_cifar10": {"steps_per_epoch": 6, "steps_per_execution": 3, "batch_size": 128},
    "taxi_tips": {"steps_per_epoch": 100},
    "cats_vs_dogs": {"steps_per_epoch": 10, "steps_per_execution": 5},
    "issue_summaries": {"steps_per_epoch": 10, "steps_per_execution": 5},
}
UNDER = {
    "digits": ("parameter_server × 2", "multi_worker_mirrored × 2", "mirrored"),
    "mnist": ("multi_worker_mirrored × 2",),
    "resnet_cifar10": ("parameter_server × 1", "multi_worker_mirrored × 2", "mirrored"),
    "taxi_tips": ("parameter_server × 2",),
    "cats_vs_dogs": ("mirrored", "multi_worker_mirrored × 2"),
    "issue_summaries": ("parameter_server × 2",),
}


def prepared(program: str, place: Path) -> str:
    """A directory with made data."""
    folder = place / "data" / program
    if not folder.exists():
        command = [sys.executable, "-m", "trainer.prepare", program, f"--data-dir={folder}", "--source=generated", "--examples=4000"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return str(folder)


def command(program: str, data_dir: str, folder: Path, args: Mapping[str, Any]) -> list[str]:
    places = [f"--{kind}-dir={folder / kind}" for kind in ("checkpoint", "log", "model")]
    size = {"epochs": EPOCHS, "checkpoint_every": EPOCHS, **SIZES[program], **args}
    more = [f"--program={program}", "--evaluator=none", f"--data-dir={data_dir}", *places, *arguments.flags(size)]
    return [sys.executable, "-m", "trainer", *more]


def trained(program: str, data_dir: str, topology: Topology, **args: Any) -> float:
    """Examples a second of one training with processes of its own."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        address = loopback(ports.reserve([task.name for task in topology.tasks()], 28000, os.getpid()))
        processes = []
        for task in topology.tasks():
            env = {**os.environ, "TF_CONFIG": encode(tf_config(topology, task, address))}
            log = (folder / f"{task.name}.log").open("wb")
            processes.append(subprocess.Popen(command(program, data_dir, folder, args), cwd=ROOT, env=env, stdout=log, stderr=log))
        try:
            lead = processes[topology.tasks().index(topology.lead)]
            if lead.wait(600):
                raise SystemExit((folder / f"{topology.lead.name}.log").read_text()[-3000:])
        finally:
            for process in processes:
                process.kill()
                process.wait()
        lines = [json.loads(line) for line in (folder / "log" / "metrics.jsonl").read_text().splitlines()]
        return statistics.median(line["examples_per_second"] for line in lines[1:])


def inside(what: str, program: str, data_dir: str, **args: Any) -> dict[str, float]:
    """A measurement in a process of its own, which prints one line of JSON."""
    words = [sys.executable, __file__, what, *command(program, data_dir, Path("unused"), args)[3:]]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def in_turns(contestants: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(WINDOWS):
        for name, measure in contestants.items():
            found[name].append(measure())
        print(f"  window {number + 1}: " + ", ".join(f"{name} {values[-1]:,.0f}" for name, values in found.items()), flush=True)
    return {name: statistics.median(values) for name, values in found.items()}


# ----------------------------------------------------------------------------------- measured in a process of its own


def steps_of(args: argparse.Namespace, program: Any) -> tuple[Any, Callable[[Any, int], None]]:
    """The program's model, and a plain loop over it: a gradient tape in a function, without a strategy."""
    import tensorflow as tf
    import tf_keras as keras

    model = program.model(args)
    loss_function = keras.losses.get(model.loss)

    @tf.function
    def several(iterator: Any, count: Any) -> None:
        for _ in tf.range(count):
            inputs, labels = next(iterator)
            with tf.GradientTape() as tape:
                predictions = model(inputs, training=True)
                loss = tf.reduce_mean(loss_function.call(labels, predictions)) + tf.add_n([tf.constant(0.0), *model.losses])
            variables = model.trainable_variables
            model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            model.compiled_metrics.update_state(labels, predictions)

    def run(iterator: Any, steps: int) -> None:
        for _ in range(steps // args.steps_per_execution):
            several(iterator, tf.constant(args.steps_per_execution))

    return model, run


def plain(args: argparse.Namespace, program: Any) -> dict[str, float]:
    _, run = steps_of(args, program)
    iterator = iter(data.training(program, args))
    rates = []
    for _ in range(args.epochs):
        begun = time.monotonic()
        run(iterator, args.steps_per_epoch)
        steps = args.steps_per_epoch // args.steps_per_execution * args.steps_per_execution
        rates.append(steps * args.batch_size / (time.monotonic() - begun))
    return {"examples_per_second": statistics.median(rates[1:])}


def waiting(args: argparse.Namespace, program: Any) -> dict[str, float]:
    """The share of the time that goes when the input is there already."""
    _, run = steps_of(args, program)
    real = data.training(program, args)
    sources = {"real": iter(real), "there": iter(real.take(1).cache().repeat())}
    taken: dict[str, list[float]] = {name: [] for name in sources}
    for number in range(WINDOWS + 2):
        for name, iterator in sources.items():
            begun = time.monotonic()
            run(iterator, args.steps_per_epoch)
            if number >= 2:  # by then the cache is full and everything traced
                taken[name].append(time.monotonic() - begun)
    with_input, without = (statistics.median(taken[name]) for name in ("real", "there"))
    return {"share": max(0.0, 1 - without / with_input)}


# ------------------------------------------------------------------------------------------------------------ tables


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for program in SIZES:
            share = inside("waiting", program, prepared(program, place))["share"]
            print(f"{program}: {100 * share:.1f} % of a step is spent waiting for input", flush=True)
        for program, names in UNDER.items():
            where = prepared(program, place)
            contestants: dict[str, Callable[[], float]] = {}
            contestants["plain loop, one process"] = lambda program=program, where=where: inside("plain", program, where)[
                "examples_per_second"
            ]
            for name in names:
                contestants[name] = lambda program=program, where=where, name=name: trained(program, where, TOPOLOGIES[name])
            if "multi_worker_mirrored × 2" in names:
                double = {"batch_size": 2 * arguments.parser(program).parse_args(command(program, where, place, {})[3:]).batch_size}
                contestants["plain loop, both workers' batch"] = lambda program=program, where=where, double=double: inside(
                    "plain", program, where, **double
                )["examples_per_second"]
            if program == "digits":
                contestants["parameter_server × 2 by fit"] = lambda where=where: trained(
                    "digits", where, TOPOLOGIES["parameter_server × 2"], loop="fit", steps_per_execution=10
                )
            print(f"{program}, examples a second:", flush=True)
            found = in_turns(contestants)
            for name, value in found.items():
                print(f"  {name:<34} {value:>10,.0f}   {value / found['plain loop, one process']:.2f} × the plain loop")
            if program == "digits":
                ours, fits = found["parameter_server × 2"], found["parameter_server × 2 by fit"]
                print(f"  parameter_server × 2: {ours / fits:.2f} × what fit gives there")
            if "plain loop, both workers' batch" in found:
                ratio = found["multi_worker_mirrored × 2"] / found["plain loop, both workers' batch"]
                print(f"  multi_worker_mirrored × 2: {ratio:.2f} × one process with the same batch")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
        parsed = arguments.parser(sys.argv[2].removeprefix("--program=")).parse_args(sys.argv[2:])
        print(json.dumps({"plain": plain, "waiting": waiting}[sys.argv[1]](parsed, programs.load(parsed.program))))
    else:
        main()
