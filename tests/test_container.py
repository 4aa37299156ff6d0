"""The trainer's image and how it is run on this machine, as far as that goes without Docker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ops.container import _training, build, run
from ops.target import OpsError
from tests.conftest import ROOT
from tests.test_architecture import imports, sources

DOCKERFILE = (ROOT / "trainer" / "Dockerfile").read_text()


def test_without_docker_it_is_one_sentence(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "ops", "container", "examples/demo.yaml"], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("trainstack: Docker does not answer on this machine; install or start it")
    assert len(done.stderr.splitlines()) == 1


def test_a_training_runs_as_the_pods_do() -> None:
    _, training = _training(Path("examples/demo.yaml"), None)
    command = run(training, Path("/runs/demo"), gpus=False)
    assert {"--read-only", "--tmpfs=/tmp", f"--user={os.getuid()}:{os.getgid()}", "--volume=/runs/demo:/run/trainstack"} <= set(command)
    assert command[command.index("trainstack-trainer") + 1 :][:6] == [
        "python",
        "-m",
        "trainer",
        "--program=digits",
        "--strategy=mirrored",
        "--evaluator=inline",
    ], "one container is alone, whatever the topology: mirrored, and it evaluates by itself"
    assert "--epochs=60" in command
    assert "--gpus=all" not in command
    assert "--gpus=all" in run(training, Path("/runs/demo"), gpus=True)


@pytest.mark.parametrize(("gpus", "package"), [(False, "tensorflow-cpu"), (True, "tensorflow[and-cuda]")])
def test_the_image_has_the_tensorflow_for_this_machine(gpus: bool, package: str) -> None:
    assert f"--build-arg=TENSORFLOW={package}" in build(gpus)


def test_a_settings_file_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(OpsError, match=r"there is no examples/nothing\.yaml"):
        _training(Path("examples/nothing.yaml"), None)


def test_settings_for_the_cloud_can_be_tried_here() -> None:
    name, training = _training(Path("Pulumi.dev.yaml"), None)
    assert (name, training.program) == ("digits", "digits")


def test_the_image_is_not_roots() -> None:
    (user,) = re.findall(r"^USER (\d+):\d+$", DOCKERFILE, re.MULTILINE)
    assert int(user) >= 10000
    assert re.search(r"^ARG BASE=\S+-slim$", DOCKERFILE, re.MULTILINE)


def test_everything_that_the_trainer_imports_is_in_its_image() -> None:
    carried = {"tensorflow", "numpy", "google", "tf_keras", "sklearn", "tensorboard"}  # google: protobuf, which TensorFlow needs
    wanted = {name for path in sources("trainer") for name in imports(path)} - set(sys.stdlib_module_names) - {"trainer"}
    assert wanted <= carried
    for package in ("tensorboard", "scikit-learn", "tf-keras", "${TENSORFLOW}"):
        assert package in DOCKERFILE


def test_what_the_image_copies_is_not_ignored() -> None:
    copied = re.findall(r"^COPY (\S+)", DOCKERFILE, re.MULTILINE)
    allowed = re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert copied
    assert sorted(copied) == sorted(allowed)
