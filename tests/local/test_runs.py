"""Runs on this machine with small commands in place of TensorFlow: how they start, restart, end and leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from settings import parse
from tests.conftest import LISTEN, alive, eventually
from tests.trainer.test_serve import save
from workloads import outcome, prepare
from workloads.local import ports, runs, supervisor
from workloads.local.plan import ROOT, RUNS, plan
from workloads.topology import MULTI_WORKER_MIRRORED, PARAMETER_SERVER

# What a task does, by its role: the usual shape of a parameter-server training without TensorFlow.
BY_ROLE = f"{LISTEN}; import sys, time; task = config['task']; name = task['type'] + '-' + str(task['index'])\n"
pytestmark = pytest.mark.process

FOREVER = "import time; time.sleep(600)"


class Lab:
    """Plans for a stack of the test's own."""

    def __init__(self) -> None:
        self.stack = f"test-{uuid.uuid4().hex[:8]}"

    def plan(self, code: str, name: str = "t", **changes: Any) -> dict[str, Any]:
        written = {"command": [sys.executable, "-c", BY_ROLE + code], "worker": {"replicas": 2}, "ps": {"replicas": 1}, **changes}
        return plan(self.stack, name, parse({"trainings": {name: written}}).trainings[name])

    def run(self, code: str, **changes: Any) -> Path:
        made = self.plan(code, **changes)
        runs.start(made, {})
        return ROOT / made["folder"]


def task(folder: Path, name: str) -> dict[str, Any]:
    return next(each for each in runs.read_status(folder)["tasks"] if each["name"] == name)


def wait(folder: Path, state: str, seconds: float = 30) -> dict[str, Any]:
    return eventually(
        lambda: (status := runs.read_status(folder))["state"] == state and status, seconds, f"not {state}: {runs.read_status(folder)}"
    )


def wait_for_task(folder: Path, name: str, seconds: float = 15, **values: Any) -> dict[str, Any]:
    what = f"{name} is not {values}: {runs.read_status(folder)}"
    return eventually(
        lambda: (now := task(folder, name)) and all(now[key] == value for key, value in values.items()) and now, seconds, what
    )


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    for folder in runs.folders(made.stack):
        runs.stop(folder)
        assert alive(folder) == []
    shutil.rmtree(RUNS / made.stack, ignore_errors=True)


def test_a_run_succeeds_with_its_chief_and_everything_ends(lab: Lab) -> None:
    folder = lab.run("time.sleep(1 if name == 'chief-0' else 600)")
    status = wait(folder, "succeeded")
    assert {each["name"]: each["state"] for each in status["tasks"]} == dict.fromkeys(
        ["chief-0", "worker-0", "worker-1", "ps-0"], "succeeded"
    )
    eventually(lambda: alive(folder) == [], 5, "processes are left")
    record = json.loads((folder / "logs" / "run.json").read_text())
    assert record["state"] == "succeeded"
    assert record["settings"]["worker"] == {"replicas": 2}
    assert "succeeded" in (folder / "SUMMARY.md").read_text()


def test_a_failing_task_is_started_again_and_counted_until_the_run_fails(lab: Lab) -> None:
    folder = lab.run("sys.exit('the disk is on fire') if name == 'ps-0' else time.sleep(600)", max_restarts=2)
    status = wait(folder, "failed")
    assert status["reason"] == "ps-0 is out of restarts: the disk is on fire"
    assert task(folder, "ps-0")["restarts"] == 2
    assert task(folder, "chief-0")["state"] == "stopped"
    eventually(lambda: alive(folder) == [], 5, "processes are left")


def test_exit_75_is_started_again_and_not_counted(lab: Lab) -> None:
    code = "marks = os.path.join(os.environ['TRAINSTACK_RUN'], 'marks'); open(marks, 'a').write('x')\nsys.exit(75 if os.path.getsize(marks) < 4 else 0)"
    folder = lab.run(code, strategy="mirrored", worker=None, ps=None, max_restarts=0)
    wait(folder, "succeeded")
    assert (folder / "marks").read_text() == "xxxx"
    assert task(folder, "worker-0")["restarts"] == 0


def test_exit_78_fails_the_run_at_once(lab: Lab) -> None:
    folder = lab.run("print('data_dir is empty'); sys.exit(78)", strategy="mirrored", worker=None, ps=None)
    assert wait(folder, "failed", 10)["reason"] == "worker-0 reported a configuration error: data_dir is empty"
    assert task(folder, "worker-0")["restarts"] == 0


