"""What the pages say can be followed: every relative link leads to a file, and to a heading that is in it; what is generated is current."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import settings
from ops import __main__ as main
from tests.conftest import ROOT
from tests.test_architecture import tracked
from toolchain import reference

PAGES = sorted({*tracked("*.md")})
LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings; a second one of the same words gets a number."""
    found: dict[str, int] = {}
    for title in re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE):
        anchor = reference.anchor(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title))
        found[anchor] = found.get(anchor, -1) + 1
    return {name if not number else f"{name}-{number}" for name, last in found.items() for number in range(last + 1)}


def broken(page: Path) -> list[str]:
    problems = []
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", without_code(page))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            problems.append(f"{link}: there is no such file")
        elif anchor and anchor not in anchors(target):
            problems.append(f"{link}: there is no such heading")
    return problems


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `two`\n[a](#one-two) [b](#two) [c](other.md) [d](https://example.com)\n```\n[e](none.md)\n```\n")
    assert broken(page) == ["#two: there is no such heading", "other.md: there is no such file"]


def test_every_page_is_reached_from_the_readme() -> None:
    seen, new = set(), {ROOT / "README.md"}
    while new:
        page = new.pop()
        seen.add(page)
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(page.read_text()) if ":" not in link}
        new |= {target for target in targets if target.suffix == ".md"} - seen
    assert set(tracked("docs/*.md")) - seen == set()


# ---------------------------------------------------------------------------------------------------- what is generated


def test_the_reference_of_the_settings_is_current() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == reference.page(), "run `make schema`"


def test_every_setting_is_explained() -> None:
    schema = settings.schema()
    models: dict[str, Any] = {"config": schema["properties"]["config"], **schema["$defs"]}
    silent = [f"{name}.{key}" for name, model in models.items() for key, found in model["properties"].items() if "description" not in found]
    assert silent == []


def test_every_command_is_among_the_operations() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    listed = main.parser().format_help().split("COMMAND\n", 1)[1]
    commands = re.findall(r"^    ([a-z-]+)", listed, re.MULTILINE)
    assert len(commands) >= 17
    missing = [name for name in commands if not re.search(rf"(trainstack|make) {name}\b", page)]
    assert missing == []


def test_ci_runs_every_command_of_the_readme_and_of_make_help() -> None:
    """As they are typed there; more variables may follow. tests/cluster/test_readme.py types those of the stack on kind."""
    lines = [line.strip().removeprefix("timed ") for name in ("run", "commands") for line in (ROOT / ".ci" / name).read_text().splitlines()]
    ci = [re.sub(r'^refuses "[^"]*" ', "", line) for line in lines]
    readme = (ROOT / "README.md").read_text()
    listed = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    typed = {command.strip() for command in re.findall(r"make [a-z][a-z-]*(?: [A-Z]+=[\w-]+)*", readme) if "STACK=kind" not in command} | {
        f"make {name}" for name in listed
    }
    assert len(typed) > 25
    assert sorted(command for command in typed if not any(re.match(rf"{command}\b", line) or f"$({command})" in line for line in ci)) == []
    shown = [line.partition("#")[0] for line in readme.splitlines() if line.startswith("$ trainstack ")]
    verbs = {part.split()[0] for line in shown for part in re.split(r"\$ trainstack|; trainstack|\|", line) if part.strip()} - {
        "fetch",
        "delete",
    }
    assert len(verbs) > 15
    assert verbs <= {verb for line in ci for verb in re.findall(r"^trainstack (?:--stack \w+ )?([a-z-]+)", line)}
