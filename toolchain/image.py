"""Images for the node's containerd, without Docker: layers are plain tar files, an image is a few lines of JSON beside them."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import io
import json
import platform
import re
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared import BIN, ROOT, VENV, SetupError, progress, run, say

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}
BUFFER = 1 << 20

TRAINER = "localhost/trainstack-trainer"
CONFIG = {
    "Env": [
        "PATH=/usr/local/bin:/usr/bin:/bin",
        "HOME=/tmp",
        "PYTHONUNBUFFERED=1",
        "PYTHONDONTWRITEBYTECODE=1",
        "TF_USE_LEGACY_KERAS=1",
        "TF_CPP_MIN_LOG_LEVEL=2",
    ],
    "WorkingDir": "/app",
    "User": "10001:10001",
    "Cmd": ["python", "-m", "trainer", "--help"],
}
PACKAGES = ("tensorflow", "tf-keras", "tensorboard", "scikit-learn")
RELEASES = {"3.11": "bookworm", "3.13": "trixie"}  # the Debian that has a version of Python
NOT_IN_DEBIAN = ("dev/", "var/cache/", "var/lib/apt/", "var/log/", "usr/share/doc/", "usr/share/locale/", "usr/share/man/")
NOT_NEEDED = ("tensorflow/include/",)  # for compilers
KEPT = 3  # images of the trainer that stay, for runs that name an earlier one


@dataclass(frozen=True)
class Layer:
    """A part of an image's files. Without a path its content is known to containerd already, and need not be handed over."""

    digest: str
    size: int
    path: Path | None


def ctr(socket: Path, *arguments: str) -> str:
    return run(["ctr", "--address", socket, "--namespace", "k8s.io", *arguments])


def answers(socket: Path) -> bool:
    try:
        ctr(socket, "version")
    except SetupError:
        return False
    return True


def names(socket: Path) -> list[str]:
    return ctr(socket, "images", "list", "--quiet").split()


def forget_containers(socket: Path) -> None:
    """Containers of a node that is gone, which the next one would take for its own."""
    if found := ctr(socket, "containers", "list", "--quiet").split():
        ctr(socket, "containers", "delete", *found)


def layer_of(path: Path, files: Mapping[str, Path]) -> Layer:
    """Files under their names in the image. All of them are root's, whoever has them here."""
    with tarfile.open(path, "w") as archive:
        for name, source in files.items():
            archive.add(source, name, recursive=False, filter=owned_by_root)
    return measured(path)


def owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def measured(path: Path) -> Layer:
    with path.open("rb") as content:
        return Layer(f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}", path.stat().st_size, path)


def load(socket: Path, name: str, layers: Sequence[Layer], config: Mapping[str, Any]) -> str:
    """Hands an image to containerd, and returns its name. A name without a tag gets the image's digest, by which settings name images."""
    described = {
        "architecture": ARCHITECTURE.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
    }
    parts = {}

    def part(kind: str, value: Mapping[str, Any]) -> dict[str, Any]:
        data = json.dumps(value).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        parts[digest] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}.v1+json", "digest": digest, "size": len(data)}

    media = "application/vnd.oci.image.layer.v1.tar"
    manifest = part(
        "manifest",
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": part("config", described),
            "layers": [{"mediaType": media, "digest": layer.digest, "size": layer.size} for layer in layers],
        },
    )
    reference = name if ":" in name else f"{name}@{manifest['digest']}"
    index = {"schemaVersion": 2, "manifests": [{**manifest, "annotations": {"io.containerd.image.name": reference}}]}
    files = {f"blobs/{digest.replace(':', '/')}": data for digest, data in parts.items()}
    files |= {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps(index).encode(),
    }
    command = ["ctr", "--address", str(socket), "--namespace", "k8s.io", "images", "import", "-"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        with tarfile.open(fileobj=process.stdin, mode="w|", bufsize=BUFFER) as archive:
            for layer in layers:
                if layer.path:
                    entry = tarfile.TarInfo(f"blobs/{layer.digest.replace(':', '/')}")
                    entry.size = layer.size
                    with layer.path.open("rb") as content:
                        archive.addfile(entry, content)
            for path, data in files.items():
                entry = tarfile.TarInfo(path)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        process.stdin.close()
    except BrokenPipeError:
        pass  # its own words say why
    if process.wait():
        raise SetupError(f"containerd does not take the image {reference}:\n{process.stderr.read().decode().strip()}")
    return reference


# ---------------------------------------------------------------------------------------------- the trainer


def trainer(socket: Path, folder: Path) -> str:
    """The trainer's image as trainer/Dockerfile has it, in containerd; made again when what it is made of has changed."""
    kept = folder / "images"
    kept.mkdir(exist_ok=True)
    recipe = fingerprint(Path(__file__), *sources())
    packages = fingerprint(Path(__file__), ROOT / "requirements.lock")
    record = kept / "images.json"
    known: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    here = names(socket)
    if known.get(recipe) in here:
        return known[recipe]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=kept) as scratch:
        with progress.step("collecting the files of the trainer's image"):
            layers = [
                debian_layer(kept, Path(scratch)),
                packages_layer(socket, kept / f"{packages}.json", Path(scratch)),
                trainer_layer(Path(scratch)),
            ]
        with progress.step("handing the trainer's image to the node"):
            reference = load(socket, TRAINER, layers, CONFIG)
    known.pop(recipe, None)
    known[recipe] = reference
    recent = dict(list(known.items())[-KEPT:])
    record.write_text(json.dumps(recent))
    if old := [name for name in here if name.startswith(f"{TRAINER}@") and name not in recent.values()]:
        ctr(socket, "images", "remove", *old)
    size = sum(layer.size for layer in layers) / 1e9
    say(f"made the trainer's image, {size:.1f} GB, in {time.monotonic() - started:.0f} s")
    return reference


