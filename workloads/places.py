"""Where a training reads and writes when its settings do not say. Pure: from the roots of data, checkpoints and logs to directories.

The same settings give the same directories on every `up`, so a stack that is made again with kept buckets goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from settings import Training


def places(name: str, training: Training, roots: Mapping[str, str]) -> dict[str, str]:
    """data_dir as it is; checkpoint_dir, log_dir and model_dir with the run's name behind them."""
    checkpoints, logs = roots["checkpoints"].rstrip("/"), roots["logs"].rstrip("/")
    written = {
        "checkpoint_dir": training.checkpoint_dir or f"{checkpoints}/{name}/checkpoints",
        "log_dir": training.log_dir or f"{logs}/{name}",
        "model_dir": training.model_dir or f"{checkpoints}/{name}/models",
    }
    runs = {kind: f"{place.rstrip('/')}/{training.run}" for kind, place in written.items()}
    return {"data_dir": training.data_dir or f"{roots['data'].rstrip('/')}/{name}", **runs}
