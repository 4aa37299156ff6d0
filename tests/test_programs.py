"""Every program under every strategy that it is for, through the real engine: it learns, is stopped halfway, goes on at the right step, and is exported.

What is run are the files of examples/, so they are tried as they are. `make test` has mnist under its main strategy, `make test-full` the others.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from settings import parse
from tests.conftest import ROOT, Stack, eventually
from trainer import programs
from workloads.local import runs
from workloads.local.plan import plan

pytestmark = [pytest.mark.engine, pytest.mark.training]


@dataclass(frozen=True)
class Case:
    program: str
    figure: str
    baseline: float  # what a guess without looking reaches on the made data
    least: float
    changes: dict[str, Any] = field(default_factory=dict)
    full: bool = False  # part of `make test-full` only

    @property
    def name(self) -> str:
        return self.program.replace("_", "-")

    @property
    def settings(self) -> dict[str, Any]:
        written = yaml.safe_load((ROOT / "examples" / f"{self.program}.yaml").read_text())["config"]["trainstack:trainings"][self.name]
        args = {**written.get("args", {}), **self.changes.get("args", {})}
        made = {**written, **self.changes, "args": args}
        return {key: value for key, value in made.items() if value is not None}


TOGETHER = {"strategy": "multi_worker_mirrored", "chief": None, "ps": None, "worker": {"replicas": 2}, "evaluator": {"mode": "inline"}}
ALONE = {"strategy": "mirrored", "chief": None, "ps": None, "worker": {"gpus": 2}, "evaluator": {"mode": "inline"}}

SHORT: dict[str, Any] = {"args": {"epochs": 4}}  # half of the example's, and still clearly more than a guess

CASES = {
    "resnet_cifar10-parameter_server": Case("resnet_cifar10", "accuracy", 0.1, 0.25, SHORT, full=True),
    "resnet_cifar10-parameter_server-fit": Case("resnet_cifar10", "accuracy", 0.1, 0.25, {"args": {"epochs": 4, "loop": "fit"}}, full=True),
    "resnet_cifar10-parameter_server-sidecar": Case(
        "resnet_cifar10", "accuracy", 0.1, 0.25, {**SHORT, "evaluator": {"mode": "sidecar"}}, full=True
    ),
    "resnet_cifar10-multi_worker_mirrored": Case("resnet_cifar10", "accuracy", 0.1, 0.4, TOGETHER, full=True),
    "resnet_cifar10-mirrored": Case("resnet_cifar10", "accuracy", 0.1, 0.4, ALONE, full=True),
    "mnist-multi_worker_mirrored-custom": Case("mnist", "accuracy", 0.1, 0.85),
    "mnist-multi_worker_mirrored-fit": Case("mnist", "accuracy", 0.1, 0.85, {"args": {"loop": "fit"}}, full=True),
    "taxi_tips-parameter_server": Case("taxi_tips", "auc", 0.5, 0.8, full=True),
    "cats_vs_dogs-mirrored": Case("cats_vs_dogs", "accuracy", 0.5, 0.8, full=True),
    "cats_vs_dogs-multi_worker_mirrored": Case("cats_vs_dogs", "accuracy", 0.5, 0.8, TOGETHER, full=True),
    "issue_summaries-parameter_server": Case("issue_summaries", "token_accuracy", 0.55, 0.7, full=True),
}


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("case", [pytest.param(case, id=name, marks=[pytest.mark.full] * case.full) for name, case in CASES.items()])
def test_it_learns_goes_on_where_it_was_stopped_and_is_exported(stack: Stack, case: Case) -> None:
    """Its data is made, and TensorFlow starts three times: for each half of the training, and to ask the exported model."""
    stack.up({case.name: case.settings})
    folder = stack.folder_of(case.name)
    made = runs.read_plan(folder)
    logs, lead = Path(made["log_dir"]), "chief-0" if "chief" in made["topology"] else "worker-0"
    eventually(lambda: len(lines(logs, "metrics")) >= 2, 150, f"training does not begin: {stack.status(case.name)}")
    runs.stop(folder)
    log = (folder / "tasks" / f"{lead}.log").read_text()
    stopped = re.findall(r"told to stop: saved at step (\d+)", log)
    assert len(stopped) == 1, f"it has not saved when it was told to stop: {log[-2000:]}"
    runs.start(made, {})
    stack.wait(case.name, "succeeded", 300)

    log = (folder / "tasks" / f"{lead}.log").read_text()
    resumed = re.findall(r"resumed from \S+/step-(\d+)", log)
    assert resumed == [f"{int(stopped[0]):08d}"]
    before, after = (tuple(map(int, pair)) for pair in re.findall(r"(\d+) of (\d+) steps to go", log))
    assert before[0] == before[1] == after[1], "the first time it had all of them before it"
    # Workers of parameter servers do a few steps more while the chief saves what they work on.
    assert 0 <= after[1] - int(stopped[0]) - after[0] <= (60 if made["strategy"] == "parameter_server" else 0)
    steps = [line["step"] for line in lines(logs, "metrics")]
    assert steps == sorted(set(steps)), "no step is reported twice"
    assert steps[-1] == after[1]

    last = lines(logs, "evaluation")[-1]
    assert last["step"] == steps[-1]
    assert next(iter(key for key in last if key not in ("step", "time", "loss"))) == case.figure
    assert last[case.figure] >= case.least > case.baseline
    # The same weights in batches of another size: one of 500 images may be on the edge.
    assert evaluated(made)[case.figure] == pytest.approx(last[case.figure], abs=2e-3)


def evaluated(made: dict[str, Any]) -> dict[str, float]:
    """The exported model on the test data, in a process that has nothing to do with the training."""
    words = [word for word in made["command"] if word.startswith("--")]
    model = runs.model_folder(made["model_dir"])
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_programs", model, *words], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_program_has_an_example_a_page_and_a_case() -> None:
    for name in programs.names():
        assert (ROOT / "docs" / "programs" / f"{name}.md").exists()
        assert name == "digits" or any(case.program == name for case in CASES.values()), "tests/test_training.py has digits in depth"
        written = yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())["config"]
        assert written.pop("trainstack:target") == "local"
        values = {key.removeprefix("trainstack:"): value for key, value in written.items()}
        for target in ("local", "gke"):  # the one line that changes, besides the project
            stack = parse({**values, "target": target}, {"project": "my-project"})
            assert [training.program for training in stack.trainings.values()] == [name]
        for key, training in stack.trainings.items():
            if name == "digits":
                assert training.data_prep is None, "its data comes with it"
                continue
            assert plan("local", key, training)["data_prep"]["command"][:4] == ["python", "-m", "trainer.prepare", name]


def main(model: str, words: list[str]) -> None:
    import os

    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf

    from trainer import arguments, data

    program = next(word for word in words if word.startswith("--program=")).partition("=")[2]
    args = arguments.parser(program).parse_args(words)
    module = programs.load(program)
    fresh = module.model(args)
    fresh.set_weights([variable.numpy() for variable in tf.saved_model.load(model).variables])
    print(json.dumps(fresh.evaluate(data.test(module, args), verbose=0, return_dict=True)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
