"""Injects ten bugs, one at a time, and checks that the fast tier of tests catches each: `make mutants`.

    python -m tests.mutants               all of them
    python -m tests.mutants NAME …        only these

Each bug is injected into its own copy of the working tree, so the checkout stays as it is. The tests must pass on an unmodified copy first, so that a
failure can only come from the bug. A bug is caught if a test of `make test` fails; it does not count if pytest fails for another reason, as with a test
that no longer exists. The replaced text must occur exactly once in its file: who changes that line also updates MUTANTS.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import psutil

from tests.tiers import NO_TESTS, TIERS

ROOT = Path(__file__).resolve().parent.parent
FAST = TIERS["test"]
CAUGHT, SURVIVED = 1, 0  # pytest's exit codes: a test failed; all tests passed
LIMIT = 300  # seconds for one pytest
# A bug that breaks the import of its module proves nothing: any test would fail.
BROKEN = ("ImportError", "ModuleNotFoundError", "NameError", "SyntaxError", "IndentationError")
ORIGINS = "import importlib.util, sys; print(*(importlib.util.find_spec(name).origin for name in sys.argv[1:]), sep='\\n')"


@dataclass(frozen=True)
class Mutant:
    name: str
    breaks: str  # what is wrong with it, in one sentence
    file: str
    old: str
    new: str
    targets: tuple[str, ...]  # the tests that are expected to catch it: files or node ids


MUTANTS = (
    Mutant(
        "tf-config-index",
        "TF_CONFIG has the index among all tasks, not among those of the role, so worker 0 believes that it is worker 1.",
        "workloads/topology.py",
        '"task": {"type": task.role, "index": task.index}}',
        '"task": {"type": task.role, "index": topology.tasks().index(task)}}',
        ("tests/test_topology.py::test_one_text_serves_all_tasks_of_a_role",),
    ),
    Mutant(
        "settings-rule",
        "A TensorBoard may be exposed to everybody: the list of allowed ranges is empty by default and never None, so the rule never fires.",
        "settings.py",
        "and not training.tensorboard.allowed_cidrs:",
        "and training.tensorboard.allowed_cidrs is None:",
        ("tests/test_settings.py::test_bad_settings_are_explained",),
    ),
    Mutant(
        "iam-role",
        "The service account of the nodes may edit the whole project.",
        "infra/identity.py",
        '"roles/container.defaultNodeServiceAccount"',
        '"roles/editor"',
        ("tests/infra/test_components.py::test_identities_have_the_least",),
    ),
    Mutant(
        "secret-output",
        "The kubeconfig is a stack output in plain text.",
        "infra/cluster.py",
        "self.kubeconfig: pulumi.Output[str] = pulumi.Output.secret(config)",
        "self.kubeconfig: pulumi.Output[str] = config",
        ("tests/infra/test_components.py::test_no_output_shows_a_secret",),
    ),
    Mutant(
        "lost-checkpoint",
        "Pruning keeps the oldest checkpoints and deletes the newest.",
        "trainer/checkpoints.py",
        "for step in whole[: -self.keep] if",
        "for step in whole[self.keep :] if",
        ("tests/trainer/test_trainer.py::test_the_newest_checkpoints_are_kept_and_the_newest_is_read",),
    ),
    Mutant(
        "pod-failure-policy",
        "Jobs have no podFailurePolicy, so a configuration error is retried and an eviction counts as a failure.",
        "workloads/kubernetes/tasks.py",
        '            "podFailurePolicy": {"rules": failure_rules()},\n',
        "",
        ("tests/kubernetes/test_tasks.py::test_the_policy_is_that_of_every_role_and_of_the_container_that_runs",),
    ),
    Mutant(
        "cost-of-zero",
        "Floor division makes every disk cost $0.00 per hour.",
        "costs.py",
        "area.disks[kind] * size / HOURS",
        "area.disks[kind] * size // HOURS",
        ("tests/test_costs.py",),
    ),
    Mutant(
        "exit-code",
        "`trainstack status` and `watch` exit with 0 after a training that failed.",
        "ops/__main__.py",
        '"failed": 3,',
        '"failed": 0,',
        ("tests/ops/test_commands.py",),
    ),
    Mutant(
        "left-bucket",
        "Destroy leaves every bucket, also with on_destroy: delete.",
        "infra/storage.py",
        "retain_on_delete=keep,",
        "retain_on_delete=True,",
        ("tests/infra/test_components.py::test_buckets_are_closed_and_deleted_or_kept_as_written",),
    ),
    Mutant(
        "endless-launcher",
        "The launcher waits for a state that the chief never reports, so servers and workers run on after the chief is done.",
        "workloads/launcher.py",
        'if answer["state"] == "succeeded":',
        'if answer["state"] == "success":',
        ("tests/test_launcher.py::test_servers_and_evaluator_end_with_success_when_the_chief_is_done",),
    ),
)


class MutantsError(Exception):
    """Why nothing can be said about a bug: the table is out of date, or the tests do not run."""


# ----------------------------------------------------------------------------------------------------- copies


def snapshot(to: Path) -> Path:
    """The working tree as it is now, with uncommitted changes and new files, but without what is ignored. It has the checkout's .venv."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():  # a deleted file is listed until its deletion is committed
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    (to / ".venv").symlink_to(ROOT / ".venv")
    return to


