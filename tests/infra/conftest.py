from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.infra.simulation import Simulation, simulation


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Simulation]:
    """The stack dev, not up yet, on a simulated cloud of its own."""
    with simulation(tmp_path / "dev") as made:
        yield made


@pytest.fixture(scope="session")
def after_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stack dev after its first `up`: Pulumi's state and the cloud's."""
    folder = tmp_path_factory.mktemp("after-up") / "dev"
    with simulation(folder) as made:
        made.up()
    return folder


@pytest.fixture
def live_dev(after_up: Path, tmp_path: Path) -> Iterator[Simulation]:
    """The stack dev, up, on a simulated cloud of its own."""
    shutil.copytree(after_up, tmp_path / "dev")
    with simulation(tmp_path / "dev") as made:
        yield made
