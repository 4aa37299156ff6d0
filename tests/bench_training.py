"""How fast the programs train, as ratios of things measured side by side in one run: part of `make bench`.

    waiting       the share of a step spent waiting for its input: the real pipeline beside one batch that is always there
    speed         examples a second of every program under each of its strategies, beside a plain loop and, where that is told, another way to do the same
    profile       where the time of small steps goes: TensorFlow's own record of what ran in a worker, for a few seconds in the middle of a training

Every figure of speed is the median of windows that take turns, because a machine is not equally quick all the time. A window is a whole training with
processes of its own; its first epoch, in which functions are traced, does not count. Beside a ratio stands what was asked for; nothing here passes or fails.

    python -m tests.bench_training [PROGRAM …]      all programs, or some
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from trainer import arguments, data, memory, programs
from workloads.local import ports, runs
from workloads.topology import Topology, encode, loopback, tf_config

WINDOWS = int(os.environ.get("ROUNDS") or 5)
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
PLAIN, PLAIN_OF_BOTH, BY_FIT = "plain loop", "plain loop, both workers' batch", "parameter_server × 2 by fit"
UNDER = {
    "digits": ("parameter_server × 2", BY_FIT, "multi_worker_mirrored × 2", PLAIN_OF_BOTH, "mirrored"),
    "mnist": ("multi_worker_mirrored × 2", PLAIN_OF_BOTH),
    "resnet_cifar10": ("parameter_server × 1", "multi_worker_mirrored × 2", PLAIN_OF_BOTH, "mirrored"),
    "taxi_tips": ("parameter_server × 2",),
    "cats_vs_dogs": ("mirrored", "multi_worker_mirrored × 2", PLAIN_OF_BOTH),
    "issue_summaries": ("parameter_server × 2",),
}
# Of which figure to which, and what it should be at least.
RATIOS = {
    "digits": [("parameter_server × 2", BY_FIT, 2.0), ("multi_worker_mirrored × 2", PLAIN_OF_BOTH, None)],
    "mnist": [("multi_worker_mirrored × 2", PLAIN_OF_BOTH, None)],
    "resnet_cifar10": [("parameter_server × 1", PLAIN, 0.75), ("multi_worker_mirrored × 2", PLAIN_OF_BOTH, 0.9)],
    "cats_vs_dogs": [("multi_worker_mirrored × 2", PLAIN_OF_BOTH, None)],
}
LONGEST_WAIT = 0.05
WAITED, LONG_ENOUGH = 9, 1.5  # windows of the wait for input, and seconds of each: it is small, and the machine is uneven
# Where overhead and not arithmetic decides: which task is looked at, and under what.
PROFILED = {"digits": ("parameter_server × 2", "worker-0"), "mnist": ("multi_worker_mirrored × 2", "worker-0")}
TRACED = 3.0  # seconds


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


@contextlib.contextmanager
def tasks(program: str, data_dir: str, topology: Topology, traced: str = "", **args: Any) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """The processes of a training in a folder of their own, and the lead among them. One of them may be looked at (traced)."""
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        address = loopback(ports.reserve([task.name for task in topology.tasks()], 28000, os.getpid()))
        words = command(program, data_dir, folder, args)
        processes = {}
        for task in topology.tasks():
            env = {**os.environ, "TF_CONFIG": encode(tf_config(topology, task, address))}
            log = stack.enter_context((folder / f"{task.name}.log").open("wb"))
            mine = [sys.executable, "-m", __spec__.name, "traced", str(folder), *words[3:]] if task.name == traced else words
            processes[task.name] = subprocess.Popen(mine, cwd=ROOT, env=env, stdout=log, stderr=log)
        try:
            yield folder, processes[topology.lead.name]
        finally:
            for process in processes.values():
                process.kill()
                process.wait()


def trained(program: str, data_dir: str, topology: Topology, **args: Any) -> float:
    """Examples a second of one training with processes of its own."""
    with tasks(program, data_dir, topology, **args) as (folder, lead):
        if lead.wait(600):
            raise SystemExit((folder / f"{topology.lead.name}.log").read_text()[-3000:])
        return statistics.median(line["examples_per_second"] for line in metrics(folder)[1:])


def metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "log" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def profile(program: str, data_dir: str) -> dict[str, float]:
    """The kinds of operations that ran in a worker, and for how much of the time; some run side by side."""
    name, task = PROFILED[program]
    with tasks(program, data_dir, TOPOLOGIES[name], traced=task, epochs=1000, checkpoint_every=1000) as (folder, _):
        until = time.monotonic() + 180
        while not (folder / "kinds.json").exists():
            if len(metrics(folder)) >= 3:  # by then everything is traced and warm
                (folder / "begin").touch()
            if time.monotonic() > until:
                raise SystemExit((folder / f"{task}.log").read_text()[-3000:])
            time.sleep(0.1)
        found: dict[str, float] = json.loads((folder / "kinds.json").read_text())
    return found


def inside(what: str, program: str, data_dir: str, **args: Any) -> dict[str, float]:
    """A measurement in a process of its own, which prints one line of JSON."""
    words = [sys.executable, "-m", __spec__.name, what, *command(program, data_dir, Path("unused"), args)[3:]]
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
    loss_function = keras.losses.get(model.loss).call

    @tf.function
    def several(iterator: Any, count: Any) -> None:
        for _ in tf.range(count):
            inputs, labels = next(iterator)
            with tf.GradientTape() as tape:
                predictions = model(inputs, training=True)
                loss = tf.reduce_mean(loss_function(labels, predictions)) + tf.add_n([tf.constant(0.0), *model.losses])
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
    steps = args.steps_per_epoch
    for number in range(2 + WAITED):
        for name, iterator in sources.items():
            begun = time.monotonic()
            run(iterator, steps)
            taken[name].append(time.monotonic() - begun)
        if number == 1:  # by now everything is held and traced, and it is known how many steps are long enough
            steps *= math.ceil(LONG_ENOUGH / taken["real"][-1])
            taken = {name: [] for name in sources}
    with_input, without = (statistics.median(taken[name]) for name in ("real", "there"))
    return {"share": max(0.0, 1 - without / with_input)}


def traced(folder: Path, words: list[str]) -> int:
    """A task that looks at itself for a while when it is told to."""
    from trainer.__main__ import main as task

    threading.Thread(target=look, args=(folder,), daemon=True).start()
    return task(words)


def look(folder: Path) -> None:
    while not (folder / "begin").exists():
        time.sleep(0.05)
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    tf.profiler.experimental.start(str(folder / "trace"))
    time.sleep(TRACED)
    tf.profiler.experimental.stop()
    space = xplane_pb2.XSpace.FromString(next((folder / "trace").rglob("*.xplane.pb")).read_bytes())
    kinds: Counter[str] = Counter()
    for plane in space.planes:
        for event in (event for line in plane.lines for event in line.events):
            kinds[kind(plane.event_metadata[event.metadata_id].name)] += event.duration_ps / 1e12 / TRACED
    runs.write_whole(folder / "kinds.json", {name: share for name, share in kinds.most_common() if name})


# From an operation to what it is for. An operation is shown as name:Kind; what is shown otherwise stands around operations and is left out.
KINDS = {
    "convolutions and products": r"Conv2D|MatMul",
    "pooling, activations, losses": r"Pool|Relu|Softmax|Bias|Entropy",
    "adding up over the workers": r"Collective",
    "weights from and to the parameter server": r"Send|Recv|ReadVariable|Assign|Resource",
    "input": r"Iterator",
    "everything else, the optimizer above all": r".",
}
AROUND = re.compile(r"PartitionedCall|While|If$|Enter|Exit|Merge|Switch|NextIteration|LoopCond|NoOp")


def kind(event: str) -> str:
    match = re.search(r":_?([A-Z]\w+)$", event)
    if not match or AROUND.search(match[1]):
        return ""
    return next(name for name, pattern in KINDS.items() if re.search(pattern, match[1]))


# ------------------------------------------------------------------------------------------------------------ tables


def contestant(name: str, program: str, where: str) -> float:
    if name == PLAIN:
        return inside("plain", program, where)["examples_per_second"]
    if name == PLAIN_OF_BOTH:
        of_one = arguments.parser(program).parse_args(command(program, where, Path("unused"), {})[3:]).batch_size
        return inside("plain", program, where, batch_size=2 * of_one)["examples_per_second"]
    if name == BY_FIT:
        return trained(program, where, TOPOLOGIES["parameter_server × 2"], loop="fit", steps_per_execution=10)
    return trained(program, where, TOPOLOGIES[name])


def main(chosen: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for program in chosen or SIZES:
            where = prepared(program, Path(folder))
            share = inside("waiting", program, where)["share"]
            print(
                f"{program}: {100 * share:.1f} % of a step is spent waiting for input (at most {100 * LONGEST_WAIT:.0f} asked for)",
                flush=True,
            )
            print(f"{program}, examples a second:", flush=True)
            found = in_turns({name: functools.partial(contestant, name, program, where) for name in (PLAIN, *UNDER[program])})
            for name, value in found.items():
                print(f"  {name:<34} {value:>10,.0f}   {value / found[PLAIN]:.2f} × the plain loop")
            for name, other, least in RATIOS.get(program, []):
                asked = f" (at least {least} asked for)" if least else ""
                print(f"  {name}: {found[name] / found[other]:.2f} × {other}{asked}", flush=True)
            if program in PROFILED:
                print(f"{program}, {PROFILED[program][1]} under {PROFILED[program][0]}, share of the time in which there ran:")
                for name, share in profile(program, where).items():
                    print(f"  {name:<45} {100 * share:5.1f} %", flush=True)


if __name__ == "__main__":
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    match sys.argv[1:]:
        case ["plain" | "waiting" as what, *words]:
            memory.keep()  # as a task does: what is compared is the distribution, and nothing besides
            parsed = arguments.parser(words[0].removeprefix("--program=")).parse_args(words)
            print(json.dumps({"plain": plain, "waiting": waiting}[what](parsed, programs.load(parsed.program))))
        case ["traced", folder, *words]:
            os._exit(traced(Path(folder), words))
        case names:
            main(names)
