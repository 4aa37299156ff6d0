"""Prints docs/settings.md, the reference of all settings, from the schema that the models make: `make schema` keeps the file current."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from settings import schema

Schema = dict[str, Any]
HEAD = """\
# Settings

All that `Pulumi.<stack>.yaml` can say. `make schema` writes this page from the models in `settings.py`, so it is what the preview checks; an editor with a
YAML language server completes and checks the same by [schema/stack.json](../schema/stack.json).

- Unknown keys are refused, with the valid ones listed. A wrong value is refused in a sentence that says what to write instead.
- Durations are a number with `s`, `m` or `h`. CPUs are `2`, `0.5` or `500m`; memory is `512Mi` or `4Gi`.
- What a target has no use for is accepted and left out, and one line of the preview says so: `not applied on local: …`.
- `make new NAME=mine` writes a file to begin with, and [examples/](../examples) has one for each program.
"""


def page() -> str:
    whole = schema()
    definitions: Schema = whole["$defs"]
    config: Schema = whole["properties"]["config"]
    used: dict[str, list[str]] = {}
    for key, found in sorted(config["properties"].items(), key=lambda item: not item[0].endswith(":trainings")):  # what people write most
        _collect(f"{key}.<name>" if key.endswith(":trainings") else key, found, definitions, used)
    titles = {name: ", ".join(f"`{key}`" for key in keys) for name, keys in used.items()}
    anchors = {name: anchor(title) for name, title in titles.items()}
    stack = _section("The stack", {**config, "description": "The keys below `config`."}, anchors)
    return "\n".join((HEAD, stack, *(_section(title, definitions[name], anchors) for name, title in titles.items())))


def _collect(key: str, found: Schema, definitions: Schema, used: dict[str, list[str]]) -> None:
    """Which models there are, in the order in which they are met, and under which keys."""
    for name in _references(found):
        keys = used.setdefault(name, [])
        if key not in keys:
            keys.append(key)
        for inner, value in definitions[name]["properties"].items():
            _collect(inner, value, definitions, used)


def _references(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        if "$ref" in found:
            yield found["$ref"].rpartition("/")[2]
        for key, value in found.items():
            if key != "default":
                yield from _references(value)
    elif isinstance(found, list):
        for value in found:
            yield from _references(value)


def anchor(title: str) -> str:
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _section(title: str, model: Schema, anchors: dict[str, str]) -> str:
    lines = [
        f"## {title}",
        "",
        *([model["description"], ""] if "description" in model else []),
        "| key | meaning | values | default |",
        "|---|---|---|---|",
    ]
    for key, found in model["properties"].items():
        meaning = found.get("description", "").replace("|", "\\|")
        default = "required" if key in model.get("required", ()) else _default(found)
        lines.append(f"| `{key}` | {meaning} | {values(found, anchors)} | {default} |")
    return "\n".join(lines) + "\n"


def values(found: Schema, anchors: dict[str, str]) -> str:
    """What may be written, in words."""
    if "anyOf" in found:
        return values(next(each for each in found["anyOf"] if each.get("type") != "null"), anchors)
    if "$ref" in found:
        return f"[keys](#{anchors[found['$ref'].rpartition('/')[2]]})"
    if "enum" in found:
        return ", ".join(f"`{value}`" for value in found["enum"])
    kind = found.get("type")
    if _is_duration(found):
        return "duration"
    if kind == "array":
        items = values(found["items"], anchors)
        return f"list, {items}" if items.startswith("as in") else f"list of {items}"
    if kind == "object":
        inner: Schema = found.get("additionalProperties") or next(iter(found.get("patternProperties", {}).values()), {})
        return f"names with {values(inner, anchors)}"
    if "examples" in found:
        return "as in " + ", ".join(f"`{example}`" for example in found["examples"])
    if kind in ("integer", "number"):
        low, high = found.get("minimum", found.get("exclusiveMinimum")), found.get("maximum")
        name = "whole number" if kind == "integer" else "number"
        return (
            name
            if low is None
            else f"{name} above {low}"
            if "exclusiveMinimum" in found
            else f"{low} to {high}"
            if high
            else f"{low} or more"
        )
    return {"boolean": "`true`, `false`", "string": "text"}.get(str(kind), "text, number, `true` or `false`")


def _is_duration(found: Schema) -> bool:
    return any("(s|m|h)" in each.get("pattern", "") for each in (found, *found.get("anyOf", ())))


def _default(found: Schema) -> str:
    default = found.get("default")
    if default is None or default in ({}, []) or isinstance(default, dict):
        return ""
    if _is_duration(found):
        unit, name = next((unit, name) for unit, name in ((3600, "h"), (60, "m"), (1, "s")) if default % unit == 0)
        return f"`{default // unit}{name}`"
    if isinstance(default, list):
        return f"`[{', '.join(map(str, default))}]`"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


if __name__ == "__main__":
    print(page(), end="")
