"""A training in the trainer's image on this machine, before anybody pays for a cluster: one container, all GPUs there are, strategy mirrored."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from ops.target import OpsError
from settings import NOT_IN_IMAGE, PROJECT, ROOT, TENSORFLOW, SettingsError, Training, in_image, parse
from trainer import arguments

IMAGE = "trainstack-trainer"


def train(file: Path, name: str | None) -> tuple[int, Path]:
    """Builds the image and trains in it; returns the exit code of this command, and the run's folder."""
    name, training = _training(file, name)
    if training.program and not in_image(training.program):
        raise OpsError(f"{training.program} {NOT_IN_IMAGE}")
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        raise OpsError(
            "Docker does not answer on this machine; install or start it (https://docs.docker.com/get-docker/), or train without it: `make up`."
        )
    folder = ROOT / "runs" / "container" / name / training.run
    folder.mkdir(parents=True, exist_ok=True)
    gpus = shutil.which("nvidia-smi") is not None
    if _ran(build(gpus)):
        raise OpsError("the image could not be built; mend what Docker says above.")
    return 3 if _ran(run(training, folder, gpus)) else 0, folder.relative_to(ROOT)


def _ran(command: list[str]) -> int:
    print(f"$ {' '.join(command)}", flush=True)
    return subprocess.run(command, cwd=ROOT, stdout=sys.stdout).returncode  # which may be standard error at the moment


def build(gpus: bool) -> list[str]:
    return ["docker", "build", "--file=trainer/Dockerfile", f"--build-arg=TENSORFLOW={TENSORFLOW[gpus]}", f"--tag={IMAGE}", "."]


def run(training: Training, folder: Path, gpus: bool) -> list[str]:
    """As the pods run it: not root, and nothing to write to but the run's folder and /tmp."""
    mounts = [f"--volume={folder}:/run/trainstack"]
    command = list(training.command or ())
    if training.program:
        command = [
            "python",
            "-m",
            "trainer",
            f"--program={training.program}",
            "--strategy=mirrored",
            f"--evaluator={_evaluation(training)}",
        ]
        places = {"checkpoint": "checkpoints", "log": "logs", "model": "model"}
        command += [f"--{kind}-dir=/run/trainstack/{place}" for kind, place in places.items()]
        if training.data_dir and "://" in training.data_dir:
            command.append(f"--data-dir={training.data_dir}")
        elif training.data_dir:
            mounts.append(f"--volume={(ROOT / training.data_dir).resolve()}:/data:ro")
            command.append("--data-dir=/data")
    return [
        *["docker", "run", "--rm", "--read-only", "--tmpfs=/tmp", "--shm-size=1g", f"--user={os.getuid()}:{os.getgid()}"],
        *(["--gpus=all"] if gpus else []),
        *mounts,
        *[f"--env={key}={value}" for key, value in training.env.items()],
        training.image or IMAGE,
        *command,
        *arguments.flags(training.args),
    ]


def _evaluation(training: Training) -> str:
    """There is no task beside this one that could evaluate."""
    return "inline" if training.evaluation == "sidecar" else training.evaluation


def _training(file: Path, name: str | None) -> tuple[str, Training]:
    if not file.exists():
        raise OpsError(f"there is no {file}; `ls Pulumi.*.yaml examples/` shows what there is.")
    written = (yaml.safe_load(file.read_text()) or {}).get("config") or {}
    google = {key.removeprefix("gcp:"): value for key, value in written.items() if key in ("gcp:project", "gcp:region", "gcp:zone")}
    try:
        settings = parse(
            {key.removeprefix(f"{PROJECT}:"): value for key, value in written.items() if key.startswith(f"{PROJECT}:")},
            {"project": "none", **google},
        )
    except SettingsError as error:
        raise OpsError(f"{file} is not valid: {error}") from None
    if name is None and len(settings.trainings) == 1:
        name = next(iter(settings.trainings))
    if name is None or name not in settings.trainings:
        raise OpsError(f"say which training with --training: {', '.join(settings.trainings) or 'there is none in this file'}.")
    return name, settings.trainings[name]
