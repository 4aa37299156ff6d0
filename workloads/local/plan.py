"""A training's settings as a plan for this machine: pure, and plain data, because Pulumi keeps it and the supervisor reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import arguments, programs
from workloads.topology import MIRRORED

if TYPE_CHECKING:
    from settings import Training

ROOT = Path(__file__).resolve().parent.parent.parent
RUNS = ROOT / "runs"

Plan = dict[str, Any]


def plan(stack: str, name: str, training: Training) -> Plan:
    folder = f"runs/{stack}/{name}/{training.run}"
    places = {kind: _place(training, folder, kind) for kind in ("checkpoint", "log", "model")}
    topology = {role: count for role, count in training.topology.counts().items() if count}
    result = {
        "stack": stack,
        "training": name,
        "run": training.run,
        "folder": folder,
        "strategy": training.chosen_strategy,
        "topology": topology,
        "command": _command(training, folder, places),
        "waits_for_servers": bool(training.command),  # our own programs do it themselves, after TensorFlow is loaded
        "env": dict(training.env),
        "log_dir": places["log"],
        "checkpoint_dir": places["checkpoint"],
        "model_dir": places["model"],
        "volumes": [_volume(folder, volume.claim) for volume in training.volumes],
        "port": training.port,
        "peer_timeout": training.peer_timeout,
        "max_restarts": training.max_restarts,
        "deadline": training.deadline,
        "data_prep": _data_prep(training, folder),
        "tensorboard": {"keep": training.tensorboard.keep} if training.tensorboard else None,
        "settings": training.model_dump(mode="json", exclude_unset=True, by_alias=True, exclude_none=True),
    }
    return {key: value for key, value in result.items() if value is not None}  # Pulumi keeps no empty values


def _command(training: Training, folder: str, places: dict[str, str]) -> list[str]:
    if training.command:
        return [*training.command, *arguments.flags(training.args)]
    result = [
        "python",
        "-m",
        "trainer",
        f"--program={training.program}",
        f"--strategy={training.chosen_strategy}",
        f"--evaluator={training.evaluation}",
    ]
    result += [f"--{kind}-dir={place}" for kind, place in places.items()]
    if training.data_dir:
        result.append(f"--data-dir={_translated(training, folder, training.data_dir)}")
    if training.resume_from:
        result.append(f"--resume-from={_place(training, folder, 'checkpoint', training.resume_from)}")
    if training.chosen_strategy == MIRRORED and training.worker and training.worker.gpus > 1:
        result.append(f"--devices={training.worker.gpus}")
    if training.mixed_precision:
        result.append("--mixed-precision")
    return result + arguments.flags(training.args)


def _data_prep(training: Training, folder: str) -> Plan | None:
    prepare = training.data_prep
    if prepare is None:
        return None
    if prepare.command:
        command = list(prepare.command)
    else:
        assert prepare.program is not None
        module = f"trainer.programs.{prepare.program}" if prepare.program.split(".")[0] in programs.names() else prepare.program
        command = ["python", prepare.program] if prepare.program.endswith(".py") else ["python", "-m", module]
    if training.data_dir and prepare.program:
        command.append(f"--data-dir={_translated(training, folder, training.data_dir)}")
    return {"command": command + arguments.flags(prepare.args), "deadline": prepare.deadline}


def _place(training: Training, folder: str, kind: str, run: str | None = None) -> str:
    """Where a run keeps its checkpoints, logs or model: in its own folder unless the settings name another place."""
    written: str | None = getattr(training, f"{kind}_dir")
    run = run or training.run
    if written:
        return f"{_translated(training, str(Path(folder).with_name(run)), written).rstrip('/')}/{run}"
    own = {"checkpoint": "checkpoints", "log": "logs", "model": "model"}[kind]
    return str(ROOT / Path(folder).with_name(run) / own)


def _volume(folder: str, claim: str) -> str:
    return str(ROOT / folder / "volumes" / claim)


def _translated(training: Training, folder: str, path: str) -> str:
    """A path on a volume becomes a path in the folder that stands for the volume."""
    for volume in training.volumes:
        if path == volume.path or path.startswith(f"{volume.path.rstrip('/')}/"):
            return _volume(folder, volume.claim) + path[len(volume.path.rstrip("/")) :]
    return path if "://" in path else str(ROOT / path)
