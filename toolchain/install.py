"""Installs what the project needs, once.

    python3 toolchain/install.py ready         what `make up` needs: .venv and the Pulumi CLI, at the same time
    python3 toolchain/install.py venv          .venv from requirements.lock
    python3 toolchain/install.py dev           what the tests and the linters need, from requirements-dev.lock, in .venv
    python3 toolchain/install.py policy        policy/.venv from policy/requirements.txt
    python3 toolchain/install.py actionlint    the linter for GitHub workflows, linked into .venv/bin

Only the standard library is used here, because nothing else is installed yet. What is installed already is left alone.

The Pulumi CLI is the one on PATH if it is new enough; else the official release, checked against its published checksum;
else, where that cannot be downloaded, a build from its Go modules, which leaves out `pulumi api`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import sys
import tarfile
import tempfile
import time
import urllib.request
from io import BytesIO
from pathlib import Path

from shared import BIN, CACHE, ROOT, VENV, SetupError, go_build, go_environment, in_parallel, locked, progress, run, say

PULUMI = "3.259.0"  # the version of the pulumi package in requirements.lock; a test compares the two
ATTACHED = "attached"
ACTIONLINT = "1.7.12"
RELEASES = "https://get.pulumi.com/releases/sdk"
# The newest language host that is part of a Go module. It runs programs for the newer engine, but it ignores the
# virtual environment that Pulumi.yaml names, so a wrapper passes it on the command line.
LANGUAGE_HOST = "3.79.0"
CLIPBOARD = "github.com/tgummerer/clipboard v0.0.0-20241001131231-d02d263e614e"  # a replacement that Pulumi's go.mod has
ENGINE_MODULE = "github.com/pulumi/pulumi/pkg/v3"
SDK_MODULE = "github.com/pulumi/pulumi/sdk/v3"
# `pulumi api` calls Pulumi Cloud, which Trainstack does not use; its OpenAPI parser is a fifth of the compile. These files of its package are used by
# other commands; a file of ours replaces the rest.
API_COMMAND, KEPT_FILES = Path("cmd") / "pulumi" / "cloud", ("envelope.go", "resolve.go")
API_COMMAND_REPLACED = Path(__file__).parent / "pulumi" / "api.go"
# Without xDS in gRPC, which Google's storage client loads for connections that Pulumi does not make. Optimized is only what commands spend their time in:
# Pulumi, gRPC and the standard library. With nothing optimized an `up` takes 1.2 times as long and a `destroy` 1.8 times; so built, no longer than as released.
OPTIMIZED = ("std", "github.com/pulumi/...", "google.golang.org/...")
FAST_BUILD = ("-trimpath", "-tags=disable_grpc_modules", "-gcflags=all=-N -l", *(f"-gcflags={packages}=" for packages in OPTIMIZED))


def install_ready() -> None:
    """Both take minutes on a new machine, one of the network and the other of the processor."""
    in_parallel(install_venv, install_pulumi)


# ---------------------------------------------------------------------------------------------------- .venv


def install_venv() -> None:
    needs = (ROOT / "requirements.lock", ROOT / "pyproject.toml")
    if is_finished(VENV / ".ready", *needs):
        return
    started = time.monotonic()
    create_venv()
    uv = find_uv()
    with progress.step("Python packages (3 GB on disk)"):
        sync(uv, VENV, ROOT / "requirements.lock")
        run([uv, "pip", "install", "--quiet", "--python", BIN / "python", "--no-deps", "--no-build-isolation", "--editable", ROOT])
    finish(VENV / ".ready", *needs)
    say(f"installed the Python packages in {time.monotonic() - started:.0f} s")


def create_venv() -> None:
    with locked("venv"):  # install_ready links the CLI into it meanwhile
        if not (BIN / "python").exists():
            run([sys.executable, "-m", "venv", VENV])


def find_uv() -> str:
    uv = shutil.which("uv") or str(BIN / "uv")
    if not Path(uv).exists():
        run([BIN / "python", "-m", "pip", "install", "--quiet", "uv"])
    return uv


def install_dev() -> None:
    """Besides what is in requirements.lock, which is there already."""
    lock = ROOT / "requirements-dev.lock"
    options: list[str | Path] = ["--quiet", "--compile-bytecode", "--no-deps", "--require-hashes", "--requirements", lock]
    with progress.step("Python packages for tests and linters"):
        run([find_uv(), "pip", "install", "--python", BIN / "python", *options])
    finish(VENV / ".dev", lock)


def install_policy() -> None:
    """The policy pack has its own environment: its SDK needs a protobuf that TensorFlow cannot use."""
    environment, lock = ROOT / "policy" / ".venv", ROOT / "policy" / "requirements.txt"
    with locked("policy"):
        if is_finished(environment / ".ready", lock):
            return
        run([sys.executable, "-m", "venv", "--clear", environment])
        with progress.step("Python packages of the policy pack"):
            sync(find_uv(), environment, lock)
        attach(environment)
        finish(environment / ".ready", lock)
    say("the policy pack is ready")


def attach(environment: Path) -> None:
    """The pack once more, for a CLI that was built here. Its language host is too old to start a pack; but for a runtime that has no language host, the
    engine starts a program with the runtime's name."""
    pack, folder = ROOT / "policy", environment / ATTACHED
    folder.mkdir()
    for name in ("__main__.py", "rules.py", "config.yaml"):
        (folder / name).symlink_to(pack / name)
    project = "PulumiPolicy.yaml"
    (folder / project).write_text((pack / project).read_text().replace("name: python", f"name: {ATTACHED}"))
    starter = folder / f"pulumi-analyzer-policy-{ATTACHED}"
    starter.write_text(f'#!/bin/sh\nexec "{environment}/bin/python" -u -m pulumi.policy "$1" "$2"\n')
    starter.chmod(0o755)


