"""Serves an exported model by the REST API of TensorFlow Serving, where there is no TensorFlow Serving:

    python -m trainer.serve --model_name=digits --model_base_path=runs/local/digits/1/model --rest_api_port=8501
    curl localhost:8501/v1/models/digits
    curl localhost:8501/v1/models/digits:predict -d '{"instances": […]}'

It serves the highest version in the directory and looks for another every few seconds; a request that has begun ends with the version it
began with. It has the status, metadata and predict calls; it has no gRPC, no batching of requests, no classify and no regress.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from trainer import rest
from trainer.rest import NotFoundError, RequestError, first_line

# TensorFlow reads both when it is imported: by the thread that loads, so that the server answers from its first second.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

PATH = re.compile(r"/v1/models/(?P<model>[^/:]+)(?:/versions/(?P<version>\d+))?(?:/(?P<metadata>metadata)|:(?P<verb>\w+))?")


@dataclass(frozen=True)
class Version:
    number: int
    signatures: Any
    model: Any  # kept, because the signatures alone do not keep the variables
    metadata: dict[str, Any]


class Model:
    """The versions of one model: which is served, and how the others are."""

    def __init__(self, name: str, directory: str) -> None:
        self.name, self.directory = name, directory
        self.served: Version | None = None
        self.states: dict[int, dict[str, Any]] = {}

    # --------------------------------------------------------------------------------------------- versions

    def watch(self, every: float) -> None:
        import tensorflow as tf

        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)  # a server needs little of it, and others want the rest
        said = ""
        while True:
            try:
                self.look()
                said = ""
            except (OSError, ValueError, tf.errors.OpError) as error:
                if said != (said := first_line(error)):
                    say(f"{self.directory} cannot be served now, it is tried again every {every:g} s: {said}")
            time.sleep(every)

    def look(self) -> None:
        """Loads what is newest, unless it is loaded. Where there is nothing, what is loaded stays."""
        from trainer import export

        newest = export.newest(self.directory)
        if newest is None or (self.served and self.served.number == newest[0]):
            return
        number, folder = newest
        before, began = self.served, time.monotonic()
        self.mark(number, "LOADING")
        try:
            self.served = load(number, folder)
        except Exception as error:
            self.mark(number, "END", "UNKNOWN", first_line(error))
            raise
        self.mark(number, "AVAILABLE")
        say(f"version {number} of {self.name} is loaded ({time.monotonic() - began:.1f} s)")
        if before:
            self.mark(before.number, "END")

    def mark(self, number: int, state: str, code: str = "OK", message: str = "") -> None:
        status = {"error_code": code, "error_message": message}
        self.states[number] = {"version": str(number), "state": state, "status": status}

    # ---------------------------------------------------------------------------------------------- answers

    def answer(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        match = PATH.fullmatch(path)
        verb = match["verb"] if match else None
        if match is None or (method == "POST") != (verb is not None):
            raise RequestError(f"Malformed request: {method} {path}")
        version = int(match["version"]) if match["version"] else None
        if verb is None and not match["metadata"]:
            return self.status(match["model"], version)
        if verb not in (None, "predict"):
            raise RequestError(f"{verb} is not served here; ask :predict.")
        return self.predict(match["model"], version, body) if verb else self.metadata(match["model"], version)

    def status(self, model: str, version: int | None) -> dict[str, Any]:
        known = sorted(self.states.items(), reverse=True) if model == self.name else []
        found = [state for number, state in known if version in (None, number)]
        if not found:
            raise NotFoundError(f"Could not find any versions of model {model}" if version is None else f"{model} has no version {version}")
        return {"model_version_status": found}

    def metadata(self, model: str, version: int | None) -> dict[str, Any]:
        served = self.find(model, version)
        spec = {"name": model, "signature_name": "", "version": str(served.number)}
        return {"model_spec": spec, "metadata": {"signature_def": served.metadata}}

    def predict(self, model: str, version: int | None, body: bytes) -> dict[str, Any]:
        return rest.predict(self.find(model, version).signatures, body)

    def find(self, model: str, version: int | None) -> Version:
        served = self.served
        if model != self.name or served is None or version not in (None, served.number):
            which = f"Latest({model})" if version is None else f"Specific({model}, {version})"
            raise NotFoundError(f"Servable not found for request: {which}")
        return served


def load(number: int, folder: str) -> Version:
    import tensorflow as tf
    from google.protobuf import json_format  # type: ignore[import-untyped]
    from tensorflow.core.protobuf import saved_model_pb2

    from trainer import export

    with tf.io.gfile.GFile(f"{folder}/{export.MODEL}", "rb") as file:
        saved = saved_model_pb2.SavedModel.FromString(file.read())
    graph = next(graph for graph in saved.meta_graphs if "serve" in graph.meta_info_def.tags)
    signatures = {
        name: json_format.MessageToDict(signature, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        for name, signature in graph.signature_def.items()
    }
    model = tf.saved_model.load(folder)
    return Version(number, model.signatures, model, {"signature_def": signatures})


# --------------------------------------------------------------------------------------------------- server


class Server(ThreadingTCPServer):
    """Not http.server's own class, which asks the name service for its name before it listens."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], model: Model) -> None:
        self.model = model
        super().__init__(address, Handler)


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"  # a connection stays for the next request
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave together
    timeout = 60

    def do_GET(self) -> None:
        self.respond(b"")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.send_error(HTTPStatus.LENGTH_REQUIRED, "a request needs the header Content-Length")
            return
        self.respond(self.rfile.read(int(length)))

    def respond(self, body: bytes) -> None:
        try:
            self.send(HTTPStatus.OK, self.server.model.answer(self.command, self.path.partition("?")[0], body))
        except NotFoundError as error:
            self.send(HTTPStatus.NOT_FOUND, {"error": str(error)})
        except RequestError as error:
            self.send(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except ConnectionError:
            self.close_connection = True  # nobody listens any more
        except Exception as error:
            traceback.print_exc()
            self.send(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": first_line(error)})

    def send(self, code: HTTPStatus, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library has to say about a request, in our form."""
        self.close_connection = True
        self.send(HTTPStatus(code), {"error": message or explain or HTTPStatus(code).phrase})

    def log_message(self, *_: object) -> None:
        """Whoever asks a thousand times a second wants no line for each."""


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m trainer.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("--model_name", required=True, help="the name under which the model is asked: /v1/models/NAME")
    result.add_argument("--model_base_path", required=True, help="the directory with a folder per version; a local path or gs://…")
    result.add_argument("--rest_api_port", type=int, default=8501, help="default: %(default)s")
    result.add_argument("--port", type=int, help="accepted for the sake of TensorFlow Serving's command line; there is no gRPC here")
    result.add_argument("--host", default="0.0.0.0", help="the address to listen at; default: all of this machine's")
    result.add_argument(
        "--file_system_poll_wait_seconds",
        type=float,
        default=5,
        metavar="SECONDS",
        help="between two looks for a version; default: %(default)s",
    )
    result.add_argument("--watch_parent", action="store_true", help="end when the process that started this one is gone")
    return result


def say(text: str) -> None:
    print(f"serve: {text}", flush=True)


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    parent = os.getppid()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))  # there is nothing to save, and TensorFlow's own tidying takes seconds
    if args.port is not None:
        say(f"there is no gRPC here, --port={args.port} is ignored")
    model = Model(args.model_name, args.model_base_path.rstrip("/"))
    try:
        server = Server((args.host, args.rest_api_port), model)
    except (OSError, OverflowError) as error:
        say(f"port {args.rest_api_port} cannot be used ({first_line(error)}); choose another with --rest_api_port")
        return 1
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=watch, args=(model, args.file_system_poll_wait_seconds), daemon=True).start()
    say(f"http://{args.host}:{args.rest_api_port}/v1/models/{model.name} serves what is in {model.directory}")
    while not args.watch_parent or os.getppid() == parent:
        time.sleep(1)
    return 0


def watch(model: Model, every: float) -> None:
    """A server that can load nothing any more ends, so that somebody notices and starts it again."""
    try:
        model.watch(every)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
