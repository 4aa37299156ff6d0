"""The state of the simulated cloud, in one JSON file, and the rules that it keeps whoever asks.

Every operation happens under a lock on the file, so that the providers, a fake `gcloud` and a test can use one cloud from several
processes. What the rules are stands in the tables: google.py, kubernetes.py, docker.py. Nothing takes time here and nobody lacks a
permission or a quota; a test that wants that scripts a Fault.
"""

from __future__ import annotations

import copy
import fcntl
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, TypeVar

from tests.cloud import docker, google, kubernetes
from tests.cloud.kinds import DEFAULTS, UNKNOWN, CloudError, Fields, Kind, Parent, Reference, Values, at, merged, put

CallName = Literal["create", "read", "update", "delete", "invoke"]
Result = TypeVar("Result")


class NeverAnswers(Exception):
    """A scripted fault: whoever called must not get an answer."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong once: with the n-th call of this name for such a type, counted from when it is scripted."""

    call: CallName = "create"
    number: int = 1
    type: str = "*"
    name: str = "*"  # the logical name of what is created
    what: Literal["fail", "hang", "lose"] = "fail"  # lose: it is done, but nobody hears of it
    message: str = google.UNAVAILABLE


@dataclass
class Call:
    """One line of the log."""

    call: CallName
    type: str
    id: str
    error: str = ""
    name: str = ""


@dataclass
class Resource:
    type: str
    id: str
    inputs: Values
    outputs: Values
    fields: dict[str, str]
    parents: dict[str, str]  # their keys, and what this resource means for their deletion
    scope: str
    numbered: int = 0  # how many with a number for a name have been made in it: versions of a secret

    @property
    def key(self) -> str:
        return key(self.type, self.id, self.scope)


@dataclass
class State:
    resources: dict[str, Resource] = field(default_factory=dict)
    enabled: list[str] = field(default_factory=list)
    objects: dict[str, list[str]] = field(default_factory=dict)
    log: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    creations: int = 0
    others: dict[str, list[Values]] = field(default_factory=dict)


def key(type: str, id: str, scope: str) -> str:
    return f"{type} {scope} {id}"


def kind_of(type: str) -> Kind:
    tables = {"gcp": google.kind, "kubernetes": kubernetes.kind, "docker-build": docker.kind}
    return tables[type.partition(":")[0]](type)


@dataclass(frozen=True)
class Found:
    """A parent as one resource names it."""

    parent: Parent
    id: str
    key: str
    bare: bool  # only its name was given


