"""Data is prepared once: the file that sees to it, alone, with small commands in place of a preparation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import eventually
from workloads import prepare

pytestmark = pytest.mark.process

COUNT = "open({count!r}, 'a').write('x')"


class Data:
    """A directory with data, and how often it was prepared."""

    def __init__(self, folder: Path) -> None:
        self.directory, self.count = folder / "data", folder / "count"
        self.marker = self.directory / prepare.MARKER

    def command(self, inputs: str, code: str, directory: str | None = None) -> list[str]:
        run = [sys.executable, "-c", f"{COUNT.format(count=str(self.count))}\n{code}"]
        return [sys.executable, prepare.__file__, "--marker", directory or str(self.directory), "--inputs", inputs, "--", *run]

    def prepare(self, inputs: str = "one", code: str = "", **options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(inputs, code, **options), capture_output=True, text=True, timeout=60)

    def start(self, code: str) -> subprocess.Popen[bytes]:
        """Returns once the command runs."""
        process = subprocess.Popen(self.command("one", code), stderr=subprocess.DEVNULL)
        eventually(self.count.exists, 10, "the command does not start")
        time.sleep(0.3)  # for its handlers
        return process

    @property
    def times(self) -> int:
        return len(self.count.read_text()) if self.count.exists() else 0


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path)


def test_the_same_inputs_are_prepared_once(data: Data) -> None:
    assert data.prepare().returncode == 0
    written = json.loads(data.marker.read_text())
    assert written["inputs"] == "one"
    assert abs(written["time"] - time.time()) < 60
    again = data.prepare()
    assert again.returncode == 0
    assert "is prepared already" in again.stderr
    assert len(again.stderr.splitlines()) == 1
    assert data.times == 1
    assert [path.name for path in data.directory.iterdir()] == [prepare.MARKER], "nothing is left beside it"


def test_other_inputs_are_prepared_again(data: Data) -> None:
    data.prepare("one")
    data.prepare("two")
    assert data.times == 2
    assert json.loads(data.marker.read_text())["inputs"] == "two"


def test_a_marker_of_other_inputs_is_gone_before_the_command_starts(data: Data) -> None:
    """What is there is half of the one and half of the other from then on."""
    data.prepare("one")
    failed = data.prepare("two", f"import os; raise SystemExit(9 if os.path.exists({str(data.marker)!r}) else 3)")
    assert failed.returncode == 3
    assert not data.marker.exists()
    data.prepare("one")
    assert data.times == 3


@pytest.mark.parametrize(("code", "returned"), [("raise SystemExit(5)", 5), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_a_failure_leaves_no_marker_and_is_handed_through(data: Data, code: str, returned: int) -> None:
    assert data.prepare(code=code).returncode == returned
    assert not data.marker.exists()
    assert data.prepare().returncode == 0
    assert data.times == 2


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"inputs": null}', '{"inputs": "on'])
def test_a_broken_marker_counts_as_none(data: Data, text: str) -> None:
    data.directory.mkdir()
    data.marker.write_text(text)
    assert data.prepare().returncode == 0
    assert data.times == 1
    assert json.loads(data.marker.read_text())["inputs"] == "one"


@pytest.mark.parametrize(
    ("handler", "returned"),
    [
        ("lambda *_: sys.exit(4)", 4),
        ("lambda *_: sys.exit(0)", prepare.RETRY),  # it ended well, but nobody knows how far it came
        ("signal.SIG_DFL", 128 + signal.SIGTERM),
    ],
)
def test_an_interruption_reaches_the_command_and_leaves_no_marker(data: Data, handler: str, returned: int) -> None:
    process = data.start(f"import signal, sys, time; signal.signal(15, {handler}); time.sleep(600)")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == returned
    assert not data.marker.exists()


def test_it_is_told_once_and_leaves_no_process(data: Data) -> None:
    heard = data.count.with_name("heard")
    code = (
        "import signal, subprocess, sys, time\nchild = subprocess.Popen(['sh', '-c', 'trap \"\" TERM; sleep 600'])\n"
        f"open({str(heard)!r}, 'w').write(str(child.pid) + ' ')\n"
        f"signal.signal(15, lambda *_: (open({str(heard)!r}, 'a').write('x'), time.sleep(1), sys.exit(1)))\ntime.sleep(600)"
    )
    process = data.start(code)
    child = int(eventually(lambda: heard.exists() and heard.read_text().split(), 10, "no child")[0])
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 1
    assert heard.read_text().split()[1] == "x"
    eventually(lambda: not _runs(child), 5, "the child is left")


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_command_that_does_not_exist_is_one_sentence(data: Data) -> None:
    options = ["--marker", str(data.directory), "--inputs", "one", "--", "no-such-command"]
    done = subprocess.run([sys.executable, prepare.__file__, *options], capture_output=True, text=True)
    assert done.returncode == prepare.CONFIGURATION
    assert done.stderr == "prepare: 'no-such-command' cannot be started (No such file or directory); correct the command of data_prep\n"
    assert not data.marker.exists()


def test_a_directory_that_is_none_is_one_sentence(data: Data) -> None:
    data.directory.write_text("a file")
    done = data.prepare()
    assert done.returncode == prepare.CONFIGURATION
    assert "cannot be read or removed" in done.stderr
    assert "Traceback" not in done.stderr
    assert data.times == 0


def test_data_without_a_marker_is_data_all_the_same(data: Data) -> None:
    """The command replaced the directory by a file, of all things: that is not for this to judge."""
    done = data.prepare(code=f"open({str(data.directory)!r}, 'w')")
    assert done.returncode == 0
    assert "prepared again the next time" in done.stderr


def test_without_tensorflow_a_bucket_has_no_marker_and_one_line_says_so(data: Data) -> None:
    command = data.command("one", "", "gs://bucket/data")
    done = subprocess.run([command[0], "-S", *command[1:]], capture_output=True, text=True, timeout=60)  # -S: no site-packages
    assert done.returncode == 0
    assert data.times == 1
    assert "there is no TensorFlow here to reach gs://bucket/data" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.tensorflow
def test_a_bucket_has_a_marker(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """In TensorFlow's file system in memory, so all in this process."""
    import tensorflow as tf

    place = "ram://bucket/prepared"
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the handlers of this process stay its own
    command = [sys.executable, "-c", COUNT.format(count=str(data.count))]
    assert [prepare.prepare(place, inputs, command) for inputs in ("one", "one", "two", "two", "one")] == [0] * 5
    assert data.times == 3
    assert prepare.prepare(place, "two", [sys.executable, "-c", "raise SystemExit(6)"]) == 6
    assert tf.io.gfile.listdir(place) == []


def test_the_inputs_are_the_command_its_arguments_and_its_place() -> None:
    base = prepare.inputs(["python", "-m", "mine"], {"size": 1, "kind": "small"}, "/data")
    assert base == prepare.inputs(["python", "-m", "mine"], {"kind": "small", "size": 1}, "/data"), "in whichever order they are written"
    others = [
        prepare.inputs(["python", "-m", "other"], {"size": 1, "kind": "small"}, "/data"),
        prepare.inputs(["python", "-m", "mine"], {"size": 2, "kind": "small"}, "/data"),
        prepare.inputs(["python", "-m", "mine"], {"size": 1, "kind": "small"}, "/other"),
    ]
    assert len({base, *others}) == 4
    assert len(base) == 64


def test_it_needs_nothing_but_the_standard_library() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-I", "-S", prepare.__file__, "--help"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    assert "--marker" in done.stdout
