"""Runs the tests in tiers, and shows where their time went. `make test`, `make test-full`, `make test-cluster` and `make test-times` call it.

    python -m tests.tiers test                what a person runs before a commit
    python -m tests.tiers full [PART/PARTS]   everything that `test` leaves out: all of it, or one part of several
    python -m tests.tiers cluster             real pods
    python -m tests.tiers times               the time of the last runs, by tier and file

A tier runs in groups, each a pytest of its own, because TensorFlow and Pulumi's Python each bring a gRPC, and a process that has loaded both crashes now and
then. The quickest group comes first and alone: where a rule or a function is broken, the others do not start. They run in two lanes at the same time, one
that mostly computes and one that mostly waits.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
TIMES = ROOT / ".trainstack" / "test-times"
NO_TESTS = 5  # pytest's exit code where no test was selected
NO_NODE = 3  # toolchain/node.py's exit code on a machine that cannot run a node
SLOW = 20  # seconds; a test that takes longer says in its docstring why


@dataclass(frozen=True)
class Group:
    name: str
    marks: str
    processes: int  # how many tests run at the same time
    lane: int = 0  # the groups of a lane run one after the other, and lanes at the same time; the first lane runs before the others
    dist: str = "worksteal"

    def command(self, marks: str, times: Path, part: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-m", f"({marks}) and ({self.marks})", f"--junitxml={times}"]
        return [*command, "-n", str(self.processes), "--dist", self.dist, *([f"--part={part}"] if part else []), *self.files()]

    def files(self) -> list[str]:
        """The files that name one of the group's marks. Collecting the others would cost each process seconds, to find nothing."""
        wanted = [f"pytest.mark.{mark}" for mark in re.findall(r"(?<!not )\b(?!and|or|not)[a-z]+", self.marks)]
        found = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if any(mark in path.read_text() for mark in wanted))
        return [str(path.relative_to(ROOT)) for path in found]


GROUPS = (
    Group("rules and functions", "not engine and not process and not tensorflow and not training and not cluster", 2),
    Group("engines", "engine and not training and not cluster", 3, lane=1),
    Group("processes", "process and not engine and not tensorflow and not training and not cluster", 6, lane=1),
    Group("TensorFlow in the tests' own process", "tensorflow", 2, lane=2),
    Group("trainings", "training", 2, lane=2, dist="loadscope"),
    Group("pods", "cluster", 3, lane=2, dist="loadscope"),
)
TIERS = {"test": "not full and not cluster", "full": "full and not cluster", "cluster": "cluster"}


class Case(NamedTuple):
    group: str
    file: str
    name: str
    seconds: float
    outcome: str  # passed, skipped, failed or error


def run(tier: str, part: str = "") -> int:
    """0, or the exit code of a pytest that failed."""
    folder, started = TIMES / tier, time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    for report in folder.iterdir():
        report.unlink()
    if before := last_duration(tier):
        print(f"make {target(tier)}: {minutes(before)} the last time on this machine", flush=True)
    lanes = [[(number, group) for number, group in enumerate(GROUPS) if group.lane == lane] for lane in range(3)]
    running: set[Path] = set()

    def run_lane(lane: list[tuple[int, Group]]) -> int:
        for number, group in lane:
            log = folder / f"{number}.log"
            with log.open("w") as output:
                running.add(log)
                code = subprocess.run(
                    group.command(TIERS[tier], log.with_suffix(".xml"), part), cwd=ROOT, stdout=output, stderr=output
                ).returncode
                running.remove(log)
            if code != NO_TESTS:
                print(f"\n{group.name}\n{log.read_text()}", flush=True)
            if code not in (0, NO_TESTS):
                return code
        return 0

    with showing_progress(running):
        code = run_lane(lanes[0])
        if not code:
            with ThreadPoolExecutor(2) as pool:
                code = max(pool.map(run_lane, lanes[1:]))
    counted = Counter(case.outcome for number, group in enumerate(GROUPS) for case in cases(folder / f"{number}.xml", group.name))
    took = time.monotonic() - started
    print(f"{minutes(took)}; `make test-times` shows where the time went")
    print(f"{counted['passed']} passed, {counted['failed'] + counted['error']} failed, {counted['skipped']} skipped", flush=True)
    if not code:
        remember_duration(tier, took)
    return code