class Lost:
    """Set once a call has begun that will never be answered."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def is_set(self) -> bool:
        with self._cloud.opened() as state:
            return bool(state.lost)

    def wait(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not (found := self.is_set()) and time.monotonic() < until:
            time.sleep(0.02)
        return found


class Cloud:
    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.lost = Lost(self)
        self._state = State()
        self._version: tuple[int, ...] = ()

    # What a test asks and does.

    def resources(self, types: str = "*") -> list[Resource]:
        """What is there, without enabled APIs."""
        with self.opened() as state:
            found = [one for one in state.resources.values() if fnmatchcase(one.type, types) and one.type != google.SERVICE]
            return copy.deepcopy(found)

    @property
    def enabled(self) -> list[str]:
        """`PROJECT/API` of every API that is enabled, and the identity pools of the projects."""
        with self.opened() as state:
            return list(state.enabled)

    @property
    def log(self) -> list[Call]:
        with self.opened() as state:
            return list(state.log)

    @property
    def creations(self) -> int:
        """How many things have been made, without those that were there already."""
        with self.opened() as state:
            return state.creations

    def script(self, faults: Iterable[Fault]) -> None:
        """Replaces what is still to go wrong."""
        with self.opened(write=True) as state:
            state.faults[:] = faults
            state.lost.clear()

    def enable(self, project: str, *apis: str) -> None:
        """Somebody has enabled these APIs before."""
        with self.opened(write=True) as state:
            state.enabled.extend(name for api in apis if (name := f"{project}/{api}") not in state.enabled)

    def change(self, id: str, path: str, value: Any) -> None:
        """Somebody changes a property by hand."""
        with self.opened(write=True) as state:
            (resource,) = (one for one in state.resources.values() if one.id == id)
            resource.inputs = copy.deepcopy(resource.inputs)
            put(resource.inputs, path, value)
            compute(resource)

    def put_object(self, bucket: str, name: str) -> None:
        with self.opened(write=True) as state:
            state.objects.setdefault(bucket, []).append(name)

    def put_other(self, words: str, item: Values) -> None:
        """Something that no provider made: by GKE, or by a person. `words` are those of gcloud that list it, as in `compute disks`, and the item is as gcloud shows it."""
        with self.opened(write=True) as state:
            state.others.setdefault(words, []).append(item)

    def others(self, words: str) -> list[Values]:
        with self.opened() as state:
            return copy.deepcopy(state.others.get(words, []))

    # What a provider asks and does.

    def create(self, type: str, inputs: Values, configuration: Mapping[str, str], name: str = "") -> Resource:
        kind = kind_of(type)

        def action(state: State) -> Resource:
            fields, parents = self._resolve(state, kind, inputs, configuration)
            self._check(state, kind, fields, parents)
            if reason := kind.refuses(inputs, None):
                raise CloudError(reason)
            container = state.resources.get(parents[0].key) if parents else None
            fields["count"] = str(container.numbered + 1 if container else 1)
            fields["id"] = kind.id.format_map(fields)
            links: dict[str, str] = {found.key: found.parent.on_delete for found in parents if found.key in state.resources}
            resource = Resource(type, fields["id"], inputs, {}, dict(fields), links, fields.get(kind.scope, ""))
            if there := state.resources.get(resource.key):
                if not kind.idempotent:
                    raise CloudError(kind.taken.format(id=resource.id))
                there.inputs = inputs
                compute(there)
                return there
            compute(resource)
            if container and "{count}" in kind.id:
                container.numbered += 1
            if (name := kind.enables(fields, inputs)) and name not in state.enabled:
                state.enabled.append(name)
            state.resources[resource.key] = resource
            state.creations += 1
            return resource

        return self._perform("create", type, "", action, name)

    def read(self, type: str, id: str, configuration: Mapping[str, str]) -> Resource | None:
        return self._perform("read", type, id, lambda state: self._find(state, type, id, configuration))

    def update(self, type: str, id: str, inputs: Values, configuration: Mapping[str, str]) -> Resource:
        def action(state: State) -> Resource:
            resource = self._find(state, type, id, configuration)
            if resource is None:
                raise CloudError(kind_of(type).missing.format(id=id))
            if reason := kind_of(type).refuses(inputs, resource.inputs):
                raise CloudError(reason)
            resource.inputs = inputs
            compute(resource)
            return resource

        return self._perform("update", type, id, action)

    def delete(self, type: str, id: str, configuration: Mapping[str, str]) -> None:
        def action(state: State) -> None:
            resource = self._find(state, type, id, configuration)
            if resource is None:
                return
            force = bool(resource.inputs.get("forceDestroy"))
            if reason := kind_of(type).refuses_deletion(resource.inputs, state.objects.get(id, [])):
                raise CloudError(reason)
            for other in state.resources.values():
                if other.parents.get(resource.key) == "refuse" and not force:
                    raise CloudError(google.IN_USE.format(id=id, user=other.id))
            self._remove(state, resource)

        self._perform("delete", type, id, action)

    def asked(self, token: str) -> None:
        """Writes a look-up down."""
        with self.opened(write=True) as state:
            state.log.append(Call("invoke", token, ""))

    def preview(self, type: str, inputs: Values, configuration: Mapping[str, str]) -> Values:
        """The outputs of something that is still to be created: what only the cloud can say is unknown."""
        kind = kind_of(type)
        with self.opened() as state:
            fields, _ = self._resolve(state, kind, inputs, configuration)
        fields |= {"id": "", "count": ""}
        outputs: Values = merged(unknown(kind.outputs(fields, inputs)), {**kind.defaults(fields), **inputs})
        return outputs

    def identify(self, type: str, inputs: Values, configuration: Mapping[str, str]) -> str:
        """The id that a resource with these inputs would get; parts that are numbered or random stay open."""
        kind = kind_of(type)
        with self.opened() as state:
            fields, _ = self._resolve(state, kind, inputs, configuration)
        return kind.id.format_map({**fields, "count": ""})

    # How.

    @contextmanager
    def opened(self, write: bool = False) -> Iterator[State]:
        with self.path.with_name(self.path.name + ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._load()
            try:
                yield self._state
            finally:
                if write:
                    self._save()

    def _load(self) -> None:
        """Reads the file unless it is the one that was read or written last."""
        try:
            version = self._stat()
        except FileNotFoundError:
            self._state = State()
            return
        if version == self._version:
            return
        stored = json.loads(self.path.read_text())
        self._state = State(
            {name: Resource(**one) for name, one in stored["resources"].items()},
            stored["enabled"],
            stored["objects"],
            [Call(**one) for one in stored["log"]],
            [Fault(**one) for one in stored["faults"]],
            stored["lost"],
            stored["creations"],
            stored["others"],
        )
        self._version = version

    def _save(self) -> None:
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.write_text(json.dumps(vars(self._state), default=vars))
        fresh.replace(self.path)
        self._version = self._stat()

    def _stat(self) -> tuple[int, ...]:
        found = self.path.stat()
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _perform(self, call: CallName, type: str, id: str, action: Callable[[State], Result], name: str = "") -> Result:
        """Does it unless a fault says otherwise, and writes it down."""
        with self.opened(write=True) as state:
            entry, fault = Call(call, type, id, name=name), take(state.faults, call, type, name)
            if call != "read":
                state.log.append(entry)
            if fault and fault.what == "fail":
                entry.error = fault.message
                raise CloudError(fault.message)
            if fault and fault.what == "hang":
                state.lost.append(f"{call} {type}")
                raise NeverAnswers
            try:
                result = action(state)
            except CloudError as error:
                entry.error = str(error)
                raise
            if isinstance(result, Resource):
                entry.id = result.id
            if fault:
                state.lost.append(f"{call} {type}")
                if isinstance(result, Resource):
                    result.inputs = {key: value for key, value in result.inputs.items() if key not in kind_of(type).unreadable}
                raise NeverAnswers
            return result

    def _resolve(self, state: State, kind: Kind, inputs: Values, configuration: Mapping[str, str]) -> tuple[Fields, list[Found]]:
        """What an id is made from, and the resources that the inputs refer to."""
        fields = Fields(kind.fields(inputs), configuration)
        fields |= {name: value for name in DEFAULTS if (value := fields.find(name))}
        fields |= {"number": google.number(fields.find("project")), "token": secrets.token_hex(20), "now": now()}
        if kind.scope:
            fields[kind.scope] = reachable(state, configuration)
        parents = []
        for parent in kind.parents:
            name = fields.get(parent.field)
            if name and (id := parent.identify(name, fields)):
                scope = kind_of(parent.type).scope
                fields[parent.field] = Reference(id)
                parents.append(Found(parent, id, key(parent.type, id, fields[scope] if scope else ""), "/" not in name))
        return fields, parents

    def _check(self, state: State, kind: Kind, fields: Fields, parents: list[Found]) -> None:
        """Whether the cloud lets such a thing be made now."""
        if kind.scope and not fields[kind.scope]:
            raise CloudError(kubernetes.UNREACHABLE)
        if kind.api and f"{fields['project']}/{kind.api}" not in state.enabled:
            raise CloudError(google.api_disabled(kind.api, fields["project"]))
        for found in parents:
            if found.key not in state.resources and not (found.parent.foreign and found.bare):
                raise CloudError(kind.missing.format(id=found.id))
        if (pool := kind.needs(fields)) and pool not in state.enabled:
            raise CloudError(google.NO_IDENTITY_POOL.format(pool=pool))

    def _find(self, state: State, type: str, id: str, configuration: Mapping[str, str]) -> Resource | None:
        if not kind_of(type).scope:
            return state.resources.get(key(type, id, ""))
        if cluster := reachable(state, configuration):
            return state.resources.get(key(type, id, cluster))
        if configuration.get("deleteUnreachable") == "true":
            return None
        raise CloudError(kubernetes.UNREACHABLE)

    def _remove(self, state: State, resource: Resource) -> None:
        """Takes it away with everything that lives in it."""
        del state.resources[resource.key]
        state.objects.pop(resource.id, None)
        kind = kind_of(resource.type)
        name = kind.enables(Fields(resource.fields, {}), resource.inputs)
        if name in state.enabled and not kind.stays_enabled(resource.inputs):
            state.enabled.remove(name)
        for other in list(state.resources.values()):
            if other.parents.pop(resource.key, "keep") != "keep" and other.key in state.resources:
                self._remove(state, other)


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def take(faults: list[Fault], call: str, type: str, name: str) -> Fault | None:
    """Counts this call for every fault that waits for such a one; the first whose turn has come is due, and leaves the list."""
    due = None
    for index, fault in enumerate(faults):
        if fault.call == call and fnmatchcase(type, fault.type) and fnmatchcase(name, fault.name):
            faults[index] = replace(fault, number=fault.number - 1)
            due = due or (faults[index] if faults[index].number == 0 else None)
    faults[:] = [fault for fault in faults if fault.number > 0]
    return due


def compute(resource: Resource) -> None:
    kind, fields = kind_of(resource.type), Fields(resource.fields, {})
    resource.outputs = merged({**kind.defaults(fields), **kind.outputs(fields, resource.inputs)}, resource.inputs)


def unknown(outputs: Values) -> Values:
    return {name: unknown(value) if isinstance(value, dict) else UNKNOWN for name, value in outputs.items()}


def reachable(state: State, configuration: Mapping[str, str]) -> str:
    """The id of the live cluster that a kubeconfig leads to, "" for none."""
    hosts = set(re.findall(r"[\w.-]+", configuration.get("kubeconfig", "")))
    for one in state.resources.values():
        if one.type == google.CLUSTER:
            addresses = {one.outputs["endpoint"], at(one.outputs, "controlPlaneEndpointsConfig.dnsEndpointConfig.endpoint")}
            if hosts & addresses:
                return one.id
    return ""
