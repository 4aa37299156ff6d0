"""The plot and the summary of a run that has ended: `python -m workloads.local.summary FOLDER`."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from workloads import figures
from workloads.local.plan import ROOT, Plan
from workloads.local.runs import model_folder, read_plan, read_records
from workloads.topology import ROLES


def plot(title: str, training: list[dict[str, Any]], evaluation: list[dict[str, Any]], target: Path) -> None:
    """Loss on the left, the other metrics on the right, by step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    colours = pyplot.rcParams["axes.prop_cycle"].by_key()["color"]
    others = figures.names((evaluation or training)[-1])
    for index, (kind, lines) in enumerate((("training", training), ("test", evaluation))):
        style: dict[str, Any] = {"color": colours[index], "marker": "o" if kind == "test" else None, "markersize": 4}
        for name, axes in (("loss", left), *((other, right) for other in others)):
            shown = [line for line in lines if name in line]  # an evaluation by the workers of a coordinator has no loss
            axes.plot(
                [line["step"] for line in shown],
                [line[name] for line in shown],
                label=kind if name == "loss" else f"{kind} {name}",
                **style,
            )
    left.set(title="loss", xlabel="step", yscale="log")
    right.set(title=", ".join(others) or "metrics", xlabel="step")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    figure.savefig(target, dpi=120)


def summary(plan: Plan, run: dict[str, Any], evaluation: list[dict[str, Any]], training: list[dict[str, Any]], drawn: bool) -> str:
    last_test, last = (evaluation or [{}])[-1], (training or [{}])[-1]
    took = (run["ended"] or time.time()) - run["started"]
    topology = ", ".join(f"{plan['topology'][role]} {role}" for role in ROLES if role in plan["topology"])
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    rows = {
        "state": run["state"] + (f": {run['reason']}" if run["reason"] else ""),
        **{f"test {name.replace('_', ' ')}": f"{last_test[name]:.4f}" for name in figures.names(last_test)},
        "steps": last.get("step", ""),
        "time": f"{took:.0f} s",
        "topology": f"{topology} ({plan['strategy']})",
        "command": f"`{shlex.join(plan['command'])}`",
        "commit": commit,
        "model": model_folder(plan["model_dir"]) if run["state"] == "succeeded" else "",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items() if value != "")
    picture = "\n![loss and metrics by step](plot.png)\n" if drawn else ""
    settings = yaml.safe_dump({plan["training"]: plan["settings"]}, sort_keys=False)
    return f"# {plan['training']}, run {plan['run']}\n\n| | |\n|---|---|\n{table}\n{picture}\n## Settings\n\n```yaml\n{settings}```\n"


def main(folder: Path) -> None:
    plan = read_plan(folder)
    logs = Path(plan["log_dir"])
    run = json.loads((logs / "run.json").read_text()) if (logs / "run.json").exists() else None
    if run is None:
        return
    training, evaluation = read_records(logs / "metrics.jsonl"), read_records(logs / "evaluation.jsonl")
    if training:
        plot(f"{plan['training']}, run {plan['run']}: {plan['strategy']}", training, evaluation, folder / "plot.png")
    (folder / "SUMMARY.md").write_text(summary(plan, run, evaluation, training, bool(training)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
