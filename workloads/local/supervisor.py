"""Runs the tasks of one training on this machine, from the first to the last: `python -m workloads.local.supervisor FOLDER`.

It prepares the data, starts every task through the launcher, starts again what ends too early, ends everything when the run is over, serves the
model when that was asked for, and keeps `status.json` true. It is started detached, by Pulumi or by `trainstack rerun`, and needs neither to go on.

Ready supervisors (supervisord, circus, honcho) restart single processes. What is needed here concerns all of them together: exit codes that do
not count, a run that fails with one role and not with another, a deadline, an order of ending. That is most of this file, so it stands alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from workloads import launcher, outcome, prepare
from workloads.local import ports, runs
from workloads.local.plan import ROOT
from workloads.topology import Task, Topology, encode, loopback, tf_config

TICK = 0.1
AFTERWARDS = 0.5  # seconds between two looks at what stays after the run
HELPERS_RESTARTS = 3  # how often TensorBoard and the model's server are started again
LOG_BYTES = 10_000_000  # a log is rotated above this size
STEADY = 20.0  # seconds after which a task no longer counts as failing again and again
LETS_GO = 5.0  # seconds in which a large process that was killed may still hold its ports, though nobody finds it any more
LOOK_EVERY = 1.0  # seconds between two looks at whether anything hangs
LINGER = launcher.DRAIN_EVALUATOR + 10  # seconds the others have, after the lead's success, to end by themselves
PYTHON = str(Path(sys.executable).parent)


@dataclass
class Process:
    """One process of the run: a task, the data preparation, TensorBoard or the model's server."""

    name: str
    task: Task | None = None
    state: str = "pending"  # pending, waiting, running, succeeded, failed, stopped
    detail: str = ""
    restarts: int = 0
    failures: int = 0  # in a row
    exit_code: int | None = None
    started: float = 0.0
    start_at: float = 0.0
    popen: subprocess.Popen[bytes] | None = None
    stopped: launcher.Stopped = field(default_factory=launcher.Stopped)
    was_stopped: bool = False  # from outside, and killed for it: no fault of its own

    @property
    def is_over(self) -> bool:
        return self.state in ("succeeded", "failed", "stopped")

    def shown(self) -> dict[str, Any]:
        pid = self.popen.pid if self.popen and self.popen.poll() is None else None
        names = ("name", "state", "detail", "restarts", "exit_code")
        return {name: getattr(self, name) for name in names} | {"pid": pid}


