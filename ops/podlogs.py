"""What pods print, read once and only once: a look asks for what came since the last one."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ops import states
from ops.connection import Cluster
from ops.states import Object

OVERLAP = 5  # seconds that are read twice, so that nothing is lost between two looks
LAST = 20  # lines of a log that may say why a task ended


@dataclass
class Mark:
    """How far a log has been read."""

    at: float = 0.0  # when, by this machine's clock
    last: str = ""  # the time of the last line, by the node's clock
    same: int = 0  # how many lines have that time
    over: bool = False  # it was read after the pod had ended


class Logs:
    """What pods print. Every line is read once: a look asks only for what came since the last one."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._marks: dict[str, Mark] = {}

    def new(self, pod: Object) -> list[tuple[float, str]]:
        """The lines since it was asked last, each with its time."""
        mark = self._marks.setdefault(pod["metadata"]["uid"], Mark())
        if mark.over:
            return []
        ended, now = pod["status"].get("phase") in ("Succeeded", "Failed"), time.monotonic()
        since = math.ceil(now - mark.at) + OVERLAP if mark.last else None
        text = self._cluster.log(pod["metadata"]["name"], states.container_name(pod), since=since)
        mark.at, mark.over = now, ended
        return [(states.seconds(when) or 0.0, line) for when, line in unseen(mark, text)]

    def tail(self, pod: Object, lines: int = LAST) -> list[tuple[float, str]]:
        text = self._cluster.log(pod["metadata"]["name"], states.container_name(pod), tail=lines)
        return [(states.seconds(when) or 0.0, line) for when, line in timed(text)]


def timed(text: str) -> Iterator[tuple[str, str]]:
    """The lines of a log, each parted from its time."""
    for line in text.split("\n"):
        when, _, said = line.partition(" ")
        if when[:1].isdigit():
            yield when, said.rstrip("\r").rpartition("\r")[2]  # of a progress bar, what stood last


def unseen(mark: Mark, text: str) -> list[tuple[str, str]]:
    """The lines that were not there before; what is read overlaps with what was."""
    skip, found = mark.same, []
    for when, line in timed(text):
        if when < mark.last:
            continue
        if when == mark.last and skip:
            skip -= 1
            continue
        found.append((when, line))
    for when, _ in found:
        mark.same = mark.same + 1 if when == mark.last else 1
        mark.last = when
    return found