def sources() -> list[Path]:
    return [ROOT / "requirements.lock", *sorted(path for path in (ROOT / "trainer").rglob("*.py"))]


def fingerprint(*paths: Path) -> str:
    text = hashlib.sha256(python_of_venv().encode())
    for path in paths:
        text.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return text.hexdigest()[:16]


@functools.cache
def python_of_venv() -> str:
    return run([BIN / "python", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()


def debian_layer(kept: Path, scratch: Path) -> Layer:
    """A small Debian with the Python that the virtual environment's packages were made for."""
    release = RELEASES.get(python_of_venv())
    if release is None:
        raise SetupError(
            f"no Debian has the Python {python_of_venv()} of .venv: make .venv with one of {', '.join(RELEASES)}, or set KUBECONFIG and TRAINSTACK_TEST_IMAGE."
        )
    layer = kept / f"{release}.tar"
    if not layer.exists():
        root = scratch / release
        say(f"installing Debian {release} for the trainer's image, once on this machine")
        run(["debootstrap", "--variant=minbase", "--include=python3", release, root])
        paths = {str(path.relative_to(root)): path for path in sorted(root.rglob("*"))}
        layer_of(scratch / layer.name, {name: path for name, path in paths.items() if not name.startswith(NOT_IN_DEBIAN)})
        (scratch / layer.name).rename(layer)
    return measured(layer)


def packages_layer(socket: Path, record: Path, scratch: Path) -> Layer:
    """The packages that the trainer needs, out of the virtual environment; most of the image, and seldom another one."""
    if record.exists():
        layer = Layer(**json.loads(record.read_text()), path=None)
        if layer.digest in ctr(socket, "content", "list", "--quiet").split():
            return layer
    target = f"usr/local/lib/python{python_of_venv()}/dist-packages"
    site = VENV / "lib" / f"python{python_of_venv()}" / "site-packages"
    files: dict[str, Path] = {}
    for distribution in needed(site):
        for script in distribution.entry_points.select(group="console_scripts"):
            path = scratch / script.name
            path.write_text(f"#!/usr/bin/python3\nimport sys\nfrom {script.module} import {script.attr}\nsys.exit({script.attr}())\n")
            path.chmod(0o755)
            files[f"usr/local/bin/{script.name}"] = path
        for name in distribution.files or []:
            if name.parts[0] == ".." or str(name).startswith(NOT_NEEDED):
                continue
            path = site / name
            compiled = path.parent.glob(f"__pycache__/{path.stem}.*.pyc") if path.suffix == ".py" else []
            files |= {f"{target}/{found.relative_to(site)}": found for found in (path, *compiled) if found.exists()}
    layer = layer_of(scratch / "packages.tar", dict(sorted(files.items())))
    record.write_text(json.dumps({"digest": layer.digest, "size": layer.size}))
    return layer


def needed(site: Path) -> list[importlib.metadata.Distribution]:
    """What the image's roots need, and what that needs. A need of another platform is not installed, and one of an extra was not asked for."""
    installed = {normal(found.metadata["Name"]): found for found in importlib.metadata.distributions(path=[str(site)])}
    wanted, reached = list(PACKAGES), dict[str, importlib.metadata.Distribution]()
    while wanted:
        name = normal(wanted.pop())
        if name in installed and name not in reached:
            reached[name] = installed[name]
            wanted += [re.split(r"[^\w.-]", need)[0] for need in installed[name].requires or [] if "extra ==" not in need]
    return list(reached.values())


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def trainer_layer(scratch: Path) -> Layer:
    server = scratch / "tensorflow_model_server"
    # TensorFlow Serving's own program comes in an image of its own, which is in no package; ours answers the same requests.
    server.write_text('#!/bin/sh\nexec python3 -m trainer.serve "$@"\n')
    server.chmod(0o755)
    python = scratch / "python"
    python.symlink_to("/usr/bin/python3")
    app = {str(Path("app") / path.relative_to(ROOT)): path for path in sources() if path.suffix == ".py"}
    return layer_of(scratch / "trainer.tar", {"usr/local/bin/python": python, f"usr/local/bin/{server.name}": server, **app})
