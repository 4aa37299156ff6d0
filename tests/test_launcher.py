"""The launcher alone, with small commands in place of TensorFlow: real processes, real ports."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import LISTEN, eventually
from workloads import launcher
from workloads.local import ports
from workloads.topology import Task, Topology, cluster_dns, condensed, dns_pattern, encode, loopback, tf_config

pytestmark = pytest.mark.process

SERVERS = Topology(chief=1, worker=1, ps=1, evaluator=1)
TOGETHER = Topology(worker=2)
FOREVER = "import time; time.sleep(600)"
SIGNS = "import os; sign = lambda text: os.write(int(os.environ['TRAINSTACK_HEARTBEAT']), text); "  # for commands that give signs of life
READY = "print('ready', file=sys.stderr, flush=True)"  # for commands whose handlers a test waits for


class Crew:
    """The tasks of a topology, each started when the test says so."""

    def __init__(self, topology: Topology, folder: Path) -> None:
        self.topology, self.folder = topology, folder
        self.ports = ports.reserve([task.name for task in topology.tasks()], 24000, os.getpid())
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, code: str, *options: str, through: list[str] | None = None) -> subprocess.Popen[bytes]:
        role, index = name.split("-")
        task = Task(role, int(index))
        if role == "evaluator":
            options = (*options, "--lead", f"{self.topology.lead.name}@127.0.0.1:{self.ports[self.topology.lead.name] + 1}")
        command = [sys.executable, launcher.__file__, *options, "--", *(through or [sys.executable, "-c", code])]
        env = {**os.environ, "TF_CONFIG": encode(tf_config(self.topology, task, loopback(self.ports)))}
        process = subprocess.Popen(command, env=env, stderr=self.log(name).open("wb"), stdout=subprocess.DEVNULL)
        self.running.append(process)
        return process

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def says(self, name: str) -> dict[str, object] | None:
        return launcher.ask(("127.0.0.1", self.ports[name] + 1))

    def wait_until_running(self, name: str) -> None:
        eventually(lambda: (self.says(name) or {}).get("state") == "running", 10, f"{name} does not run")

    def wait_until_ready(self, name: str) -> None:
        eventually(lambda: "ready" in self.log(name).read_text(), 10, f"{name} is not ready")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Crew]:
    yield from crew(SERVERS, tmp_path)


@pytest.fixture
def together(tmp_path: Path) -> Iterator[Crew]:
    yield from crew(TOGETHER, tmp_path)


def crew(topology: Topology, folder: Path) -> Iterator[Crew]:
    made = Crew(topology, folder)
    yield made
    for process in made.running:
        if process.poll() is None:
            process.terminate()
            process.wait(40)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Without warning, with what it started."""
    for each in [*psutil.Process(process.pid).children(), process]:
        each.kill()
    process.wait()


def test_the_chief_waits_for_every_peer_and_says_for_whom(servers: Crew) -> None:
    began = servers.folder / "began"
    chief = servers.start("chief-0", f"open({str(began)!r}, 'w')")
    servers.start("ps-0", FOREVER)
    eventually(lambda: (servers.says("chief-0") or {}).get("waiting_for") == "worker-0", 10, "the chief does not say whom it waits for")
    assert "waiting for " in servers.log("chief-0").read_text()
    assert not began.exists()
    servers.start("worker-0", FOREVER)
    assert chief.wait(40) == 0
    assert began.exists()


def test_the_chief_of_a_command_waits_for_the_servers_too(servers: Crew) -> None:
    """Their launchers are there long before TensorFlow is loaded."""
    slow = f"import time; time.sleep(4); {LISTEN}; time.sleep(600)"
    servers.start("ps-0", slow)
    servers.start("worker-0", slow)
    chief = servers.start("chief-0", "import time; time.sleep(0.1)", "--wait-for-servers")
    servers.wait_until_running("worker-0")
    time.sleep(0.5)
    assert (servers.says("chief-0") or {})["state"] == "waiting"
    assert chief.wait(40) == 0


def test_servers_and_evaluator_end_with_success_when_the_chief_is_done(servers: Crew) -> None:
    others = [servers.start(name, FOREVER) for name in ("ps-0", "worker-0")]
    evaluator = servers.start("evaluator-0", "import time; time.sleep(2)")
    chief = servers.start("chief-0", "import time; time.sleep(1)")
    assert [process.wait(40) for process in (chief, *others)] == [0, 0, 0]
    assert evaluator.wait(40) == 0