def test_a_task_that_gave_up_is_not_started_again(lab: Lab) -> None:
    """The chief fails and is away for longer and longer; the server waits for it no longer than `peer_timeout`, and no second time."""
    folder = lab.run("sys.exit(1) if name == 'chief-0' else time.sleep(600)", worker={"replicas": 1}, peer_timeout="3s", max_restarts=1000)
    reason = wait(folder, "failed", 40)["reason"]
    assert re.fullmatch(r"(ps|worker)-0 gave up: a task that it needs was not there for 3 s; see tasks/(ps|worker)-0.log", reason)
    gave_up = task(folder, reason.split()[0])
    assert (gave_up["exit_code"], gave_up["restarts"], gave_up["state"]) == (outcome.GAVE_UP, 0, "failed")


def test_a_lost_worker_of_parameter_servers_is_only_reported(lab: Lab) -> None:
    folder = lab.run("time.sleep({'chief-0': 8, 'worker-1': 3}.get(name, 600)); sys.exit(name == 'worker-1')", max_restarts=0)
    wait_for_task(folder, "worker-1", state="failed")
    assert runs.read_status(folder)["state"] == "running"
    wait(folder, "succeeded")


def test_a_lost_worker_of_workers_that_train_together_ends_the_run(lab: Lab) -> None:
    folder = lab.run("sys.exit(1) if name == 'worker-1' else time.sleep(600)", strategy="multi_worker_mirrored", ps=None, max_restarts=0)
    assert "worker-1 is out of restarts" in wait(folder, "failed")["reason"]


def test_a_deadline_ends_the_run_as_failed(lab: Lab) -> None:
    folder = lab.run("time.sleep(600)", deadline="2s")
    assert "deadline of 2 s" in wait(folder, "failed", 20)["reason"]
    eventually(lambda: alive(folder) == [], 5, "processes are left")


def test_data_is_prepared_first(lab: Lab) -> None:
    prepare = [sys.executable, "-c", "import time, os; time.sleep(1); open(os.environ['TRAINSTACK_RUN'] + '/data', 'w').write('ready')"]
    code = "sys.exit(0 if os.path.exists(os.environ['TRAINSTACK_RUN'] + '/data') else 78)"
    folder = lab.run(code, strategy="mirrored", worker=None, ps=None, data_prep={"command": prepare})
    wait(folder, "succeeded")
    assert task(folder, "data-prep")["state"] == "succeeded"


def test_failed_preparation_starts_no_task(lab: Lab) -> None:
    folder = lab.run(
        "open(os.environ['TRAINSTACK_RUN'] + '/began', 'w')", data_prep={"command": [sys.executable, "-c", "raise SystemExit(5)"]}
    )
    assert wait(folder, "failed")["reason"] == "data_prep ended with 5; see tasks/data-prep.log"
    assert not (folder / "began").exists()


def test_preparation_has_a_deadline(lab: Lab) -> None:
    folder = lab.run("", data_prep={"command": [sys.executable, "-c", FOREVER], "deadline": "1s"})
    assert "data_prep took longer than its deadline of 1 s" in wait(folder, "failed")["reason"]


class TestDataIsPreparedOnce:
    """With a directory of its own; `count` in the run's folder has a letter for each preparation."""

    PREPARE = (sys.executable, "-c", "import os; open(os.environ['TRAINSTACK_RUN'] + '/count', 'a').write('x')")

    def run(self, lab: Lab, **changes: Any) -> Path:
        settings = {"strategy": "mirrored", "worker": None, "ps": None, "data_prep": {"command": list(self.PREPARE)}, **changes}
        folder = lab.run("", **settings)
        wait(folder, "succeeded")
        assert task(folder, "data-prep")["state"] == "succeeded"
        return folder

    def test_a_run_that_comes_back_finds_it(self, lab: Lab) -> None:
        volume = {"volumes": [{"claim": "data", "path": "/data"}], "data_dir": "/data/digits"}
        folder = self.run(lab, **volume)
        assert (folder / "volumes" / "data" / "digits" / prepare.MARKER).exists()
        runs.release(folder)  # make down
        assert self.run(lab, **volume) == folder
        assert (folder / "count").read_text() == "x"
        assert "is prepared already" in (folder / "tasks" / "data-prep.log").read_text()
        self.run(lab, **volume, **{"data_prep": {"command": [*self.PREPARE, "more"]}})
        assert (folder / "count").read_text() == "xx", "other inputs"

    def test_without_a_directory_it_is_prepared_every_time(self, lab: Lab) -> None:
        folder = self.run(lab)
        self.run(lab)
        assert (folder / "count").read_text() == "xx"

    def test_one_that_was_cancelled_is_prepared_again(self, lab: Lab, tmp_path: Path) -> None:
        slow = {"data_prep": {"command": [*self.PREPARE[:2], f"{self.PREPARE[2]}; import time; time.sleep(600)"]}}
        folder = lab.run("", strategy="mirrored", worker=None, ps=None, data_dir=str(tmp_path), **slow)
        eventually((folder / "count").exists, 15, "it is not prepared")
        runs.stop(folder)
        assert alive(folder) == []
        assert runs.read_status(folder)["state"] == "cancelled"
        assert list(tmp_path.iterdir()) == []


