"""Objects on a real Kubernetes API server, handled as pulumi-kubernetes 4.34 handles them, and more strictly in one thing: a field that
the server does not know is refused, where the plugin only warns.

Creation is a plain POST, so that what is there already is an error; a change is a server-side apply that leaves conflicts with other
writers to the person; a deletion is waited for until the object is gone. What an object is waited for stands in ready.py.
Not imitated: Helm, Kustomize, patch resources, look-ups, rendering to files, `ignoreChanges` of fields that somebody else owns.
"""

from __future__ import annotations

import base64
import decimal
import functools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3
import yaml
from kubernetes import client, config

from tests.cloud import google, ready
from tests.cloud.kinds import UNKNOWN, CloudError, Values, at

MANAGER = "pulumi-kubernetes"
APPLY = "application/apply-patch+yaml"
FORCE_HINT = (
    "Server-Side Apply field conflict detected. See https://www.pulumi.com/registry/packages/kubernetes/how-to-guides/"
    "managing-resources-with-server-side-apply/#handle-field-conflicts-on-existing-resources for troubleshooting help."
)
UNREACHABLE = (
    "configured Kubernetes cluster is unreachable: {reason}. If the cluster was deleted, you can remove this resource from Pulumi state by "
    'rerunning the operation with the PULUMI_K8S_DELETE_UNREACHABLE environment variable set to "true"'
)

# What only the server writes.
SERVER_FIELDS = (
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "uid",
)

# Below these names a text is an amount, and the server writes amounts in its own way.
AMOUNTS = ("capacity", "hard", "limits", "requests", "sizeLimit")
SCALES = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


class Refused(CloudError):
    """The server's answer instead of what was asked."""

    def __init__(self, status: Values, code: int) -> None:
        super().__init__(status.get("message") or f"the server answered {code}")
        self.code, self.reason = code, status.get("reason", "")
        self.about = at(status, "details.kind") or ""

    @property
    def namespace_missing(self) -> bool:
        return self.code == 404 and self.about == "namespaces"


class NoMatch(CloudError):
    """The server has no such kind."""