def test_a_server_does_not_wait_for_a_worker_that_never_comes(servers: Crew) -> None:
    servers.start("ps-0", FOREVER)
    servers.wait_until_running("ps-0")


def test_a_failed_chief_does_not_end_the_servers(servers: Crew) -> None:
    ps, worker = servers.start("ps-0", FOREVER), servers.start("worker-0", FOREVER)
    assert servers.start("chief-0", "raise SystemExit(3)").wait(40) == 3
    time.sleep(3 * launcher.ASK_EVERY)
    assert (ps.poll(), worker.poll()) == (None, None)


def test_a_configuration_error_of_the_chief_ends_everybody_as_one(servers: Crew) -> None:
    ps, worker = servers.start("ps-0", FOREVER), servers.start("worker-0", FOREVER)
    assert servers.start("chief-0", "raise SystemExit(78)").wait(40) == 78
    assert [process.wait(40) for process in (ps, worker)] == [78, 78]


def test_without_the_chief_for_the_peer_timeout_a_task_gives_up(servers: Crew) -> None:
    ps = servers.start("ps-0", FOREVER, "--peer-timeout", "2")
    assert ps.wait(40) == launcher.GAVE_UP
    assert "chief-0 has not answered for 2 s" in servers.log("ps-0").read_text()


def test_waiting_for_a_peer_has_an_end(servers: Crew) -> None:
    assert servers.start("chief-0", FOREVER, "--peer-timeout", "1").wait(40) == launcher.GAVE_UP
    assert "gave up" in servers.log("chief-0").read_text()


def test_sigterm_reaches_the_command_and_means_try_again(together: Crew) -> None:
    saved = together.folder / "saved"
    code = f"import signal, sys, time; signal.signal(15, lambda *_: (open({str(saved)!r}, 'w'), sys.exit(75))); {READY}; time.sleep(600)"
    first, second = together.start("worker-0", code), together.start("worker-1", FOREVER)
    together.wait_until_ready("worker-0")
    first.send_signal(signal.SIGTERM)
    second.send_signal(signal.SIGTERM)
    assert first.wait(40) == 75
    assert saved.exists()
    assert second.wait(40) == 75, "a command that dies of the signal counts as told to stop, too"


def test_a_server_that_is_told_to_stop_outlives_the_chief_that_saves(servers: Crew) -> None:
    saving = f"import signal, sys, time; signal.signal(15, lambda *_: (time.sleep(3), sys.exit(75))); {READY}; time.sleep(600)"
    ps, worker = servers.start("ps-0", FOREVER), servers.start("worker-0", FOREVER)
    chief = servers.start("chief-0", saving)
    servers.wait_until_ready("chief-0")
    for process in (ps, worker, chief):
        process.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert [process.poll() for process in (ps, worker, chief)] == [None, None, None]
    assert [process.wait(40) for process in (chief, ps, worker)] == [75, 75, 75]


def test_a_command_that_starts_another_leaves_nothing(servers: Crew) -> None:
    mark = str(servers.folder / "child")
    shell = f"{sys.executable} -c 'import time; time.sleep(600)' {mark} & wait"
    ps = servers.start("ps-0", "", through=["sh", "-c", shell])
    servers.wait_until_running("ps-0")
    pgrep = lambda: subprocess.run(["pgrep", "-f", f"sleep.600.. {mark}"], capture_output=True).stdout
    eventually(pgrep, 5, "the child did not start")
    ps.send_signal(signal.SIGTERM)
    assert ps.wait(40) == 75
    assert not pgrep()


def test_a_lost_peer_is_not_this_tasks_fault(together: Crew) -> None:
    """Workers that train together fail together; only the first of them is to blame."""
    first = together.start("worker-0", "import time; time.sleep(3); raise SystemExit(1)")
    second = together.start("worker-1", FOREVER)
    for name in ("worker-0", "worker-1"):
        together.wait_until_running(name)
    kill(second)
    assert first.wait(40) == 75


