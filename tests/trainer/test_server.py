"""What a parameter server and its workers load of TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from trainer import server

pytestmark = pytest.mark.tensorflow

BEGUN = """
import json, socket, sys, threading
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
import os
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"ps": [f"127.0.0.1:{port}"]}, "task": {"type": "ps", "index": 0}})
from trainer import server
library = server.load()
threading.Thread(target=server.serve, args=[library], daemon=True).start()
while True:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
        break
    except OSError:
        pass
print(json.dumps({"modules": sorted(sys.modules), "whole": hasattr(sys.modules["tensorflow"], "distribute")}), flush=True)
os._exit(0)
"""


def begun(before: str = "", **environment: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", before + BEGUN], cwd=ROOT, capture_output=True, text=True, timeout=120, env={"PATH": "", **environment}
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_server_listens_without_the_whole_of_tensorflow() -> None:
    """Loading all of it is most of the time that a lost worker is away."""
    found = begun()
    modules = found["modules"]
    assert isinstance(modules, list)
    assert not found["whole"]
    assert not {"keras", "tf_keras", "tensorflow.python.framework.ops"} & set(modules)
    assert len(modules) < 600


def test_a_program_that_has_loaded_tensorflow_is_not_left_with_half_of_it() -> None:
    assert begun("import tensorflow\n")["whole"]


def test_plugins_are_loaded_by_the_whole_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not server.has_plugins()
    (tmp_path / "tensorflow-plugins").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert server.has_plugins()
