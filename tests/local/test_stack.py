"""The local target through the real engine: what `pulumi up`, `preview`, `refresh` and `destroy` do to a run."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import psutil
import pytest

from tests.bad_settings import BAD
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


def test_up_and_destroy(stack: Stack) -> None:
    stack.up({"t": training()})
    folder = stack.folder_of("t")
    assert stack.outputs()["t"] == {"folder": f"runs/{stack.name}/t/1", "state": "running", "tensorboard": "", "serving": ""}
    running(stack)
    assert len(alive(folder)) == 7, "a supervisor, and a launcher with its command for each of three tasks"
    assert stack.preview("t") == "same"
    began = time.monotonic()
    stack.destroy()
    assert time.monotonic() - began < 30, "10 s for the processes, the rest for the engine and a busy machine"
    assert alive(folder) == []
    assert stack.status("t")["state"] == "cancelled"
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


def test_refresh_sees_what_became_of_a_run(stack: Stack) -> None:
    stack.up({"t": training(TOLD)})
    (stack.folder_of("t") / "go").touch()
    stack.wait("t", "succeeded", 20)
    stack.pulumi("refresh", "--yes")
    assert [resource["outputs"]["state"] for resource in stack.resources() if resource["urn"].endswith("::t")] == ["succeeded"]
    assert stack.preview("t") == "same"


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
def test_a_run_that_has_ended_is_left_alone(stack: Stack, end: str) -> None:
    stack.up({"t": training(TOLD)})
    folder = stack.folder_of("t")
    if end == "cancelled":
        runs.stop(folder)
    else:
        (folder / {"succeeded": "go", "failed": "fail"}[end]).touch()
    ended = stack.wait("t", end, 20)
    assert stack.preview("t") == "same"
    stack.up()
    assert stack.status("t")["ended"] == ended["ended"]
    eventually(lambda: alive(folder) == [], 5, "something was started")


def test_another_number_of_workers_replaces_the_run_and_the_preview_says_so(stack: Stack) -> None:
    stack.up({"t": training()})
    running(stack)
    stack.write({"t": training(worker={"replicas": 2})})
    assert "replace" in stack.preview("t")
    assert "worker: 1 => 2" in " ".join(stack.pulumi("preview", "--diff").stdout.split()).replace(" : ", ": ")
    stack.up()
    running(stack)
    assert [task["name"] for task in stack.status("t")["tasks"]] == ["chief-0", "worker-0", "worker-1", "ps-0"]
    assert len(alive(stack.folder_of("t"))) == 9


def test_what_does_nothing_here_is_no_reason_to_start_again(stack: Stack) -> None:
    stack.up({"t": training()})
    first = stack.status("t")["pid"]
    stack.write({"t": training(worker={"replicas": 1, "cpu": 4})})
    assert stack.preview("t") == "same"
    assert "not applied on local: t.worker.cpu" in stack.up().stdout
    assert stack.status("t")["pid"] == first


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


def test_a_new_run_has_a_folder_of_its_own(stack: Stack) -> None:
    stack.up({"t": training()})
    stack.up({"t": training(run="second")})
    assert stack.status("t")["state"] == "cancelled"
    assert stack.status("t", "second")["state"] == "running"


def test_deploy_false_starts_nothing(stack: Stack) -> None:
    assert "deploy is false" in stack.up({"t": training(deploy=False)}).stdout
    assert not stack.folder_of("t").exists()


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


@pytest.mark.parametrize("name", sorted(name for name, (values, *_) in BAD.items() if values.get("target") != "gke" or "project" in name))
def test_bad_settings_are_refused_and_nothing_is_started(stack: Stack, name: str) -> None:
    values, *expected = BAD[name]
    stack.settings.write_text(json.dumps({"config": {f"trainstack:{key}": value for key, value in values.items()}}))
    done = stack.up(check=False)
    shown = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0
    for part in expected:
        assert part in shown
    assert "Traceback" not in shown
    assert runs.folders(stack.name) == []


def test_a_cluster_that_is_not_named_is_one_sentence(stack: Stack) -> None:
    done = stack.up({}, target="kubernetes", check=False)
    assert done.returncode != 0
    assert "target kubernetes needs one cluster; write" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_the_local_stack_imports_nothing_of_the_cloud_and_no_tensorflow() -> None:
    program = (
        'import sys, runpy, pulumi\npulumi.runtime.config.set_all_config({\'trainstack:trainings\': \'{"t": {"program": "digits", "strategy": "mirrored"}}\'})\n'
        "from pulumi.runtime import set_mocks, Mocks\n"
        "class Fake(Mocks):\n    def new_resource(self, args): return args.name, args.inputs\n    def call(self, args): return {}\n"
        "set_mocks(Fake())\nrunpy.run_path('__main__.py')\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'tensorflow', 'pulumi_gcp', 'pulumi_kubernetes', 'kubernetes', 'google.cloud', 'tf_keras', 'matplotlib'}))"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().splitlines()[-1:] == ["[]"], done.stdout + done.stderr
