"""Installs what the project needs, once: the virtual environment and the Pulumi CLI; where they are used, the policy pack's and actionlint.

    python3 toolchain/install.py venv          .venv from requirements.lock
    python3 toolchain/install.py pulumi        the Pulumi CLI, linked into .venv/bin
    python3 toolchain/install.py policy        policy/.venv from policy/requirements.txt
    python3 toolchain/install.py actionlint    the checker of GitHub workflows, linked into .venv/bin

Only the standard library is used here, because nothing else is installed yet. `make` calls them and skips them when
they are done. The CLI is looked for on PATH first; then the official installer is asked; where that cannot be reached,
the CLI is built from its Go modules, which takes minutes, once, for all clones on the machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from shared import BIN, CACHE, ROOT, VENV, SetupError, go_build, go_environment, locked, run, say, ticking

PULUMI = "3.259.0"  # the version of the pulumi package in requirements.lock; a test holds the two together
ATTACHED = "attached"
ACTIONLINT = "1.7.12"
INSTALLER = "https://get.pulumi.com/install.sh"
# The newest language host that is part of a Go module. It runs programs for the newer engine, but it ignores the
# virtual environment that Pulumi.yaml names, so a wrapper repeats it on the command line.
LANGUAGE_HOST = "3.79.0"
CLIPBOARD = "github.com/tgummerer/clipboard v0.0.0-20241001131231-d02d263e614e"  # a replacement that Pulumi's go.mod has
SDK_MODULE = "github.com/pulumi/pulumi/sdk/v3"


# ---------------------------------------------------------------------------------------------------- .venv


def install_venv() -> None:
    started = time.monotonic()
    if not (BIN / "python").exists():
        run([sys.executable, "-m", "venv", VENV])
    uv = shutil.which("uv") or str(BIN / "uv")
    if not Path(uv).exists():
        run([BIN / "python", "-m", "pip", "install", "--quiet", "uv"])
    say("installing the Python packages of requirements.lock (about 3 GB on disk, once)")
    with ticking("installing the Python packages"):
        sync(uv, VENV, ROOT / "requirements.lock")
        run([uv, "pip", "install", "--quiet", "--python", BIN / "python", "--no-deps", "--no-build-isolation", "--editable", ROOT])
    finish(VENV, ROOT / "requirements.lock")
    say(f"the virtual environment is ready ({time.monotonic() - started:.0f} s)")


def install_policy() -> None:
    """The policy pack's own: its SDK wants a protobuf that TensorFlow does not."""
    uv, environment, lock = shutil.which("uv") or str(BIN / "uv"), ROOT / "policy" / ".venv", ROOT / "policy" / "requirements.txt"
    with locked("policy"):
        if is_finished(environment, lock):
            return
        run([sys.executable, "-m", "venv", "--clear", environment])
        with ticking("installing the Python packages of the policy pack"):
            sync(uv, environment, lock)
        attach(environment)
        finish(environment, lock)
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


def finish(environment: Path, lock: Path) -> None:
    (environment / ".ready").write_text(digest(lock))


def is_finished(environment: Path, lock: Path) -> bool:
    done = environment / ".ready"
    return done.exists() and done.read_text() == digest(lock)


def digest(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes()).hexdigest() + "\n"


# --------------------------------------------------------------------------------------------------- pulumi


def install_pulumi() -> None:
    found = on_path()
    if found:
        link(found)
        say(f"using {found} (Pulumi {version_of(found)})")
        return
    with locked("pulumi"):
        folder = official() or built()
    link(folder / "bin" / "pulumi")
    say(f"Pulumi {version_of(BIN / 'pulumi')} is ready")


def link(executable: Path, name: str = "pulumi") -> None:
    """One link is enough: the CLI finds its language host and its plugins beside the file that the link points at."""
    (BIN / name).unlink(missing_ok=True)
    (BIN / name).symlink_to(executable)


def version_of(executable: Path) -> str:
    with contextlib.suppress(OSError, SetupError):
        return run([executable, "version"], env={**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "1"}).strip().lstrip("v")
    return ""


