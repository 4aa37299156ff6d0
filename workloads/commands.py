"""The commands that tasks run. Pure; the same on every target, with that target's directories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainer import arguments, programs
from workloads import prepare
from workloads.topology import MIRRORED

if TYPE_CHECKING:
    from settings import Training


def task(training: Training, where: Mapping[str, str], resume_from: str | None) -> list[str]:
    """The command of every task, whatever its role: TF_CONFIG tells them apart. `where` is where the run keeps things."""
    if training.command:
        return [*training.command, *arguments.flags(training.args)]
    result = [
        *("python", "-m", "trainer", f"--program={training.program}"),
        *(f"--strategy={training.chosen_strategy}", f"--evaluator={training.evaluation}"),
        *(f"--{kind.replace('_', '-')}={where[kind]}" for kind in ("checkpoint_dir", "log_dir", "model_dir")),
    ]
    if training.data_dir or training.data_prep:
        result += [f"--data-dir={where['data_dir']}"] if "data_dir" in where else []
    if resume_from:
        result.append(f"--resume-from={resume_from}")
    if training.chosen_strategy == MIRRORED and training.worker and training.worker.gpus > 1:
        result.append(f"--devices={training.worker.gpus}")
    if training.mixed_precision:
        result.append("--mixed-precision")
    return result + arguments.flags(training.args)


def data_prep(training: Training, data_dir: str | None) -> list[str]:
    """The command that prepares the data."""
    prepare = training.data_prep
    assert prepare is not None
    if prepare.command:
        command = list(prepare.command)
    else:
        assert prepare.program is not None
        command = ["python", prepare.program] if prepare.program.endswith(".py") else ["python", "-m", prepare.program]
        if ours := programs.prepared_by(prepare.program):
            command = ["python", "-m", "trainer.prepare", ours]
        command += [f"--data-dir={data_dir}"] if data_dir else []
    return command + arguments.flags(prepare.args)


def data_prep_inputs(training: Training, data_dir: str) -> str:
    """What the prepared data depends on, as a hash."""
    assert training.data_prep is not None
    return prepare.inputs(training.data_prep.command or (training.data_prep.program or "",), training.data_prep.args, data_dir)