@dataclass
class Supervisor:
    folder: Path
    secrets: dict[str, str]
    plan: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.plan = runs.read_plan(self.folder)
        self.topology = Topology(**self.plan["topology"])
        self.tasks = [Process(task.name, task) for task in self.topology.tasks()]
        self.lead = next(process for process in self.tasks if process.task == self.topology.lead)
        self.preparation = Process("data-prep") if self.plan.get("data_prep") else None
        self.tensorboard = Process("tensorboard") if self.plan.get("tensorboard") else None
        self.serving = Process("serving", detail="it starts when the run has succeeded") if self.plan.get("serving") else None
        self.state, self.reason = "running", ""
        self.started, self.ended = time.time(), 0.0
        self.cancelled = self.stalled = False
        self.looked = 0.0
        self.progress, self.came_further = 0, 0.0  # of this lead, and when that was seen last
        self.ports: dict[str, int] = {}
        self.written: dict[str, Any] = {}

    # ---------------------------------------------------------------------------------------- from start to end

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self.cancel)
        signal.signal(signal.SIGINT, self.cancel)
        self.choose_ports()
        self.save_status()
        self.record()
        if self.tensorboard:
            self.start_tensorboard()
        state, reason = self.prepare() or self.train()
        self.stop_all(self.tasks)
        self.reason, self.ended = reason, time.time()
        self.record(state)
        self.summarise()
        self.state = state
        if self.serving and state == "succeeded":
            self.start_serving()
        elif self.serving:
            self.serving.state, self.serving.detail = "stopped", ""
        self.save_status()
        self.stay()

    def cancel(self, *_: object) -> None:
        self.cancelled = True

    def verdict(self) -> tuple[str, str] | None:
        """How the run ends for reasons outside of its tasks, if it does."""
        if self.cancelled:
            return "cancelled", "it was told to stop"
        deadline = self.plan.get("deadline")
        if deadline and time.time() - self.started > deadline:
            return "failed", f"it was not done after its deadline of {deadline} s"
        return None

    def prepare(self) -> tuple[str, str] | None:
        """Prepares the data. Returns how the run ended if it ended here."""
        if self.preparation is None:
            return None
        step, limit = self.preparation, self.plan["data_prep"]["deadline"]
        self.launch(step, self.preparation_command(), {})
        step.state = "running"
        while step.popen and step.popen.poll() is None:
            late = time.time() - step.started > limit
            ended = ("failed", f"data_prep took longer than its deadline of {limit} s") if late else self.verdict()
            if ended:
                self.stop_all([step])
                return ended
            self.tick()
        step.exit_code = step.popen.returncode if step.popen else 1
        step.state = "failed" if step.exit_code else "succeeded"
        return ("failed", f"data_prep ended with {step.exit_code}; see tasks/{step.name}.log") if step.exit_code else None

    def preparation_command(self) -> list[str]:
        """Data with a directory of its own is prepared once; without one nobody knows where it went, and it is prepared every time."""
        told = self.plan["data_prep"]
        once = ["python", prepare.__file__, "--marker", told["marker"], "--inputs", told["inputs"], "--"] if "marker" in told else []
        return [*once, *told["command"]]

    def train(self) -> tuple[str, str]:
        """Starts the tasks, and starts them again, until the run is over."""
        for process in self.tasks:
            process.state, process.start_at = "pending", 0.0
        while True:
            if ended := self.verdict():
                return ended
            for process in self.tasks:
                if process.popen is not None and process.popen.poll() is not None:
                    self.handle_exit(process)
            if self.reason:
                return "failed", self.reason
            if self.lead.state == "succeeded":
                return self.let_the_others_end()
            self.start_what_is_due()
            self.tick()

    def handle_exit(self, process: Process) -> None:
        """Decides by its exit code what becomes of a task, and of the run."""
        assert process.popen is not None
        code = process.popen.returncode
        code = code if code >= 0 else 128 - code
        code = outcome.RETRY if process.was_stopped else code
        process.exit_code, process.popen, process.was_stopped = code, None, False
        if process is self.lead:
            self.progress = 0
        runs.kill(self.folder, process.name)  # a launcher that was killed leaves its task behind
        if code == outcome.DONE:
            process.state, process.detail = "succeeded", ""
            return
        say(f"{process.name} ended with {code}")
        if code == outcome.CONFIGURATION:
            process.state, process.detail = "failed", "configuration error"
            if process.task and process.task.role != "evaluator":
                blamed = self.lead if self.lead_reported(code) else process
                self.reason = self.reason or f"{blamed.name} reported a configuration error: {self.last_words(blamed)}"
            return
        if outcome.final(code):
            self.lose(process, f"gave up: a task that it needs was not there for {self.plan['peer_timeout']} s")
            if self.reason:
                blamed = self.lead if self.lead_reported(code) else process
                self.reason = f"{blamed.name} {process.detail}; see tasks/{blamed.name}.log"
            return
        if code == outcome.STALLED:
            if self.stalled:
                self.lose(process, f"made no progress for {self.plan['stall_timeout']} s (stall_timeout), and again none after a new start")
                self.reason = f"{process.name} {process.detail}; see tasks/{process.name}.log for what it was doing"
                return
            self.stalled = True
        steady = time.time() - process.started > STEADY or self.came_further_with(process)
        process.failures = 1 if steady else process.failures + 1
        if outcome.counts(code):
            if process.restarts >= self.plan["max_restarts"]:
                self.lose(process, f"out of restarts ({process.restarts}); last exit code {code}")
                return
            process.restarts += 1
        delay = outcome.back_off(process.failures)
        process.state, process.start_at = "pending", time.time() + delay
        process.detail = f"ended with {code}, starts again in {delay:.0f} s"

    def came_further_with(self, process: Process) -> bool:
        """Whether the training has come further since a task was started, and could not have done so without it: then it does not fail again and again."""
        needed = process.task and outcome.why_the_run_fails(self.topology, self.plan["strategy"], [process.task])
        return bool(needed) and self.came_further > process.started

    def lose(self, process: Process, detail: str) -> None:
        """A task is not started again; perhaps the run can do without."""
        process.state, process.detail = "failed", detail
        failed = [each.task for each in self.tasks if each.state == "failed" and each.task]
        self.reason = outcome.why_the_run_fails(self.topology, self.plan["strategy"], failed)
        if self.reason:
            self.reason += f": {self.last_words(process)}"

    def lead_reported(self, code: int) -> bool:
        """The lead stays until everybody has heard how it failed, so the others report it before the lead has ended."""
        answer = launcher.ask(("127.0.0.1", self.ports[self.lead.name] + 1))
        return answer is not None and answer["exit_code"] == code

    def last_words(self, process: Process) -> str:
        """The last line that the task itself wrote."""
        path = self.log(process)
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        own = [line.strip() for line in lines[-200:] if line.strip() and not line.startswith(("launcher:", "--- "))]
        return own[-1][:300] if own else f"see tasks/{process.name}.log"

    def let_the_others_end(self) -> tuple[str, str]:
        """Their launchers hear of the lead's success and end them; the evaluator tries the last checkpoint first."""
        say("the lead is done; waiting for the others to end")
        until = time.time() + LINGER
        running = [process for process in self.tasks if process.popen is not None]
        while not self.cancelled and time.time() < until and any(process.popen and process.popen.poll() is None for process in running):
            self.tick()
        for process in running:
            if process.popen is not None and process.popen.poll() is not None:
                process.exit_code, process.popen = process.popen.returncode, None
                process.state, process.detail = ("failed" if process.exit_code else "succeeded"), ""
        return "succeeded", ""

    # ------------------------------------------------------------------------------------------------ processes

    def choose_ports(self) -> None:
        """For the tasks, and for what listens beside them unless it does already."""
        beside = [process.name for process in (self.tensorboard, self.serving) if process and process.popen is None]
        self.ports |= ports.reserve([*(process.name for process in self.tasks), *beside], self.plan["port"], os.getpid())

    def start_what_is_due(self) -> None:
        for process in self.tasks:
            if process.state == "pending" and process.popen is None and time.time() >= process.start_at:
                port = self.ports[process.name]
                if not (ports.is_free(port) and ports.is_free(port + 1)):
                    if time.time() < process.start_at + LETS_GO:
                        continue
                    self.move_to_other_ports(process)
                    return
                self.start(process)

    def move_to_other_ports(self, process: Process) -> None:
        """Somebody else took a port while its task was down. All tasks know all ports, so all of them move."""
        say(f"port {self.ports[process.name]} of {process.name} is taken by another program; the tasks move to other ports")
        self.stop_all(self.tasks)
        self.choose_ports()
        for each in self.tasks:
            if each.state == "stopped":
                each.state, each.start_at = "pending", 0.0

    def start(self, process: Process) -> None:
        assert process.task is not None
        config = encode(tf_config(self.topology, process.task, loopback(self.ports)))
        command = [sys.executable, launcher.__file__, "--run-folder", str(self.folder), "--watch-parent"]
        command += ["--peer-timeout", str(self.plan["peer_timeout"]), "--grace", str(runs.GRACE)]
        if process is self.lead and "stall_timeout" in self.plan:  # a run of before there was one can go on
            command += ["--stall-timeout", str(self.plan["stall_timeout"])]
        if self.plan["waits_for_servers"]:
            command.append("--wait-for-servers")
        if process.task.role == "evaluator":
            # On one machine the evaluator gives way to the tasks that train, above all while they start.
            command = ["nice", "-n", "10", *command, "--lead", f"{self.lead.name}@127.0.0.1:{self.ports[self.lead.name] + 1}"]
        self.launch(process, [*command, "--", *self.plan["command"]], {"TF_CONFIG": config})
        process.state, process.detail = "waiting", ""

    def start_tensorboard(self) -> None:
        assert self.tensorboard is not None
        where = self.plan["log_dir"]
        module = "tensorboard.main" if "://" in where else "workloads.local.tensorboard"
        command = ["python", "-m", module, "--host=127.0.0.1", f"--port={self.ports['tensorboard']}", f"--logdir={where}"]
        self.launch(self.tensorboard, command, {"TF_CPP_MIN_LOG_LEVEL": "3"})
        self.tensorboard.state = "running"

    def start_serving(self) -> None:
        assert self.serving is not None
        if not ports.is_free(self.ports["serving"]):
            self.ports |= ports.reserve(["serving"], self.plan["port"], os.getpid())
        command = [
            "python",
            "-m",
            "trainer.serve",
            "--host=127.0.0.1",
            f"--rest_api_port={self.ports['serving']}",
            f"--model_name={self.plan['training']}",
            f"--model_base_path={self.plan['model_dir']}",
            "--watch_parent",
        ]
        self.launch(self.serving, command, {})
        self.serving.state, self.serving.detail = "waiting", "loading the model"

    def launch(self, process: Process, command: list[str], environment: dict[str, str]) -> None:
        """Every process of a run leads a session of its own, has the mark of its run, and writes its own log."""
        base = {**os.environ, **self.secrets, **self.plan["env"], **environment, "TRAINSTACK_TASK": process.name}
        base["PATH"] = os.pathsep.join([PYTHON, base.get("PATH", "")])
        command = [f"{PYTHON}/python" if word == "python" and not index else word for index, word in enumerate(command)]
        process.started = time.time()
        with self.log(process).open("ab") as log:
            log.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} start {process.restarts}\n".encode())
            try:
                process.popen = subprocess.Popen(
                    command, cwd=ROOT, env=base, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
            except OSError as error:
                log.write(f"{command[0]} cannot be started: {error}\n".encode())
                process.popen = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({outcome.CONFIGURATION})"])

    def stop_all(self, processes: list[Process]) -> None:
        """Asks all at once, so that they save side by side; then makes sure."""
        running = [process for process in processes if process.popen is not None and process.popen.poll() is None]
        for process in running:
            assert process.popen is not None
            process.popen.terminate()
        until = time.time() + runs.GRACE
        while time.time() < until and any(process.popen and process.popen.poll() is None for process in running):
            time.sleep(TICK / 2)
        for process in processes:
            if process.popen is not None:
                runs.kill(self.folder, process.name)
                process.exit_code = process.popen.wait()
                process.popen = None
            if not process.is_over:
                process.state, process.detail = "stopped", ""

    def stay(self) -> None:
        """TensorBoard stays for a while after the run and the model's server for as long as nobody ends it."""
        until = self.ended + self.plan["tensorboard"]["keep"] if self.tensorboard else 0.0
        while not self.cancelled and any(process and not process.is_over for process in (self.tensorboard, self.serving)):
            if self.tensorboard and not self.tensorboard.is_over and time.time() >= until:
                self.stop_all([self.tensorboard])
            self.tick(AFTERWARDS)
        self.stop_all([process for process in (self.tensorboard, self.serving) if process])
        self.save_status()

    # --------------------------------------------------------------------------------------------------- telling

    def tick(self, seconds: float = TICK) -> None:
        time.sleep(seconds)
        for process in self.tasks:
            if process.state == "waiting":
                answer = launcher.ask(("127.0.0.1", self.ports[process.name] + 1), timeout=0.3)
                if answer:
                    process.state = "running" if answer["state"] != "waiting" else "waiting"
                    process.detail = f"waiting for {answer['waiting_for']}" if answer["waiting_for"] else ""
        if time.monotonic() - self.looked > LOOK_EVERY:
            self.look_for_what_hangs()
            self.looked = time.monotonic()
        if self.tensorboard and self.ended_by_itself(self.tensorboard):
            self.start_tensorboard()
        if self.serving and self.ended_by_itself(self.serving):
            self.start_serving()
        if self.serving and self.serving.state == "waiting" and self.model_is_available():
            self.serving.state, self.serving.detail = "running", ""
        self.rotate_logs()
        self.save_status()

    def look_for_what_hangs(self) -> None:
        """A launcher looks after its command; who is stopped itself cannot. What is killed here is started again as anything that ended."""
        for process in self.everyone():
            if process is self.preparation or process.popen is None or process.popen.poll() is not None:
                continue
            if process.stopped.is_over([process.popen.pid]):
                say(f"{process.name} has been stopped for {launcher.STOPPED:.0f} s; it is killed and begins again")
                process.was_stopped = True
                runs.kill(self.folder, process.name)
        if self.lead.popen is not None:
            answer = launcher.ask(("127.0.0.1", self.ports[self.lead.name] + 1), timeout=0.3)
            if answer and answer["progress"] > self.progress:
                self.progress, self.came_further, self.stalled = answer["progress"], time.time(), False

    def ended_by_itself(self, process: Process) -> bool:
        """Whether a helper is gone and is to be started again, which it is a few times."""
        if process.popen is None or process.popen.poll() is None:
            return False
        process.exit_code, process.popen = process.popen.returncode, None
        say(f"{process.name} ended with {process.exit_code}")
        runs.kill(self.folder, process.name)
        if process.restarts >= HELPERS_RESTARTS:
            process.state, process.detail = "failed", f"it ended {process.restarts + 1} times; see tasks/{process.name}.log"
            return False
        process.restarts += 1
        return True

    def model_is_available(self) -> bool:
        try:
            with urllib.request.urlopen(self.url_of_model(), timeout=0.5) as answer:
                return any(version["state"] == "AVAILABLE" for version in json.load(answer)["model_version_status"])
        except (OSError, ValueError):
            return False

    def url_of_model(self) -> str:
        return f"http://127.0.0.1:{self.ports['serving']}/v1/models/{self.plan['training']}"

    def log(self, process: Process) -> Path:
        return self.folder / "tasks" / f"{process.name}.log"

    def rotate_logs(self) -> None:
        """The tasks go on writing to the same file, so it is copied and emptied."""
        for process in self.everyone():
            path = self.log(process)
            if path.exists() and path.stat().st_size > LOG_BYTES:
                shutil.copyfile(path, path.with_suffix(".log.1"))
                os.truncate(path, 0)

    def everyone(self) -> list[Process]:
        return [process for process in (self.preparation, *self.tasks, self.tensorboard, self.serving) if process]

    def status(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "reason": self.reason,
            "pid": os.getpid(),
            "created": psutil.Process().create_time(),
            "started": self.started,
            "ended": self.ended or None,
            "tensorboard": f"http://127.0.0.1:{self.ports['tensorboard']}/" if self.tensorboard else None,
            "serving": self.url_of_model() if self.serving and not self.serving.is_over else None,
            "tasks": [process.shown() for process in self.everyone()],
        }

    def save_status(self) -> None:
        status = self.status()
        if status != self.written:
            runs.write_whole(self.folder / "status.json", status)
            self.written = status

    def record(self, state: str = "running") -> None:
        """run.json beside the logs: what was asked for and what came of it, for whoever finds the logs later."""
        logs = Path(self.plan["log_dir"])
        if "://" in self.plan["log_dir"]:
            return  # the trainer's own records are there; the run's folder has the rest
        logs.mkdir(parents=True, exist_ok=True)
        last = {name: next(reversed(runs.read_records(logs / f"{name}.jsonl")), None) for name in ("metrics", "evaluation")}
        shown = {name: self.plan[name] for name in ("stack", "training", "run", "settings")}
        runs.write_whole(
            logs / "run.json",
            {**shown, "state": state, "reason": self.reason, "started": self.started, "ended": self.ended or None, **last},
        )

    def summarise(self) -> None:
        """In a process of its own, because drawing needs libraries that a supervisor should not hold for hours."""
        say("drawing the plot and writing the summary")
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([sys.executable, "-m", "workloads.local.summary", str(self.folder)], cwd=ROOT, timeout=120, check=False)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main() -> int:
    folder = Path(sys.argv[1])
    secrets = json.loads(sys.stdin.read() or "{}")
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another supervisor has this run")
            return 1
        Supervisor(folder, secrets).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
