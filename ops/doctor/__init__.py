"""`trainstack doctor`: what is missing before the first `up`, each finding with what to do about it. It only looks.

Everything is asked at once, with a limit of time; what the answers mean is decided afterwards by pure functions, one file for each thing that is looked at:
this machine, Google Cloud, a cluster. Up to there only the standard library is used, so that it runs from a clean checkout with nothing installed: what
is missing is a finding, and no error.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ops.answers import ask, counting
from ops.doctor import cluster, google, machine, stack
from ops.doctor.finding import OK, PROBLEM, UNKNOWN, Finding

SECONDS = 30.0  # for all answers together

__all__ = ["OK", "PROBLEM", "UNKNOWN", "Finding", "examine"]


def examine(name: str, config_file: Path | None = None, seconds: float = SECONDS, quiet: bool = False) -> list[Finding]:
    """Everything that was found, in the order in which it is best mended."""
    subject = stack.read(name, config_file)
    questions = {**machine.questions(subject), **(google.questions(subject) if subject.target == "gke" else {})}
    with ThreadPoolExecutor(max_workers=1) as beside:
        asked = beside.submit(cluster.findings, subject) if subject.target == "kubernetes" else None
        tools = sorted({machine.tool(command) for command in questions.values()})
        answers = ask(questions, seconds, counting(f"asking {', '.join(tools)}", quiet))
        found = [*machine.findings(subject, answers)]
        if subject.target == "gke":
            found += google.findings(subject, answers)
        return found + (asked.result() if asked else [])