def reached(output: str) -> str:
    """How many tests of how many have ended, by what pytest has printed."""
    total = re.search(r"\[(\d+) items?\]", output)
    ended = sum(len(line.partition(" ")[0]) for line in output.splitlines() if re.match(r"[.FEsxX]+( |$)", line))
    return f"{ended} of {total[1]}" if total else "collecting"


@contextmanager
def showing_progress(running: set[Path]) -> Iterator[None]:
    """Prints how far each running pytest has come, every 20 s."""
    done = threading.Event()

    def show() -> None:
        while not done.wait(20):
            print("; ".join(f"{GROUPS[int(log.stem)].name}: {reached(log.read_text())}" for log in sorted(running)), flush=True)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def run_on_cluster() -> int:
    """On the cluster of KUBECONFIG, or on a node that is started for this process and ends with it."""
    if os.environ.get("KUBECONFIG"):
        return run("cluster")
    try:
        with node() as variables:
            os.environ.update(variables)
            return run("cluster")
    except subprocess.CalledProcessError as error:
        if error.returncode == NO_NODE:
            print("not run: see above")
            return 0
        return 1


@contextmanager
def node() -> Iterator[dict[str, str]]:
    command = [sys.executable, str(ROOT / "toolchain" / "node.py")]

    def printed(*arguments: str) -> str:
        return subprocess.run([*command, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    kubeconfig = printed("up", str(os.getpid()))
    try:
        yield {"KUBECONFIG": kubeconfig, "TRAINSTACK_TEST_IMAGE": printed("image"), "TRAINSTACK_TEST_NODE": "1"}
    finally:
        printed("down", str(os.getpid()))


def target(tier: str) -> str:
    return "test" if tier == "test" else f"test-{tier}"


def minutes(seconds: float) -> str:
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def last_duration(tier: str) -> float | None:
    file = TIMES / f"{tier}.seconds"
    return float(file.read_text()) if file.exists() else None


def remember_duration(tier: str, seconds: float) -> None:
    (TIMES / f"{tier}.seconds").write_text(f"{seconds:.0f}\n")


def cases(report: Path, group: str) -> Iterator[Case]:
    if not report.exists():
        return
    for case in ElementTree.parse(report).iter("testcase"):
        module = case.attrib.get("classname", "").split(".")
        paths = (Path(*module[:end]).with_suffix(".py") for end in range(len(module), 0, -1))
        path = next((path for path in paths if (ROOT / path).exists()), Path("tests"))
        outcome = {"failure": "failed"}.get(ended := next((child.tag for child in case), "passed"), ended)
        yield Case(group, str(path), case.attrib["name"], float(case.attrib["time"]), outcome)


def show_times() -> int:
    console = Console(width=max(140, Console().width))
    for tier in TIERS:
        reports = {group.name: TIMES / tier / f"{number}.xml" for number, group in enumerate(GROUPS)}
        found = [case for group, report in reports.items() for case in cases(report, group)]
        if not found:
            console.print(f"make {target(tier)} has not run yet")
            continue
        whole = last_duration(tier)
        console.print(f"\n[bold]make {target(tier)}[/bold]: {len(found)} tests, {minutes(whole) if whole else 'did not pass'}")
        by_file: dict[tuple[str, str], list[Case]] = defaultdict(list)
        for case in found:
            by_file[case.group, case.file].append(case)
        table = Table("group", "file", "tests", "seconds", "slowest test")
        ordered = sorted(by_file.items(), key=lambda item: -sum(case.seconds for case in item[1]))
        for (group, file), tests in ordered[:30]:
            slowest = max(tests, key=lambda case: case.seconds)
            longest = f"{slowest.seconds:.0f} s {slowest.name}"
            table.add_row(group, file, str(len(tests)), f"{sum(case.seconds for case in tests):.0f}", longest)
        console.print(table)
        slow = [case for case in found if case.seconds > SLOW]
        console.print(f"{len(slow)} tests took more than {SLOW} s; seconds are summed over the processes of a group")
    return 0


def main(arguments: list[str]) -> int:
    match arguments:
        case ["times"]:
            return show_times()
        case ["cluster"]:
            return run_on_cluster()
        case [("test" | "full") as tier]:
            return run(tier)
        case ["full", part] if (numbers := re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", part)) and int(numbers[1]) <= int(numbers[2]):
            return run("full", part)
        case ["full", part]:
            print(f"PART={part} is not a part of the tests; write PART=1/6 for the first of six.", file=sys.stderr)
            return 2
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