def sync(uv: str, environment: Path, lock: Path) -> None:
    run([uv, "pip", "sync", "--quiet", "--compile-bytecode", "--python", environment / "bin" / "python", "--require-hashes", lock])


def finish(stamp: Path, *needs: Path) -> None:
    stamp.write_text(digest(*needs))


def is_finished(stamp: Path, *needs: Path) -> bool:
    """Whether the stamp was written for files with this content. `make` compares times, so it must not be older than they are."""
    if not stamp.exists() or stamp.read_text() != digest(*needs):
        return False
    if stamp.stat().st_mtime < max(path.stat().st_mtime for path in needs):
        stamp.touch()
    return True


def digest(*needs: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in needs)).hexdigest() + "\n"


# --------------------------------------------------------------------------------------------------- pulumi


def install_pulumi() -> None:
    if (BIN / "pulumi").exists():
        return
    executable = on_path()
    if executable is None:
        with locked("pulumi"):
            executable = (official() or built()) / "bin" / "pulumi"
    create_venv()
    link(executable)
    say(f"using Pulumi {version_of(executable)} from {executable}")


def link(executable: Path, name: str = "pulumi") -> None:
    """One link is enough: the CLI looks for its language host and its plugins next to the file that the link points at."""
    (BIN / name).unlink(missing_ok=True)
    (BIN / name).symlink_to(executable)


def version_of(executable: Path) -> str:
    with contextlib.suppress(OSError, SetupError):
        return run([executable, "version"], env={**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "1"}).strip().lstrip("v")
    return ""


def on_path() -> Path | None:
    """The user's own CLI, if it has the same major version as our SDK and is not older."""
    elsewhere = os.pathsep.join(part for part in os.environ.get("PATH", "").split(os.pathsep) if Path(part) != BIN)
    name = shutil.which("pulumi", path=elsewhere)
    if name is None:
        return None
    executable = Path(name).resolve()
    version = version_of(executable)
    numbers = [int(part) for part in re.findall(r"\d+", version)[:3]]
    needed = [int(part) for part in PULUMI.split(".")]
    if len(numbers) == 3 and numbers[0] == needed[0] and numbers >= needed:
        return executable
    say(f"not using {executable}: it is version {version or 'unknown'}, and {needed[0]}.x from {PULUMI} on is needed")
    return None


def official() -> Path | None:
    """The official release, checked against its published checksum; nothing where it cannot be downloaded."""
    folder = CACHE / f"pulumi-{PULUMI}-official"
    if (folder / "bin" / "pulumi").exists():
        return folder
    if built_folder().exists():
        return None
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    name = f"pulumi-v{PULUMI}-{platform.system().lower()}-{machine}.tar.gz"
    try:
        with progress.step("downloading Pulumi"):
            checksums = download(f"pulumi-{PULUMI}-checksums.txt", timeout=5).decode()
            archive = download(name, timeout=60)
    except (OSError, ValueError):
        say("the official Pulumi release cannot be downloaded from here")
        return None
    published = {file: checksum for checksum, file in (line.split() for line in checksums.splitlines() if line.strip())}
    if hashlib.sha256(archive).hexdigest() != published.get(name):
        raise SetupError(
            f"{RELEASES}/{name} does not match its published checksum: try again, or install Pulumi {PULUMI} and put it on PATH."
        )
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch, tarfile.open(fileobj=BytesIO(archive)) as members:
        target = Path(scratch) / "out" / "bin"
        target.mkdir(parents=True)
        for member in members:
            if content := members.extractfile(member):
                program = target / Path(member.name).name
                program.write_bytes(content.read())
                program.chmod(0o755)
        target.parent.rename(folder)
    return folder


def download(name: str, timeout: float) -> bytes:
    with urllib.request.urlopen(f"{RELEASES}/{name}", timeout=timeout) as response:
        content: bytes = response.read()
    return content


