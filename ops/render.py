"""The Kubernetes objects of a stack as YAML files, from a preview: `pulumi preview --json --show-sames | python -m ops.render FOLDER`.

For review, for scanners, or for kubectl. What only an `up` can tell stands as `KNOWN-AFTER-UP`; of a secret only the names of its values are written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"  # how Pulumi writes what it does not know yet
PLACEHOLDER = "KNOWN-AFTER-UP"
# What others need comes first, also for `kubectl apply -f FOLDER`.
FIRST = ("Namespace", "StorageClass", "ServiceAccount", "Secret", "ConfigMap", "NetworkPolicy", "PersistentVolumeClaim", "Service")
PULUMI = "pulumi.com/"


def manifests(preview: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The objects that the stack has after an `up`."""
    for step in preview.get("steps", []):
        state = step.get("newState") or {}
        if state.get("type", "").startswith("kubernetes:") and step["op"] not in ("delete", "delete-replaced"):
            yield _manifest(state["type"], state.get("inputs", {}))


def _manifest(token: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A type such as kubernetes:apps/v1:Deployment says what the SDK leaves out of the inputs."""
    _, version, kind = token.split(":")
    written = {key: value for key, value in _known(inputs).items() if not key.startswith("__")}
    found = {"apiVersion": version.removeprefix("core/"), "kind": kind, **written}
    metadata = found.get("metadata", {})
    annotations = {key: value for key, value in metadata.get("annotations", {}).items() if not key.startswith(PULUMI)}
    found["metadata"] = {
        **{key: value for key, value in metadata.items() if key != "annotations"},
        **({"annotations": annotations} if annotations else {}),
    }
    return found


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _known(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_known(inner) for inner in value]
    return value.replace(UNKNOWN, PLACEHOLDER) if isinstance(value, str) else value


def text(manifest: Mapping[str, Any]) -> str:
    """One file. The values of a Secret are nowhere in it."""
    if manifest["kind"] != "Secret":
        return yaml.safe_dump(dict(manifest), sort_keys=False, width=1000)
    parts = [part for key in ("stringData", "data") if isinstance(part := manifest.get(key), dict)]  # Pulumi may hide the names, too
    names = ", ".join(sorted(name for part in parts for name in part))
    rest = {key: value for key, value in manifest.items() if key not in ("stringData", "data")}
    return f"# The values are left out{f': {names}' if names else ''}.\n" + yaml.safe_dump(rest, sort_keys=False, width=1000)


def write(preview: Mapping[str, Any], folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("[0-9][0-9]-*.yaml"):
        old.unlink()
    written = []
    for manifest in manifests(preview):
        kind = manifest["kind"]
        rank = FIRST.index(kind) if kind in FIRST else len(FIRST)
        file = folder / f"{rank:02}-{kind.lower()}-{manifest['metadata']['name']}.yaml"
        file.write_text(text(manifest))
        written.append(file)
    return written


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        preview = json.load(sys.stdin)
    except ValueError:
        print("trainstack: there is no preview to render; see what `make preview` says.", file=sys.stderr)
        return 1
    written = write(preview, Path(sys.argv[1]))
    print(f"{len(written)} manifests are in {sys.argv[1]}" if written else "the stack has no Kubernetes objects; local has none")
    return 0


if __name__ == "__main__":
    sys.exit(main())
