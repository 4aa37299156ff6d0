"""A training's settings as a plan for this machine: pure, and plain data, because Pulumi keeps it and the supervisor reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads import commands, prepare

if TYPE_CHECKING:
    from settings import Training

ROOT = Path(__file__).resolve().parent.parent.parent
RUNS = ROOT / "runs"

Plan = dict[str, Any]


def plan(stack: str, name: str, training: Training) -> Plan:
    folder = f"runs/{stack}/{name}/{training.run}"
    where = {f"{kind}_dir": _place(training, folder, kind) for kind in ("checkpoint", "log", "model")}
    if training.data_dir:
        where["data_dir"] = _translated(training, folder, training.data_dir)
    elif training.data_prep and training.data_prep.program:
        where["data_dir"] = str(RUNS / stack / ".data" / name)  # of all its runs
    earlier = _place(training, folder, "checkpoint", training.resume_from) if training.resume_from else None
    topology = {role: count for role, count in training.topology.counts().items() if count}
    result = {
        "stack": stack,
        "training": name,
        "run": training.run,
        "folder": folder,
        "strategy": training.chosen_strategy,
        "topology": topology,
        "command": commands.task(training, where, earlier),
        "waits_for_servers": bool(training.command),  # our own programs do it themselves, after TensorFlow is loaded
        "env": dict(training.env),
        "log_dir": where["log_dir"],
        "checkpoint_dir": where["checkpoint_dir"],
        "model_dir": where["model_dir"],
        "volumes": [_volume(folder, volume.name) for volume in training.volumes],
        "port": training.port,
        "peer_timeout": training.peer_timeout,
        "stall_timeout": training.stall_timeout,
        "max_restarts": training.max_restarts,
        "deadline": training.deadline,
        "data_prep": _data_prep(training, where.get("data_dir")),
        "tensorboard": {"keep": training.tensorboard.keep} if training.tensorboard else None,
        "serving": True if training.serving else None,  # one process, whatever its replicas
        "settings": training.model_dump(mode="json", exclude_unset=True, by_alias=True, exclude_none=True),
    }
    return {key: value for key, value in result.items() if value is not None}  # Pulumi keeps no empty values


def _data_prep(training: Training, data_dir: str | None) -> Plan | None:
    """Data with a directory of its own is prepared once: `marker` is where that is written down, `inputs` what it depends on."""
    if training.data_prep is None:
        return None
    result: Plan = {"command": commands.data_prep(training, data_dir), "deadline": training.data_prep.deadline}
    if data_dir:
        written = training.data_dir or ""
        as_written = commands.data_prep(training, written)  # the same wherever this project and its volumes are
        result |= {"marker": data_dir, "inputs": prepare.inputs(as_written, training.data_prep.args, written)}
    return result


def _place(training: Training, folder: str, kind: str, run: str | None = None) -> str:
    """Where a run keeps its checkpoints, logs or model: in its own folder unless the settings name another place."""
    written: str | None = getattr(training, f"{kind}_dir")
    run = run or training.run
    if written:
        return f"{_translated(training, str(Path(folder).with_name(run)), written).rstrip('/')}/{run}"
    own = {"checkpoint": "checkpoints", "log": "logs", "model": "model"}[kind]
    return str(ROOT / Path(folder).with_name(run) / own)


def _volume(folder: str, name: str) -> str:
    return str(ROOT / folder / "volumes" / name)


def _translated(training: Training, folder: str, path: str) -> str:
    """A path on a volume becomes a path in the folder that stands for the volume."""
    for volume in training.volumes:
        if volume.holds(path):
            return _volume(folder, volume.name) + path[len(volume.path.rstrip("/")) :]
    return path if "://" in path else str(ROOT / path)
