"""Valid settings of target gke, at random but the same for the same seed."""

from __future__ import annotations

from random import Random
from typing import Any

from infra.accelerators import ACCELERATORS
from tests.infra.program import PROJECT

DIGEST = "example.com/team/image@sha256:" + "0" * 64


def random_settings(seed: int) -> dict[str, Any]:
    """A whole configuration, as Pulumi hands it over."""
    pick = Random(seed)
    location = pick.choice(["us-central1", "us-central1-a", "europe-west4-b", "asia-east1"])
    region = "-".join(location.split("-")[:2])
    values = {
        "target": "gke",
        "cluster": _cluster(pick, location, region),
        "network": _network(pick),
        "storage": {kind: _bucket(pick) for kind in pick.sample(["data", "checkpoints", "logs"], pick.randint(0, 3))},
        "registry": _registry(pick),
        "image": pick.choice([{}, {"build": True}, {"reference": DIGEST}, {"base": "python:3.12-slim"}]),
        "secrets": dict.fromkeys(pick.sample(["WANDB_API_KEY", "token", "A1"], pick.randint(0, 2)), "hunter2"),
        "budget": pick.choice([{}, {"per_hour": 1_000_000}]),
        "trainings": {name: _training(pick, name) for name in pick.sample(["resnet", "a", "taxi-tips", "b2"], pick.randint(0, 3))},
    }
    return {"gcp:project": PROJECT, "gcp:region": region, **{f"trainstack:{key}": value for key, value in values.items() if value}}


def _some(pick: Random, **options: Any) -> dict[str, Any]:
    """Some of these keys."""
    return {key: value for key, value in options.items() if pick.random() < 0.5}


def _cluster(pick: Random, location: str, region: str) -> dict[str, Any]:
    return {
        "location": location,
        **_some(
            pick,
            node_locations=[f"{region}-{letter}" for letter in pick.sample("abc", pick.randint(1, 3))],
            deletion_protection=pick.choice([True, False]),
            release_channel=pick.choice(["rapid", "regular", "stable"]),
            authorized_networks=["203.0.113.0/24", "10.0.0.0/8"][: pick.randint(1, 2)],
            maintenance={"start": pick.choice(["00:30", "20:15"]), "days": pick.choice([["SA", "SU"], ["MO", "TU", "WE"]])},
            min_nodes=pick.randint(0, 5),
            image_streaming=pick.choice([True, False]),
            gpu_driver=pick.choice(["default", "latest"]),
        ),
    }


def _network(pick: Random) -> dict[str, Any]:
    if pick.random() < 0.3:
        return {"existing": "shared", "subnetwork": "nodes", "pods_range": "pods", "services_range": "services"}
    return _some(pick, nodes_cidr="10.128.0.0/20", pods_cidr="10.132.0.0/14", services_cidr="10.136.0.0/20", flow_logs=True)


def _bucket(pick: Random) -> dict[str, Any]:
    if pick.random() < 0.3:
        return {"existing": f"team-bucket-{pick.randint(1, 9)}"}
    return _some(pick, on_destroy=pick.choice(["keep", "delete"]), versioning=True, delete_after_days=30, delete_versions_after_days=7)


def _registry(pick: Random) -> dict[str, Any]:
    return pick.choice(
        [{}, {"domain": "gcr.io"}, {"domain": "gcr.io", "create": False}, {"name": "images", "create": False}, {"keep_images": 3}]
    )


def _role(pick: Random) -> dict[str, Any]:
    """What computes gradients: with or without GPUs, had in one of the ways that go together."""
    if pick.random() < 0.4:
        return _some(pick, cpu=pick.choice([1, 0.5, "2500m", 12]), memory=pick.choice(["2Gi", "24Gi"]), spot=True)
    name = pick.choice(sorted(ACCELERATORS))
    accelerator = ACCELERATORS[name]
    gpus = pick.choice(sorted(accelerator.machines))
    ways: list[dict[str, Any]] = [{"spot": True}]
    if accelerator.flex_start:
        ways.append({"flex_start": True})
    if gpus not in accelerator.never_on_demand:
        ways += [{}, {"reservation": "my-reservation"}]
    return {"gpus": gpus, "accelerator": name, **pick.choice(ways), **_some(pick, cpu=2, memory="8Gi")}


def _training(pick: Random, name: str) -> dict[str, Any]:
    strategy = pick.choice(["parameter_server", "multi_worker_mirrored", "mirrored"])
    role = _role(pick)
    roles: dict[str, Any] = {"worker": {**role, "replicas": 1 if strategy == "mirrored" else pick.randint(1, 40)}}
    if strategy == "parameter_server":
        roles |= {"ps": {"replicas": pick.randint(1, 8)}, "chief": _some(pick, cpu=2, memory="4Gi")}
    elif strategy == "multi_worker_mirrored" and pick.random() < 0.5:
        roles["chief"] = role
    runs = pick.choice([{"program": "digits"}, {"command": ["python", "train.py"], "image": DIGEST}])
    volume: dict[str, Any] = {"claim": f"{name}-ckpt", "create": True, "size": "10Gi", "access": "ReadWriteMany", "path": "/ckpt"}
    if "chief" in roles and pick.random() < 0.5:
        volume |= {"access": "ReadWriteOnce", "roles": ["chief"]}
    exposed = pick.choice(["port_forward", "load_balancer", "ingress"])
    return {
        **runs,
        "strategy": strategy,
        **roles,
        **_some(
            pick,
            deadline="6h",
            evaluator={"mode": "sidecar"},
            tensorboard={"keep": "4h", "expose": exposed, "allowed_cidrs": ["203.0.113.0/24"]},
            serving={"replicas": 2},
            volumes=[volume, *([{"bucket": "a.bucket", "path": "/data"}] if pick.random() < 0.3 else [])],
            data_prep={"command": ["python", "prepare.py"]},
            credentials={"mode": "key_secret", "secret": "credential", "key": f"{name}.json"},
            checkpoint_dir=f"gs://elsewhere/{name}",
            run="second",
        ),
    }
