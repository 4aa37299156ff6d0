"""Forwarding, commands in containers and files elsewhere, without a cluster."""

from __future__ import annotations

import io
import json
import os
import pty
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ops import shell, storage
from ops.forward import Forward
from ops.predict import ask_server
from ops.target import OpsError
from tests.ops.test_cluster import Connection


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, int]]:
    (tmp_path / "big").write_bytes(b"x" * 3_000_000)
    (tmp_path / "small").write_text("hello")
    handler = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield "127.0.0.1", server.server_port
    server.shutdown()
    server.server_close()


def test_many_connections_at_once(site: tuple[str, int]) -> None:
    with Forward(lambda: socket.create_connection(site)) as forward, ThreadPoolExecutor(12) as pool:

        def get(number: int) -> int:
            with urllib.request.urlopen(f"{forward.url}{'big' if number % 2 else 'small'}", timeout=30) as response:
                return len(response.read())

        assert list(pool.map(get, range(24))) == [5, 3_000_000] * 12


def test_a_connection_that_stays_open_keeps_nobody_waiting(site: tuple[str, int]) -> None:
    with Forward(lambda: socket.create_connection(site)) as forward, socket.create_connection(("127.0.0.1", forward.port)):
        assert urllib.request.urlopen(f"{forward.url}small", timeout=10).read() == b"hello"


def test_the_port_is_free_again_afterwards(site: tuple[str, int]) -> None:
    with Forward(lambda: socket.create_connection(site)) as forward:
        port = forward.port
        with pytest.raises(OpsError, match=r"cannot be used .*; name another with --port"):
            Forward(lambda: socket.create_connection(site), port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_pod_that_does_not_answer_ends_the_connection(capsys: pytest.CaptureFixture[str]) -> None:
    def dial() -> Any:
        raise OpsError("the pod is gone")

    with Forward(dial) as forward:
        for _ in range(3):
            with pytest.raises(OSError):  # noqa: PT011 - reset or closed, as the system likes
                urllib.request.urlopen(forward.url, timeout=10).read()
    assert capsys.readouterr().err == "trainstack: the pod is gone\n", "it is said once"


def test_a_browser_that_goes_away_is_no_trouble(site: tuple[str, int]) -> None:
    with Forward(lambda: socket.create_connection(site)) as forward:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", forward.port)) as browser:
                browser.sendall(b"GET /big HTTP/1.0\r\n\r\n")
                browser.recv(1000)
        assert urllib.request.urlopen(f"{forward.url}small", timeout=10).read() == b"hello"


# ------------------------------------------------------------------------------------------------------ commands


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"status": "Success"}, (0, "")),
        ({"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "7"}]}}, (7, "")),
        (
            {
                "status": "Failure",
                "message": 'error executing command in container: failed to exec in container: failed to start exec "4c98": OCI runtime exec failed: exec '
                'failed: unable to start container process: exec: "nosuch": executable file not found in $PATH: unknown',
            },
            (126, 'exec: "nosuch": executable file not found in $PATH'),
        ),
    ],
)
def test_exit_codes(status: dict[str, Any], expected: tuple[int, str]) -> None:
    assert shell.exit_code(json.dumps(status).encode()) == expected


def test_a_command_that_cannot_run_and_a_pod_that_goes() -> None:
    unable = Connection()
    unable.left = [(shell.END, b'{"status": "Failure", "message": "no such container"}')]
    with pytest.raises(OpsError, match="cannot be run there: no such container"):
        shell.run(unable)
    gone = Connection()
    gone.recv_data_frame = lambda _: (8, SimpleNamespace(data=b""))  # type: ignore[method-assign, assignment, misc]
    with pytest.raises(OpsError, match="the connection to the pod was lost"):
        shell.run(gone)
    assert gone.closed


def test_output_is_a_file() -> None:
    output = shell.Output(Connection((shell.STDOUT, b"abc"), (shell.STDERR, b"oh"), (shell.STDOUT, b"def\n"), code=3))
    assert io.BufferedReader(output).read() == b"abcdef\n"
    assert (output.errors, output.command.result()) == (b"oh", 3)


class Echo(Connection):
    """A container that repeats what it is told, and ends at the end of its input or at `exit`."""

    def __init__(self) -> None:
        super().__init__()
        self.left = []
        self.sizes: list[dict[str, int]] = []
        self.ready = threading.Semaphore(0)

    def recv_data_frame(self, _: bool) -> Any:
        self.ready.acquire()
        return super().recv_data_frame(_)

    def write_channel(self, channel: int, data: bytes) -> None:
        if channel == shell.RESIZE:
            self.sizes.append(json.loads(data))
            return
        self.left.append((shell.STDOUT, data.upper()))
        self.ready.release()
        if data.startswith(b"exit"):
            self.close_channel(channel)

    def close_channel(self, _: int) -> None:
        self.left.append((shell.END, b'{"status": "Success"}'))
        self.ready.release()


