"""The model's server: TensorFlow Serving's REST API, asked over real connections, with models of a few lines."""

from __future__ import annotations

import base64
import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, eventually
from workloads.local import ports

pytestmark = pytest.mark.tensorflow

BYTES = b"\x00\xff\x00"  # no text, and with a zero at its end
B64 = {"b64": base64.b64encode(BYTES).decode()}


def save(folder: Path, weight: float = 2.0) -> None:
    """A version, there at once: `serving_default` multiplies by the weight, the other signatures are of other shapes."""
    import tensorflow as tf

    floats, texts = tf.TensorSpec([None, 2], tf.float32, "signal"), tf.TensorSpec([None], tf.string, "tag")

    class Several(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
        def times(self, x: Any) -> Any:
            return {"y": weight * x}

        @tf.function(input_signature=[texts, floats])
        def both(self, tag: Any, signal: Any) -> Any:
            return {"length": tf.strings.length(tag), "sum": tf.reduce_sum(signal, 1), "tag_bytes": tag, "tag": tag}

        @tf.function(input_signature=[tf.TensorSpec(None, tf.int32, "number"), tf.TensorSpec(None, tf.bool, "negative")])
        def total(self, number: Any, negative: Any) -> Any:
            return {"total": tf.reduce_sum(number) * tf.where(tf.reduce_any(negative), -1, 1)}

    module = Several()
    tf.saved_model.save(module, f"{folder}.saving", {"serving_default": module.times, "both": module.both, "total": module.total})
    Path(f"{folder}.saving").rename(folder)


class Client:
    """One connection to a server, kept open from request to request."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, path: str, question: Any = None, method: str | None = None) -> tuple[int, Any]:
        body = question if question is None or isinstance(question, bytes) else json.dumps(question).encode()
        self.connection.request(method or ("GET" if body is None else "POST"), path, body)
        answer = self.connection.getresponse()
        assert answer.getheader("Content-Type") == "application/json"
        return answer.status, json.loads(answer.read())

    def predict(self, question: Any) -> Any:
        code, answer = self.ask("/v1/models/m:predict", question)
        assert code == 200, answer
        return answer

    def refused(self, question: Any) -> str:
        code, answer = self.ask("/v1/models/m:predict", question)
        assert code == 400, answer
        assert answer.keys() == {"error"}
        assert len(answer["error"].splitlines()) == 1
        return str(answer["error"])


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server in this process with version 7 of the model."""
    from trainer.serve import Model, Server

    directory = tmp_path_factory.mktemp("models")
    save(directory / "7")
    model = Model("m", str(directory))
    model.look()
    server = Server(("127.0.0.1", 0), model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Client(server.server_address[1])
    server.shutdown()
    server.server_close()


# ------------------------------------------------------------------------------------------------- predict


def test_rows_and_columns_of_one_input_and_one_output(client: Client) -> None:
    assert client.predict({"instances": [1.0, 2, 5.5]}) == {"predictions": [2.0, 4.0, 11.0]}
    assert client.predict({"instances": [{"x": 1.0}, {"x": 2}]}) == {"predictions": [2.0, 4.0]}
    assert client.predict({"inputs": [1.0, 2]}) == {"outputs": [2.0, 4.0]}
    assert client.predict({"inputs": {"x": [1.0]}, "signature_name": "serving_default"}) == {"outputs": [2.0]}


def test_rows_and_columns_of_several(client: Client) -> None:
    rows = [{"tag": "foo", "signal": [1, 2]}, {"tag": B64, "signal": [3, 4]}]
    foo = {"b64": base64.b64encode(b"foo").decode()}
    assert client.predict({"signature_name": "both", "instances": rows}) == {
        "predictions": [
            {"length": 3, "sum": 3.0, "tag": "foo", "tag_bytes": foo},
            {"length": 3, "sum": 7.0, "tag": B64, "tag_bytes": B64},
        ]
    }
    columns = {"tag": ["foo", B64], "signal": [[1, 2], [3, 4]]}
    assert client.predict({"signature_name": "both", "inputs": columns}) == {
        "outputs": {"length": [3, 3], "sum": [3.0, 7.0], "tag": ["foo", B64], "tag_bytes": [foo, B64]}
    }


def test_whole_tensors_need_not_be_one_per_example(client: Client) -> None:
    question = {"signature_name": "total", "inputs": {"number": [[1, 2], [3, 4]], "negative": True}}
    assert client.predict(question) == {"outputs": -10}
    rows = {"signature_name": "total", "instances": [{"number": 1, "negative": False}, {"number": 2, "negative": False}]}
    assert "write inputs in place of instances" in client.refused(rows)


def test_floats_are_written_as_what_they_are(client: Client) -> None:
    """In the digits of a narrow float, and with the words that TensorFlow Serving uses where JSON has none."""
    answer = client.ask("/v1/models/m:predict", b'{"instances": [0.1, NaN, Infinity, 1e-30]}')[1]["predictions"]
    assert answer[0] == 0.2, "and not 0.20000000298023224"
    assert answer[1] != answer[1]
    assert answer[2] == float("inf")
    import numpy as np

    assert np.float32(answer[3]) == np.float32(1e-30) * 2


@pytest.mark.parametrize(
    ("question", "part"),
    [
        (b"", "is not JSON"),
        (b"[1", "is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "is not an object"),
        ({}, "either instances"),
        ({"instances": [1], "inputs": [1]}, "either instances"),
        ({"instances": 1}, "a list with at least one"),
        ({"instances": []}, "a list with at least one"),
        ({"instances": [1, [2]]}, "not equally long"),
        ({"instances": [1, {"x": 2}]}, "some of the instances are objects"),
        ({"instances": [{"x": 2}, 1]}, "instance 1 must be an object"),
        ({"instances": [{"y": 1}]}, "exactly the keys x"),
        ({"inputs": {"y": 1}}, "inputs lacks x"),
        ({"instances": ["1"]}, "takes float32"),
        ({"instances": [True]}, "takes float32"),
        ({"instances": [None]}, "takes float32"),
        ({"instances": [1e39]}, "out of the range of float32"),
        ({"instances": [[1.0]]}, "the model takes the shape [any], the request has [1, 1]"),
        ({"inputs": 1.0}, "the request has []"),
        ({"instances": [1], "signature_name": "other"}, "no signature 'other'; it has both, serving_default, total"),
        ({"instances": [1], "signature_name": 7}, "no signature 7"),
        ({"inputs": [1], "signature_name": "both"}, "inputs must be an object"),
        ({"instances": [1], "signature_name": "both"}, "instances must be a list of objects"),
        ({"inputs": {"tag": [1], "signal": [[1, 2]]}, "signature_name": "both"}, "takes strings"),
        ({"inputs": {"tag": [["a"], "b"], "signal": [[1, 2]]}, "signature_name": "both"}, "not equally long"),
        ({"inputs": {"tag": [{"b64": "?"}], "signal": [[1, 2]]}, "signature_name": "both"}, "not base64"),
        ({"inputs": {"number": [1.5], "negative": True}, "signature_name": "total"}, "takes int32"),
        ({"inputs": {"number": [2**31], "negative": True}, "signature_name": "total"}, "out of the range of int32"),
        ({"inputs": {"number": [1], "negative": 1}, "signature_name": "total"}, "takes bool"),
    ],
)
def test_what_a_model_cannot_use_is_one_sentence(client: Client, question: Any, part: str) -> None:
    assert part in client.refused(question)
    assert client.predict({"instances": [1.0]}) == {"predictions": [2.0]}, "the connection still works"


# ---------------------------------------------------------------------------------- status, metadata and versions


def test_status_and_metadata(client: Client) -> None:
    ok = {"error_code": "OK", "error_message": ""}
    status = {"model_version_status": [{"version": "7", "state": "AVAILABLE", "status": ok}]}
    assert client.ask("/v1/models/m") == client.ask("/v1/models/m/versions/7") == (200, status)
    code, metadata = client.ask("/v1/models/m/metadata")
    assert code == 200
    assert metadata["model_spec"] == {"name": "m", "signature_name": "", "version": "7"}
    signature = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["inputs"]["x"]["dtype"] == "DT_FLOAT"
    assert signature["inputs"]["x"]["tensor_shape"] == {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}


@pytest.mark.parametrize(
    ("path", "question", "code"),
    [
        ("/v1/models/m/versions/7:predict", {"instances": [1]}, 200),
        ("/v1/models/m/versions/8:predict", {"instances": [1]}, 404),
        ("/v1/models/other:predict", {"instances": [1]}, 404),
        ("/v1/models/other", None, 404),
        ("/v1/models/m/versions/8", None, 404),
        ("/v1/models/m/versions/8/metadata", None, 404),
        ("/v1/models/m:predict", None, 400),
        ("/v1/models/m", {}, 400),
        ("/v1/models/m:classify", {}, 400),
        ("/", None, 400),
    ],
)
def test_paths(client: Client, path: str, question: Any, code: int) -> None:
    answer = client.ask(path, question)
    assert answer[0] == code
    assert code == 200 or answer[1].keys() == {"error"}


def test_another_method_is_refused_in_the_same_form(client: Client) -> None:
    code, answer = client.ask("/v1/models/m", method="DELETE")
    assert code == 501
    assert "DELETE" in answer["error"]


class TestVersions:
    """The highest version is served, and requests never meet a moment without one."""

    def test_a_newer_one_takes_over(self, tmp_path: Path) -> None:
        model = self.model(tmp_path)
        assert self.states(model) == {}
        for number, weight in ((9, 2.0), (10, 3.0)):
            save(tmp_path / str(number), weight)
            model.look()
            assert model.predict("m", None, b'{"instances": [1]}') == {"predictions": [weight]}
        assert self.states(model) == {"10": "AVAILABLE", "9": "END"}

    def test_one_that_cannot_be_loaded_leaves_the_one_before(self, tmp_path: Path) -> None:
        model = self.model(tmp_path)
        save(tmp_path / "1")
        model.look()
        (tmp_path / "2").mkdir()
        (tmp_path / "2" / "saved_model.pb").write_bytes(b"broken")
        with pytest.raises(Exception, match=r"parse|Error"):
            model.look()
        assert self.states(model) == {"2": "END", "1": "AVAILABLE"}
        assert model.states[2]["status"]["error_code"] != "OK"
        assert model.predict("m", None, b'{"instances": [1]}') == {"predictions": [2.0]}

    def test_what_is_loaded_stays_when_the_directory_is_gone(self, tmp_path: Path) -> None:
        model = self.model(tmp_path)
        save(tmp_path / "1")
        model.look()
        (tmp_path / "1").rename(tmp_path / "away")
        model.look()
        assert model.predict("m", 1, b'{"instances": [1]}') == {"predictions": [2.0]}

    def test_it_is_loading_while_it_loads(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from trainer import serve

        model, seen = self.model(tmp_path), []
        load: Callable[..., Any] = serve.load
        monkeypatch.setattr(serve, "load", lambda *args: (seen.append(self.states(model)), load(*args))[1])
        save(tmp_path / "3")
        model.look()
        assert seen == [{"3": "LOADING"}]

    def model(self, directory: Path) -> Any:
        from trainer.serve import Model

        return Model("m", str(directory))

    def states(self, model: Any) -> dict[str, str]:
        from trainer.rest import NotFoundError

        try:
            return {version["version"]: version["state"] for version in model.status("m", None)["model_version_status"]}
        except NotFoundError:
            return {}


# ------------------------------------------------------------------------------------------------- the process


def test_the_process_from_an_empty_directory_over_two_versions_to_its_end(tmp_path: Path) -> None:
    port = ports.reserve(["serving"], 28501, 0)["serving"]
    log = (tmp_path / "log").open("wb")
    command = [sys.executable, "-m", "trainer.serve", "--model_name=m", f"--model_base_path={tmp_path}", f"--rest_api_port={port}"]
    options = ["--port=8500", "--host=127.0.0.1", "--file_system_poll_wait_seconds=0.2"]
    process = subprocess.Popen([*command, *options], cwd=ROOT, stdout=log, stderr=log)
    try:
        eventually(lambda: _listens(port), 20, "it does not listen")
        client = Client(port)
        assert client.ask("/v1/models/m") == (404, {"error": "Could not find any versions of model m"})
        assert client.ask("/v1/models/m:predict", {"instances": [1]})[0] == 404
        save(tmp_path / "1", 2.0)
        eventually(
            lambda: client.ask("/v1/models/m")[0] == 200 and client.ask("/v1/models/m:predict", {"instances": [1]})[0] == 200, 20, ""
        )
        answers: list[tuple[int, Any]] = []
        over = threading.Event()
        crowd = [threading.Thread(target=_hammer, args=(port, answers, over)) for _ in range(3)]
        for one in crowd:
            one.start()
        save(tmp_path / "2", 3.0)
        eventually(lambda: client.predict({"instances": [1]}) == {"predictions": [3.0]}, 20, "version 2 does not take over")
        over.set()
        for one in crowd:
            one.join()
        assert {code for code, _ in answers} == {200}, "no request was dropped"
        assert {answer["predictions"][0] for _, answer in answers} == {2.0, 3.0}
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert "--port=8500 is ignored" in (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()
        log.close()


def _listens(port: int) -> bool:
    try:
        return Client(port).ask("/v1/models/m")[0] > 0
    except OSError:
        return False


def _hammer(port: int, answers: list[tuple[int, Any]], over: threading.Event) -> None:
    client = Client(port)
    while not over.is_set():
        answers.append(client.ask("/v1/models/m:predict", {"instances": [1]}))


def test_help_and_a_taken_port_need_no_tensorflow(client: Client) -> None:
    """And a mistake is one sentence."""
    shown = subprocess.run([sys.executable, "-X", "importtime", "-m", "trainer.serve", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert shown.returncode == 0
    assert "--model_base_path" in shown.stdout
    assert "tensorflow" not in shown.stderr
    port = client.connection.port
    options = ["--model_name=m", "--model_base_path=/nowhere", "--host=127.0.0.1", f"--rest_api_port={port}"]
    taken = subprocess.run([sys.executable, "-m", "trainer.serve", *options], cwd=ROOT, capture_output=True, text=True)
    assert taken.returncode == 1
    assert f"port {port} cannot be used" in taken.stdout
    assert taken.stderr == ""
