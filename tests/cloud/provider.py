"""The simulated cloud as provider plugins: gcp, kubernetes and docker-build over the protocol that the engine speaks with the real ones.

The engine finds them through PULUMI_DEBUG_PROVIDERS. One server stands for all providers of its name in a program, default ones and
others: each has a connection of its own, and that is how they are told apart. The engine keeps track of which values are secret, since
these providers say that they do not. Not simulated: look-ups (except getClientConfig), components, methods, resources that are created
but not ready, and the checks of values that the real providers do before anything is created.

The kubernetes plugin can also work on a real cluster: with `serve(cloud, real=True)` each of its providers goes where its kubeconfig leads,
to a cluster of the simulated cloud or to an API server. Only on request, since people simulate stacks whose kubeconfig is their own.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct
from pulumi.runtime.proto import plugin_pb2, status_pb2
from pulumi.runtime.proto import provider_pb2 as protocol
from pulumi.runtime.proto.provider_pb2_grpc import ResourceProviderServicer, add_ResourceProviderServicer_to_server

from tests.cloud import ready, server
from tests.cloud.cloud import Cloud, NeverAnswers, kind_of
from tests.cloud.kinds import UNKNOWN, CloudError, Values, at, put
from tests.cloud.volumes import serve_volumes

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


def replacing(type: str, path: PropertyPath, old: Any, new: Any, changeable: tuple[str, ...] = ()) -> bool:
    kind = kind_of(type)
    name = ".".join(part for part in path if isinstance(part, str))

    def within(patterns: tuple[str, ...]) -> bool:
        return any(pattern == "*" or f"{name}.".startswith(f"{pattern}.") for pattern in patterns)

    if within(kind.replaces):
        return not within(changeable)
    when = (kind.replaces_when or {}).get(name)
    return bool(when and when(old, new))


def difference(type: str, olds: Values, news: Values, configuration: Mapping[str, str], same_id: bool) -> protocol.DiffResponse:
    """What a change means; a replacement under the same id begins with the deletion."""
    kinds, details = protocol.PropertyDiff, {}
    changeable = kind_of(type).changeable(news, configuration)
    for path, old, new in differences(olds, news):
        change = kinds.ADD if old is MISSING else kinds.DELETE if new is MISSING else kinds.UPDATE
        # Each kind of change is followed by the same one with a replacement.
        details[path] = change + replacing(type, path, old, new, changeable)
    replaces = [path for path, change in details.items() if change % 2]
    return protocol.DiffResponse(
        changes=protocol.DiffResponse.DIFF_SOME if details else protocol.DiffResponse.DIFF_NONE,
        diffs=sorted({str(path[0]) for path in details}),
        replaces=[written(path) for path in replaces],
        deleteBeforeReplace=bool(replaces) and same_id,
        detailedDiff={written(path): protocol.PropertyDiff(kind=change, inputDiff=True) for path, change in details.items()},
        hasDetailedDiff=True,
    )


class Incomplete(Exception):
    """Made or found, but not as it should be: the engine keeps the resource and tells the person why."""

    def __init__(self, id: str, message: str, reasons: Iterable[str], outputs: Struct, inputs: Struct | None = None) -> None:
        super().__init__(message)
        self.detail = protocol.ErrorResourceInitFailed(id=id, properties=outputs, reasons=reasons, inputs=inputs)

    def status(self) -> grpc.Status:
        code, message = grpc.StatusCode.UNKNOWN, str(self)
        rich = status_pb2.Status(code=code.value[0], message=message)
        rich.details.add().Pack(self.detail)
        return Status(code, message, (("grpc-status-details-bin", rich.SerializeToString()),))


class Status(NamedTuple("Status", [("code", grpc.StatusCode), ("details", str), ("trailing_metadata", Any)]), grpc.Status):
    """An error with details, in the form in which gRPC takes it."""


def answering(method: Callable[..., Any]) -> Callable[..., Any]:
    """Gives the cloud's errors to the engine, and no answer at all where a fault wants that."""

    @functools.wraps(method)
    def answer(self: Provider, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return method(self, request, context)
        except CloudError as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        except Incomplete as error:
            context.abort_with_status(error.status())
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
            put(inputs, name, at(from_struct(request.olds), name) or autoname(request))
        return protocol.CheckResponse(inputs=to_struct(inputs))

    @answering
    def Diff(self, request: Any, context: grpc.ServicerContext) -> protocol.DiffResponse:
        news, olds, known = from_struct(request.news), from_struct(request.old_inputs), from_struct(request.olds)
        for name in kind_of(request.type).unreadable:  # only the outputs say whether it was done
            olds.pop(name, None)
            olds |= {name: known[name]} if name in known else {}
        configuration = self.configuration(context)
        same_id = self.cloud.identify(request.type, news, configuration) == request.id
        return difference(request.type, olds, news, configuration, same_id)

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


def on_server(method: Callable[..., Any]) -> Callable[..., Any]:
    """For a provider whose kubeconfig leads to a real API server; the others stay in the simulation."""

    @functools.wraps(method)
    def answer(self: Kubernetes, request: Any, context: grpc.ServicerContext) -> Any:
        found = self.servers.get(context.peer())
        if found is None:
            return getattr(Provider, method.__name__)(self, request, context)
        return answering(lambda *_: method(self, request, context, found))(self, request, context)

    return answer


class Kubernetes(Provider):
    def __init__(self, name: str, cloud: Cloud, real: bool) -> None:
        super().__init__(name, cloud)
        self.real = real
        self.servers: dict[str, server.Server] = {}

    def Cancel(self, _request: Any, context: grpc.ServicerContext) -> Empty:
        if found := self.servers.get(context.peer()):
            found.cancel()
        return Empty()

    def DiffConfig(self, request: Any, context: grpc.ServicerContext) -> protocol.DiffResponse:
        """Another cluster replaces the provider and all that it made. Without an identifier, another address is taken for another cluster."""
        answer, olds, news = super().DiffConfig(request, context), from_struct(request.old_inputs), from_struct(request.news)
        name = "clusterIdentifier" if {"clusterIdentifier"} & {*olds, *news} else "kubeconfig"
        was, becomes = (values.get(name, "") if name != "kubeconfig" else server.address(values) for values in (olds, news))
        if was != becomes and UNKNOWN not in json.dumps(news):
            answer.replaces.append(name)
        return answer

    def Configure(self, request: Any, context: grpc.ServicerContext) -> protocol.ConfigureResponse:
        answer = super().Configure(request, context)
        configuration = self.configuration(context)
        if self.real and not server.simulated(configuration):
            try:
                self.servers[context.peer()] = server.Server(configuration)
            except CloudError as error:
                context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return answer

    @on_server
    def Check(self, request: Any, _context: Any, on: server.Server) -> protocol.CheckResponse:
        inputs, olds = from_struct(request.news), from_struct(request.olds)
        if not at(inputs, "metadata.name"):
            # The same as before, unless this is a replacement: then there is nothing before it.
            kept = at(olds, "metadata.name") if ready.annotation(olds, "autonamed") == "true" else ""
            put(inputs, "metadata.name", kept or autoname(request))
            put(inputs, "metadata.annotations", {**(at(inputs, "metadata.annotations") or {}), "pulumi.com/autonamed": "true"})
        return protocol.CheckResponse(inputs=to_struct(inputs if on.unreachable else on.placed(inputs)))

    @on_server
    def Diff(self, request: Any, context: Any, on: server.Server) -> protocol.DiffResponse:
        """Compares what the server had last, as far as the program spoke of it, with what the program says now."""
        news, live = server.normalized(from_struct(request.news)), from_struct(request.olds)
        olds = server.pruned(live, server.normalized(from_struct(request.old_inputs)))
        named = ready.annotation(news, "autonamed") != "true" and server.identity(news) == server.identity(live)
        answer = difference(request.type, olds, news, self.configuration(context), named)
        if ready.annotation(news, "replaceUnready") == "true" and on.unready_job(live):
            answer.changes = protocol.DiffResponse.DIFF_SOME
            answer.replaces.append('metadata.annotations["pulumi.com/replaceUnready"]')
            answer.deleteBeforeReplace = named
        return answer

    @on_server
    def Create(self, request: Any, context: Any, on: server.Server) -> protocol.CreateResponse:
        inputs = from_struct(request.properties)
        if request.preview:
            made = on.previewed(inputs)
            return protocol.CreateResponse(properties=seen(made) if made else request.properties)
        try:
            with on.call(context.add_callback) as stop:
                made = on.create(inputs, request.timeout, stop)
        except server.Unready as error:
            said = "was successfully created, but the Kubernetes API server reported that it failed to fully initialize or become live"
            raise incomplete(error, f'resource "{request.urn}" {said}: {error}') from error
        except CloudError as error:
            raise CloudError(f'resource "{request.urn}" was not successfully created by the Kubernetes API server: {error}') from error
        return protocol.CreateResponse(id=server.identity(made), properties=seen(made))

    @on_server
    def Read(self, request: Any, _context: Any, on: server.Server) -> protocol.ReadResponse:
        inputs, known = server.normalized(from_struct(request.inputs)), from_struct(request.properties)
        if on.unreachable and on.forgets:
            return protocol.ReadResponse()
        on.require()
        live = on.read(*kind_of_object(request.type, inputs or known), request.id)
        if live is None:
            return protocol.ReadResponse()
        said = hidden(server.pruned(live, inputs) if inputs else server.importable(live))
        if inputs and not (verdict := on.health(inputs, live)).done:
            message = f"Resource '{live['metadata']['name']}' was created but failed to initialize"
            raise Incomplete(request.id, message, [message, *on.reasons(live, verdict)], seen(live), said)
        return protocol.ReadResponse(id=request.id, properties=seen(live), inputs=said)

    @on_server
    def Update(self, request: Any, context: Any, on: server.Server) -> protocol.UpdateResponse:
        inputs = from_struct(request.news)
        if request.preview:
            changed = on.previewed_update(request.id, inputs)
            return protocol.UpdateResponse(properties=seen(changed) if changed else request.news)
        try:
            with on.call(context.add_callback) as stop:
                changed = on.update(request.id, inputs, request.timeout, stop)
        except server.Unready as error:
            said = f'the Kubernetes API server reported that "{request.id}" failed to fully initialize or become live'
            raise incomplete(error, f"{said}: {error}") from error
        except CloudError as error:
            raise CloudError(f'update of resource "{request.urn}" failed: {error}') from error
        return protocol.UpdateResponse(properties=seen(changed))

    @on_server
    def Delete(self, request: Any, context: Any, on: server.Server) -> Empty:
        try:
            with on.call(context.add_callback) as stop:
                on.delete(from_struct(request.properties), from_struct(request.old_inputs), request.timeout, stop)
        except server.Unready as error:
            raise incomplete(error, str(error)) from error
        return Empty()


def hidden(object: Values) -> Struct:
    """An object without a word of a Secret that could be read."""
    names = ("data", "stringData") if object["kind"] == "Secret" else ()
    return to_struct({name: secret(value) if name in names else value for name, value in object.items()})


def seen(live: Values) -> Struct:
    """A live object as the state keeps it."""
    return hidden({**live, "metadata": {name: value for name, value in live["metadata"].items() if name != "managedFields"}})


def incomplete(error: server.Unready, message: str) -> Incomplete:
    return Incomplete(server.identity(error.live), message, [message, *error.reasons[1:]], seen(error.live))


def kind_of_object(type: str, known: Values) -> tuple[str, str]:
    """The apiVersion and the kind of an object, from what is known of it, else from Pulumi's name of the type."""
    _, module, name = type.split(":")
    return known.get("apiVersion") or module.removeprefix("core/"), known.get("kind") or name


def autoname(request: Any) -> str:
    return f"{request.name}-{hashlib.sha256(request.randomSeed + request.urn.encode()).hexdigest()[:7]}"


def stop(listener: grpc.Server) -> None:
    listener.stop(grace=None).wait()


@contextmanager
def serve(cloud: Cloud, real: bool = False) -> Iterator[dict[str, str]]:
    """Serves the cloud, and yields the environment in which the engine, `gcloud` and our own steps use it.

    With `real`, the kubernetes plugin goes to real API servers as well, and whoever asks one of them directly brings the kubeconfig along.
    """
    ports: list[str] = []
    with ExitStack() as stack:
        more = {} if real else {"TRAINSTACK_KUBECONFIG": str(stack.enter_context(serve_volumes(cloud)))}
        for name in NAMES:
            plugin = Kubernetes(name, cloud, real) if name == "kubernetes" else Provider(name, cloud)
            listener = grpc.server(ThreadPoolExecutor(max_workers=64), options=[("grpc.max_receive_message_length", -1)])
            add_ResourceProviderServicer_to_server(plugin, listener)
            ports.append(f"{name}:{listener.add_insecure_port('127.0.0.1:0')}")
            listener.start()
            stack.callback(stop, listener)
        yield {
            "PULUMI_DEBUG_PROVIDERS": ",".join(ports),
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "1",
            "TRAINSTACK_CLOUD": str(cloud.path),
            # The fake gcloud first, then the Python that runs it.
            "PATH": os.pathsep.join([str(Path(__file__).parent / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
            **more,
        }
