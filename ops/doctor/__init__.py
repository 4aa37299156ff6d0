"""`trainstack doctor`: what is missing before the first `up`, each finding with what to do about it. It only looks.

Everything is asked at once, with a limit of time; what the answers mean is decided afterwards by pure functions, one file for each thing that is looked at:
this machine, Google Cloud, a cluster. Up to there only the standard library is used, so that it runs from a clean checkout with nothing installed: what
is missing is a finding, and no error.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TookTooLong
from pathlib import Path

from ops.answers import ask, counting
from ops.doctor import cluster, google, machine, stack
from ops.doctor.finding import OK, PROBLEM, UNKNOWN, Finding
from ops.doctor.stack import Subject

SECONDS = 30.0  # for all answers together

__all__ = ["OK", "PROBLEM", "UNKNOWN", "Finding", "examine"]


def examine(name: str, config_file: Path | None = None, seconds: float = SECONDS, quiet: bool = False) -> list[Finding]:
    """Everything that was found, in the order in which it is best mended."""
    subject = stack.read(name, config_file)
    until = time.monotonic() + seconds
    beside = _beside(subject) if subject.target == "kubernetes" else None
    questions = {**machine.questions(subject), **(google.questions(subject) if subject.target == "gke" else {})}
    tools = sorted({machine.tool(command) for command in questions.values()})
    answers = ask(questions, seconds, counting(f"asking {', '.join(tools)}", quiet))
    found = machine.findings(subject, answers)
    if subject.target == "gke":
        found += google.findings(subject, answers)
    if beside:
        try:
            found += beside.result(max(0.1, until - time.monotonic()))
        except TookTooLong:
            found.append(cluster.silent(seconds))
    return found


def _beside(subject: Subject) -> Future[list[Finding]]:
    """Looks at the cluster meanwhile, in a thread that nobody has to wait for."""
    future: Future[list[Finding]] = Future()

    def look() -> None:
        try:
            future.set_result(cluster.findings(subject))
        except BaseException as error:  # for whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=look, daemon=True).start()
    return future