def test_stop_lets_tasks_save_first(lab: Lab) -> None:
    code = "import signal\nsignal.signal(15, lambda *_: (open(os.environ['TRAINSTACK_RUN'] + '/saved-' + name, 'w'), os._exit(75)))\nopen(os.environ['TRAINSTACK_RUN'] + '/up-' + name, 'w')\ntime.sleep(600)"
    folder = lab.run(code)
    eventually(lambda: len(list(folder.glob("up-*"))) == 4, 15, "the tasks do not run")
    runs.stop(folder)
    assert sorted(path.name for path in folder.glob("saved-*")) == ["saved-chief-0", "saved-ps-0", "saved-worker-0", "saved-worker-1"]
    assert runs.read_status(folder)["state"] == "cancelled"


def test_a_task_that_ignores_the_signal_is_ended_within_ten_seconds(lab: Lab) -> None:
    folder = lab.run(
        "import signal; signal.signal(15, signal.SIG_IGN); open(os.environ['TRAINSTACK_RUN'] + '/up-' + name, 'w'); time.sleep(600)"
    )
    eventually(lambda: len(list(folder.glob("up-*"))) == 4, 15, "the tasks do not run")
    began = time.monotonic()
    runs.stop(folder)
    assert time.monotonic() - began < 20
    assert alive(folder) == []


def test_stop_finds_everything_after_the_supervisor_was_killed(lab: Lab) -> None:
    """Children of the tasks too, and those that ignore signals."""
    folder = lab.run("import subprocess, signal; signal.signal(15, signal.SIG_IGN); subprocess.run(['sleep', '600'])")
    eventually(lambda: sum("sleep 600" in line for line in alive(folder)) == 4, 15, "the children do not run")
    psutil.Process(runs.read_status(folder)["pid"]).kill()
    assert eventually(lambda: runs.read_status(folder)["state"] == "vanished", 5, "it does not count as vanished")
    began = time.monotonic()
    runs.stop(folder)
    assert time.monotonic() - began < 20
    assert alive(folder) == []


def test_a_killed_launcher_leaves_no_task_that_would_hold_the_port(lab: Lab) -> None:
    folder = lab.run("import subprocess; subprocess.run(['sleep', '600'])")
    first = wait_for_task(folder, "ps-0", state="running")["pid"]
    eventually(lambda: len(list(runs.processes(folder, "ps-0"))) == 3, 10, "the child does not run")
    os.kill(first, signal.SIGKILL)
    again = eventually(
        lambda: (now := task(folder, "ps-0"))["restarts"] == 1 and now["state"] == "running" and now["pid"], 15, "it is not started again"
    )
    assert again != first
    eventually(lambda: len(list(runs.processes(folder, "ps-0"))) == 3, 5, "processes of the first one are left")


def test_a_stopped_launcher_is_killed_with_its_task_and_started_again(lab: Lab) -> None:
    """Nobody else can: it does not answer, and its task, stopped or not, would run on without it."""
    folder = lab.run("time.sleep(600)", max_restarts=0)
    first = wait_for_task(folder, "ps-0", state="running")["pid"]
    for process in runs.processes(folder, "ps-0"):
        process.suspend()
    again = eventually(lambda: (now := task(folder, "ps-0"))["pid"] not in (None, first) and now, 15, "it is not started again")
    assert (again["restarts"], again["exit_code"]) == (0, 75), "a stop from outside does not count"
    wait_for_task(folder, "ps-0", state="running")
    assert runs.read_status(folder)["state"] == "running"


