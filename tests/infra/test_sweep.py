"""The sweep: at every single creation of an environment, something goes wrong.

1. The creation fails. `up` again goes on, `destroy` leaves nothing.
2. The engine is killed when the thing is made and not yet written down. `recover`, `up`: nothing is made twice; `destroy` leaves nothing.

`make test` takes one point for each, `make test-full` all of them.
"""

from __future__ import annotations

import datetime
import functools
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ops.recover import _adopt_or_remove, orphans
from tests.cloud import google
from tests.cloud.cloud import Fault
from tests.infra.program import run, settings_of
from tests.infra.simulation import Simulation, simulation

pytestmark = pytest.mark.engine

SHARDS = 14
SERVER_IDS = (google.KEY, google.SECRET_VERSION)  # only the cloud knows their ids
HARMLESS = ("IAMMember", "IamMember", "docker-build:", google.SERVICE)  # made twice they are still one


@functools.cache
def points() -> list[str]:
    """The logical names of everything that is made, in an environment with a secret and a key."""
    config = settings_of("dev")
    training = {
        **config["trainstack:trainings"]["digits"],
        "credentials": {"mode": "key_secret", "secret": "credential", "key": "key.json"},
    }
    recorded, _ = run({**config, "trainstack:secrets": {"API_KEY": "x"}, "trainstack:trainings": {"digits": training}})
    return sorted(each.name for each in recorded.resources.values() if not each.typ.startswith(("trainstack:", "pulumi:")))


def fails(folder: Path, name: str) -> None:
    with simulation(folder) as stack:
        stack.add_secrets()
        stack.cloud.script([Fault(name=name)])
        assert google.UNAVAILABLE in stack.refused()
        stack.up()
        assert sorted(each.name for each in stack.cloud.log if each.call == "create" and not each.error) == points(), (
            "nothing is left out of the sweep"
        )
        assert stack.preview() == {}
        stack.destroy()
        assert stack.left() == []


def killed(folder: Path, name: str) -> None:
    with simulation(folder) as stack:
        stack.add_secrets()
        stack.cloud.script([Fault(name=name, what="lose")])
        stack.killed()
        lost = {each.id for each in stack.cloud.resources()}
        mine = [each for each in orphans() if each.environ().get("PULUMI_BACKEND_URL") == stack.env["PULUMI_BACKEND_URL"]]
        assert mine, "the killed engine has left its language host"
        recovered(stack)
        assert not any(each.is_running() for each in mine)
        stack.up()
        made_twice = Counter(
            (each.type, each.id) for each in stack.cloud.log if each.call == "create" and not each.error and not harmless(each.type)
        )
        assert [each for each, times in made_twice.items() if times > 1] == []
        gone = lost - {each.id for each in stack.cloud.resources()}
        assert all("/keys/" in each or "/versions/" in each for each in gone), (
            "what was made is used, but for what only the cloud has a name for"
        )
        for kind in SERVER_IDS:
            assert len(stack.cloud.resources(kind)) == 1, "the lost one is gone, the new one is alone"
        (cluster,) = stack.cloud.resources(google.CLUSTER)
        assert cluster.inputs["removeDefaultNodePool"], "no default pool is left to bill"
        assert stack.preview() == {}
        stack.destroy()
        assert stack.left() == []


def harmless(kind: str) -> bool:
    return any(part in kind for part in HARMLESS)


def recovered(stack: Simulation) -> str:
    """What `make recover` does; returns what it says."""
    said = stack.run(sys.executable, "-m", "ops", "--stack", stack.name, "recover").stdout
    stack.pulumi("refresh", "--run-program", "--yes")
    return said


def test_up_again_after_a_creation_that_failed(tmp_path: Path) -> None:
    fails(tmp_path / "dev", "cluster-gke")


def test_recover_after_the_engine_was_killed_in_a_creation(tmp_path: Path) -> None:
    """A key, of which only the cloud knows the id, so that it cannot be adopted: it must be deleted. The engine runs six times."""
    killed(tmp_path / "dev", "identity-trainer-key")


@pytest.mark.full
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("at", ["fails", "killed"])
def test_the_whole_sweep(tmp_path: Path, at: str, shard: int) -> None:
    """Each point brings the whole environment up and down again."""
    mine = points()[shard::SHARDS]
    assert mine
    for number, name in enumerate(mine):
        {"fails": fails, "killed": killed}[at](tmp_path / str(number), name)


@pytest.mark.full
def test_recover_leaves_a_healthy_stack_alone_and_repairs_a_truncated_attributes_file(live_dev: Simulation) -> None:
    before = sorted(each["urn"] for each in live_dev.state()["resources"])
    assert "nothing is pending" in recovered(live_dev)
    assert sorted(each["urn"] for each in live_dev.state()["resources"]) == before
    assert live_dev.preview() == {}

    (attributes,) = (live_dev.folder / "state").glob(".pulumi/stacks/trainstack/dev.json.attrs")
    attributes.write_text("")
    assert "EOF" in live_dev.pulumi("refresh", "--yes", check=False).stderr, "this is what the engine makes of it"
    assert "removed dev.json.attrs" in recovered(live_dev)
    assert live_dev.preview() == {}


LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


def test_a_replacement_that_was_interrupted_keeps_the_old_one_until_it_is_done() -> None:
    urn = "urn:pulumi:dev::trainstack::gcp:compute/network:Network::network-vpc"
    inputs = {"name": "new", "project": "p"}
    resources: list[dict[str, Any]] = [{"urn": urn, "type": google.NETWORK, "id": "old", "custom": True}]
    said = list(_adopt_or_remove({"urn": urn, "type": google.NETWORK, "inputs": inputs}, resources, LONG_AGO))
    assert said == ["adopted network-vpc as projects/p/global/networks/new, if it is there"]
    assert [(each["id"], each.get("delete", False)) for each in resources] == [("old", True), ("projects/p/global/networks/new", False)]


@pytest.mark.full
def test_what_is_older_than_the_interrupted_up_is_left_alone(dev: Simulation) -> None:
    """A bucket that an earlier stack kept, and a key that a person made."""
    dev.add_secrets()
    dev.up()
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    state = dev.state()["resources"]
    lost = {each["type"]: each for each in state if each["type"] in (google.BUCKET, google.KEY)}
    others = [each for each in state if each["type"] not in lost]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in dev.environment.items():
            patch.setenv(name, value)
        for resource in lost.values():
            before = len(others)
            said = list(_adopt_or_remove(resource, others, soon))
            assert len(others) == before
            assert not any("adopted" in each or "removed" in each for each in said)
    assert len(dev.cloud.resources(google.KEY)) == 1
