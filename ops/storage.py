"""The files of a run outside of this machine: on gs:// with TensorFlow's own access, on a volume through a pod that mounts it."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ops.target import OpsError

LIST = 'ls -1 "$0" 2>/dev/null || true'
REMOVE = 'rm -rf -- "$0"'


class Place(Protocol):
    """A directory somewhere else."""

    def names(self) -> list[str]:
        """What is in it; nothing when it is not there."""

    def fetch(self, name: str, destination: Path) -> None:
        """Copies one directory of it into a new folder."""

    def delete(self) -> None: ...


def newest(names: Iterable[str]) -> str:
    """The newest version of a model: folders are named by the step, and the highest number is the one that is served."""
    return max((name for name in names if name.isdigit()), key=int, default="")


@contextmanager
def whole(destination: Path) -> Iterator[Path]:
    """A folder that appears when everything is in it."""
    if destination.exists():
        raise OpsError(f"{destination} exists already; name a folder that does not.")
    part = destination.with_name(f".{destination.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        part.rename(destination)
    finally:
        shutil.rmtree(part, ignore_errors=True)


class Bucket:
    """A directory on gs://."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def names(self) -> list[str]:
        with _files() as gfile:
            return [name.rstrip("/") for name in gfile.listdir(self.url)] if gfile.isdir(self.url) else []

    def fetch(self, name: str, destination: Path) -> None:
        source = f"{self.url}/{name}"
        with _files() as gfile, whole(destination) as part:
            for folder, _, files in gfile.walk(source):
                target = part / folder[len(source) :].strip("/")
                target.mkdir(parents=True, exist_ok=True)
                for file in files:
                    gfile.copy(f"{folder.rstrip('/')}/{file}", str(target / file))

    def delete(self) -> None:
        with _files() as gfile:
            if gfile.isdir(self.url):
                gfile.rmtree(self.url)


@contextmanager
def _files() -> Iterator[Any]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    try:
        yield tf.io.gfile
    except tf.errors.OpError as error:
        said = " ".join(str(error.message).split())
        raise OpsError(
            f"the bucket cannot be used ({said[:300]}); log in with `gcloud auth application-default login`, or ask for the role Storage Object Admin on it."
        ) from None


class Volume:
    """A directory on a volume, seen from a pod that mounts it. `cluster` is what ops/connection.py gives."""

    def __init__(self, cluster: Any, pod: str, container: str, path: str) -> None:
        self.cluster, self.pod, self.container, self.path = cluster, pod, container, path

    def _run(self, script: str) -> str:
        from ops import shell

        code, out, errors = shell.run(self.cluster.exec(self.pod, self.container, ["sh", "-c", script, self.path]))
        if code:
            raise OpsError(
                f"{self.path} cannot be used from {self.pod} ({' '.join(errors.split()) or f'exit code {code}'}); look with `trainstack explain`."
            )
        return out

    def names(self) -> list[str]:
        return self._run(LIST).split()

    def delete(self) -> None:
        self._run(REMOVE)

    def fetch(self, name: str, destination: Path) -> None:
        from ops import shell

        output = shell.Output(self.cluster.exec(self.pod, self.container, ["tar", "cf", "-", "-C", f"{self.path}/{name}", "."]))
        with whole(destination) as part:
            try:
                with tarfile.open(fileobj=io.BufferedReader(output, 1 << 20), mode="r|") as archive:
                    archive.extractall(part, filter="data")
            except tarfile.TarError as error:
                trouble = " ".join(output.errors.decode(errors="replace").split()) or output.command.trouble or str(error)
                raise OpsError(
                    f"the model cannot be copied from {self.pod} ({trouble}); look with `trainstack explain`, then try again."
                ) from None
            for _ in output:  # what stands behind the archive's end, and the exit code
                pass
            if output.command.result():
                raise OpsError(
                    f"the model was not copied whole from {self.pod} ({output.errors.decode(errors='replace').strip()}); try again."
                )
