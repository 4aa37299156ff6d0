"""What the tables of the simulated cloud are made of. Nothing here knows a particular service."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Values = dict[str, Any]

# How the engine writes a value that is not known yet.
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"

# The fields of an id that a provider's configuration can supply, in the order in which it is asked.
DEFAULTS = {"project": ("project",), "region": ("region",), "location": ("zone", "region")}


class CloudError(Exception):
    """What a service answers instead of doing what was asked."""


class Reference(str):
    """The id of another resource; its last part can be used in a template as `{field.tail}`."""

    @property
    def tail(self) -> str:
        return self.rpartition("/")[2]


class Fields(dict[str, str]):
    """What the id and the outputs of one resource are made from: its inputs, then the provider's configuration."""

    def __init__(self, values: Mapping[str, Any], configuration: Mapping[str, str]) -> None:
        super().__init__({key: Reference(value) for key, value in values.items() if isinstance(value, str)})
        self.configuration = configuration

    def find(self, key: str) -> str:
        """The field, or "" where nobody says it. The region of something with a location is the location's."""
        if key == "region" and "region" not in self and "location" in self:
            return "-".join(self["location"].split("-")[:2])
        return self.get(key) or next(filter(None, (self.configuration.get(name) for name in DEFAULTS.get(key, ()))), "")

    def __missing__(self, key: str) -> str:
        if not (found := self.find(key)):
            raise CloudError(f"{key}: required field is not set")
        return found


@dataclass(frozen=True)
class Parent:
    """Something that has to exist first."""

    field: str  # the field that names it
    type: str
    on_delete: Literal["refuse", "remove", "keep"]  # what this resource means for the deletion of its parent
    foreign: bool = False  # a bare name that this cloud does not know belongs to somebody else and is allowed
    identify: Callable[[str, Fields], str] = lambda name, _: name  # from what the field says to an id; "" for none


@dataclass(frozen=True)
class Kind:
    """The rules of one type of resource."""

    id: str  # a template over the fields
    api: str = ""  # must be enabled in the project; what lives in a parent needs none of its own
    fields: Callable[[Values], Mapping[str, Any]] = lambda inputs: inputs
    parents: tuple[Parent, ...] = ()
    needs: Callable[[Fields], str] = lambda _: ""  # something that must be enabled, "" for nothing
    enables: Callable[[Fields, Values], str] = lambda _fields, _inputs: ""
    stays_enabled: Callable[[Values], bool] = lambda _: True  # after its deletion
    autonamed: str = ""  # the input that gets a name of the provider's making when the program gives none
    idempotent: bool = False  # creating what is there already succeeds
    replaces: tuple[str, ...] = ()  # the inputs, as paths, that cannot be changed in place; "*" for all
    replaces_when: Mapping[str, Callable[[Any, Any], bool]] | None = None  # the same, depending on the values
    changeable: Callable[[Values, Mapping[str, str]], tuple[str, ...]] = lambda _inputs, _configuration: ()  # and yet can be, so configured
    refuses: Callable[[Values, Values | None], str] = lambda _new, _old: ""  # why the service does not take such inputs, "" for no reason
    outputs: Callable[[Fields, Values], Values] = lambda _fields, _inputs: {}
    unreadable: tuple[str, ...] = ()  # inputs that the provider acts upon when the thing is there, and can never read again
    volatile: tuple[str, ...] = ()  # the outputs that change with an update
    secret: tuple[str, ...] = ()  # the outputs that are secret
    refuses_deletion: Callable[[Values, list[str]], str] = lambda _inputs, _objects: ""  # why not, "" for no reason
    taken: str = "googleapi: Error 409: Already exists: {id}., alreadyExists"
    missing: str = "googleapi: Error 404: Resource not found: {id}., notFound"  # a parent of it
    scope: str = ""  # the field within which the id is unique; "" for everywhere

    def defaults(self, fields: Fields) -> Values:
        """The parts of the id that the outputs repeat when the program does not say them."""
        named = {name for _, name, _, _ in string.Formatter().parse(self.id) if name}
        return {name: fields[name] for name in DEFAULTS if name in named}


def at(values: Any, path: str) -> Any:
    """The value at a path with dots, None where there is none."""
    for part in path.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def put(values: Values, path: str, value: Any) -> None:
    *parts, last = path.split(".")
    for part in parts:
        values = values.setdefault(part, {})
    values[last] = value


def merged(below: Any, above: Any) -> Any:
    """Both, where the second one wins; lists count as one value."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return {key: merged(below[key], above[key]) if key in below and key in above else {**below, **above}[key] for key in {**below, **above}}
