from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.infra.simulation import Simulation, simulation


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Simulation]:
    """The stack dev, not up yet, on a simulated cloud of its own."""
    with simulation(tmp_path / "dev") as made:
        yield made