def copy_of(pristine: Path, name: str) -> Path:
    """Each run has its own copy: no bytecode and no database of Hypothesis from another run."""
    return Path(shutil.copytree(pristine, pristine.with_name(name), symlinks=True))


def mutated(mutant: Mutant, tree: Path) -> str:
    """The text of the file with the bug in it."""
    path = tree / mutant.file
    text = path.read_text() if path.is_file() else ""
    if (count := text.count(mutant.old)) != 1:
        raise MutantsError(
            f"{mutant.name}: {mutant.file} has {mutant.old!r} {count} times instead of once; update MUTANTS in tests/mutants.py"
        )
    return text.replace(mutant.old, mutant.new)


# ------------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Result:
    code: int
    output: str
    failed: str  # the first test that failed, or empty
    reason: str  # the first line of its failure


def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{tree}/.venv/bin:{os.environ['PATH']}"}


def run_tests(tree: Path, targets: Iterable[str], marks: str) -> Result:
    """One pytest in a copy. What it writes is beside the copy, and no process outlives it."""
    report, log, scratch = (tree.with_name(f"{tree.name}.{kind}") for kind in ("xml", "log", "tmp"))
    command = [".venv/bin/python", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", marks, *targets]
    command += [f"--basetemp={scratch}", f"--junitxml={report}", "-o", "junit_family=xunit1"]  # xunit1 names the file of a test
    with log.open("w") as output:  # not a pipe: a process that is left behind would hold it open
        process = subprocess.Popen(command, cwd=tree, env=environment(tree), stdout=output, stderr=subprocess.STDOUT)
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise MutantsError(f"pytest did not end within {LIMIT} s") from None
        finally:
            end_processes(tree.parent)
            process.wait()
    failed, reason = first_failure(report)
    return Result(code, log.read_text(), failed, reason)


def end_processes(folder: Path) -> None:
    """Kills what still runs in the copies or in the tests' temporary directories; nobody else starts a process there."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if Path(process.cwd()).is_relative_to(folder):
                process.kill()


def first_failure(report: Path) -> tuple[str, str]:
    """The id of the first test that failed and the first line of its failure. An error in a fixture is no failure of a test."""
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        if (failure := case.find("failure")) is not None:
            return node_id(case), (failure.attrib["message"].splitlines() or [""])[0]
    return "", ""


def node_id(case: ElementTree.Element) -> str:
    file = case.attrib["file"]
    module = file.removesuffix(".py").replace("/", ".")
    classes = case.attrib["classname"].removeprefix(module).strip(".")
    return "::".join(filter(None, [file, classes.replace(".", "::"), case.attrib["name"]]))


# ------------------------------------------------------------------------------------------------------ checks


def check_imports(tree: Path, mutants: Sequence[Mutant]) -> None:
    """The tests must import the modules of the copy, not those of the checkout that .venv has installed."""
    files = list(dict.fromkeys(mutant.file for mutant in mutants))
    names = [file.removesuffix(".py").replace("/", ".") for file in files]
    done = subprocess.run([".venv/bin/python", "-c", ORIGINS, *names], cwd=tree, env=environment(tree), capture_output=True, text=True)
    if done.returncode:
        raise MutantsError(f"the modules of the copy cannot be found:\n{tail(done.stderr)}")
    for file, origin in zip(files, done.stdout.splitlines(), strict=True):
        if Path(origin).resolve() != tree / file:
            raise MutantsError(f"{file} of the copy is not what is imported, but {origin}")


def check_unmodified(tree: Path, mutants: Sequence[Mutant]) -> None:
    """All targets pass without a bug. TensorFlow's tests have a pytest of their own: a process with Pulumi in it as well crashes now and then."""
    targets = dict.fromkeys(target for mutant in mutants for target in mutant.targets)
    found = False
    for marks in ("not tensorflow", "tensorflow"):
        result = run_tests(tree, targets, f"({FAST}) and ({marks})")
        if result.code not in (SURVIVED, NO_TESTS):
            raise MutantsError(f"the tests do not pass without a bug (pytest exited with {result.code}):\n{tail(result.output)}")
        found |= result.code == SURVIVED
    if not found:
        raise MutantsError(f"there is no test in {', '.join(targets)} that is in the fast tier")


def judge(mutant: Mutant, tree: Path) -> str:
    """The test that catches a bug, or nothing if it survives."""
    (tree / mutant.file).write_text(mutated(mutant, tree))
    result = run_tests(tree, mutant.targets, FAST)
    if result.code == SURVIVED:
        return ""
    if result.code != CAUGHT:
        raise MutantsError(f"pytest exited with {result.code}:\n{tail(result.output)}")
    if not result.failed:
        raise MutantsError(f"pytest exited with {result.code}, but no test failed:\n{tail(result.output)}")
    if result.reason.startswith(BROKEN):
        raise MutantsError(f"{result.failed} failed because the code does not load any more: {result.reason}")
    return result.failed


def tail(text: str, lines: int = 20) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])