def test_of_two_that_fail_together_one_is_to_blame(together: Crew) -> None:
    failing = "import time; time.sleep(1); raise SystemExit(1)"
    both = [together.start(name, failing) for name in ("worker-0", "worker-1")]
    assert sorted(process.wait(40) for process in both) == [1, 75]


def test_a_worker_that_fails_because_the_lead_is_done_has_succeeded(together: Crew) -> None:
    lead = together.start("worker-0", "import time; time.sleep(1)")
    other = together.start("worker-1", "import time; time.sleep(1.6); raise SystemExit(1)")
    assert (lead.wait(40), other.wait(40)) == (0, 0)


def test_a_worker_that_is_done_waits_for_the_leads_word(together: Crew) -> None:
    lead = together.start("worker-0", "import time; time.sleep(4)")
    other = together.start("worker-1", "")
    together.wait_until_running("worker-0")
    time.sleep(2)
    assert other.poll() is None, "a lead that has to begin again needs it"
    assert (lead.wait(40), other.wait(40)) == (0, 0)


@pytest.mark.parametrize("lost", ["it fails", "it vanishes"])
def test_a_worker_that_is_done_begins_again_with_the_lead(together: Crew, lost: str) -> None:
    """As when the other's last word was cut off by this one's end."""
    lead = together.start("worker-0", FOREVER if lost == "it vanishes" else "import time; time.sleep(3); raise SystemExit(75)")
    other = together.start("worker-1", "")
    eventually(lambda: (together.says("worker-1") or {}).get("done_with"), 10, "the worker is not done")
    kill(lead) if lost == "it vanishes" else lead.wait(40)
    together.start("worker-0", FOREVER)
    assert other.wait(40) == 75
    assert "worker-0 has to begin again" in together.log("worker-1").read_text()
    assert (together.says("worker-0") or {})["state"] == "waiting", "the lead does not begin before its worker does"
    together.start("worker-1", FOREVER)
    together.wait_until_running("worker-0")


@pytest.mark.parametrize(("ends", "code"), [("raise SystemExit(78)", 78), ("time.sleep(600)", launcher.GAVE_UP)])
def test_a_worker_that_is_done_fails_with_the_run(together: Crew, ends: str, code: int) -> None:
    lead = together.start("worker-0", f"import time; time.sleep(2); {ends}")
    other = together.start("worker-1", "", "--peer-timeout", "3")
    together.wait_until_running("worker-0")
    if code == launcher.GAVE_UP:
        kill(lead)
    assert other.wait(40) == code


def test_without_its_supervisor_a_task_ends(together: Crew) -> None:
    inner = json.dumps([sys.executable, launcher.__file__, "--watch-parent", "--", sys.executable, "-c", FOREVER])
    env = {
        **os.environ,
        "TF_CONFIG": encode(tf_config(Topology(worker=1), Task("worker", 0), loopback({"worker-0": together.ports["worker-0"]}))),
    }
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, json; subprocess.run(json.loads({inner!r}))"], env=env, stderr=subprocess.DEVNULL
    )
    together.wait_until_running("worker-0")
    parent.kill()
    eventually(lambda: together.says("worker-0") is None, 10, "the task outlived its supervisor")


@pytest.mark.parametrize("config", [None, "not json", "{}", '{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}'])
def test_a_broken_tf_config_is_a_configuration_error(config: str | None) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"} | ({"TF_CONFIG": config} if config else {})
    done = subprocess.run([sys.executable, launcher.__file__, "--", "true"], env=env, capture_output=True, text=True)
    assert done.returncode == 78
    assert "TF_CONFIG is missing or malformed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_that_does_not_exist_is_a_configuration_error(servers: Crew) -> None:
    assert servers.start("ps-0", "", through=["no-such-command"]).wait(40) == 78
    assert "'no-such-command' cannot be started (No such file or directory)" in servers.log("ps-0").read_text()


def test_a_command_that_may_not_be_run_is_a_configuration_error(servers: Crew) -> None:
    script = servers.folder / "script"
    script.write_text("echo hello")
    assert servers.start("ps-0", "", through=[str(script)]).wait(40) == 78
    assert "Traceback" not in servers.log("ps-0").read_text()


