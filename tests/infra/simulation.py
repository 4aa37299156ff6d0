"""The whole program on the real engine and the simulated cloud.

`Simulation` runs the program in a process forked from one that has imported everything, by the Automation API or, where a test reads what a person would
read, by the CLI: that saves every `up` the start of a language host and its imports. Not in the tests' own process: the program has hooks, for which Pulumi
starts an asyncio server of gRPC in the loop of every run, and a process that has seen many of them crashes now and then. The commands as a person types
them, with a language host of their own, are tested with `make` in test_stack.py.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pulumi.automation as automation
import yaml
from pulumi.automation._server import LanguageServer
from pulumi.runtime.proto.language_pb2_grpc import add_LanguageRuntimeServicer_to_server

from tests.cloud.cloud import Cloud, Resource
from tests.cloud.provider import serve
from tests.conftest import ROOT, own_backend
from tests.infra.program import settings_of
from workloads import launcher

UP = ("up", "--yes", "--skip-preview")
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([__name__, "tests.infra.warm"])


def program() -> None:
    runpy.run_path(str(ROOT / "__main__.py"))


def opened(folder: Path, name: str, env: Mapping[str, str]) -> automation.Stack:
    project = automation.ProjectSettings("trainstack", "python", main=str(folder))
    cli = automation.PulumiCommand(root=str(ROOT / ".venv"))
    workspace = automation.LocalWorkspaceOptions(work_dir=str(folder), env_vars=env, project_settings=project, pulumi_command=cli)
    return automation.create_or_select_stack(name, project_name="trainstack", program=program, opts=workspace)


def operate(
    place: tuple[Path, str, Mapping[str, str]], launcher_file: str, operation: str, options: Mapping[str, Any]
) -> tuple[Any, list[Any]]:
    """What an operation of the engine comes to, and its events."""
    launcher.__file__ = launcher_file
    events: list[Any] = []
    return getattr(opened(*place), operation)(on_event=events.append, **options), events


def command_line(command: Sequence[str], env: Mapping[str, str], launcher_file: str) -> subprocess.CompletedProcess[str]:
    """Runs the CLI; this process serves the program to it in place of a language host."""
    launcher.__file__ = launcher_file
    server = grpc.server(ThreadPoolExecutor(4))
    add_LanguageRuntimeServicer_to_server(LanguageServer(program), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        return run_command([*command, f"--client=127.0.0.1:{port}"], env)
    finally:
        server.stop(0)


def run_command(command: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=180)


class Simulation:
    def __init__(self, folder: Path, environment: Mapping[str, str], name: str = "dev") -> None:
        self.name, self.folder, self.launcher = name, folder, str(launcher.__file__)
        self.cloud = Cloud(folder / "cloud.json")
        (folder / "state").mkdir(exist_ok=True)
        self.env = {
            **environment,
            "PATH": f"{ROOT}/.venv/bin:{environment['PATH']}",
            **own_backend(folder),
        }
        self.config: dict[str, Any] = settings_of(name)
        self.write()
        self.stack = opened(folder, name, self.env)

    def write(self, **changes: Any) -> None:
        """Changes settings, given by their names after `trainstack:`."""
        self.config |= {f"trainstack:{key}": value for key, value in changes.items()}
        file = self.folder / f"Pulumi.{self.name}.yaml"
        salt = (yaml.safe_load(file.read_text()) if file.exists() else {}).get("encryptionsalt")
        file.write_text(yaml.safe_dump({**({"encryptionsalt": salt} if salt else {}), "config": self.config}))

    def training(self, **changes: Any) -> None:
        """Changes the training `digits`."""
        self.write(trainings={"digits": {**self.config["trainstack:trainings"]["digits"], **changes}})

    def add_secrets(self) -> None:
        """A secret of the stack's, and a key for its training."""
        self.pulumi("config", "set", "--secret", "--path", "trainstack:secrets.API_KEY", "hunter2")
        self.config = yaml.safe_load((self.folder / f"Pulumi.{self.name}.yaml").read_text())["config"]
        self.training(credentials={"mode": "key_secret", "secret": "credential", "key": "key.json"})

    def engine(self, operation: str, **options: Any) -> tuple[Any, list[Any]]:
        """`up`, `preview` or `refresh`: what it comes to, and the engine's events."""
        answer: tuple[Any, list[Any]] = self.in_fork(operate, (self.folder, self.name, self.env), self.launcher, operation, options)
        return answer

    def in_fork(self, function: Callable[..., Any], *arguments: Any) -> Any:
        with ProcessPoolExecutor(1, FORKED) as process:
            return process.submit(function, *arguments).result()

    def up(self) -> dict[str, int]:
        """What `up` did, by kind of operation."""
        return dict(self.engine("up")[0].summary.resource_changes or {})

    def refused(self) -> str:
        """What a person reads after an `up` that fails."""
        done = self.pulumi(*UP, check=False)
        assert done.returncode, "it did not fail"
        return done.stdout + done.stderr

    def preview(self) -> dict[str, list[str]]:
        """What would change: from the kind of operation to the logical names."""
        found: dict[str, list[str]] = {}
        for event in self.engine("preview")[1]:
            if event.resource_pre_event and event.resource_pre_event.metadata.op.value != "same":
                metadata = event.resource_pre_event.metadata
                found.setdefault(metadata.op.value, []).append(metadata.urn.rpartition("::")[2])
        return found

    def destroy(self, check: bool = True) -> str:
        """By the CLI: the Automation API leaves out the preview, which is what refuses to destroy something protected."""
        done = self.pulumi("destroy", "--yes", check=check)
        assert check or done.returncode
        return done.stdout + done.stderr

    def left(self) -> list[Resource]:
        """What is there, besides enabled services and kept buckets."""
        return self.cloud.resources()

    def pulumi(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command of the CLI."""
        command = ["pulumi", *self.of_this_stack(*arguments)]
        if arguments[0] in ("up", "preview") or "--run-program" in arguments:
            return self.checked(self.in_fork(command_line, command, self.env, self.launcher), check)
        return self.run(*command, check=check)

    def of_this_stack(self, *arguments: str) -> list[str]:
        return [*arguments, "--stack", self.name, "--config-file", f"{self.folder}/Pulumi.{self.name}.yaml"]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.env}

    def state(self) -> dict[str, Any]:
        """The state as it is kept, with its secrets encrypted."""
        return json.loads(self.run("pulumi", "stack", "export", "--stack", self.name).stdout)["deployment"]

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command of the operator's, with the environment of the stack and the cloud."""
        return self.checked(run_command(command, self.env), check)

    @staticmethod
    def checked(done: subprocess.CompletedProcess[str], check: bool) -> subprocess.CompletedProcess[str]:
        assert not check or done.returncode == 0, f"{done.args} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done

    def killed(self) -> None:
        """An `up` whose engine is killed when a creation is lost, as a laptop's battery would do it."""
        with (self.folder / "killed.log").open("w") as log:
            engine = subprocess.Popen(["pulumi", *self.of_this_stack(*UP)], cwd=ROOT, env=self.environment, stdout=log, stderr=log)
            assert self.cloud.lost.wait(60), (self.folder / "killed.log").read_text()
            engine.kill()
            engine.wait()


@contextmanager
def simulation(folder: Path, name: str = "dev") -> Iterator[Simulation]:
    folder.mkdir(exist_ok=True)
    with serve(Cloud(folder / "cloud.json")) as more:
        yield Simulation(folder, {"PATH": os.environ["PATH"], **more}, name)
