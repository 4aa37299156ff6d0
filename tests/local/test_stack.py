"""The local target through the real engine: what `pulumi up`, `preview`, `refresh` and `destroy` do to a run."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from tests.conftest import LISTEN, ROOT, Stack, alive, eventually
from workloads.local import runs

pytestmark = pytest.mark.engine

FOREVER = [sys.executable, "-c", f"{LISTEN}; import time; time.sleep(600)"]
# A chief that succeeds when it finds a file named `go` in the run's folder, and fails when it finds `fail`.
TOLD = [
    sys.executable,
    "-c",
    f"{LISTEN}; import sys, time\nrole = config['task']['type']\n"
    "while role != 'chief' or not os.path.exists(os.environ['TRAINSTACK_RUN'] + '/go'):\n"
    "    if role == 'chief' and os.path.exists(os.environ['TRAINSTACK_RUN'] + '/fail'): sys.exit(78)\n    time.sleep(0.1)",
]


def training(command: list[str] = FOREVER, **changes: Any) -> dict[str, Any]:
    return {"command": command, "worker": {"replicas": 1}, "ps": {"replicas": 1}, **changes}


def running(stack: Stack, name: str = "t") -> None:
    eventually(lambda: all(task["state"] == "running" for task in stack.status(name)["tasks"]), 20, f"{stack.status(name)}")


def test_a_stack_comes_up_changes_and_goes(stack: Stack) -> None:
    """The lifecycle of a run: up, a setting that does nothing here, more workers, another run, destroy. The engine runs eleven times."""
    assert "off: deploy is false" in stack.up({"t": training(), "off": training(deploy=False)}).stdout
    assert not stack.folder_of("off").exists()
    folder = stack.folder_of("t")
    assert stack.outputs()["t"] == {"folder": f"runs/{stack.name}/t/1", "state": "running", "tensorboard": "", "serving": ""}
    running(stack)
    assert len(alive(folder)) == 7, "a supervisor, and a launcher with its command for each of three tasks"
    assert stack.preview("t") == "same"

    first = stack.status("t")["pid"]
    stack.write({"t": training(worker={"replicas": 1, "cpu": 4})})
    assert stack.preview("t") == "same"
    assert "not applied on local: t.worker.cpu" in stack.up().stdout
    assert stack.status("t")["pid"] == first, "what does nothing here is no reason to start again"

    stack.write({"t": training(worker={"replicas": 2})})
    assert "replace" in stack.preview("t")
    assert "worker: 1 => 2" in " ".join(stack.pulumi("preview", "--diff").stdout.split()).replace(" : ", ": ")
    stack.up()
    running(stack)
    assert [task["name"] for task in stack.status("t")["tasks"]] == ["chief-0", "worker-0", "worker-1", "ps-0"]
    assert len(alive(folder)) == 9

    stack.up({"t": training(run="second")})
    assert stack.status("t")["state"] == "cancelled"
    assert alive(folder) == []
    assert stack.status("t", "second")["state"] == "running"

    began = time.monotonic()
    stack.destroy()
    assert time.monotonic() - began < 30, "10 s for the processes, the rest for the engine and a busy machine"
    assert alive(stack.folder_of("t", "second")) == []
    assert stack.status("t", "second")["state"] == "cancelled"
    assert stack.resources() == []


def test_destroy_after_the_supervisor_was_killed(stack: Stack) -> None:
    stubborn = [
        sys.executable,
        "-c",
        f"{LISTEN}; import signal, subprocess; signal.signal(15, signal.SIG_IGN); subprocess.run(['sleep', '600'])",
    ]
    stack.up({"t": training(stubborn)})
    folder = stack.folder_of("t")
    eventually(lambda: sum("sleep 600" in line for line in alive(folder)) == 3, 20, "the children do not run")
    psutil.Process(stack.status("t")["pid"]).kill()
    stack.destroy()
    assert alive(folder) == []


def test_a_vanished_run_is_started_again_by_up(stack: Stack) -> None:
    stack.up({"t": training()})
    running(stack)
    first = stack.status("t")["pid"]
    psutil.Process(first).kill()
    eventually(lambda: stack.status("t")["state"] == "vanished", 5, "it does not count as vanished")
    assert stack.preview("t") == "update"
    stack.up()
    running(stack)
    assert stack.status("t")["pid"] != first
    assert len(alive(stack.folder_of("t"))) == 7, "what was left of the first run is gone"
    assert stack.preview("t") == "same"


ENDS = ("succeeded", "failed", "cancelled")


def test_runs_that_have_ended_are_left_alone_and_refresh_sees_how(stack: Stack) -> None:
    """One run for each way to end, in one stack; the engine runs four times."""
    stack.up({end: training(TOLD) for end in ENDS})
    runs.stop(stack.folder_of("cancelled"))
    (stack.folder_of("succeeded") / "go").touch()
    (stack.folder_of("failed") / "fail").touch()
    ended = {end: stack.wait(end, end, 20)["ended"] for end in ENDS}
    stack.pulumi("refresh", "--yes")
    states = {
        resource["urn"].rpartition("::")[2]: resource["outputs"].get("state") for resource in stack.resources() if "outputs" in resource
    }
    assert {end: states[end] for end in ENDS} == {end: end for end in ENDS}
    assert {end: stack.preview(end) for end in ENDS} == dict.fromkeys(ENDS, "same")
    stack.up()
    assert {end: stack.status(end)["ended"] for end in ENDS} == ended
    for end in ENDS:
        eventually(lambda end=end: alive(stack.folder_of(end)) == [], 5, f"something was started for {end}")


@pytest.mark.full
def test_two_trainings_side_by_side_and_one_taken_out(stack: Stack) -> None:
    stack.up({"one": training(), "two": training()})
    running(stack, "one")
    running(stack, "two")
    stack.up({"two": training()})
    assert runs.RELEASED in {path.name for path in stack.folder_of("one").iterdir()}
    assert runs.RELEASED not in {path.name for path in stack.folder_of("two").iterdir()}
    assert alive(stack.folder_of("one")) == []
    assert stack.status("one")["state"] == "cancelled"
    assert stack.status("two")["state"] == "running"


def test_secrets_are_nowhere_in_plain_text(stack: Stack) -> None:
    check = [sys.executable, "-c", "import os; raise SystemExit(0 if os.environ['API_KEY'] == 'hunter' + '2' else 78)"]
    written = {"command": check, "strategy": "mirrored"}
    stack.write({"t": written})
    stack.run(
        "pulumi",
        "config",
        "set",
        "--stack",
        stack.name,
        "--config-file",
        str(stack.settings),
        "--secret",
        "--path",
        "trainstack:secrets.API_KEY",
        "hunter2",
    )
    shown = stack.up().stdout
    stack.wait("t", "succeeded", 20)
    assert "hunter2" not in shown
    everywhere = [path for place in (stack.folder, stack.folder_of("t")) for path in place.rglob("*") if path.is_file()]
    assert everywhere
    assert [path for path in everywhere if b"hunter2" in path.read_bytes()] == []


def test_invalid_settings_stop_up_with_one_sentence_each_and_start_nothing(stack: Stack) -> None:
    """What each invalid setting is answered with is tested in tests/test_settings.py; here, how a person sees it."""
    trainings = {"a": {"command": ["x"], "wroker": {}}, "b": {"command": ["x"], "worker": {"replica": 1}}}
    done = stack.up(trainings, target="local", check=False)
    assert done.returncode != 0
    shown = done.stdout + done.stderr
    assert "the settings are not valid:\n" in shown
    assert re.search(r"^ +- trainings\.a\.wroker: .*did you mean worker\?", shown, re.MULTILINE)
    assert re.search(r"^ +- trainings\.b\.worker\.replica: .*did you mean replicas\?", shown, re.MULTILINE)
    assert "Traceback" not in shown
    assert runs.folders(stack.name) == []


def test_the_local_stack_imports_nothing_of_the_cloud_and_no_tensorflow() -> None:
    program = (
        'import sys, runpy, pulumi\npulumi.runtime.config.set_all_config({\'trainstack:trainings\': \'{"t": {"program": "digits", "strategy": "mirrored"}}\'})\n'
        "from pulumi.runtime import set_mocks, Mocks\n"
        "class Fake(Mocks):\n    def new_resource(self, args): return args.name, args.inputs\n    def call(self, args): return {}\n"
        "set_mocks(Fake())\nrunpy.run_path('__main__.py')\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'tensorflow', 'pulumi_gcp', 'pulumi_kubernetes', 'kubernetes', 'google.cloud', 'tf_keras', 'matplotlib'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().splitlines()[-1:] == ["[]"], done.stdout + done.stderr