def test_piped_input_reaches_the_command(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    read, write = os.pipe()
    os.write(write, b"hello\n")
    os.close(write)
    with closing(os.fdopen(read)) as stdin:
        monkeypatch.setattr(shell.sys, "stdin", stdin)
        assert shell.attach(Echo(), terminal=False) == 0
    assert capfdbinary.readouterr().out == b"HELLO\n"


def test_a_terminal_is_raw_and_is_given_back(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    import termios

    leader, follower = pty.openpty()
    with closing(os.fdopen(follower)) as stdin:
        monkeypatch.setattr(shell.sys, "stdin", stdin)
        monkeypatch.setenv("COLUMNS", "101")
        monkeypatch.setenv("LINES", "33")
        before, during, echo = termios.tcgetattr(stdin), [], Echo()

        def type_in() -> None:
            time.sleep(0.2)
            during.append(termios.tcgetattr(stdin))
            os.write(leader, b"\x03")
            time.sleep(0.2)
            os.write(leader, b"exit\n")

        threading.Thread(target=type_in).start()
        assert shell.attach(echo, terminal=True) == 0
        assert termios.tcgetattr(stdin) == before
        assert during[0] != before
    os.close(leader)
    assert echo.sizes == [{"Width": 101, "Height": 33}]
    assert b"\x03" in capfdbinary.readouterr().out, "Ctrl-C is for whoever runs there"


# --------------------------------------------------------------------------------------------------------- files


def test_the_newest_version_is_the_highest_number() -> None:
    assert storage.newest(["9", "880", ".saving", "1000.saving"]) == "880"
    assert storage.newest([]) == ""


@pytest.mark.process
def test_a_bucket_is_copied_whole_and_deleted(tmp_path: Path) -> None:
    """TensorFlow's files are the same here as on gs://."""
    model = tmp_path / "models" / "880" / "variables"
    model.mkdir(parents=True)
    (model / "data").write_text("x")
    (model.parent / "saved_model.pb").write_text("y")
    bucket = storage.Bucket(str(tmp_path / "models"))
    assert bucket.names() == ["880"]
    bucket.fetch("880", tmp_path / "here")
    assert sorted(str(path.relative_to(tmp_path / "here")) for path in (tmp_path / "here").rglob("*")) == [
        "saved_model.pb",
        "variables",
        "variables/data",
    ]
    with pytest.raises(OpsError, match="exists already"):
        bucket.fetch("880", tmp_path / "here")
    bucket.delete()
    assert bucket.names() == []
    bucket.delete()


# ------------------------------------------------------------------------------------------------------- serving


@pytest.fixture
def served() -> Iterator[tuple[str, list[Any]]]:
    """A model of one input and one output, behind the REST API of TensorFlow Serving."""
    bodies: list[Any] = []
    shape = {"dim": [{"size": "-1"}, {"size": "2"}, {"size": "2"}]}
    signature = {"inputs": {"x": {"dtype": "DT_FLOAT", "tensor_shape": shape}}, "outputs": {"probabilities": {}}}

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, {"metadata": {"signature_def": {"signature_def": {"serving_default": signature}}}})

        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            good = self.path == "/v1/models/m:predict"
            self.answer(
                200 if good else 404, {"predictions": [[0.1, 0.9]] * len(bodies[-1]["instances"])} if good else {"error": "no model"}
            )

        def answer(self, status: int, body: Any) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/models/m", bodies
    server.shutdown()
    server.server_close()


def test_a_server_is_asked_as_the_model_is(served: tuple[str, list[Any]], tmp_path: Path) -> None:
    url, bodies = served
    file = tmp_path / "inputs.csv"
    file.write_text("1,2,3,4\n5,6,7,8\n")
    assert ask_server(url, file) == [{"probabilities": [0.1, 0.9]}] * 2
    assert bodies == [{"instances": [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]}], "in the shape that the model takes"
    file.write_text("1,2,3\n")
    with pytest.raises(OpsError, match=r"does not fit the model, which takes DT_FLOAT of shape \(-1, 2, 2\)"):
        ask_server(url, file)
    file.write_text("1,2,3,4\n")
    with pytest.raises(OpsError, match=r"the server refused the inputs \(.*no model.*\); correct the file"):
        ask_server(url.replace("/m", "/other"), file)
    with pytest.raises(OpsError, match="the server does not answer"):
        ask_server("http://127.0.0.1:1/v1/models/m", file)
