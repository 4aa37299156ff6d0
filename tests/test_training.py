"""Whole trainings through the real engine, with real TensorFlow processes.

`make test` has one for each strategy: the default for parameter_server, the one that is served for mirrored, and mnist in test_programs.py for
multi_worker_mirrored. `make test-full` has the combinations.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.conftest import ROOT, Stack, alive, eventually
from workloads import prepare
from workloads.local import runs
from workloads.local.plan import RUNS

pytestmark = [pytest.mark.engine, pytest.mark.training]


def records(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / "logs" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def accuracy(folder: Path) -> float:
    return records(folder, "evaluation")[-1]["accuracy"]


def checkpoint_steps(folder: Path) -> list[int]:
    return sorted(int(path.parent.name.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*/manifest.json"))


def pid_of(folder: Path, task: str) -> int:
    """The trainer of a task, below its launcher."""
    return next(process.pid for process in runs.processes(folder, task) if "trainer" in process.cmdline())


# ------------------------------------------------------------------------------------- the default, in depth


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The training of Pulumi.local.yaml, run once for the tests that look at what it left."""
    stack = Stack(tmp_path_factory.mktemp("default"))
    settings = ROOT / f"Pulumi.{stack.name}.yaml"
    try:
        stack.up(yaml.safe_load((ROOT / "Pulumi.local.yaml").read_text())["config"]["trainstack:trainings"])
        stack.wait("digits", "succeeded", 240)
        shutil.copy(stack.settings, settings)  # `trainstack` reads the settings of a stack where a person keeps them
        yield stack
    finally:
        settings.unlink(missing_ok=True)
        for folder in runs.folders(stack.name):
            runs.stop(folder)
        shutil.rmtree(RUNS / stack.name)