def test_a_command_is_told_to_stop_once(together: Crew) -> None:
    """A second SIGTERM would interrupt it while it saves."""
    heard = together.folder / "heard"
    code = f"import signal, sys, time\ndef save(*_):\n    open({str(heard)!r}, 'a').write('x')\n    time.sleep(1)\n    sys.exit(75)\nsignal.signal(15, save)\n{READY}\ntime.sleep(600)"
    first, _ = together.start("worker-0", code), together.start("worker-1", FOREVER)
    together.wait_until_ready("worker-0")
    first.send_signal(signal.SIGTERM)
    assert first.wait(40) == 75
    assert heard.read_text() == "x"


@pytest.mark.parametrize(
    ("returned", "flags", "code"),
    [
        (0, {}, 0),
        (1, {}, 1),
        (-9, {}, 137),
        (-15, {"stopped": True}, 75),
        (1, {"peer_lost": True}, 75),
        (78, {"peer_lost": True}, 78),
        (78, {"stopped": True}, 78),
        (1, {"lead_succeeded": True}, 0),
        (-9, {"lead_succeeded": True, "stopped": True}, 0),
    ],
)
def test_exit_codes(returned: int, flags: dict[str, bool], code: int) -> None:
    assert launcher.exit_code(returned, **{"stopped": False, "lead_succeeded": False, "peer_lost": False, **flags}) == code


def test_a_worker_that_starts_after_the_end_ends_with_success(servers: Crew) -> None:
    """The chief stays for it, as long as it is allowed to."""
    ps, worker = servers.start("ps-0", FOREVER), servers.start("worker-0", FOREVER)
    chief = servers.start("chief-0", "import time; time.sleep(2)", "--farewell", "60")
    servers.wait_until_running("chief-0")
    kill(worker)
    assert ps.wait(40) == 0
    assert chief.poll() is None
    assert servers.start("worker-0", FOREVER).wait(40) == 0
    assert chief.wait(40) == 0


def test_a_worker_that_trained_with_the_others_and_comes_late_ends_with_success(tmp_path: Path) -> None:
    for three in crew(Topology(worker=3), tmp_path):
        lead = three.start("worker-0", "import time; time.sleep(2)", "--farewell", "60")
        others = [three.start(name, "import time; time.sleep(2)") for name in ("worker-1", "worker-2")]
        three.wait_until_running("worker-0")
        kill(others[0])
        assert others[1].wait(40) == 0
        assert three.start("worker-1", FOREVER).wait(40) == 0, "though worker-2, for which it would wait, is gone"
        assert lead.wait(40) == 0


def test_who_has_been_named_is_told_of_the_end(servers: Crew) -> None:
    for name in ("ps-0", "worker-0"):
        servers.start(name, FOREVER)
    chief = servers.start("chief-0", "", "--tell", "evaluator-0", "--farewell", "60")
    eventually(lambda: (servers.says("chief-0") or {}).get("state") == "succeeded", 10, "the chief is not done")
    time.sleep(1)
    assert chief.poll() is None
    assert servers.start("evaluator-0", "").wait(40) == 0
    assert chief.wait(40) == 0


def test_a_chief_without_workers_gives_up_and_so_does_everybody(servers: Crew) -> None:
    ps, worker = servers.start("ps-0", FOREVER), servers.start("worker-0", FOREVER)
    chief = servers.start("chief-0", FOREVER, "--peer-timeout", "3", "--farewell", "5")
    servers.wait_until_running("chief-0")
    time.sleep(3)
    assert chief.poll() is None, "while its worker asks, it is not alone"
    kill(worker)
    assert (chief.wait(40), ps.wait(40)) == (launcher.GAVE_UP, launcher.GAVE_UP)
    assert "nothing has been heard of any worker for 3 s" in servers.log("chief-0").read_text()


def test_a_chief_without_a_parameter_server_gives_up(servers: Crew) -> None:
    """Also one whose command does not notice."""
    ps, worker = servers.start("ps-0", FOREVER), servers.start("worker-0", FOREVER)
    chief = servers.start("chief-0", FOREVER, "--peer-timeout", "3")
    servers.wait_until_running("chief-0")
    kill(ps)
    assert (chief.wait(40), worker.wait(40)) == (launcher.GAVE_UP, launcher.GAVE_UP)
    assert "nothing has been heard of ps-0 for 3 s" in servers.log("chief-0").read_text()


