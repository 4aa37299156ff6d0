"""What the doctor knows of a stack before it asks anybody: its settings file, checked where the packages for that are installed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from naming import PROJECT
from ops.target import file_of

if TYPE_CHECKING:
    from settings import Settings

NEEDED = ("yaml", "pydantic", "psutil", "rich", "kubernetes", "pulumi")  # without one of them nothing else of Trainstack works


@dataclass(frozen=True)
class Subject:
    """A stack as far as it is known."""

    name: str
    file: Path
    target: str = "local"
    project: str = ""
    secrets_provider: str = ""
    has_secrets: bool = False  # whether the file has encrypted values
    missing: tuple[str, ...] = ()  # packages
    problems: tuple[str, ...] = ()  # of the settings
    settings: Settings | None = None
    written: dict[str, Any] = field(default_factory=dict)

    @property
    def unread(self) -> str:
        """Why something that follows from the settings is not known."""
        return "the packages that read the settings are missing" if self.missing else "the settings are not valid"


def read(name: str, config_file: Path | None) -> Subject:
    file = file_of(name, config_file)
    text = file.read_text()
    known: dict[str, Any] = {
        "target": _line(text, f"{PROJECT}:target") or "local",
        "project": _line(text, "gcp:project"),
        "secrets_provider": _line(text, "secretsprovider"),
        "has_secrets": bool(re.search(r"\bsecure:", text)),
    }
    if missing := tuple(package for package in NEEDED if not _installed(package)):
        return Subject(name, file, **known, missing=missing)
    import yaml

    from settings import SettingsError, parse

    try:
        written: dict[str, Any] = (yaml.safe_load(text) or {}).get("config") or {}
        settings = parse(
            {key.removeprefix(f"{PROJECT}:"): _opened(value) for key, value in written.items() if key.startswith(f"{PROJECT}:")},
            {key.removeprefix("gcp:"): value for key, value in written.items() if key in ("gcp:project", "gcp:region", "gcp:zone")},
        )
    except yaml.YAMLError as error:
        return Subject(name, file, **known, problems=(f"the file is no YAML: {' '.join(str(error).split())}.",))
    except SettingsError as error:
        return Subject(name, file, **known, problems=tuple(error.problems), written=written)
    return Subject(name, file, **known, settings=settings, written=written)


def _installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def _line(text: str, key: str) -> str:
    """A value that stands on a line of its own, as Pulumi writes it; there may be no library that reads the whole file."""
    found = re.search(rf"^\s*['\"]?{re.escape(key)}['\"]?:[ \t]+['\"]?([^\s'\"#]+)", text, re.MULTILINE)
    return found[1] if found else ""


def _opened(value: Any) -> Any:
    """Secrets are encrypted in the file, and what they are does not matter here."""
    if isinstance(value, dict):
        return "secret" if set(value) == {"secure"} else {key: _opened(inner) for key, inner in value.items()}
    return [_opened(inner) for inner in value] if isinstance(value, list) else value
