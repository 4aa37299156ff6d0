"""Good settings become frozen models; bad ones become sentences, and never a traceback."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import settings
from settings import SettingsError, parse
from tests.bad_settings import BAD, BAD_ON_KUBERNETES, CLAIM, kubernetes

DIGITS: dict[str, Any] = {"program": "digits", "worker": {"replicas": 2}, "ps": {"replicas": 1}}


def training(**changes: Any) -> settings.Training:
    return parse({"trainings": {"a": {**DIGITS, **changes}}}).trainings["a"]


@pytest.mark.parametrize("name", [*BAD, *BAD_ON_KUBERNETES])
def test_bad_settings_are_explained(name: str) -> None:
    values, *expected = {**BAD, **BAD_ON_KUBERNETES}[name]
    with pytest.raises(SettingsError) as caught:
        parse(values)
    for part in expected:
        assert part in str(caught.value)
    assert all(problem.endswith(".") and ": " in problem for problem in caught.value.problems)


def test_what_the_bad_settings_of_clusters_are_made_from_is_good() -> None:
    """So that each is refused for its own reason."""
    for good in (kubernetes(), kubernetes(kubernetes={"stack": "a/b/c"}), kubernetes({"volumes": [CLAIM]}), kubernetes({"serving": {}})):
        assert parse(good).trainings


@pytest.mark.parametrize("name", BAD_ON_KUBERNETES)
def test_one_mistake_on_a_cluster_is_one_sentence(name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(BAD_ON_KUBERNETES[name][0])
    several = {"no directory": 3}  # checkpoints, logs and models
    assert len(caught.value.problems) == several.get(name, 1), caught.value.problems


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        parse({"trainings": {"a": {"program": "digits"}, "b": {**DIGITS, "args": {"epoch": 1}}}})
    assert {problem.split(":")[0] for problem in caught.value.problems} == {
        "trainings.a.ps.replicas",
        "trainings.a.worker.replicas",
        "trainings.b.args.epoch",
    }


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, (1, 2, 1, 0)),
        ({"evaluator": {"mode": "sidecar"}}, (1, 2, 1, 1)),
        ({"program": None, "command": ["x"], "chief": {"replicas": 0}, "deadline": "1h"}, (0, 2, 1, 0)),
        ({"strategy": "multi_worker_mirrored", "ps": None}, (0, 2, 0, 0)),
        ({"strategy": "multi_worker_mirrored", "ps": None, "chief": {}}, (1, 2, 0, 0)),
        ({"strategy": "mirrored", "worker": None, "ps": None}, (0, 1, 0, 0)),
        ({"tier": "basic", "worker": None, "ps": None}, (0, 1, 0, 0)),
        ({"tier": "standard_1", "worker": None, "ps": None}, (1, 4, 3, 0)),
        ({"tier": "premium_1", "worker": None, "ps": None}, (1, 19, 11, 0)),
    ],
)
def test_roles_and_tiers_make_a_topology(changes: dict[str, Any], counts: tuple[int, ...]) -> None:
    assert tuple(training(**changes).topology.counts().values()) == counts


def test_a_tier_brings_its_strategy() -> None:
    assert training(tier="basic", worker=None, ps=None).chosen_strategy == "mirrored"
    assert training(tier="standard_1", worker=None, ps=None).chosen_strategy == "parameter_server"


@pytest.mark.parametrize(("written", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200)])
def test_durations_have_units(written: str, seconds: int) -> None:
    assert training(deadline=written).deadline == seconds


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        training().port = 1  # type: ignore[misc]


def test_every_key_of_the_reference_is_accepted() -> None:
    digest = "gcr.io/p/i@sha256:" + "0" * 64
    everything = {
        "target": "gke",
        "image": {"reference": digest},
        "kubernetes": {"context": "kind"},
        "cluster": {
            "location": "us-central1-a",
            "node_locations": ["us-central1-a", "us-central1-b"],
            "deletion_protection": False,
            "release_channel": "stable",
            "authorized_networks": ["10.0.0.0/8"],
            "maintenance": {"start": "03:00", "days": ["SA", "SU"]},
            "min_nodes": 0,
            "image_streaming": False,
            "gpu_driver": "latest",
        },
        "network": {"nodes_cidr": "10.0.0.0/20", "pods_cidr": "10.4.0.0/14", "services_cidr": "10.8.0.0/20", "flow_logs": True},
        "storage": {
            "data": {"existing": "team-data"},
            "checkpoints": {"on_destroy": "delete", "versioning": True, "delete_after_days": 90, "delete_versions_after_days": 7},
            "logs": {"on_destroy": "keep"},
        },
        "registry": {"domain": "gcr.io", "create": False, "keep_images": 5},
        "secrets": {"WANDB_API_KEY": "x"},
        "budget": {"per_hour": 20},
        "trainings": {
            "resnet": {
                "command": ["python", "my_script.py"],
                "image": digest,
                "args": {"epochs": 5},
                "env": {"LOG_LEVEL": "info"},
                "strategy": "parameter_server",
                "tier": "custom",
                "chief": {"cpu": 2, "memory": "4Gi"},
                "worker": {"replicas": 4, "gpus": 1, "accelerator": "l4", "spot": True, "cpu": 7, "memory": "28Gi"},
                "ps": {"replicas": 2},
                "evaluator": {"mode": "sidecar"},
                "port": 2222,
                **{f"{kind}_dir": f"gs://bucket/{kind}" for kind in ("data", "checkpoint", "log", "model")},
                "volumes": [
                    {
                        "claim": "ckpt",
                        "create": True,
                        "size": "10Gi",
                        "access": "ReadWriteMany",
                        "class": "nfs",
                        "path": "/ckpt",
                        "roles": ["chief", "worker"],
                    }
                ],
                "inspector": False,
                "deploy": True,
                "data_prep": {"command": ["python", "prepare.py"], "deadline": "2h"},
                "tensorboard": {"expose": "load_balancer", "allowed_cidrs": ["10.0.0.0/8"], "keep": "24h"},
                "serving": {"replicas": 1},
                "mixed_precision": False,
                "credentials": {"mode": "key_secret", "secret": "credential", "key": "key.json"},
                "egress": ["10.0.0.0/8"],
                "node_selector": {"a": "b"},
                "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}],
                "peer_timeout": "15m",
                "stall_timeout": "30m",
                "max_restarts": 10,
                "deadline": "6h",
                "ttl_after_finished": None,
                "run": "1",
                "resume_from": None,
            }
        },
    }
    assert parse(everything, {"project": "p"}).trainings["resnet"].topology.worker == 4


def test_what_local_leaves_out_is_named() -> None:
    found = settings.not_applied(parse({"cluster": {}, "trainings": {"a": {**DIGITS, "worker": {"replicas": 1, "cpu": 2, "spot": True}}}}))
    assert found == ["trainstack:cluster", "a.worker.cpu", "a.worker.spot"]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"context": "kind"}, ["trainstack:storage", "a.worker.accelerator", "a.worker.spot", "a.worker.reservation"]),
        ({"stack": "a/b/c"}, ["trainstack:storage", "a.worker.reservation"]),
    ],
    ids=["a context", "another stack's cluster, which is GKE"],
)
def test_what_a_cluster_of_others_leaves_out_is_named(where: dict[str, str], expected: list[str]) -> None:
    worker = {"gpus": 1, "accelerator": "l4", "spot": True, "reservation": "r", "cpu": 2}
    found = settings.not_applied(parse(kubernetes({"worker": worker, "egress": ["10.0.0.0/8"]}, kubernetes=where, storage={})))
    assert found == expected


def test_gpus_become_virtual_devices_under_mirrored_on_local() -> None:
    mirrored = {"program": "digits", "strategy": "mirrored", "worker": {"gpus": 2}}
    assert settings.not_applied(parse({"trainings": {"a": mirrored}})) == []


def test_a_secret_is_in_no_message_and_in_no_representation() -> None:
    with pytest.raises(SettingsError) as caught:
        parse({"secrets": {"KEY": ["hunter2"]}})
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(parse({"secrets": {"KEY": "hunter2"}}))


def test_the_schema_for_editors_is_current() -> None:
    written = json.loads((settings.ROOT / "schema" / "stack.json").read_text())
    assert written == settings.schema(), "run `make schema`"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5000) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@hypothesis_settings(max_examples=500, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(settings.Training.model_fields)), JSON, max_size=6))
def test_nothing_a_person_writes_ends_in_a_traceback(written: dict[str, Any]) -> None:
    try:
        parse({"trainings": {"a": {**DIGITS, **written}}})
    except SettingsError as error:
        assert error.problems  # noqa: PT017 - either it is accepted or it is explained


roles = st.none() | st.fixed_dictionaries({"replicas": st.integers(0, 4)}, optional={"gpus": st.integers(0, 4)})


@hypothesis_settings(max_examples=500, deadline=None)
@given(st.sampled_from(["parameter_server", "multi_worker_mirrored", "mirrored"]), roles, roles, roles)
def test_what_is_accepted_can_train(strategy: str, chief: Any, worker: Any, ps: Any) -> None:
    try:
        accepted = training(strategy=strategy, chief=chief, worker=worker, ps=ps)
    except SettingsError:
        return
    topology = accepted.topology
    assert topology.chief <= 1
    if strategy == "parameter_server":
        assert topology.ps >= 1
        assert topology.worker >= 1
        assert topology.chief == 1
    else:
        assert topology.ps == 0
        assert topology.chief + topology.worker >= 1
    if strategy == "mirrored":
        assert (topology.chief, topology.worker) == (0, 1)