def test_tasks_of_another_revision_do_not_find_each_other(servers: Crew) -> None:
    servers.start("ps-0", FOREVER, "--revision", "old")
    worker = servers.start("worker-0", FOREVER, "--revision", "new", "--peer-timeout", "4")
    began = servers.folder / "began"
    chief = servers.start("chief-0", f"open({str(began)!r}, 'w')", "--revision", "old", "--peer-timeout", "2")
    assert chief.wait(40) == launcher.GAVE_UP
    assert "waiting 2 s for worker-0" in servers.log("chief-0").read_text()
    assert not began.exists()
    assert worker.wait(40) == launcher.GAVE_UP
    assert "chief-0 has not answered" in servers.log("worker-0").read_text()


def test_an_address_that_leads_to_another_task_is_nobody(servers: Crew) -> None:
    ps = servers.start("ps-0", FOREVER, "--lead", f"chief-0@127.0.0.1:{servers.ports['worker-0'] + 1}", "--peer-timeout", "2")
    servers.start("worker-0", FOREVER)
    assert ps.wait(40) == launcher.GAVE_UP


def test_a_server_stays_for_as_long_as_the_chief_saves(servers: Crew) -> None:
    saving = f"import signal, sys, time; signal.signal(15, lambda *_: (time.sleep(8), sys.exit(75))); {READY}; time.sleep(600)"
    ps = servers.start("ps-0", FOREVER, "--grace", "60")
    servers.start("worker-0", FOREVER)
    chief = servers.start("chief-0", saving, "--grace", "60")
    servers.wait_until_ready("chief-0")
    for process in (ps, chief):
        process.send_signal(signal.SIGTERM)
    time.sleep(launcher.DEFER + 2)
    assert ps.poll() is None
    assert (chief.wait(40), ps.wait(40)) == (75, 75)


def test_a_server_alone_leaves_soon(servers: Crew) -> None:
    """The chief goes on and will not save now, whatever time there is."""
    ps = servers.start("ps-0", FOREVER, "--grace", "600")
    servers.start("worker-0", FOREVER)
    servers.start("chief-0", FOREVER)
    servers.wait_until_running("chief-0")
    ps.send_signal(signal.SIGTERM)
    assert ps.wait(40) == 75


@pytest.mark.parametrize("ends", ["", "raise SystemExit(78)"])
def test_what_is_beside_the_tasks_goes_on_for_a_while_and_ends_with_success(together: Crew, ends: str) -> None:
    ends = f"import time; time.sleep(1); {ends}"  # what trains together cannot be done before the others have begun
    together.start("worker-1", ends)
    together.start("worker-0", ends, "--tell", "tensorboard", "--farewell", "20")
    lead = f"worker-0@127.0.0.1:{together.ports['worker-0'] + 1}"
    started = time.monotonic()
    beside = together.start("worker-1", FOREVER, "--beside", "tensorboard", "--lead", lead, "--linger", "4")
    assert beside.wait(40) == 0
    assert time.monotonic() - started > 4


@pytest.mark.parametrize("workers", [2, 4096])
def test_a_cluster_in_a_few_words_becomes_a_tf_config(tmp_path: Path, workers: int) -> None:
    """Also one that no environment variable can hold."""
    topology = Topology(worker=workers, ps=2)
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(condensed(topology, dns_pattern("a-training", "a-namespace", 20000 + workers))))
    config = launcher.written_out(json.loads(file.read_text()), "worker", 1)
    assert config == tf_config(topology, Task("worker", 1), cluster_dns("a-training", "a-namespace", 20000 + workers))
    seen = tmp_path / "seen"
    code = f"import os, pathlib; pathlib.Path({str(seen)!r}).write_text(os.environ['TF_CONFIG'])"
    command = [sys.executable, launcher.__file__, "--cluster", str(file), "--task", "worker-1", "--peer-timeout", "1"]
    environment = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
    subprocess.run([*command, "--", sys.executable, "-c", code], env=environment, capture_output=True, timeout=40)
    assert json.loads(seen.read_text()) == config
    assert (len(seen.read_text()) > launcher.LONGEST) == (workers == 4096)