def built_folder() -> Path:
    """The recipe is part of the name: another one builds again."""
    recipe = hashlib.sha256(" ".join([LANGUAGE_HOST, *FAST_BUILD]).encode() + API_COMMAND_REPLACED.read_bytes()).hexdigest()[:8]
    return CACHE / f"pulumi-{PULUMI}-{recipe}-built"


def built() -> Path:
    folder = built_folder()
    if folder.exists():
        return folder
    if shutil.which("go") is None:
        raise SetupError(
            "Pulumi is not on PATH, its official release cannot be downloaded, and there is no Go to build it with: "
            "install Pulumi (https://www.pulumi.com/docs/install/) or Go 1.26 (https://go.dev/dl/) and try again."
        )
    started = time.monotonic()
    say(f"building Pulumi {PULUMI} from its Go modules: about 3 minutes on 2 cores, once on this machine")
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        work, target = Path(scratch), Path(scratch) / "out" / "bin"
        target.mkdir(parents=True)
        in_parallel(lambda: build_cli(work, target), lambda: build_language_host(work, target))
        target.parent.rename(folder)
    say(f"built Pulumi in {time.monotonic() - started:.0f} s; it is kept in {folder}")
    return folder


def build_cli(work: Path, target: Path) -> None:
    engine = work / "engine"
    copy_module(f"{ENGINE_MODULE}@v{PULUMI}", engine)
    for file in (engine / API_COMMAND).iterdir():
        if file.name not in KEPT_FILES:
            file.unlink()
    shutil.copyfile(API_COMMAND_REPLACED, engine / API_COMMAND / "api.go")
    module = [
        "go 1.25.11",
        f"require {ENGINE_MODULE} v{PULUMI}",
        f"replace {ENGINE_MODULE} => {engine}",
        f"replace github.com/atotto/clipboard => {CLIPBOARD}",
    ]
    flags = f"-ldflags=-s -w -X {SDK_MODULE}/go/common/version.Version=v{PULUMI}"
    go_build("Pulumi", work / "cli", module, [f"{ENGINE_MODULE}/cmd/pulumi"], target / "pulumi", [*FAST_BUILD, flags], CGO_ENABLED="0")
    sdk = run(["go", "list", "-m", "-f", "{{.Dir}}", SDK_MODULE], cwd=work / "cli", env=go_environment()).strip()
    for script in ("cmd/pulumi-language-python-exec", "dist/pulumi-resource-pulumi-python"):
        copy = target / Path(script).name
        shutil.copyfile(Path(sdk) / "python" / script, copy)
        copy.chmod(0o755)


def build_language_host(work: Path, target: Path) -> None:
    module = ["go 1.25.11", f"require {SDK_MODULE} v{LANGUAGE_HOST}"]
    package = f"{SDK_MODULE}/python/cmd/pulumi-language-python"
    name = "Pulumi's language host"
    go_build(name, work / "host", module, [package], target / "language-host", [*FAST_BUILD, "-ldflags=-s -w"], CGO_ENABLED="0")
    wrapper = target / "pulumi-language-python"
    wrapper.write_text('#!/bin/sh\nexec "$(dirname "$0")/language-host" -virtualenv=.venv "$@"\n')
    wrapper.chmod(0o755)


def copy_module(module: str, folder: Path) -> None:
    """A module's sources, to be changed: files in Go's module cache are read-only for a reason."""
    with tempfile.TemporaryDirectory() as empty, progress.step(f"downloading {module}"):
        source = json.loads(run(["go", "mod", "download", "-json", module], cwd=empty, env=go_environment()))["Dir"]
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*_test.go", "testdata"), copy_function=shutil.copyfile)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


# ----------------------------------------------------------------------------------------------- actionlint


def install_actionlint() -> None:
    executable = CACHE / f"actionlint-{ACTIONLINT}" / "actionlint"
    with locked("actionlint"):
        if not executable.exists():
            if shutil.which("go") is None:
                raise SetupError("actionlint is built with Go, and there is none: install Go 1.26 (https://go.dev/dl/) and try again.")
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                module = "github.com/rhysd/actionlint"
                lines, built = ["go 1.25.0", f"require {module} v{ACTIONLINT}"], Path(scratch) / "out" / "actionlint"
                package = [f"{module}/cmd/actionlint"]
                go_build("actionlint", Path(scratch) / "src", lines, package, built, ["-trimpath", "-ldflags=-s -w"], CGO_ENABLED="0")
                built.parent.rename(executable.parent)
    link(executable, "actionlint")


def main() -> int:
    steps = {
        "ready": install_ready,
        "venv": install_venv,
        "dev": install_dev,
        "policy": install_policy,
        "actionlint": install_actionlint,
    }
    if len(sys.argv) != 2 or sys.argv[1] not in steps:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        steps[sys.argv[1]]()
    except SetupError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