# ------------------------------------------------------------------------------------------------------- main


def chosen(names: Sequence[str]) -> Iterator[Mutant]:
    known = {mutant.name: mutant for mutant in MUTANTS}
    for name in names or known:
        if name not in known:
            raise MutantsError(f"{name} is not in the table; it has {', '.join(known)}")
        yield known[name]


def prepared(mutants: Sequence[Mutant], folder: Path) -> Path:
    """The copy that all others are made from, after all checks that need no bug."""
    pristine = snapshot(folder / "pristine")
    for mutant in mutants:
        mutated(mutant, pristine)
    unmodified = copy_of(pristine, "unmodified")
    check_imports(unmodified, mutants)
    started = time.monotonic()
    check_unmodified(unmodified, mutants)
    print(f"without a bug all tests pass ({time.monotonic() - started:.0f} s)", flush=True)
    return pristine


def caught(mutant: Mutant, pristine: Path) -> bool:
    started = time.monotonic()
    try:
        test = judge(mutant, copy_of(pristine, mutant.name))
    except MutantsError as error:
        print(f"{mutant.name}: ERROR: {error}", flush=True)
        return False
    seconds = time.monotonic() - started
    print(f"{mutant.name}: caught by {test} after {seconds:.0f} s" if test else f"{mutant.name}: SURVIVED: {mutant.breaks}", flush=True)
    return bool(test)


def main(names: Sequence[str]) -> int:
    passed, count = 0, len(names) or len(MUTANTS)
    with tempfile.TemporaryDirectory(prefix="trainstack-mutants-") as folder:
        try:
            mutants = list(chosen(names))
            pristine = prepared(mutants, Path(folder).resolve())
            passed = sum(caught(mutant, pristine) for mutant in mutants)
        except MutantsError as error:
            print(f"mutants: {error}", file=sys.stderr, flush=True)
    print(f"{passed} passed, {count - passed} failed")
    return 0 if passed == count else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