def test_who_asks_has_been_told_only_when_the_answer_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lead leaves when everybody has been told: an answer that is still being written would be lost with it."""
    state = launcher.State("chief-0", exit_code=0)
    told_while_writing: list[bool] = []
    original = launcher.State.answer

    def answer(self: launcher.State) -> bytes:
        told_while_writing.append("worker-0" in self.told)
        return original(self)

    monkeypatch.setattr(launcher.State, "answer", answer)
    port = ports.reserve(["chief-0"], 25000, os.getpid())["chief-0"]
    launcher.serve(state, ("127.0.0.1", port))
    assert (launcher.ask(("127.0.0.1", port), {"from": "worker-0"}) or {})["exit_code"] == 0
    eventually(lambda: "worker-0" in state.told, 5, "it has been told")
    assert told_while_writing == [False]


def test_who_is_killed_while_asking_leaves_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    port = ports.reserve(["chief-0"], 25000, os.getpid())["chief-0"]
    launcher.serve(launcher.State("chief-0"), ("127.0.0.1", port))
    before = threading.active_count()
    with socket.create_connection(("127.0.0.1", port)) as killed:
        killed.sendall(b"GET /?from=wor")
        eventually(lambda: threading.active_count() > before, 5, "nobody listens")
        killed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # as the system of a lost machine would end it
    eventually(lambda: threading.active_count() == before, 5, "it still waits for the rest of the question")
    assert capsys.readouterr().err == ""


def test_with_many_tasks_each_asks_less_often() -> None:
    few, many = (launcher.place_of(tf_config(Topology(1, count, 1), Task("worker", 0), cluster_dns("a", "b", 1))) for count in (4, 4096))
    assert few.ask_every == launcher.ASK_EVERY
    assert 4096 / many.ask_every <= launcher.QUESTIONS + 1


def test_it_needs_nothing_but_the_standard_library() -> None:
    done = subprocess.run([sys.executable, "-I", "-S", launcher.__file__, "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "TF_CONFIG" in done.stdout


class TestWhatHangs:
    """A command that is stopped, not dead, or gives no more signs, is killed and begins again; a machine that slept is not mistaken for that."""

    def test_a_stopped_command_is_killed_and_it_is_not_its_fault(self, servers: Crew) -> None:
        ps = servers.start("ps-0", FOREVER)
        servers.wait_until_running("ps-0")
        psutil.Process(ps.pid).children()[0].suspend()
        began = time.monotonic()
        assert ps.wait(40) == 75
        assert time.monotonic() - began < 10
        assert "the command has been stopped for 5 s; it is killed" in servers.log("ps-0").read_text()

    def test_what_the_command_has_started_counts_too(self, servers: Crew) -> None:
        shell = f"{sys.executable} -c 'import time; time.sleep(600)' & wait"
        ps = servers.start("ps-0", "", through=["sh", "-c", shell])
        inner = eventually(lambda: psutil.Process(ps.pid).children(recursive=True)[1:], 5, "the child did not start")[0]
        inner.suspend()
        assert ps.wait(40) == 75
        eventually(lambda: not inner.is_running() or inner.status() == psutil.STATUS_ZOMBIE, 5, "it is still there")

    def test_a_short_stop_is_left_alone(self, servers: Crew) -> None:
        ps = servers.start("ps-0", FOREVER)
        servers.wait_until_running("ps-0")
        child = psutil.Process(ps.pid).children()[0]
        for _ in range(2):
            child.suspend()
            time.sleep(3)
            child.resume()
            time.sleep(2)
        assert ps.poll() is None

    def test_a_command_that_is_stopped_again_and_again_is_slow_and_left_alone(self, servers: Crew) -> None:
        ps = servers.start("ps-0", FOREVER)
        servers.wait_until_running("ps-0")
        child = psutil.Process(ps.pid).children()[0]
        until = time.monotonic() + launcher.STOPPED + 4
        while time.monotonic() < until:
            child.suspend()
            time.sleep(0.98)
            child.resume()
            time.sleep(0.02)
        assert ps.poll() is None

    def test_a_launcher_that_was_stopped_with_its_command_does_not_blame_the_command(self, servers: Crew) -> None:
        """As a laptop that slept: both wake, and the command runs a moment after its launcher."""
        ps = servers.start("ps-0", FOREVER)
        servers.wait_until_running("ps-0")
        child, own = psutil.Process(ps.pid).children()[0], psutil.Process(ps.pid)
        child.suspend()
        own.suspend()
        time.sleep(launcher.STOPPED + 2)
        own.resume()
        time.sleep(1.5)
        child.resume()
        time.sleep(2)
        assert ps.poll() is None

    def test_a_chief_that_does_not_notice_a_new_server_begins_again(self, servers: Crew) -> None:
        """TensorFlow may try for a minute to reach what is gone. A worker that begins again concerns nobody."""
        ps, worker = servers.start("ps-0", FOREVER), servers.start("worker-0", FOREVER)
        chief = servers.start("chief-0", FOREVER)
        servers.wait_until_running("chief-0")
        kill(worker)
        servers.start("worker-0", FOREVER)
        time.sleep(launcher.REPLACED + 3)
        assert chief.poll() is None
        kill(ps)
        servers.start("ps-0", FOREVER)
        assert chief.wait(40) == 75
        assert "ps-0 has begun again, without what it held" in servers.log("chief-0").read_text()

    def test_a_lead_that_comes_no_further_ends_and_all_begin_again(self, servers: Crew) -> None:
        others = [servers.start(name, FOREVER) for name in ("ps-0", "worker-0", "evaluator-0")]
        code = f"{SIGNS}import time\nfor _ in range(3): sign(b'+'); time.sleep(1.5)\nwhile True: sign(b'.'); time.sleep(0.2)"
        began = time.monotonic()
        chief = servers.start("chief-0", code, "--stall-timeout", "3")
        eventually(lambda: (servers.says("chief-0") or {}).get("progress") == 3, 10, "progress is not heard of")
        assert chief.wait(40) == launcher.STALLED
        assert time.monotonic() - began > 6, "not while it came further"
        assert [process.wait(40) for process in others] == [75, 75, 75]
        assert "the training has come no further for 3 s" in servers.log("chief-0").read_text()

    def test_a_command_that_gives_no_signs_is_never_called_stalled(self, together: Crew) -> None:
        second = together.start("worker-1", FOREVER, "--stall-timeout", "1")
        first = together.start("worker-0", "import time; time.sleep(5)", "--stall-timeout", "1")
        assert first.wait(40) == 0
        assert second.wait(40) == 0

    def test_only_a_launcher_can_say_that_it_stalled(self) -> None:
        assert launcher.exit_code(launcher.STALLED, stopped=False, lead_succeeded=False, peer_lost=False) == 1


class TestPatience:
    """In time that the looking process was awake."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [100.0]
        monkeypatch.setattr(launcher.time, "monotonic", lambda: now[0])
        return now

    def looks(self, clock: list[float], patience: launcher.Patience, *times: tuple[float, bool]) -> list[bool]:
        answers = []
        for at, fine in times:
            clock[0] = 100 + at
            answers.append(patience.is_over(fine))
        return answers

    def test_it_ends_when_something_was_wrong_all_the_time(self, clock: list[float]) -> None:
        wrong = [(float(second), False) for second in range(1, 7)]
        assert self.looks(clock, launcher.Patience(5), *wrong) == [False] * 5 + [True]

    def test_a_moment_in_between_begins_it_anew(self, clock: list[float]) -> None:
        looks = [(float(second), second == 4) for second in range(1, 11)]
        assert self.looks(clock, launcher.Patience(5), *looks) == [False] * 9 + [True]

    def test_after_a_sleep_it_begins_anew(self, clock: list[float]) -> None:
        assert self.looks(clock, launcher.Patience(5), (1, False), (2, False), (3600, False), (3602, False)) == [False] * 4

    def test_a_sign_of_life_must_be_followed_by_others(self, clock: list[float]) -> None:
        signs, written = os.pipe()
        life = launcher.Life(os.getpid(), signs, None)
        for _ in range(100):
            clock[0] += 2
            assert life.look() == "", "it has never given one"
        os.write(written, b".")
        assert life.look() == ""
        found = []
        while not found or not found[-1]:
            clock[0] += 2
            found.append(life.look())
        assert found[-1] == "silent"
        assert launcher.SILENT < 2 * len(found) < launcher.SILENT + 5
        os.close(signs)
        os.close(written)