def test_a_stopped_supervisor_is_told_of_and_can_be_ended(lab: Lab) -> None:
    folder = lab.run("time.sleep(600)")
    wait_for_task(folder, "ps-0", state="running")
    own = psutil.Process(runs.read_status(folder)["pid"])
    own.suspend()
    eventually(lambda: f"kill -CONT {own.pid}" in runs.read_status(folder)["reason"], 5, "it is not called stopped")
    own.resume()
    eventually(lambda: runs.read_status(folder)["reason"] == "", 5, "it is still called stopped")
    own.suspend()
    runs.stop(folder)
    assert alive(folder) == []
    assert runs.read_status(folder)["state"] == "cancelled"


STALLS = (
    "sign = lambda text: os.write(int(os.environ['TRAINSTACK_HEARTBEAT']), text)\nmark = os.environ['TRAINSTACK_RUN'] + '/starts-' + name\n"
    "open(mark, 'a').write('x'); starts = os.path.getsize(mark)\n"
)


def test_a_run_without_progress_is_started_again_once_and_then_fails_with_the_reason(lab: Lab) -> None:
    folder = lab.run(STALLS + "while True: sign(b'.'); time.sleep(0.2)", stall_timeout="2s")
    reason = wait(folder, "failed", 40)["reason"]
    assert reason.startswith("chief-0 made no progress for 2 s (stall_timeout), and again none after a new start; see tasks/chief-0.log")
    assert {path.name: path.read_text() for path in folder.glob("starts-*")} == {
        f"starts-{name}": "xx" for name in ("chief-0", "worker-0", "worker-1", "ps-0")
    }, "all tasks were started again"
    eventually(lambda: alive(folder) == [], 5, "processes are left")


@pytest.mark.parametrize(
    ("strategy", "name", "further", "delay"),
    [
        (MULTI_WORKER_MIRRORED, "worker-1", True, 0),
        (MULTI_WORKER_MIRRORED, "worker-1", False, 4),
        (PARAMETER_SERVER, "ps-0", True, 0),
        (PARAMETER_SERVER, "worker-1", True, 4),  # the others may have come further without it
    ],
)
def test_who_fails_soon_again_waits_longer_unless_the_training_came_further(
    lab: Lab, tmp_path: Path, strategy: str, name: str, further: bool, delay: float
) -> None:
    servers = {"ps": {"replicas": 1}} if strategy == PARAMETER_SERVER else {"ps": None}
    runs.write_whole(tmp_path / "plan.json", lab.plan("", strategy=strategy, **servers))
    made = supervisor.Supervisor(tmp_path, {})
    process = next(each for each in made.tasks if each.name == name)
    process.failures, process.started, made.came_further = 3, time.time() - 5, time.time() - (1 if further else 9)
    process.popen = cast(Any, SimpleNamespace(returncode=-signal.SIGKILL))
    made.handle_exit(process)
    assert process.start_at - time.time() == pytest.approx(delay, abs=1)


def test_progress_after_a_stall_makes_up_for_it(lab: Lab) -> None:
    """Twice stalled, with progress in between; the third start succeeds."""
    code = STALLS + (
        "if starts == 3: sys.exit(0)\nif starts == 2:\n    for _ in range(8): sign(b'+'); time.sleep(0.5)\n"
        "while True: sign(b'.'); time.sleep(0.2)"
    )
    folder = lab.run(code, strategy="mirrored", worker=None, ps=None, stall_timeout="2s")
    wait(folder, "succeeded", 60)
    assert task(folder, "worker-0")["restarts"] == 2, "a stall is counted"


def test_two_runs_side_by_side_have_ports_of_their_own(lab: Lab) -> None:
    code = "print(os.environ['TF_CONFIG'], flush=True); time.sleep(600)"
    folders = [lab.run(code, name=name) for name in ("one", "two")]
    used = []
    for folder in folders:
        wait_for_task(folder, "ps-0", state="running")
        log = folder / "tasks" / "ps-0.log"
        line = eventually(lambda log=log: [text for text in log.read_text().splitlines() if text.startswith("{")], 10, "no TF_CONFIG")[-1]
        used += [address for addresses in json.loads(line)["cluster"].values() for address in addresses]
    assert len(set(used)) == 8


def test_a_taken_port_is_passed_over(lab: Lab) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        folder = lab.run("time.sleep(1 if name == 'chief-0' else 600)", port=taken)
        wait(folder, "succeeded")


