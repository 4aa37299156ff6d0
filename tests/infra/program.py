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
from pulumi.runtime.stack import run_pulumi_func

from tests.conftest import ROOT

PROJECT = "some-project"


@dataclass
class Recorded(Mocks):
    """Every resource as it was asked for, by its logical name."""

    resources: dict[str, MockResourceArgs] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

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

    def is_secret(self, name: str, key: str) -> bool:
        """Whether an input is on its way as a secret."""
        (args,) = (args for args in self.resources.values() if args.name == name and key in args.inputs)
        return SECRET in args.inputs[key]


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
        set_mocks(recorded, project="trainstack", stack=stack, preview=False)
        set_all_config(texts)

        await run_pulumi_func(lambda: runpy.run_path(str(ROOT / "__main__.py")))
        root = pulumi.runtime.settings.get_root_resource()
        for name, value in root.outputs.items():
            exported[name] = await pulumi.Output.from_input(value).future()

    asyncio.run(program())
    return recorded, exported


def settings_of(stack: str) -> dict[str, Any]:
    """A committed settings file, with the project that it lacks."""
    return {"gcp:project": PROJECT, **yaml.safe_load((ROOT / f"Pulumi.{stack}.yaml").read_text())["config"]}
