"""The stack's program on recording mocks: the real SDK classes, no engine, and every resource's raw inputs."""

from __future__ import annotations

import asyncio
import json
import runpy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pulumi
import yaml
from pulumi.runtime import MockCallArgs, MockResourceArgs, Mocks, set_all_config, set_mocks
from pulumi.runtime.mocks import MockMonitor
from pulumi.runtime.stack import run_pulumi_func

from tests.conftest import ROOT

PROJECT = "some-project"
# What a stack of target gke tells others that train on its cluster.
SHARED = {
    "kubeconfig": json.dumps({"current-context": "shared", "clusters": [], "contexts": [], "users": []}),
    "cluster": {"name": "trainstack-shared", "project": "their-project", "workload_pool": "their-project.svc.id.goog"},
    "identity": "ts-shared-trainer@their-project.iam.gserviceaccount.com",
}


@dataclass
class Recorded(Mocks):
    """Every resource as it was asked for, by its logical name."""

    resources: dict[str, MockResourceArgs] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    waits_for: dict[str, set[str]] = field(default_factory=dict)  # from a resource to those that are made before it
    options: dict[str, Any] = field(default_factory=dict)  # how the engine was asked for each, by its logical name
    secret_outputs: set[str] = field(default_factory=set)

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        self.resources[f"{args.typ}::{args.name}"] = args
        answers = {
            "gcp:serviceaccount/account:Account": lambda asked: {
                "email": f"{asked['accountId']}@{PROJECT}.iam.gserviceaccount.com",
                "member": f"serviceAccount:{asked['accountId']}@{PROJECT}.iam.gserviceaccount.com",
                "name": f"projects/{PROJECT}/serviceAccounts/{asked['accountId']}@{PROJECT}.iam.gserviceaccount.com",
            },
            "gcp:serviceaccount/key:Key": lambda _: {"privateKey": "eyJ0eXBlIjogInNlcnZpY2VfYWNjb3VudCJ9"},
            "gcp:container/cluster:Cluster": lambda _: {
                "endpoint": "203.0.113.7",
                "masterAuth": {"clusterCaCertificate": "Y2E="},
                "controlPlaneEndpointsConfig": {"dnsEndpointConfig": {"endpoint": "gke-1.us-central1.gke.goog"}},
            },
            "docker-build:index:Image": lambda asked: {"ref": f"{asked['tags'][0]}@sha256:{'0' * 64}"},
            "pulumi:pulumi:StackReference": lambda _: {"outputs": SHARED, "secretOutputNames": ["kubeconfig"]},
        }
        more = answers.get(args.typ, lambda _: {})(args.inputs)
        return args.name, {**args.inputs, **more}

    def call(self, args: MockCallArgs) -> dict[Any, Any]:
        self.calls.append(args.token)
        return {"accessToken": "a token", "project": PROJECT, "region": "", "zone": "", "id": ""}

    def inputs(self, kind: str) -> dict[str, Any]:
        """The inputs of every resource of a kind, such as `container/nodePool`, by logical name."""
        return {
            args.name: plain(args.inputs)
            for args in self.resources.values()
            if args.typ in (f"kubernetes:{kind}", f"docker-build:{kind}", f"pulumi:{kind}") or args.typ.startswith(f"gcp:{kind}:")
        }

    def manifests(self) -> list[dict[str, Any]]:
        """The objects of Kubernetes, as its API gets them."""
        return [plain(args.inputs) for args in self.resources.values() if args.typ.startswith("kubernetes:")]

    def comes_after(self, name: str) -> set[str]:
        """Everything that is there before a resource, and stays until it is gone; with its type, as in `kubernetes:batch/v1:Job::a-chief`."""
        (resource,) = (each for each in self.waits_for if each.endswith(f"::{name}"))
        found: set[str] = set()
        new = self.waits_for[resource]
        while new:
            found |= new
            new = {further for each in new for further in self.waits_for.get(each, set())} - found
        return found

    def is_secret(self, name: str, key: str) -> bool:
        """Whether an input is on its way as a secret."""
        (args,) = (args for args in self.resources.values() if args.name == name and key in args.inputs)
        return SECRET in args.inputs[key]


class Monitor(MockMonitor):
    """Which resources each one waits for is said to the monitor and not to the mocks. A child waits for its parent, and so for what that waits for."""

    def RegisterResource(self, request: Any) -> Any:
        recorded = self.mocks
        assert isinstance(recorded, Recorded)
        before = [*request.dependencies, request.parent, request.provider.rpartition("::")[0]]
        recorded.waits_for[f"{request.type}::{request.name}"] = {
            f"{urn.split('::')[2].rpartition('$')[2]}::{urn.rpartition('::')[2]}" for urn in before if urn
        }
        recorded.options[request.name] = request
        return super().RegisterResource(request)


SECRET = "4dabf18193072939515e22adb298388d"  # the key that marks a secret on its way to a provider


def plain(value: Any) -> Any:
    """Without secret marks and with whole numbers as such."""
    if isinstance(value, dict):
        return plain(value["value"]) if SECRET in value else {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def run(config: Mapping[str, Any], stack: str = "dev") -> tuple[Recorded, dict[str, Any]]:
    """Runs the stack's program with this configuration, on mocks; returns what was asked for, and the outputs."""
    recorded, exported = Recorded(), {}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}

    async def program() -> None:
        set_mocks(recorded, project="trainstack", stack=stack, preview=False, monitor=Monitor(recorded))
        set_all_config(texts)

        await run_pulumi_func(lambda: runpy.run_path(str(ROOT / "__main__.py")))
        root = pulumi.runtime.settings.get_root_resource()
        for name, value in root.outputs.items():
            output = pulumi.Output.from_input(value)
            exported[name] = await output.future()
            if await output.is_secret():
                recorded.secret_outputs.add(name)

    asyncio.run(program())
    return recorded, exported


def settings_of(stack: str) -> dict[str, Any]:
    """A committed settings file, with the project that it lacks."""
    return {"gcp:project": PROJECT, **yaml.safe_load((ROOT / f"Pulumi.{stack}.yaml").read_text())["config"]}
