"""A stack for a training of one's own: a settings file with its options in comments, and a program to begin with, in which both functions work."""

from __future__ import annotations

import re
from pathlib import Path

from ops.target import OpsError

TEMPLATES = Path(__file__).parent / "templates"
OWN = Path("trainer/own")  # below trainer/, so that the image has it, too


def new(name: str, root: Path) -> tuple[Path, Path]:
    """Writes both files and returns where they are."""
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) or len(name) > 40:
        raise OpsError(
            f"{name!r} becomes part of host names; write small letters, digits and '-', beginning with a letter, at most 40 characters, "
            "as in `make new NAME=mine`."
        )
    files = {
        "settings.yaml": root / f"Pulumi.{name}.yaml",
        "program.py": root / OWN / f"{name.replace('-', '_')}.py",
    }
    if there := [str(path.relative_to(root)) for path in files.values() if path.exists()]:
        raise OpsError(f"{' and '.join(there)} {'is' if len(there) == 1 else 'are'} there already and left alone; choose another name.")
    for template, path in files.items():
        text = (TEMPLATES / template).read_text()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("my-training", name).replace("my_training", name.replace("-", "_")))
    return files["settings.yaml"], files["program.py"]
