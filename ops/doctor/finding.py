"""One thing that was looked at: how it is, and in one sentence what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ops.answers import DENIED, DISABLED, LOGIN, NETWORK, Answer

OK, PROBLEM, UNKNOWN = "ok", "problem", "not checked"


@dataclass(frozen=True)
class Finding:
    group: str  # what it belongs to
    subject: str
    state: str  # ok, problem, not checked
    sentence: str


def unanswered(group: str, subject: str, answer: Answer) -> Finding:
    """What could not be looked at, and why. That somebody has to log in, or that a tool is missing, is said once, by the finding about that."""
    why = {
        LOGIN: "nobody is logged in to gcloud",
        DISABLED: _disabled(answer),
        DENIED: f"your account may not look at it ({answer.why})",
        NETWORK: f"Google cannot be reached from here ({answer.why}); see whether this machine has a network, or needs a proxy",
    }.get(answer.trouble, answer.why)
    return Finding(group, subject, UNKNOWN, f"{why}.")


def _disabled(answer: Answer) -> str:
    """The first `up` enables what it needs, but whoever wants to know before does it by hand."""
    service = re.search(r"\b(?!www\b)([a-z]+\.googleapis\.com)", answer.errors)
    project = next((word for word in answer.command if word.startswith("--project=")), "--project=…")
    enable = f"; run `gcloud services enable {service[1]} {project}` and this again to see it" if service else ""
    return f"the service that knows it is not enabled in the project yet{enable}"
