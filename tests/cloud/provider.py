"""The simulated cloud as provider plugins: gcp, kubernetes and docker-build over the protocol that the engine speaks with the real ones.

The engine finds them through PULUMI_DEBUG_PROVIDERS. One server stands for all providers of its name in a program, default ones and
others: each has a connection of its own, and that is how they are told apart. The engine keeps track of which values are secret, since
these providers say that they do not. Not simulated: look-ups (except getClientConfig), components, methods, resources that are created
but not ready, and the checks of values that the real providers do before anything is created.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct
from pulumi.runtime.proto import plugin_pb2
from pulumi.runtime.proto import provider_pb2 as protocol
from pulumi.runtime.proto.provider_pb2_grpc import ResourceProviderServicer, add_ResourceProviderServicer_to_server

from tests.cloud.cloud import Cloud, NeverAnswers, kind_of
from tests.cloud.kinds import CloudError, Values, at, put

NAMES = ("gcp", "kubernetes", "docker-build")
SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET = "1b47061264138c4ac30d75fd1eb44270"

PropertyPath = tuple[str | int, ...]
MISSING = object()


def to_struct(values: Values) -> Struct:
    return ParseDict(values, Struct())


def from_struct(struct: Struct) -> Values:
    return plain(MessageToDict(struct))


def plain(value: Any) -> Any:
    """Without the wrapping of secrets, without what is null, and with whole numbers as such."""
    if isinstance(value, dict):
        if value.get(SIGNATURE) == SECRET:
            return plain(value["value"])
        return {key: plain(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def secret(value: Any) -> Values:
    return {SIGNATURE: SECRET, "value": value}


def differences(old: Any, new: Any, path: PropertyPath = ()) -> Iterator[tuple[PropertyPath, Any, Any]]:
    """Every value that is not the same, with its path; MISSING where there is none."""
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            yield from differences(old.get(name, MISSING), new.get(name, MISSING), (*path, name))
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            was, becomes = (one[index] if index < len(one) else MISSING for one in (old, new))
            yield from differences(was, becomes, (*path, index))
    # What comes or goes as a whole is looked into as well: the part that replaces may be inside.
    elif isinstance(old, dict) and old and new is MISSING:
        yield from differences(old, {}, path)
    elif isinstance(new, dict) and new and old is MISSING:
        yield from differences({}, new, path)
    else:
        yield path, old, new


def written(path: PropertyPath) -> str:
    """A path as the engine writes it."""
    parts = [f".{part}" if re.fullmatch(r"[A-Za-z_]\w*", str(part)) else f"[{json.dumps(part)}]" for part in path]
    return "".join(parts).removeprefix(".")


def replacing(type: str, path: PropertyPath, old: Any, new: Any) -> bool:
    kind = kind_of(type)
    name = ".".join(part for part in path if isinstance(part, str))
    if any(pattern == "*" or f"{name}.".startswith(f"{pattern}.") for pattern in kind.replaces):
        return True
    when = (kind.replaces_when or {}).get(name)
    return bool(when and when(old, new))


def answering(method: Callable[..., Any]) -> Callable[..., Any]:
    """Gives the cloud's errors to the engine, and no answer at all where a fault wants that."""

    @functools.wraps(method)
    def answer(self: Provider, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return method(self, request, context)
        except CloudError as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        except NeverAnswers:
            # Until the engine gives up or is killed, or the server stops.
            ended = threading.Event()
            if context.add_callback(ended.set):
                ended.wait()
            context.abort(grpc.StatusCode.CANCELLED, "the call was lost")

    return answer


class Provider(ResourceProviderServicer):
    def __init__(self, name: str, cloud: Cloud) -> None:
        self.name = name
        self.cloud = cloud
        self.configurations: dict[str, dict[str, str]] = {}

    def configuration(self, context: grpc.ServicerContext) -> dict[str, str]:
        return self.configurations[context.peer()]

    def Attach(self, _request: Any, _context: Any) -> Empty:
        return Empty()

    def Cancel(self, _request: Any, _context: Any) -> Empty:
        return Empty()

    def GetPluginInfo(self, _request: Any, _context: Any) -> plugin_pb2.PluginInfo:
        # That of the SDK beside it: the engine warns of anything older.
        return plugin_pb2.PluginInfo(version=metadata.version(f"pulumi-{self.name}"))

    def GetSchema(self, _request: Any, _context: Any) -> protocol.GetSchemaResponse:
        return protocol.GetSchemaResponse(schema=json.dumps({"name": self.name}))

    def CheckConfig(self, request: Any, _context: Any) -> protocol.CheckResponse:
        return protocol.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, _context: Any) -> protocol.DiffResponse:
        """Another configuration never replaces a provider, and so nothing that it made."""
        changed = from_struct(request.old_inputs) != from_struct(request.news)
        return protocol.DiffResponse(changes=protocol.DiffResponse.DIFF_SOME if changed else protocol.DiffResponse.DIFF_NONE)

    def Configure(self, request: Any, context: grpc.ServicerContext) -> protocol.ConfigureResponse:
        values = from_struct(request.args)
        self.configurations[context.peer()] = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
        return protocol.ConfigureResponse(supportsPreview=True)

    @answering
    def Check(self, request: Any, _context: Any) -> protocol.CheckResponse:
        inputs, name = from_struct(request.news), kind_of(request.type).autonamed
        if name and not at(inputs, name):
            made = f"{request.name}-{hashlib.sha256(request.randomSeed + request.urn.encode()).hexdigest()[:7]}"
            put(inputs, name, at(from_struct(request.olds), name) or made)
        return protocol.CheckResponse(inputs=to_struct(inputs))

    @answering
    def Diff(self, request: Any, context: grpc.ServicerContext) -> protocol.DiffResponse:
        news, olds, known = from_struct(request.news), from_struct(request.old_inputs), from_struct(request.olds)
        for name in kind_of(request.type).unreadable:  # only the outputs say whether it was done
            olds.pop(name, None)
            olds |= {name: known[name]} if name in known else {}
        kinds, details = protocol.PropertyDiff, {}
        for path, old, new in differences(olds, news):
            change = kinds.ADD if old is MISSING else kinds.DELETE if new is MISSING else kinds.UPDATE
            # Each kind of change is followed by the same one with a replacement.
            details[path] = change + replacing(request.type, path, old, new)
        replaces = [path for path, change in details.items() if change % 2]
        return protocol.DiffResponse(
            changes=protocol.DiffResponse.DIFF_SOME if details else protocol.DiffResponse.DIFF_NONE,
            diffs=sorted({str(path[0]) for path in details}),
            replaces=[written(path) for path in replaces],
            deleteBeforeReplace=bool(replaces) and self.cloud.identify(request.type, news, self.configuration(context)) == request.id,
            detailedDiff={written(path): protocol.PropertyDiff(kind=change, inputDiff=True) for path, change in details.items()},
            hasDetailedDiff=True,
        )

    @answering
    def Create(self, request: Any, context: grpc.ServicerContext) -> protocol.CreateResponse:
        inputs, configuration = from_struct(request.properties), self.configuration(context)
        if request.preview:
            return protocol.CreateResponse(properties=to_struct(self.cloud.preview(request.type, inputs, configuration)))
        made = self.cloud.create(request.type, inputs, configuration, request.urn.rpartition("::")[2])
        return protocol.CreateResponse(id=made.id, properties=self.outputs(made.type, made.outputs))

    @answering
    def Read(self, request: Any, context: grpc.ServicerContext) -> protocol.ReadResponse:
        found = self.cloud.read(request.type, request.id, self.configuration(context))
        if found is None:
            return protocol.ReadResponse()
        # Like the real ones: only what the program says something about, unless it is imported.
        said = from_struct(request.inputs)
        inputs = {name: value for name, value in found.inputs.items() if not said or name in said}
        outputs = dict(found.outputs)
        for name in kind_of(request.type).unreadable:
            for known, answer in ((said, inputs), (from_struct(request.properties), outputs)):
                answer.pop(name, None)
                answer |= {name: known[name]} if name in known else {}
        return protocol.ReadResponse(id=found.id, properties=self.outputs(found.type, outputs), inputs=to_struct(inputs))

    @answering
    def Update(self, request: Any, context: grpc.ServicerContext) -> protocol.UpdateResponse:
        inputs, configuration = from_struct(request.news), self.configuration(context)
        if request.preview:
            olds = {name: one for name, one in from_struct(request.olds).items() if name not in from_struct(request.old_inputs)}
            fresh = self.cloud.preview(request.type, inputs, configuration)
            changing = {name: fresh[name] for name in kind_of(request.type).volatile}
            return protocol.UpdateResponse(properties=to_struct({**olds, **inputs, **changing}))
        changed = self.cloud.update(request.type, request.id, inputs, configuration)
        return protocol.UpdateResponse(properties=self.outputs(changed.type, changed.outputs))

    @answering
    def Delete(self, request: Any, context: grpc.ServicerContext) -> Empty:
        self.cloud.delete(request.type, request.id, self.configuration(context))
        return Empty()

    @answering
    def Invoke(self, request: Any, context: grpc.ServicerContext) -> protocol.InvokeResponse:
        self.cloud.asked(request.tok)
        if request.tok != "gcp:organizations/getClientConfig:getClientConfig":
            raise CloudError(f"the simulated cloud does not answer look-ups such as {request.tok}")
        configuration = self.configuration(context)
        values = {name: configuration.get(name, "") for name in ("project", "region", "zone")}
        token = secret("ya29.FAKE-TOKEN-OF-THE-SIMULATED-CLOUD")
        return protocol.InvokeResponse(**{"return": to_struct({"id": "client", "accessToken": token, "defaultLabels": {}, **values})})

    @staticmethod
    def outputs(type: str, values: Values) -> Struct:
        hidden = kind_of(type).secret
        return to_struct({name: secret(value) if name in hidden else value for name, value in values.items()})


@contextmanager
def serve(cloud: Cloud) -> Iterator[dict[str, str]]:
    """Serves the cloud, and yields the environment in which the engine and `gcloud` use it."""
    servers, ports = [], []
    try:
        for name in NAMES:
            server = grpc.server(ThreadPoolExecutor(max_workers=64), options=[("grpc.max_receive_message_length", -1)])
            add_ResourceProviderServicer_to_server(Provider(name, cloud), server)
            ports.append(f"{name}:{server.add_insecure_port('127.0.0.1:0')}")
            server.start()
            servers.append(server)
        yield {
            "PULUMI_DEBUG_PROVIDERS": ",".join(ports),
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "1",
            "TRAINSTACK_CLOUD": str(cloud.path),
            # The fake gcloud first, then the Python that runs it.
            "PATH": os.pathsep.join([str(Path(__file__).parent / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
        }
    finally:
        for server in servers:
            server.stop(grace=None).wait()
