"""What the engine says it would do, or did: from `pulumi preview --json`, or from the events of `pulumi up --json`. Pure.

Both are read as they come, one JSON value after another; where a preview and an `up` follow each other, what was done counts.
Values that the engine knows to be secret it does not write; what only looks like one is left out here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ops.target import OpsError

# What a replacement consists of is not told again.
PARTS = ("create-replacement", "delete-replaced", "discard-replaced", "read-replacement", "remove-pending-replace")
SAME = ("same", "refresh", "read", "read-discard")
STACK = "pulumi:pulumi:Stack"
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"  # how Pulumi writes what it does not know yet
# Names of what may be secret, and what holds variables of the environment.
HIDDEN = re.compile(r"secret|password|token|kubeconfig|privatekey|credential|trainstack/run|\benv\b", re.IGNORECASE)
VARIABLE = re.compile(r"(.*\benv\[\d+\])\.value")  # of a container
SECRET_KINDS = ("kubernetes:core/v1:Secret", "gcp:secretmanager/secretVersion:SecretVersion", "gcp:serviceaccount/key:Key")
LONGEST = 120  # characters of a value
Inputs = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """What happens to one resource."""

    op: str
    kind: str
    name: str
    old: Inputs  # inputs before
    new: Inputs  # and after
    paths: tuple[str, ...] = ()  # what differs
    retained: bool = False  # it is left where it is when the stack gives it up
    unprotected: bool = False  # it was protected, and is no longer

    @property
    def changes(self) -> bool:
        return self.op not in SAME or self.unprotected

    @property
    def goes(self) -> bool:
        """Whether the resource of now ends."""
        return self.op in ("delete", "replace")


@dataclass(frozen=True)
class Changes:
    stack: str
    done: bool  # whether it has been done, or would be
    configuration: Mapping[str, str]
    steps: tuple[Step, ...]
    outputs: Mapping[str, Any] | None  # of the stack, before; None for one that is new
    goes: bool  # the whole stack does
    errors: tuple[str, ...]


def read(text: str) -> Changes:
    """The changes in what the engine printed."""
    values = [value for value in _values(text) if isinstance(value, dict)]
    events = [value for value in values if "sequence" in value or "timestamp" in value]
    previews = [value for value in values if "steps" in value or "changeSummary" in value or "diagnostics" in value]
    if events:
        return _from_events(events)
    if previews:
        return _from_preview(previews[-1])
    raise OpsError("that is no preview; give the output of `pulumi preview --json`, or of `pulumi up --json --yes --skip-preview`.")


def _values(text: str) -> Iterator[Any]:
    """The JSON values in a text, one after another; what stands between them is left out."""
    decoder, position = json.JSONDecoder(), 0
    while (start := text.find("{", position)) >= 0:
        try:
            value, position = decoder.raw_decode(text, start)
            yield value
        except ValueError:
            position = start + 1


def _from_preview(preview: Mapping[str, Any]) -> Changes:
    told = [
        {
            "op": step["op"],
            "urn": step["urn"],
            "old": step.get("oldState") or {},
            "new": step.get("newState") or {},
            "paths": list(step.get("detailedDiff") or step.get("diffReasons") or ()),
        }
        for step in preview.get("steps") or ()
    ]
    errors = [each["message"] for each in preview.get("diagnostics") or () if each.get("severity") == "error"]
    return _changes(told, preview.get("config") or {}, errors, done=False)


def _from_events(events: list[dict[str, Any]]) -> Changes:
    configuration: dict[str, str] = {}
    told: list[dict[str, Any]] = []
    errors: list[str] = []
    done = not any((event.get("summaryEvent") or {}).get("isPreview") for event in events[-3:])  # a preview may be told as events, too
    for event in events:
        if "preludeEvent" in event:
            configuration = event["preludeEvent"].get("config") or {}
            told, errors = [], []  # an `up` begins after its preview
        elif "resourcePreEvent" in event:
            metadata = event["resourcePreEvent"]["metadata"]
            told.append(
                {
                    "op": metadata["op"],
                    "urn": metadata["urn"],
                    "old": metadata.get("old") or {},
                    "new": metadata.get("new") or {},
                    "paths": list(metadata.get("detailedDiff") or metadata.get("diffs") or ()),
                }
            )
        elif "diagnosticEvent" in event and event["diagnosticEvent"].get("severity") == "error":
            errors.append(event["diagnosticEvent"]["message"])
    return _changes(told, configuration, errors, done)


def _changes(told: list[dict[str, Any]], configuration: Mapping[str, str], errors: list[str], done: bool) -> Changes:
    roots = [each for each in told if each["urn"].split("::")[2].endswith(STACK)]
    root: dict[str, Any] = roots[0] if roots else {"op": "same", "old": {}}
    name = told[0]["urn"].split("::")[0].removeprefix("urn:pulumi:") if told else ""
    steps = tuple(_step(each) for each in told if each not in roots and each["op"] not in PARTS)
    outputs = None if root["op"] == "create" else root["old"].get("outputs") or {}
    words = (re.sub(r"<\{%.*?%\}>|\x1b\[[0-9;]*m|^error: ", "", error).strip() for error in errors)
    said = tuple(error for error in words if "program exited with non-zero exit code" not in error)
    return Changes(name, done, configuration, steps, outputs, root["op"] == "delete", said or tuple(errors))


def _step(told: Mapping[str, Any]) -> Step:
    old, new = told["old"], told["new"]
    return Step(
        op=told["op"],
        kind=told["urn"].split("::")[2].rpartition("$")[2],
        name=told["urn"].rpartition("::")[2],
        old=old.get("inputs") or {},
        new=new.get("inputs") or {},
        paths=tuple(told["paths"]),
        retained=bool((old or new).get("retainOnDelete")),
        unprotected=bool(old.get("protect")) and bool(new) and not new.get("protect"),
    )


# ----------------------------------------------------------------------------------------------------- the raw diff


def diff(steps: tuple[Step, ...]) -> Iterator[str]:
    """Every change as lines, as `diff` colours them."""
    signs = {"create": "+", "delete": "-", "replace": "!", "update": "!", "import": "+"}
    for step in sorted((step for step in steps if step.changes), key=lambda each: (each.kind, each.name)):
        yield f"{signs.get(step.op, '!')} {step.op} {step.kind} {step.name}"
        for path in sorted(set(step.paths)) if step.op in ("update", "replace") else ():
            variable = VARIABLE.fullmatch(path)
            if step.kind in SECRET_KINDS or HIDDEN.search(path) or variable:
                name = _at(step.new, f"{variable[1]}.name") if variable else None
                yield f"      {path}: {f'{name} ' if name else ''}changed"
            else:
                yield f"      {path}: {shown(_at(step.old, path))} → {shown(_at(step.new, path))}"


def shown(value: Any) -> str:
    """A value on one line."""
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(_without_hidden(value), ensure_ascii=False)
    text = " ".join(text.replace(UNKNOWN, "known after up").replace("`", "'").split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _without_hidden(value: Any) -> Any:
    if isinstance(value, dict):
        variable = {"name", "value"} <= set(value)
        return {
            key: "not shown" if HIDDEN.search(key) or (variable and key == "value") else _without_hidden(inner)
            for key, inner in value.items()
        }
    return [_without_hidden(inner) for inner in value] if isinstance(value, list) else value


def _at(inputs: Any, path: str) -> Any:
    """The value at a path such as spec.containers[0].env or metadata.annotations["a/b"]."""
    for quoted, index, plain in re.findall(r'\["([^"]+)"\]|\[(\d+)\]|([^.\[\]]+)', path):
        key = quoted or plain
        if isinstance(inputs, list) and index:
            inputs = inputs[int(index)] if int(index) < len(inputs) else None
        elif isinstance(inputs, Mapping) and key:
            inputs = inputs.get(key)
        else:
            return None
    return inputs