def test_a_port_that_somebody_took_meanwhile_moves_the_run(lab: Lab) -> None:
    """The task is down, its port is taken, and it comes back: the run goes on elsewhere instead of failing for ever."""
    code = (
        "port = int(json.loads(os.environ['TF_CONFIG'])['cluster']['ps'][0].split(':')[1])\nmark = os.environ['TRAINSTACK_RUN'] + '/ports'\n"
        "if name == 'ps-0': open(mark, 'a').write(f'{port}\\n')\ntime.sleep(600)"
    )
    folder = lab.run(code)
    first = int(eventually(lambda: (folder / "ports").exists() and (folder / "ports").read_text().split(), 15, "ps-0 does not run")[0])
    starts_again = psutil.Process(runs.read_status(folder)["pid"])
    starts_again.suspend()  # or it would be quicker than the thief
    runs.kill(folder, "ps-0")
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        eventually(lambda: _bind(thief, first), 5, "the port is not free")
        thief.listen()
        starts_again.resume()
        second = eventually(lambda: (folder / "ports").read_text().split()[1:], 20, "ps-0 does not come back")
        assert int(second[-1]) != first
        for name in ("chief-0", "worker-0", "worker-1", "ps-0"):
            wait_for_task(folder, name, state="running")


def _bind(thief: socket.socket, port: int) -> bool:
    try:
        thief.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


def test_secrets_reach_the_tasks_and_no_file(lab: Lab) -> None:
    made = lab.plan("assert os.environ['API_KEY'] == 'hunter' + '2'", strategy="mirrored", worker=None, ps=None)
    runs.start(made, {"API_KEY": "hunter2"})
    folder = ROOT / made["folder"]
    wait(folder, "succeeded")
    assert [path for path in folder.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()] == []


def test_what_pulumi_knows_is_not_told_to_the_tasks(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "hunter2")
    folder = lab.run("assert not [key for key in os.environ if key.startswith('PULUMI')]", strategy="mirrored", worker=None, ps=None)
    wait(folder, "succeeded")


def test_a_run_that_is_going_on_is_not_started_twice(lab: Lab) -> None:
    made = lab.plan("time.sleep(600)")
    runs.start(made, {})
    with pytest.raises(runs.RunError, match="going on already"):
        runs.start(made, {})


