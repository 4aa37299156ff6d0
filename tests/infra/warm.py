"""The process that a Simulation's own are forked from: the program has run here once, on mocks, and so everything that it uses is loaded."""

from __future__ import annotations

from tests.infra.program import run, settings_of

run(settings_of("dev"))