def ops(stack: Stack, *arguments: str, code: int = 0) -> str:
    done = stack.run(sys.executable, "-m", "ops", "--stack", stack.name, *arguments, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code != 1 else done.stderr


class TestTheDefault:
    """What the default training has left, as files and as commands show it."""

    def test_the_default_reaches_its_accuracy_and_leaves_nothing_running(self, default: Stack) -> None:
        folder = default.folder_of("digits")
        assert accuracy(folder) >= 0.95
        assert {task["name"]: task["state"] for task in default.status("digits")["tasks"]} == dict.fromkeys(
            ["chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0"], "succeeded"
        )
        eventually(lambda: alive(folder) == [], 5, "processes are left")

    def test_the_evaluator_tried_every_checkpoint_and_the_last(self, default: Stack) -> None:
        """20 epochs of 22 steps, a checkpoint after every second."""
        folder = default.folder_of("digits")
        assert [record["step"] for record in records(folder, "evaluation")] == list(range(44, 441, 44))
        assert len(checkpoint_steps(folder)) >= 3
        assert checkpoint_steps(folder)[-1] == 440

    def test_metrics_have_step_loss_accuracy_and_speed(self, default: Stack) -> None:
        lines = records(default.folder_of("digits"), "metrics")
        assert [line["step"] for line in lines] == list(range(22, 441, 22))
        assert all({"loss", "accuracy", "examples_per_second"} <= line.keys() for line in lines)
        assert lines[-1]["loss"] < lines[0]["loss"] / 5
        assert all(line["examples_per_second"] > 100 for line in lines)

    def test_the_run_folder_has_what_a_person_looks_for(self, default: Stack) -> None:
        folder = default.folder_of("digits")
        assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")
        summary = (folder / "SUMMARY.md").read_text()
        for part in (
            "succeeded",
            f"{accuracy(folder):.4f}",
            "--program=digits",
            "plot.png",
            "strategy: parameter_server",
            "1 chief, 2 worker, 1 ps, 1 evaluator",
            f"{folder}/model/440 ",
        ):
            assert part in summary
        run = json.loads((folder / "logs" / "run.json").read_text())
        assert run["state"] == "succeeded"
        assert run["evaluation"]["step"] == 440
        assert list((folder / "logs" / "train").glob("events.out.tfevents.*"))
        assert list((folder / "logs" / "evaluation").glob("events.out.tfevents.*"))

    def test_status_and_list_as_text_and_as_json(self, default: Stack) -> None:
        assert "chief-0" in ops(default, "status")
        shown = json.loads(ops(default, "--json", "status"))[0]
        assert shown["state"] == "succeeded"
        assert shown["evaluation"]["accuracy"] >= 0.95
        assert "succeeded" in ops(default, "list")
        assert json.loads(ops(default, "--json", "list"))[0]["run"] == "1"

    def test_watching_a_run_that_has_ended_says_how(self, default: Stack) -> None:
        shown = ops(default, "watch")
        assert "digits, run 1: succeeded after" in shown
        assert f"test accuracy {accuracy(default.folder_of('digits')):.4f}" in shown
        assert "plot.png" in shown

    def test_logs_of_a_task_and_of_a_role(self, default: Stack) -> None:
        assert "epoch 20/20" in ops(default, "logs", "chief-0")
        both = ops(default, "logs", "worker")
        assert {line.split()[0] for line in both.splitlines()} == {"worker-0", "worker-1"}
        assert json.loads(ops(default, "--json", "logs", "chief-0").splitlines()[0])["task"] == "chief-0"
        assert "the tasks are chief-0" in ops(default, "logs", "worker-7", code=1)

    def test_the_model_can_be_listed_fetched_and_asked(self, default: Stack, tmp_path: Path) -> None:
        from trainer.programs import digits

        assert json.loads(ops(default, "--json", "models", "list"))[0]["training"] == "digits"
        ops(default, "models", "fetch", str(tmp_path / "model"))
        assert (tmp_path / "model" / "saved_model.pb").exists()
        assert "exists already" in ops(default, "models", "fetch", str(tmp_path / "model"), code=1)
        images, labels = digits.read(digits.shipped())
        (tmp_path / "inputs.json").write_text(json.dumps({"instances": images[:50:5].tolist()}))
        answers = json.loads(ops(default, "--json", "predict", str(tmp_path / "inputs.json")))["predictions"]
        guessed = [max(range(10), key=answer["probabilities"].__getitem__) for answer in answers]
        assert sum(guess == label for guess, label in zip(guessed, labels[:50:5], strict=True)) >= 9
        (tmp_path / "wrong.csv").write_text("1,2,3\n")
        assert "does not fit the model" in ops(default, "predict", str(tmp_path / "wrong.csv"), code=1)

    def test_mistakes_of_a_person_are_one_sentence(self, default: Stack) -> None:
        assert "nothing to cancel" in ops(default, "cancel", code=1)
        assert "there is no run '7'" in ops(default, "--run", "7", "status", code=1)
        assert "there is no file" in ops(default, "predict", "nowhere.json", code=1)
        ops(default, "no-such-command", code=2)


# ----------------------------------------------------------------------------------------- every strategy


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param(
            "servers-fit-inline",
            {"worker": {"replicas": 2}, "ps": {"replicas": 1}, "args": {"epochs": 12, "loop": "fit", "checkpoint_every": 4}},
            marks=pytest.mark.full,
        ),
        pytest.param(
            "two-workers-fit",
            {"strategy": "multi_worker_mirrored", "worker": {"replicas": 2}, "args": {"epochs": 20, "checkpoint_every": 5}},
            marks=pytest.mark.full,
        ),
        pytest.param(
            "chief-and-worker-custom",
            {
                "strategy": "multi_worker_mirrored",
                "chief": {"replicas": 1},
                "worker": {"replicas": 1},
                "evaluator": {"mode": "sidecar"},
                "args": {"epochs": 20, "loop": "custom", "checkpoint_every": 5},
            },
            marks=pytest.mark.full,  # tests/test_programs.py trains mnist under this strategy
        ),
        pytest.param(
            "mirrored-fit",
            {"strategy": "mirrored", "worker": {"gpus": 2}, "args": {"epochs": 20, "checkpoint_every": 5}},
            marks=pytest.mark.full,
        ),
        pytest.param(
            "mirrored-custom",
            {"strategy": "mirrored", "worker": {"gpus": 2}, "args": {"epochs": 20, "loop": "custom", "checkpoint_every": 5}},
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_strategy_reaches_95_percent(stack: Stack, name: str, settings: dict[str, Any]) -> None:
    stack.up({name: {"program": "digits", **settings}})
    stack.wait(name, "succeeded", 240)
    folder = stack.folder_of(name)
    assert accuracy(folder) >= 0.95
    assert [path.name for path in (folder / "model").iterdir()] == [str(checkpoint_steps(folder)[-1])], "one version, named by its step"
    assert (folder / "model" / str(checkpoint_steps(folder)[-1]) / "saved_model.pb").exists()
    assert all(task["restarts"] == 0 for task in stack.status(name)["tasks"])
    if settings.get("strategy") == "mirrored":
        assert "replicas 2" in (folder / "tasks" / "worker-0.log").read_text()


def test_a_script_that_only_knows_tf_config_trains_and_its_servers_end(stack: Stack) -> None:
    script = {
        "command": ["python", "tests/programs/plain_parameter_server.py"],
        "args": {"rate": 1},
        "worker": {"replicas": 1},
        "ps": {"replicas": 1},
    }
    stack.up({"plain": script})
    stack.wait("plain", "succeeded", 120)
    folder = stack.folder_of("plain")
    assert "weight 3.000 after --rate=1" in (folder / "tasks" / "chief-0.log").read_text()
    eventually(lambda: alive(folder) == [], 5, "processes are left")


@pytest.mark.full
def test_a_program_of_ones_own_trains_from_anywhere(stack: Stack) -> None:
    """The one of the documentation, as a file outside of this tree under parameter servers, and as a module in one task."""
    written = re.search(r"```python\n(def model.*?)```", (ROOT / "docs" / "programs.md").read_text(), re.DOTALL)
    assert written
    package = stack.folder / "elsewhere" / "flowers"
    package.mkdir(parents=True)
    (package / "iris.py").write_text(written[1])
    reach = {"PYTHONPATH": f"{ROOT}:{package.parent}"}
    stack.env |= reach
    args = {"epochs": 30, "batch_size": 12, "checkpoint_every": 30, "units": 32}
    servers = {"worker": {"replicas": 1}, "ps": {"replicas": 1}}
    stack.up(
        {
            "file": {"program": f"{package}/iris.py", **servers, "args": args},
            "module": {"program": "flowers.iris", "strategy": "mirrored", "env": reach, "args": args},
        }
    )
    for name in ("file", "module"):
        stack.wait(name, "succeeded", 120)
        assert accuracy(stack.folder_of(name)) >= 0.9


def tags(tensorboard: str) -> dict[str, Any]:
    """The curves that TensorBoard has read so far; none while it starts."""
    try:
        with urllib.request.urlopen(f"{tensorboard}data/plugin/scalars/tags", timeout=10) as answer:
            return json.load(answer)
    except OSError:
        return {}


def test_prepared_data_is_trained_on_and_the_model_is_served(stack: Stack) -> None:
    """Over REST it answers what it answers when it is asked directly; `up` leaves its server alone and `destroy` ends it."""
    import numpy as np
    import tensorflow as tf

    from trainer.programs import digits

    place = stack.folder / "data"
    code = f"import os, shutil; os.makedirs({str(place)!r}); shutil.copy({str(digits.shipped())!r}, {str(place)!r})"
    settings = {"program": "digits", "strategy": "mirrored", "worker": {"gpus": 2}, "args": {"epochs": 5, "checkpoint_every": 5}}
    stack.up(
        {
            "t": {
                **settings,
                "data_dir": str(place),
                "data_prep": {"command": [sys.executable, "-c", code]},
                "serving": {},
                "tensorboard": {},
            }
        }
    )
    status = stack.wait("t", "succeeded", 90)
    folder, url = stack.folder_of("t"), status["serving"]
    assert "replicas 2" in (folder / "tasks" / "worker-0.log").read_text()
    assert stack.outputs()["t"]["serving"] == url
    assert (place / prepare.MARKER).exists()
    eventually(lambda: stack.task("t", "serving")["state"] == "running", 30, f"{stack.status('t')}")
    with urllib.request.urlopen(url) as answer:
        version = json.load(answer)["model_version_status"][0]
    assert (version["version"], version["state"]) == ("55", "AVAILABLE")

    images, labels = digits.read(digits.shipped())
    question = json.dumps({"instances": images[:200].tolist()}).encode()
    with urllib.request.urlopen(f"{url}:predict", question) as answer:
        answers = np.array(json.load(answer)["predictions"], np.float32)
    model = tf.saved_model.load(runs.model_folder(str(folder / "model")))
    directly = model.signatures["serving_default"](image=tf.constant(images[:200]))["probabilities"].numpy()
    np.testing.assert_array_equal(answers, directly)
    assert (answers.argmax(axis=1) == labels[:200]).mean() > 0.8

    shown = eventually(lambda: tags(status["tensorboard"]), 30, "TensorBoard shows nothing")
    assert {"loss", "accuracy"} <= shown["train"].keys()

    server = stack.task("t", "serving")["pid"]
    assert stack.preview("t") == "same"
    stack.up()
    assert stack.task("t", "serving")["pid"] == server
    stack.destroy()
    assert alive(folder) == []


# ------------------------------------------------------------------------------------------------ going on


def test_a_cancelled_run_goes_on_where_it_stopped(stack: Stack) -> None:
    """SIGTERM saves between two checkpoints; the same run started again trains only the rest."""
    stack.up({"t": {"program": "digits", "worker": {"replicas": 1}, "ps": {"replicas": 1}, "args": {"epochs": 24, "checkpoint_every": 24}}})
    folder = stack.folder_of("t")
    eventually(lambda: len(records(folder, "metrics")) >= 3, 90, "training does not begin")
    runs.stop(folder)
    saved = checkpoint_steps(folder)
    assert len(saved) == 1, "the only checkpoint is the one that SIGTERM made"
    assert 66 <= saved[0] < 528
    assert "told to stop: saved at step" in (folder / "tasks" / "chief-0.log").read_text()
    runs.start(runs.read_plan(folder), {})
    stack.wait("t", "succeeded", 180)
    log = (folder / "tasks" / "chief-0.log").read_text()
    assert f"resumed from {folder}/checkpoints/step-{saved[0]:08d}" in log
    left = [int(line.split(" of 528 ")[0].split()[-1]) for line in log.splitlines() if "steps to go" in line]
    assert left[0] == 528
    assert 528 - saved[0] - 40 <= left[1] <= 528 - saved[0], "workers do a few more steps while the chief saves"
    lines = [line["step"] for line in records(folder, "metrics")]
    assert lines == sorted(set(lines)), "no step is reported twice"
    assert lines[-1] == 528
    assert accuracy(folder) >= 0.95


@pytest.mark.full
def test_workers_that_train_together_stop_and_save_together(stack: Stack) -> None:
    settings = {
        "program": "digits",
        "strategy": "multi_worker_mirrored",
        "worker": {"replicas": 2},
        "args": {"epochs": 40, "checkpoint_every": 40},
    }
    stack.up({"t": settings})
    folder = stack.folder_of("t")
    eventually(lambda: len(records(folder, "metrics")) >= 3, 90, "training does not begin")
    os.kill(pid_of(folder, "worker-1"), signal.SIGTERM)
    stack.wait("t", "succeeded", 180)
    saved = [int(line.split()[-1]) for line in (folder / "tasks" / "worker-0.log").read_text().splitlines() if "told to stop" in line]
    assert len(saved) == 1
    log = (folder / "tasks" / "worker-0.log").read_text()
    assert f"{440 - saved[0]} of 440 steps to go" in log
    assert [task["restarts"] for task in stack.status("t")["tasks"]] == [0, 0], "being told to stop does not count"
    assert accuracy(folder) >= 0.95


@pytest.mark.full
def test_a_killed_worker_and_a_killed_server_cost_a_restart_each(stack: Stack) -> None:
    stack.up({"t": {"program": "digits", "worker": {"replicas": 2}, "ps": {"replicas": 1}, "args": {"epochs": 40, "checkpoint_every": 2}}})
    folder = stack.folder_of("t")
    eventually(lambda: len(records(folder, "metrics")) >= 3, 90, "training does not begin")
    psutil.Process(pid_of(folder, "worker-1")).kill()
    eventually(lambda: stack.task("t", "worker-1")["restarts"] == 1, 20, "worker-1 is not started again")
    assert stack.task("t", "chief-0")["exit_code"] is None, "the chief trains on"
    before = eventually(lambda: checkpoint_steps(folder), 60, "there is no checkpoint")[-1]
    psutil.Process(pid_of(folder, "ps-0")).kill()
    stack.wait("t", "succeeded", 240)
    log = (folder / "tasks" / "chief-0.log").read_text()
    resumed = [int(line.rsplit("-", 1)[1]) for line in log.splitlines() if line.startswith("resumed from")]
    assert resumed
    assert resumed[0] >= before
    assert {task["name"]: task["restarts"] for task in stack.status("t")["tasks"]} == {
        "chief-0": 0,
        "worker-0": 0,
        "worker-1": 1,
        "ps-0": 1,
    }
    assert accuracy(folder) >= 0.95


@pytest.mark.full
def test_another_run_can_start_from_an_earlier_one_and_more_epochs_go_on(stack: Stack) -> None:
    settings: dict[str, Any] = {"program": "digits", "strategy": "mirrored", "args": {"epochs": 2, "steps_per_epoch": 10}}
    stack.up({"t": settings})
    stack.wait("t", "succeeded", 90)
    stack.up({"t": {**settings, "args": {"epochs": 3, "steps_per_epoch": 10}}})
    stack.wait("t", "succeeded", 90)
    assert [line["step"] for line in records(stack.folder_of("t"), "metrics")] == [10, 20, 30]
    stack.up({"t": {**settings, "run": "next", "resume_from": "1", "args": {"epochs": 2, "steps_per_epoch": 5}}})
    stack.wait("t", "succeeded", 90, run="next")
    folder = stack.folder_of("t", "next")
    assert f"resumed from {stack.folder_of('t')}/checkpoints/step-00000030" in (folder / "tasks" / "worker-0.log").read_text()
    assert [line["step"] for line in records(folder, "metrics")] == [35, 40], "its own epochs, on top of the steps it began with"
    stack.up({"t": {**settings, "run": "next", "resume_from": "1", "args": {"epochs": 4, "steps_per_epoch": 3}}})
    stack.wait("t", "succeeded", 90, run="next")
    assert [line["step"] for line in records(folder, "metrics")] == [35, 40, 43, 46], "two of four epochs were done, however long they were"


@pytest.mark.full
def test_a_checkpoint_of_another_shape_is_refused_once_and_with_the_reason(stack: Stack) -> None:
    settings: dict[str, Any] = {"program": "digits", "strategy": "mirrored", "args": {"epochs": 1, "steps_per_epoch": 2}}
    stack.up({"t": settings})
    stack.wait("t", "succeeded", 90)
    stack.up({"t": {**settings, "args": {"epochs": 2, "steps_per_epoch": 2, "filters": 8}}})
    status = stack.wait("t", "failed", 90)
    assert "model of another shape" in status["reason"]
    assert stack.task("t", "worker-0")["restarts"] == 0


@pytest.mark.full
def test_the_demonstration_kills_a_worker_and_succeeds(stack: Stack) -> None:
    settings = ROOT / f"Pulumi.{stack.name}.yaml"
    stack.up({"t": {"program": "digits", "worker": {"replicas": 2}, "ps": {"replicas": 1}, "args": {"epochs": 20, "checkpoint_every": 10}}})
    shutil.copy(stack.settings, settings)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ops", "--stack", stack.name, "demo"], cwd=ROOT, capture_output=True, text=True, timeout=180
        )
    finally:
        settings.unlink()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed worker-1" in done.stdout
    assert stack.task("t", "worker-1")["restarts"] == 1
