"""Following runs until they end: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ops.target import Run
from workloads import figures

COLOURS = {
    "running": "green",
    "succeeded": "cyan",
    "failed": "red",
    "cancelled": "yellow",
    "vanished": "red",
    "pending": "yellow",
    "waiting": "yellow",
}
Look = Callable[[], Sequence[Run]]


def watch(look: Look, every: float = 0.5) -> Sequence[Run]:
    """Looks again and again until every run is over; returns how they ended."""
    return watch_live(look, every) if sys.stdout.isatty() else watch_lines(look, every)


def watch_live(look: Look, every: float) -> Sequence[Run]:
    runs = look()
    with Live(render(runs), console=Console(), refresh_per_second=4) as live:
        while not all(run.is_over for run in runs):
            time.sleep(every)
            runs = look()
            live.update(render(runs))
    return runs


def watch_lines(look: Look, every: float) -> Sequence[Run]:
    """One line whenever something happened."""
    said: dict[tuple[str, str], object] = {}
    while True:
        runs = look()
        for run in runs:
            for task in run.tasks:
                now = (task.state, task.restarts, task.detail)
                if said.get((run.training, task.name)) != now:
                    said[run.training, task.name] = now
                    detail = f" ({task.detail})" if task.detail else ""
                    print(f"{run.training} {task.name}: {task.state}{detail}", flush=True)
            for kind, records in (("training", run.metrics), ("test", run.evaluation)):
                last = said.get((run.training, kind), -1)
                for record in records:
                    if isinstance(last, int) and record["step"] > last:
                        print(f"{run.training} {kind}: {numbers(record)}", flush=True)
                        said[run.training, kind] = record["step"]
        if all(run.is_over for run in runs):
            return runs
        time.sleep(every)


def numbers(record: dict[str, object]) -> str:
    names = ["step", "steps", "loss", *figures.names(record), "examples_per_second"]
    labels = {"steps": "of", "examples_per_second": "examples/s"}
    shown = []
    for key in names:
        label = labels.get(key, key.replace("_", " "))
        value = record.get(key)
        if isinstance(value, float):
            shown.append(f"{label} {value:,.0f}" if key == "examples_per_second" else f"{label} {value:.4f}")
        elif value is not None:
            shown.append(f"{label} {value}")
    return ", ".join(shown).replace(", of", " of")


def render(runs: Sequence[Run]) -> RenderableType:
    return Group(*(part for run in runs for part in (table(run), progress(run))))


def table(run: Run) -> Table:
    result = Table(title=f"{run.training}, run {run.run}: {run.state}", title_justify="left")
    for name in ("task", "state"):
        result.add_column(name)
    figure = next(iter(figures.names((run.metrics or [{"accuracy": 0}])[-1])), "")
    for name in ("restarts", "step", "loss", figure.replace("_", " "), "examples/s"):
        result.add_column(name, justify="right")
    lead = "chief-0" if any(task.name == "chief-0" for task in run.tasks) else "worker-0"
    for task in run.tasks:
        records = {lead: run.metrics, "evaluator-0": run.evaluation}.get(task.name, [])
        state = Text(task.state + (f": {task.detail}" if task.detail else ""), style=COLOURS.get(task.state, ""))
        result.add_row(task.name, state, str(task.restarts) if task.restarts else "", *cells(records[-1] if records else {}, figure))
    return result


def cells(record: dict[str, Any], figure: str) -> list[str]:
    shown = [("step", "d"), ("loss", ".4f"), (figure, ".4f"), ("examples_per_second", ",.0f")]
    return [format(record[name], form) if name in record else "" for name, form in shown]


def progress(run: Run) -> RenderableType:
    if not run.metrics or "steps" not in run.metrics[-1]:
        return Text(f"  {since(run)} since the start; waiting for the first steps" if not run.is_over else "")
    last = run.metrics[-1]
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(total=last["steps"], completed=last["step"], width=40), f"{100 * last['step'] // last['steps']} %", left(run))
    return line


def left(run: Run) -> str:
    """How long until the last step, at the pace of the last few records."""
    recent = run.metrics[-6:]
    last = recent[-1]
    if run.is_over or last["step"] >= last["steps"]:
        return f"{since(run)} in all"
    steps, seconds = last["step"] - recent[0]["step"], last["time"] - recent[0]["time"]
    if steps <= 0 or seconds <= 0:
        return f"{since(run)} so far"
    return f"about {duration((last['steps'] - last['step']) * seconds / steps)} left"


def since(run: Run) -> str:
    return duration((run.ended or time.time()) - (run.started or time.time()))


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 90:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 5400 else f"{whole // 3600} h {whole % 3600 // 60} min"
