"""Whatever valid settings say, the program asks for the same things every time, and what it asks for keeps the house rules."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cloud import google
from tests.infra.program import PROJECT, run
from tests.infra.random_settings import random_settings
from tests.infra.simulation import Simulation, simulation

SEEDS = range(200)
PARTS = 25


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, PARTS))])
def test_the_same_settings_give_the_same_inputs(part: int) -> None:
    """Eight of them in `make test`, other ones every day."""
    today = datetime.date.today().toordinal()
    for seed in SEEDS[(part + today) % PARTS :: PARTS]:
        config = random_settings(seed)
        first, second = (run(config)[0] for _ in range(2))
        asked = [{name: args.inputs for name, args in each.resources.items()} for each in (first, second)]
        assert asked[0] == asked[1], f"seed {seed}"
        rules_hold(first.resources, config)


def rules_hold(resources: dict[str, Any], config: dict[str, Any]) -> None:
    """What is true of every environment."""
    made = [(args.typ, args.inputs) for args in resources.values()]
    for typ, inputs in made:
        if typ == "gcp:container/nodePool:NodePool":
            scaling = inputs["autoscaling"]
            assert 0 <= scaling["totalMinNodeCount"] <= scaling["totalMaxNodeCount"]
            assert "maxNodeCount" not in scaling, "which would count per zone"
            assert inputs["nodeConfig"]["serviceAccount"].startswith("ts-dev-nodes@")
            assert inputs["nodeConfig"]["workloadMetadataConfig"] == {"mode": "GKE_METADATA"}
            assert len(inputs["name"]) <= 40
            if inputs["nodeConfig"].get("guestAccelerators"):
                assert scaling["totalMinNodeCount"] == 0, "no GPU waits for work"
            assert not (inputs["nodeConfig"].get("spot") and inputs["nodeConfig"].get("flexStart"))
        if typ == "gcp:container/cluster:Cluster":
            assert inputs["privateClusterConfig"] == {"enablePrivateNodes": True}
            assert inputs["removeDefaultNodePool"] is True
        if typ == "gcp:storage/bucket:Bucket":
            assert (inputs["uniformBucketLevelAccess"], inputs["publicAccessPrevention"]) == (True, "enforced")
        if typ == "gcp:projects/service:Service":
            assert inputs["disableOnDestroy"] is False
        assert "allUsers" not in json.dumps(inputs)
        assert "allAuthenticatedUsers" not in json.dumps(inputs)
    wants_key = "key_secret" in json.dumps(config)
    assert any(typ == "gcp:serviceaccount/key:Key" for typ, _ in made) == wants_key, "a key only where one is asked for"
    roles = {inputs["role"] for typ, inputs in made if typ == "gcp:projects/iAMMember:IAMMember"}
    assert roles == {"roles/container.defaultNodeServiceAccount", "roles/logging.logWriter"}
    assert not re.search(r"roles/(owner|editor|storage\.admin)\b", json.dumps([inputs for _, inputs in made]))


@pytest.mark.full
@pytest.mark.engine
@pytest.mark.parametrize("seed", range(10))
def test_a_second_preview_shows_no_change(tmp_path: Path, seed: int) -> None:
    with simulation(tmp_path / "dev") as stack:
        stack.config = {key: value for key, value in random_settings(seed).items() if key != "trainstack:secrets"}
        theirs(stack)
        stack.write()
        stack.up()
        assert stack.preview() == {}


def theirs(stack: Simulation) -> None:
    """What is there before the stack, and is used by it."""
    stack.cloud.enable(PROJECT, "storage.googleapis.com", "artifactregistry.googleapis.com")
    here = {"project": PROJECT}
    for bucket in set(re.findall(r"team-bucket-\d", json.dumps(stack.config))):
        stack.cloud.create(google.BUCKET, {"name": bucket, "location": "US"}, here)
    registry = stack.config.get("trainstack:registry", {})
    if not registry.get("create", True):
        name, location = registry.get("name", "gcr.io"), "us" if "domain" in registry else stack.config["gcp:region"]
        stack.cloud.create(google.REPOSITORY, {"repositoryId": name, "location": location, "format": "DOCKER"}, here)
