"""What a stack needs of Google's quotas and services, from its settings alone."""

from __future__ import annotations

from typing import Any

import pytest

from infra.accelerators import ACCELERATORS
from infra.services import ALWAYS
from settings import Settings, parse
from tests.infra.program import settings_of


def gke(role: dict[str, Any] | None = None, **more: Any) -> Settings:
    worker = {"replicas": 3, "cpu": 2, "memory": "4Gi", **(role or {})}
    training = {"program": "digits", "worker": worker, "ps": {"replicas": 1}, **more.pop("training", {})}
    values = {"target": "gke", "cluster": {"location": "us-central1-a", **more.pop("cluster", {})}, "trainings": {"t": training}, **more}
    return parse(values, {"project": "some-project"})


@pytest.mark.parametrize(
    ("role", "quotas"),
    [
        ({}, {"CPUS"}),
        ({"spot": True}, {"CPUS", "PREEMPTIBLE_CPUS"}),
        ({"gpus": 1, "accelerator": "t4"}, {"CPUS", "NVIDIA_T4_GPUS"}),
        ({"gpus": 1, "accelerator": "l4"}, {"CPUS", "G2_CPUS", "NVIDIA_L4_GPUS"}),
        ({"gpus": 1, "accelerator": "l4", "spot": True}, {"CPUS", "PREEMPTIBLE_CPUS", "PREEMPTIBLE_NVIDIA_L4_GPUS"}),
        ({"gpus": 1, "accelerator": "l4", "flex_start": True}, {"CPUS", "PREEMPTIBLE_CPUS", "PREEMPTIBLE_NVIDIA_L4_GPUS"}),
        ({"gpus": 1, "accelerator": "a100-80", "reservation": "ours"}, {"CPUS"}),  # which has its quota already
    ],
)
def test_the_quotas_of_each_kind_of_nodes(role: dict[str, Any], quotas: set[str]) -> None:
    regional, _ = gke(role).quotas
    assert set(regional) - {"SSD_TOTAL_GB"} == quotas


def test_so_much_of_each_as_the_nodes_have_at_their_largest() -> None:
    regional, everywhere = gke({"gpus": 2, "accelerator": "l4", "spot": True}).quotas  # 3 machines of 24 CPUs and 2 GPUs, and 2 of 4 CPUs
    assert regional == {"PREEMPTIBLE_CPUS": 72, "PREEMPTIBLE_NVIDIA_L4_GPUS": 6, "CPUS": 8, "SSD_TOTAL_GB": 500}
    assert everywhere == {"CPUS_ALL_REGIONS": 80, "GPUS_ALL_REGIONS": 6}
    assert gke().quotas[1] == {"CPUS_ALL_REGIONS": gke().quotas[0]["CPUS"]}


def test_every_gpu_has_a_quota_of_its_own() -> None:
    names = [accelerator.quota for accelerator in ACCELERATORS.values()]
    assert len(set(names)) == len(names)
    assert all(name.startswith("NVIDIA_") and not name.endswith("_GPUS") for name in names)


def test_services_follow_from_what_is_used() -> None:
    assert set(gke().services) == {*ALWAYS, "containerfilesystem", "dns"}
    existing = {"existing": "shared", "subnetwork": "nodes", "pods_range": "pods", "services_range": "services"}
    assert set(gke(network=existing, cluster={"image_streaming": False}).services) == set(ALWAYS)
    assert "secretmanager" in gke(secrets={"API_KEY": "x"}).services
    volume = {"claim": "ckpt", "create": True, "size": "1Ti", "access": "ReadWriteMany", "path": "/ckpt"}
    assert "file" in gke(training={"volumes": [volume]}).services


def test_the_accelerators_are_named_as_google_names_them() -> None:
    settings = settings_of("dev")
    written = {key.removeprefix("trainstack:"): value for key, value in settings.items() if key.startswith("trainstack:")}
    assert parse(written, {"project": "some-project"}).accelerators == {"l4": "nvidia-l4"}
    assert gke().accelerators == {}