def on_path() -> Path | None:
    """The user's own CLI, when it is of the same major version and no older than our SDK."""
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
    say(f"{executable} is version {version or 'unknown'}, {PULUMI} or newer of the same major version is needed; looking further")
    return None


def official() -> Path | None:
    folder = CACHE / f"pulumi-{PULUMI}-official"
    if (folder / "bin" / "pulumi").exists():
        return folder
    if built_folder().exists():
        return None  # what is built already is quicker than a download
    try:
        with urllib.request.urlopen(INSTALLER, timeout=5):
            pass
    except (OSError, ValueError):
        say("the official Pulumi installer cannot be reached from here")
        return None
    say(f"downloading Pulumi {PULUMI} with the official installer")
    install = "import sys; from pulumi.automation import PulumiCommand; PulumiCommand.install(root=sys.argv[1])"
    with ticking("downloading Pulumi"):
        done = subprocess.run([BIN / "python", "-c", install, folder], capture_output=True, timeout=600)
    if done.returncode == 0:
        return folder
    say("the official installer did not finish; building from Go modules instead")
    shutil.rmtree(folder, ignore_errors=True)
    return None


def built_folder() -> Path:
    return CACHE / f"pulumi-{PULUMI}-built"


def built() -> Path:
    folder = built_folder()
    if folder.exists():
        return folder
    if shutil.which("go") is None:
        raise SetupError(
            "Pulumi is not on PATH, its installer cannot be reached, and there is no Go to build it with: "
            "install Pulumi (https://www.pulumi.com/docs/install/) or Go 1.26 (https://go.dev/dl/) and try again."
        )
    started = time.monotonic()
    say(f"building Pulumi {PULUMI} from its Go modules: about 7 minutes on 2 cores, once on this machine")
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        work, target = Path(scratch) / "src", Path(scratch) / "out" / "bin"
        target.mkdir(parents=True)
        engine = "github.com/pulumi/pulumi/pkg/v3"
        flags = f"-s -w -X {SDK_MODULE}/go/common/version.Version=v{PULUMI}"
        build_cli(work / "cli", engine, PULUMI, f"{engine}/cmd/pulumi", target / "pulumi", flags)
        host = f"{SDK_MODULE}/python/cmd/pulumi-language-python"
        build_cli(work / "host", SDK_MODULE, LANGUAGE_HOST, host, target / "language-host", "-s -w")
        scripts = run(["go", "list", "-m", "-f", "{{.Dir}}", SDK_MODULE], cwd=work / "cli", env=go_environment(CGO_ENABLED="0")).strip()
        wrapper = target / "pulumi-language-python"
        wrapper.write_text('#!/bin/sh\nexec "$(dirname "$0")/language-host" -virtualenv=.venv "$@"\n')
        wrapper.chmod(0o755)
        for script in ("cmd/pulumi-language-python-exec", "dist/pulumi-resource-pulumi-python"):
            copy = target / Path(script).name
            shutil.copyfile(Path(scripts) / "python" / script, copy)
            copy.chmod(0o755)
        target.parent.rename(folder)
    say(f"built Pulumi in {time.monotonic() - started:.0f} s; it is kept in {folder}")
    return folder


def build_cli(folder: Path, module: str, version: str, package: str, output: Path, flags: str) -> None:
    lines = ["go 1.25.11", f"require {module} v{version}", f"replace github.com/atotto/clipboard => {CLIPBOARD}"]
    go_build(folder, lines, [package], output, ["-trimpath", "-ldflags", flags], CGO_ENABLED="0")


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
                go_build(
                    Path(scratch) / "src", lines, [f"{module}/cmd/actionlint"], built, ["-trimpath", "-ldflags", "-s -w"], CGO_ENABLED="0"
                )
                built.parent.rename(executable.parent)
    link(executable, "actionlint")


def main() -> int:
    steps = {"venv": install_venv, "pulumi": install_pulumi, "policy": install_policy, "actionlint": install_actionlint}
    if len(sys.argv) != 2 or sys.argv[1] not in steps:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        steps[sys.argv[1]]()
    except SetupError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