def test_a_second_supervisor_finds_the_run_taken(lab: Lab) -> None:
    folder = lab.run("time.sleep(600)")
    done = subprocess.run(
        [sys.executable, "-m", "workloads.local.supervisor", str(folder)], input="{}", cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "another supervisor has this run" in done.stdout
    assert runs.read_status(folder)["state"] == "running"


def test_the_status_file_is_always_whole(lab: Lab) -> None:
    folder = lab.run("time.sleep(0.2); sys.exit(75)", strategy="mirrored", worker=None, ps=None)
    until = time.monotonic() + 3
    reads = 0
    while time.monotonic() < until:
        assert json.loads((folder / "status.json").read_text())["tasks"]
        reads += 1
    assert reads > 20


def test_a_log_is_rotated(lab: Lab) -> None:
    folder = lab.run("print('x' * 1000, flush=True); time.sleep(600)", strategy="mirrored", worker=None, ps=None)
    log = folder / "tasks" / "worker-0.log"
    eventually(lambda: log.exists() and log.read_bytes().endswith(b"x\n"), 15, "the task writes nothing")
    with log.open("ab") as handle:
        handle.truncate(supervisor.LOG_BYTES + 1)
    eventually(lambda: log.with_suffix(".log.1").exists() and log.stat().st_size < 1000, 10, "the log is not rotated")


def test_tensorboard_stays_after_the_run_and_goes_with_it(lab: Lab) -> None:
    folder = lab.run("time.sleep(0.1)", strategy="mirrored", worker=None, ps=None, tensorboard={"keep": "1h"})
    url = wait(folder, "succeeded")["tensorboard"]
    import urllib.request

    def page() -> bytes:
        try:
            return urllib.request.urlopen(url, timeout=2).read()
        except OSError:
            return b""

    assert b"TensorBoard" in eventually(page, 40, "TensorBoard does not answer")
    runs.stop(folder)
    assert alive(folder) == []
    assert runs.read_status(folder)["state"] == "succeeded"


@pytest.mark.tensorflow
class TestTheModelIsServed:
    """After a run that has succeeded, by one process that comes and goes with the run's supervisor."""

    def run(self, lab: Lab, tmp_path: Path, code: str = "", **changes: Any) -> Path:
        """The command has nothing to do: the model is there already."""
        save(tmp_path / "1" / "5")
        return lab.run(code, strategy="mirrored", worker=None, ps=None, model_dir=str(tmp_path), serving={"replicas": 2}, **changes)

    def answers(self, url: str) -> Any:
        try:
            with urllib.request.urlopen(f"{url}:predict", b'{"instances": [3]}', timeout=10) as answer:
                return json.load(answer)
        except OSError:
            return None

    @pytest.mark.full
    def test_it_comes_after_the_run_is_started_again_and_goes_with_it(self, lab: Lab, tmp_path: Path) -> None:
        code = "while not os.path.exists(os.environ['TRAINSTACK_RUN'] + '/go'): time.sleep(0.1)"
        folder = self.run(lab, tmp_path, code)
        wait_for_task(folder, "worker-0", state="running")
        assert task(folder, "serving")["state"] == "pending", "not while it trains"
        (folder / "go").touch()
        url = wait(folder, "succeeded")["serving"]
        assert re.fullmatch(r"http://127.0.0.1:\d+/v1/models/t", url)
        first = wait_for_task(folder, "serving", 30, state="running")
        assert self.answers(url) == {"predictions": [6.0]}
        os.kill(first["pid"], signal.SIGKILL)
        again = wait_for_task(folder, "serving", 30, state="running", restarts=1)
        assert again["pid"] != first["pid"]
        assert self.answers(runs.read_status(folder)["serving"]) == {"predictions": [6.0]}
        assert runs.read_status(folder)["state"] == "succeeded"
        began = time.monotonic()
        runs.stop(folder)
        assert time.monotonic() - began < 10
        assert alive(folder) == []
        assert runs.read_status(folder)["serving"] is None
        assert runs.read_status(folder)["state"] == "succeeded"

    def test_it_goes_with_a_supervisor_that_was_killed_and_comes_with_the_next(self, lab: Lab, tmp_path: Path) -> None:
        folder = self.run(lab, tmp_path, tensorboard={"keep": "1s"})
        wait_for_task(folder, "serving", 30, state="running")
        wait_for_task(folder, "tensorboard", 30, state="stopped")  # its time is over, the server's is not
        assert task(folder, "serving")["state"] == "running"
        psutil.Process(runs.read_status(folder)["pid"]).kill()
        eventually(lambda: alive(folder) == [], 10, "the server outlives its supervisor")
        status = runs.read_status(folder)
        assert (status["state"], status["serving"]) == ("succeeded", None)
        runs.start(runs.read_plan(folder), {})  # trainstack rerun
        wait(folder, "succeeded")
        wait_for_task(folder, "serving", 30, state="running")
        assert self.answers(runs.read_status(folder)["serving"]) == {"predictions": [6.0]}

    def test_a_run_that_failed_serves_nothing(self, lab: Lab, tmp_path: Path) -> None:
        folder = self.run(lab, tmp_path, "sys.exit(78)")
        assert wait(folder, "failed")["serving"] is None
        assert task(folder, "serving")["state"] == "stopped"
        eventually(lambda: alive(folder) == [], 5, "processes are left")


def test_a_server_that_cannot_run_is_given_up(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies as soon as it is started: a few times, and then the supervisor waits for it no longer."""
    made = lab.plan("", strategy="mirrored", worker=None, ps=None, serving={})
    folder = ROOT / made["folder"]
    (folder / "tasks").mkdir(parents=True)
    runs.write_whole(folder / "plan.json", made)
    alone = supervisor.Supervisor(folder, {})
    alone.choose_ports()
    launch = alone.launch
    monkeypatch.setattr(alone, "launch", lambda process, _, environment: launch(process, ["false"], environment))
    monkeypatch.setattr(alone, "save_status", lambda: None)  # it would name this process, which nobody should end
    monkeypatch.setattr(supervisor, "AFTERWARDS", 0.05)
    alone.start_serving()
    alone.stay()
    shown = alone.status()["tasks"][-1]
    assert (shown["name"], shown["state"], shown["restarts"]) == ("serving", "failed", supervisor.HELPERS_RESTARTS)
    assert "see tasks/serving.log" in shown["detail"]


def test_ports_are_promised_to_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "table", lambda: tmp_path / "ports.json")
    mine = ports.reserve(["a", "b"], 40000, os.getpid())
    theirs = ports.reserve(["c"], 40000, os.getppid())
    assert len({*mine.values(), *theirs.values()}) == 3
    assert abs(mine["a"] - mine["b"]) >= 2, "each has two neighbouring ports"
    again = ports.reserve(["d"], 40000, os.getpid())
    assert again["d"] == mine["a"], "what an owner no longer uses is free"
