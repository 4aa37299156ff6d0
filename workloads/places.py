"""Where a training reads and writes when its settings do not say. Pure: from the roots of data, checkpoints and logs to directories.

The same settings give the same directories on every `up`, so a stack that is made again with kept buckets goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from settings import Training

KINDS = ("data_dir", "checkpoint_dir", "log_dir", "model_dir")


def places(name: str, training: Training, roots: Mapping[str, str] | None, run: str | None = None) -> dict[str, str]:
    """data_dir as it is; checkpoint_dir, log_dir and model_dir with the run's name behind them. Without roots, only what is written."""
    defaults: dict[str, str] = {}
    if roots:
        data, checkpoints, logs = (roots[kind].rstrip("/") for kind in ("data", "checkpoints", "logs"))
        defaults = {
            "data_dir": f"{data}/{name}",
            "checkpoint_dir": f"{checkpoints}/{name}/checkpoints",
            "log_dir": f"{logs}/{name}",
            "model_dir": f"{checkpoints}/{name}/models",
        }
    written = {kind: getattr(training, kind) or defaults.get(kind) for kind in KINDS}
    known = {kind: place.rstrip("/") for kind, place in written.items() if place}
    return {kind: place if kind == "data_dir" else f"{place}/{run or training.run}" for kind, place in known.items()}


def roots_on_volume(training: Training) -> dict[str, str] | None:
    """The roots on the first volume that the lead of the training mounts, or None where it mounts none."""
    lead = training.topology.lead.role
    path = next((volume.path.rstrip("/") for volume in training.volumes if lead in volume.roles), None)
    return {"data": f"{path}/data", "checkpoints": path, "logs": f"{path}/logs"} if path else None