class Unready(CloudError):
    """The object is there, but is not what was waited for."""

    def __init__(self, live: Values, message: str, reasons: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.live, self.reasons = live, [message, *reasons]


@dataclass(frozen=True)
class Resource:
    """Where a server keeps the objects of one kind."""

    path: str
    plural: str
    namespaced: bool

    def of(self, namespace: str, name: str = "") -> str:
        inside = f"namespaces/{namespace}/" if self.namespaced else ""
        return "/".join(part for part in (self.path, inside + self.plural, name) if part)


# Configuration.


def kubeconfig(configuration: Mapping[str, str]) -> str:
    """A kubeconfig's text or path: the provider's, else that of the environment."""
    return configuration.get("kubeconfig") or os.environ.get("KUBECONFIG", "")


def is_path(text: str) -> bool:
    with suppress(OSError):  # a text can be too long for the name of a file
        return Path(text.partition(os.pathsep)[0]).expanduser().is_file()
    return False


def address(configuration: Mapping[str, str]) -> str:
    """Where the API server is that a kubeconfig leads to, "" for nowhere or where that is not known yet."""
    text = kubeconfig(configuration)
    if is_path(text):
        text = Path(text.partition(os.pathsep)[0]).expanduser().read_text()
    loaded: Any = None
    with suppress(yaml.YAMLError):
        loaded = yaml.safe_load(text)
    if isinstance(loaded, dict) and loaded.get("contexts"):
        wanted = configuration.get("context") or loaded.get("current-context")
        named = [at(one, "context.cluster") for one in loaded["contexts"] if one["name"] == wanted]
        text = "".join(str(at(one, "cluster.server")) for one in loaded.get("clusters", []) if one["name"] in named)
    found = re.search(r"https?://[^/\s'\"]+", text)
    return found[0] if found and UNKNOWN not in found[0] else ""


def simulated(configuration: Mapping[str, str]) -> bool:
    """Whether the kubeconfig leads to no cluster, or to one of the simulated Google Cloud, even if that is gone by now."""
    host = urlsplit(address(configuration)).hostname
    return not host or google.is_endpoint(host)


# Values.


def unknown(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(unknown(one) for one in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and value == UNKNOWN


def amount(text: Any) -> decimal.Decimal | None:
    """What a quantity such as 500m or 2Gi means."""
    found = re.fullmatch(r"([+-]?[\d.]+)(?:([numkMGTPE]?)|([KMGTPE])i|[eE]([+-]?\d+))", str(text))
    if not found:
        return None
    number, scale, binary, exponent = decimal.Decimal(found[1]), found[2], found[3], found[4]
    if binary:
        return number * decimal.Decimal(1024) ** ("KMGTPE".index(binary) + 1)
    return number.scaleb(int(exponent) if exponent else SCALES[scale or ""])


def normalized(inputs: Values) -> Values:
    """A Secret's texts as the server keeps them."""
    if inputs.get("kind") != "Secret" or "stringData" not in inputs:
        return inputs
    encoded = {name: base64.b64encode(text.encode()).decode() for name, text in inputs["stringData"].items()}
    rest = {name: value for name, value in inputs.items() if name != "stringData"}
    return {**rest, "data": {**inputs.get("data", {}), **encoded}}


def pruned(live: Any, inputs: Any, amounts: bool = False) -> Any:
    """As much of a live object as the inputs speak of. What is nothing and therefore left out by the server counts as said."""
    if isinstance(live, dict) and isinstance(inputs, dict):
        found = {}
        for name, wanted in inputs.items():
            if name in live:
                found[name] = pruned(live[name], wanted, amounts or name in AMOUNTS)
            elif not wanted:
                found[name] = wanted
        return found
    if isinstance(live, list) and isinstance(inputs, list):
        return [pruned(one, wanted, amounts) for one, wanted in zip(live, inputs, strict=False)]
    if amounts and live != inputs and (meaning := amount(live)) is not None and meaning == amount(inputs):
        return inputs
    return live


def identity(object: Values) -> str:
    """The id that Pulumi gives to an object."""
    return "/".join(part for part in (at(object, "metadata.namespace"), object["metadata"]["name"]) if part)


def importable(live: Values) -> Values:
    """The inputs that would make a live object."""
    metadata = {name: value for name, value in live["metadata"].items() if name not in SERVER_FIELDS}
    return {**{name: value for name, value in live.items() if name != "status"}, "metadata": metadata}


class Server:
    """One cluster as one provider of a program uses it."""

    def __init__(self, configuration: Mapping[str, str]) -> None:
        text, context = kubeconfig(configuration), configuration.get("context")
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the person's kubeconfig says so
        settings = client.Configuration()
        settings.retries, settings.connection_pool_maxsize = False, 64
        common: dict[str, Any] = {"context": context, "persist_config": False, "client_configuration": settings}
        try:
            if is_path(text):
                self.client = config.new_client_from_config(config_file=str(Path(text).expanduser()), **common)
            else:
                self.client = config.new_client_from_config_dict(yaml.safe_load(text), **common)
        except config.ConfigException as error:
            raise CloudError(f"failed to parse kubeconfig: {error}") from error
        self.force = configuration.get("enablePatchForce") == "true"
        self.namespace = configuration.get("namespace") or "default"
        self.forgets = configuration.get("deleteUnreachable") == "true"
        self._resources: dict[str, dict[str, Resource]] = {}
        self._calls: set[threading.Event] = set()

    # What the provider asks.

    @functools.cached_property
    def unreachable(self) -> str:
        """Why the server does not answer, "" if it does. Asked once: a provider lives as long as one command."""
        try:
            self.request("GET", "/version", timeout=10)
        except CloudError as error:
            return str(error)
        return ""

    def require(self) -> None:
        if reason := self.unreachable:
            raise CloudError(UNREACHABLE.format(reason=reason))

    def resource(self, api_version: str, kind: str) -> Resource | None:
        """None for a kind that the server does not have."""
        if kind not in self._resources.get(api_version, {}):
            path = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
            try:
                listed = self.request("GET", path)["resources"]
            except Refused as error:
                if error.code != 404:
                    raise
                listed = []
            found = {one["kind"]: Resource(path, one["name"], one["namespaced"]) for one in listed if "/" not in one["name"]}
            self._resources[api_version] = found
        return self._resources[api_version].get(kind)

    def previewed(self, inputs: Values) -> Values | None:
        """The object as it would be created; None where that cannot be said."""
        if unknown(inputs) or self.unreachable or not self._resource(inputs):
            return None
        try:
            made = self._post(inputs, dryRun="All")
        except Refused as error:
            # A namespace that is still to come, an object that is still to be replaced, a person without the right to try.
            if error.namespace_missing or error.reason in ("AlreadyExists", "Forbidden"):
                return None
            raise
        return {name: value for name, value in made.items() if name != "status"}

    def create(self, inputs: Values, timeout: float, stop: threading.Event) -> Values:
        self.require()
        pause = 1.0
        while True:
            try:
                if not self._resource(inputs):
                    raise NoMatch(f'no matches for kind "{inputs["kind"]}" in version "{inputs["apiVersion"]}"')
                made = self._post(inputs)
                break
            except (NoMatch, Refused) as error:
                # Perhaps the kind or the namespace is about to be made.
                missing = isinstance(error, NoMatch) or error.code == 404
                if not missing or pause > 16 or stop.wait(pause):
                    raise
                pause *= 2
        return self._wait(made, inputs, timeout, stop)

    def read(self, api_version: str, kind: str, id: str) -> Values | None:
        namespace, _, name = id.rpartition("/")
        return self._look(api_version, kind, namespace, name)

    def health(self, inputs: Values, live: Values) -> ready.Verdict:
        """What a refresh says of an object; it does not know of `waitFor`."""
        if ready.skips(inputs) or live["kind"] not in ready.READ:
            return ready.Verdict(True)
        return ready.by_kind(live, self._look)

    def previewed_update(self, id: str, inputs: Values) -> Values | None:
        """The object as it would become; None where that cannot be said."""
        if unknown(inputs) or self.unreachable or not self._resource(inputs):
            return None
        live = self.read(inputs["apiVersion"], inputs["kind"], id)
        if live is None:
            raise CloudError(f'{inputs["kind"].lower()} "{id}" not found')
        try:
            return self.apply(live, inputs, dry=True)
        except Refused as error:
            if error.reason == "Forbidden":
                return None
            raise

    def apply(self, live: Values, inputs: Values, dry: bool = False) -> Values:
        """Makes an object what the inputs say, and takes away what earlier inputs said and these do not."""
        path, inputs = self._path(live), normalized(inputs)
        if not dry:
            self._own(live, path)
        # A dry run cannot hand over what our creation wrote, and would meet itself as another writer.
        force = dry or self.force or ready.annotation(inputs, "patchForce") == "true"
        query = {"fieldManager": MANAGER, "fieldValidation": "Strict", "force": json.dumps(force), **({"dryRun": "All"} if dry else {})}
        try:
            return self.request("PATCH", path, self.placed(inputs), query, APPLY)
        except Refused as error:
            if error.reason != "Conflict":
                raise
            raise CloudError(f'{FORCE_HINT}\nThe resource managed by field manager "{MANAGER}" had an apply conflict: {error}') from error

    def update(self, id: str, inputs: Values, timeout: float, stop: threading.Event) -> Values:
        self.require()
        live = self.read(inputs["apiVersion"], inputs["kind"], id)
        if live is None:
            raise CloudError(f'{inputs["kind"].lower()} "{id}" not found')
        try:
            changed = self.apply(live, inputs)
        except CloudError as error:
            raise Unready(self.read(live["apiVersion"], live["kind"], id) or live, str(error)) from error
        return self._wait(changed, inputs, timeout, stop)

    def delete(self, live: Values, inputs: Values, timeout: float, stop: threading.Event) -> None:
        """Returns when the object is gone."""
        if self.unreachable and self.forgets:
            return
        self.require()
        if not self._resource(live):
            return
        path = self._path(live)
        try:
            answer = self.request(
                "DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": ready.propagation(inputs)}
            )
        except Refused as error:
            if error.code == 404:
                return
            raise
        if ready.skips(inputs) and live["kind"] in ready.SKIPS_DELETION:
            return
        uid, last = at(answer, "metadata.uid") or at(answer, "details.uid"), live
        for _ in self._polled(ready.patience(timeout, inputs), stop):
            found = self._seen(path, last)
            if found is None or at(found, "metadata.uid") != uid:
                return
            last = found
        finalizers = ", ".join(at(last, "metadata.finalizers") or [])
        raise Unready(last, self._why(live, stop), [f"finalizers might be preventing deletion ({finalizers})"])

    def unready_job(self, live: Values) -> bool:
        """Whether `replaceUnready` wants this object to be made again: a Job that is not complete, be it failed or still running."""
        if live["kind"] != "Job" or self.unreachable:
            return False
        found = self.read(live["apiVersion"], live["kind"], identity(live))
        return found is not None and not ready.job(found, self._look).done

    @contextmanager
    def call(self, add_callback: Callable[[Callable[[], None]], bool]) -> Iterator[threading.Event]:
        """An event that ends the waits of one call: when the engine says so, when it hangs up, and when the provider's server stops."""
        stop = threading.Event()
        self._calls.add(stop)
        if not add_callback(stop.set):
            stop.set()
        try:
            yield stop
        finally:
            self._calls.discard(stop)

    def cancel(self) -> None:
        for stop in list(self._calls):
            stop.set()

    # How.

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
        timeout: float = 60,
    ) -> Values:
        headers = {"Accept": "application/json", "Content-Type": content}
        # An apply patch goes out as a text: the client takes that type of content in no other form.
        sent = json.dumps(body) if content == APPLY else body
        asked = self.client.param_serialize(
            method, path, query_params=list((query or {}).items()), header_params=headers, body=sent, auth_settings=["BearerToken"]
        )
        try:
            answer = self.client.call_api(*asked, _request_timeout=timeout)
            text = answer.read()
        except urllib3.exceptions.HTTPError as error:
            raise CloudError(str(error)) from error
        try:
            values: Values = json.loads(text)
        except ValueError:
            values = {"message": text.decode(errors="replace").strip()}
        if answer.status >= 300:
            raise Refused(values, answer.status)
        return values

    def _resource(self, object: Values) -> Resource | None:
        return self.resource(object["apiVersion"], object["kind"])

    def _path(self, object: Values, named: bool = True) -> str:
        found = self._resource(object)
        assert found is not None
        return found.of(at(object, "metadata.namespace") or self.namespace, object["metadata"]["name"] if named else "")

    def placed(self, inputs: Values) -> Values:
        """The inputs with the namespace of the provider where they name none."""
        found = self._resource(inputs)
        if not found or not found.namespaced or at(inputs, "metadata.namespace"):
            return inputs
        return {**inputs, "metadata": {**inputs.get("metadata", {}), "namespace": self.namespace}}

    def _post(self, inputs: Values, **query: str) -> Values:
        strict = {"fieldManager": MANAGER, "fieldValidation": "Strict", **query}
        return self.request("POST", self._path(inputs, named=False), self.placed(inputs), strict)

    def _get(self, path: str) -> Values | None:
        """None for what is not there."""
        try:
            return self.request("GET", path)
        except Refused as error:
            if error.code == 404:
                return None
            raise

    def _seen(self, path: str, last: Values) -> Values | None:
        """The same while waiting: a server that is away for a moment has nothing new to say."""
        try:
            return self._get(path)
        except Refused as error:
            if error.code != 429 and error.code < 500:
                raise
        except CloudError:
            pass
        return last

    def _look(self, api_version: str, kind: str, namespace: str, name: str) -> Values | None:
        found = self.resource(api_version, kind)
        return self._get(found.of(namespace or self.namespace, name)) if found else None

    def _own(self, live: Values, path: str) -> None:
        """Lets the apply own what our creation wrote: what another operation owns, even by the same manager, an apply never takes away."""
        managed = live["metadata"].get("managedFields", [])
        ours = [one for one in managed if one["manager"] == MANAGER and not one.get("subresource")]
        if [one["operation"] for one in ours] != ["Update"]:
            return
        fields = [{**one, "operation": "Apply"} if one is ours[0] else one for one in managed]
        patch = [
            {"op": "replace", "path": "/metadata/managedFields", "value": fields},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"]},
        ]
        self.request("PATCH", path, patch, content="application/json-patch+json")

    def _polled(self, seconds: float, stop: threading.Event) -> Iterator[None]:
        """At once and then every now and then, until the time is over or the call is."""
        until, pause = time.monotonic() + seconds, 0.1
        while True:
            yield
            if time.monotonic() >= until or stop.wait(min(pause, max(until - time.monotonic(), 0))):
                return
            pause = min(pause * 1.5, 1)

    def _wait(self, live: Values, inputs: Values, timeout: float, stop: threading.Event) -> Values:
        verdict, settling, since, path = ready.Verdict(False), "", time.monotonic(), self._path(live)
        for _ in self._polled(ready.patience(timeout, inputs), stop):
            if (found := self._seen(path, live)) is None:
                raise Unready(live, f'{live["kind"]} "{live["metadata"]["name"]}" was deleted while it was waited for')
            live, verdict = found, ready.asked_for(inputs, found, self._look)
            if verdict.settling != settling:
                settling, since = verdict.settling, time.monotonic()
            if verdict.failed:
                raise Unready(
                    live, f"Resource '{live['metadata']['name']}' was created but failed to initialize", self.reasons(live, verdict)
                )
            if verdict.done and (not settling or time.monotonic() - since >= ready.SERVICE_SETTLES):
                return live
        raise Unready(live, self._why(live, stop), self.reasons(live, verdict))

    def _why(self, live: Values, stop: threading.Event) -> str:
        name = live["metadata"]["name"]
        return f'Resource operation was cancelled for "{name}"' if stop.is_set() else f"'{name}' timed out waiting to be Ready"

    def reasons(self, live: Values, verdict: ready.Verdict) -> list[str]:
        selector = at(live, "spec.selector.matchLabels")
        if not selector:
            return list(verdict.reasons)
        labels = ",".join(f"{name}={value}" for name, value in selector.items())
        pods = self.request("GET", f"/api/v1/namespaces/{live['metadata']['namespace']}/pods", query={"labelSelector": labels})["items"]
        return [*verdict.reasons, *ready.pod_messages(pods)]
