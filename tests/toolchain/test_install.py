"""The set-up: what is downloaded is checked, what was built says what it leaves out, and progress has an estimate."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import platform
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import ROOT


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """toolchain/install.py with a cache of its own. Its files import each other by their names alone, as scripts do."""
    monkeypatch.syspath_prepend(str(ROOT / "toolchain"))
    import install
    import shared

    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(install, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(shared, "DURATIONS", tmp_path / "cache" / "durations.json")
    yield install
    for name in ("install", "shared"):
        sys.modules.pop(name)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def releases(install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A server with a release that is a shell script, and its checksum."""
    folder = tmp_path / "releases"
    folder.mkdir()
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    archive = folder / f"pulumi-v{install.PULUMI}-{platform.system().lower()}-{machine}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        script = b"#!/bin/sh\necho v3.259.0\n"
        for name in ("pulumi/pulumi", "pulumi/pulumi-language-python"):
            member = tarfile.TarInfo(name)
            member.size = len(script)
            tar.addfile(member, io.BytesIO(script))
    checksum = hashlib.sha256(archive.read_bytes()).hexdigest()
    (folder / f"pulumi-{install.PULUMI}-checksums.txt").write_text(f"{'0' * 64}  another.tar.gz\n{checksum}  {archive.name}\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(install, "RELEASES", f"http://127.0.0.1:{server.server_port}")
        yield folder
        server.shutdown()


def test_the_official_release_is_installed(install: ModuleType, releases: Path) -> None:
    folder = install.official()
    assert install.version_of(folder / "bin" / "pulumi") == "3.259.0"
    assert sorted(path.name for path in (folder / "bin").iterdir()) == ["pulumi", "pulumi-language-python"]
    for file in releases.iterdir():
        file.unlink()
    assert install.official() == folder, "what is there is not downloaded again"


def test_a_release_that_does_not_match_its_checksum_is_refused(install: ModuleType, releases: Path) -> None:
    (archive,) = releases.glob("*.tar.gz")
    archive.write_bytes(archive.read_bytes() + b"\0")
    with pytest.raises(install.SetupError, match="does not match its published checksum"):
        install.official()
    assert not (install.CACHE / f"pulumi-{install.PULUMI}-official").exists()


def test_a_release_without_a_checksum_is_refused(install: ModuleType, releases: Path) -> None:
    (releases / f"pulumi-{install.PULUMI}-checksums.txt").write_text("")
    with pytest.raises(install.SetupError, match="does not match its published checksum"):
        install.official()


def test_where_there_is_no_release_the_next_way_is_tried(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "RELEASES", "http://127.0.0.1:9")
    assert install.official() is None
    assert "cannot be downloaded from here" in capsys.readouterr().err


@pytest.mark.usefixtures("install")
def test_a_step_is_shown_with_the_time_that_it_took_the_last_time() -> None:
    import shared

    assert shared.describe_step("compiling", 12, None, "40 %") == "compiling (12 s) 40 %"
    with shared.progress.step("compiling"):
        pass
    assert shared.durations().keys() == {"compiling"}
    shared.remember_duration("compiling", 90)
    assert shared.describe_step("compiling", 12, shared.durations()["compiling"], "") == "compiling (12 of about 90 s)"
    assert shared.describe_step("compiling", 95, 90, "") == "compiling (95 s)", "an estimate that was too short says nothing"


@pytest.mark.usefixtures("install")
def test_a_step_that_failed_is_no_estimate_and_damage_is_none_either() -> None:
    import shared

    with pytest.raises(ValueError, match="disk"), shared.progress.step("compiling"):
        raise ValueError("disk")
    assert shared.durations() == {}
    shared.DURATIONS.write_text("{")
    assert shared.durations() == {}


def test_what_runs_in_parallel_ends_before_its_error_is_raised(install: ModuleType) -> None:
    import shared

    begun, ended = threading.Event(), []

    def fails() -> None:
        begun.wait(10)
        raise install.SetupError("no network")

    def works() -> None:
        begun.set()
        ended.append("works")

    with pytest.raises(install.SetupError, match="no network"):
        shared.in_parallel(fails, works)
    assert ended == ["works"]


def test_a_built_cli_says_what_it_leaves_out() -> None:
    executable = (ROOT / ".venv" / "bin" / "pulumi").resolve()
    if not executable.parent.parent.name.endswith("-built"):
        pytest.skip("not run: the CLI was not built here")
    done = subprocess.run([executable, "api", "/api/user"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "this Pulumi was built without `pulumi api`; install the official CLI" in done.stderr
    assert "Traceback" not in done.stderr


def test_both_locks_have_no_package_in_common() -> None:
    """What the tests need besides is installed on top of what everybody needs, without its dependencies."""
    names = [
        {line.partition("==")[0] for line in (ROOT / lock).read_text().splitlines() if "==" in line and not line.startswith((" ", "#"))}
        for lock in ("requirements.lock", "requirements-dev.lock")
    ]
    assert {"pulumi", "tensorflow", "uv"} <= names[0]
    assert {"pytest", "mypy", "zizmor"} <= names[1]
    assert not names[0] & names[1]
    assert json.dumps(sorted(names[1])).count("nvidia") == 0
