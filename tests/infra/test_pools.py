"""From trainings to node pools: who goes where, on which machine, how many nodes; and what GKE would refuse."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.accelerators import ACCELERATORS, Machine, machine
from infra.pools import Pool, cpus, demands, filestore_claims, gibibytes, needs_shared_class, pools
from settings import SettingsError, parse

GOOGLE = {"project": "p", "zone": "us-central1-a"}


def planned(least: int = 1, **trainings: dict[str, Any]) -> dict[str, Pool]:
    settings = parse({"target": "gke", "trainings": {name: {"program": "digits", **each} for name, each in trainings.items()}}, GOOGLE)
    return {pool.name: pool for pool in pools(demands(settings.trainings), least)}


L4 = {"gpus": 1, "accelerator": "l4"}
PS = {"ps": {"replicas": 2}}


def test_without_trainings_there_is_the_cpu_pool_alone() -> None:
    (pool,) = planned(least=0).values()
    assert (pool.name, pool.machine.name, pool.least, pool.most) == ("cpu", "e2-standard-4", 0, 2)


def test_workers_have_gpu_nodes_and_everybody_else_cpu_nodes() -> None:
    made = planned(
        a={
            "worker": {"replicas": 4, **L4, "spot": True, "cpu": 6, "memory": "24Gi"},
            **PS,
            "evaluator": {"mode": "sidecar"},
            "tensorboard": {},
        }
    )
    assert set(made) == {"cpu", "gpu-l4-1-spot"}
    gpu = made["gpu-l4-1-spot"]
    assert (gpu.machine.name, gpu.most, gpu.least, gpu.spot, gpu.training) == ("g2-standard-8", 4, 0, True, "a")
    assert not made["cpu"].spot


def test_workers_without_gpus_have_a_pool_of_their_own() -> None:
    made = planned(a={"worker": {"replicas": 4, "cpu": 3}, **PS})
    assert set(made) == {"cpu", "worker"}
    assert (made["worker"].machine.name, made["worker"].most) == ("e2-standard-4", 4)


def test_the_chief_of_multi_worker_mirrored_computes_like_a_worker() -> None:
    made = planned(a={"strategy": "multi_worker_mirrored", "chief": L4, "worker": {"replicas": 3, **L4}})
    assert made["gpu-l4-1"].most == 4


def test_trainings_with_the_same_needs_share_a_pool() -> None:
    made = planned(
        a={"worker": {"replicas": 4, **L4}, **PS},
        b={"worker": {"replicas": 3, **L4}, **PS},
        c={"worker": {"replicas": 1, "gpus": 2, "accelerator": "l4"}, **PS},
    )
    assert made["gpu-l4-1"].most == 7
    assert made["gpu-l4-1"].training is None
    assert made["gpu-l4-2"].machine.name == "g2-standard-24"


def test_more_workers_change_nothing_but_the_maximum() -> None:
    four, eight = (planned(a={"worker": {"replicas": count, **L4}, **PS}) for count in (4, 8))
    assert four["cpu"] == eight["cpu"]
    assert vars(four["gpu-l4-1"]) | {"most": 8} == vars(eight["gpu-l4-1"])


def test_a_training_that_is_not_deployed_needs_no_nodes() -> None:
    assert set(planned(a={"worker": {"replicas": 4, **L4}, **PS, "deploy": False})) == {"cpu"}


def test_a_server_on_gpus_has_nodes_for_its_replicas() -> None:
    made = planned(a={"worker": {"replicas": 4, **L4}, **PS, "deploy": False, "serving": {"replicas": 3, **L4}})
    assert (made["gpu-l4-1"].most, made["gpu-l4-1"].least, made["gpu-l4-1"].spot) == (3, 0, False)
    assert set(planned(a={"worker": {}, **PS, "serving": {"replicas": 3}})) == {"cpu", "worker"}, "on CPU nodes where it names no GPU"


def test_what_runs_beside_the_tasks_is_counted() -> None:
    beside = {"tensorboard": {}, "serving": {"replicas": 2}, "data_prep": {"command": ["x"]}}

    def asked(**changes: Any) -> set[tuple[str, int]]:
        settings = parse({"target": "gke", "trainings": {"a": {"program": "digits", "worker": {}, **PS, **beside, **changes}}}, GOOGLE)
        return {(each.role, each.count) for each in demands(settings.trainings)}

    companions = {("tensorboard", 1), ("serving", 2), ("data_prep", 1)}
    assert asked() == {("chief", 1), ("worker", 1), ("ps", 2)} | companions
    assert asked(deploy=False) == companions - {("tensorboard", 1)}


@pytest.mark.parametrize(
    ("volume", "filestore", "shared"),
    [
        ({"create": True, "size": "1Ti", "access": "ReadWriteMany"}, True, True),
        ({"create": True, "size": "1Ti", "access": "ReadWriteMany", "class": "standard-rwx"}, True, False),
        ({"create": True, "size": "1Ti", "access": "ReadWriteMany", "class": "nfs"}, False, False),
        ({"access": "ReadWriteMany"}, False, False),
        ({"create": True, "size": "1Ti", "roles": ["chief"]}, False, False),
    ],
    ids=["without a class", "with a class of GKE's", "with another class", "one that is there", "for one node"],
)
def test_which_claims_are_filestores_and_which_need_a_class(volume: dict[str, Any], filestore: bool, shared: bool) -> None:
    training = {"program": "digits", "worker": {}, **PS, "volumes": [{"claim": "c", "path": "/c", **volume}]}
    settings = parse({"target": "gke", "trainings": {"a": training}}, GOOGLE)
    assert filestore_claims(settings.trainings) == (["a.c"] if filestore else [])
    assert needs_shared_class(settings.trainings) is shared


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"worker": {"gpus": 3, "accelerator": "l4"}}, "a.worker.gpus: no machine of GKE has 3 × l4"),
        ({"worker": {"gpus": 1}}, "a.worker.accelerator: gpus: 1 on gke needs the kind of GPU; write accelerator: NAME, one of t4, "),
        ({"worker": {"gpus": 1, "accelerator": "l5"}}, "a.worker.accelerator: 'l5' is not a GPU of GKE"),
        ({"worker": {**L4, "spot": True, "flex_start": True}}, "a.worker.flex_start: GKE refuses flex-start together with spot"),
        (
            {"worker": {**L4, "reservation": "r", "flex_start": True}},
            "a.worker.flex_start: GKE refuses flex-start together with a reservation",
        ),
        ({"worker": {**L4, "reservation": "r", "spot": True}}, "a.worker.spot: spot nodes cannot use a reservation"),
        (
            {"worker": {"gpus": 1, "accelerator": "t4", "flex_start": True}},
            "a.worker.flex_start: Google gives such nodes only with GPUs of newer machines; write accelerator: one of l4, a100",
        ),
        ({"worker": {"flex_start": True}}, "a.worker.flex_start: Google gives such nodes only with GPUs"),
        ({"worker": {**L4, "flex_start": True}, "deadline": "200h"}, "a.worker.flex_start: its nodes live a week at the most"),
        ({"worker": {"gpus": 1, "accelerator": "h100"}}, "a.worker.gpus: 1 × h100 can only be had as spot or flex-start"),
        ({"worker": {**L4, "cpu": 100}}, "a.worker: 100 CPUs and 2 GiB fit on no machine with 1 × l4"),
        ({"ps": {"memory": "2Ti"}}, "a.ps: 1 CPUs and 2048 GiB fit on no machine, and the pods would wait for ever"),
        ({"chief": L4}, "a.chief.gpus: under this strategy it computes no gradients, and a GPU would idle and bill"),
        ({"ps": {"spot": True}}, "a.ps.spot: it runs on on-demand CPU nodes"),
        ({"deploy": False, "serving": {"gpus": 1}}, "a.serving.accelerator: gpus: 1 on gke needs the kind of GPU"),
        ({"deploy": False, "serving": {"gpus": 3, "accelerator": "l4"}}, "a.serving.gpus: no machine of GKE has 3 × l4"),
        (
            {"deploy": False, "serving": {"gpus": 1, "accelerator": "h100"}},
            "a.serving.gpus: 1 × h100 can only be had as spot or flex-start",
        ),
    ],
)
def test_what_gke_refuses_is_refused_at_preview(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        planned(a={"worker": {}, **PS, **changes})
    assert f"trainings.{expected}" in str(caught.value)
    assert len(caught.value.problems) == 1


def test_needs_that_no_machine_has_together_are_refused_at_preview() -> None:
    with pytest.raises(SettingsError) as caught:
        planned(a={"worker": {"cpu": 100}, **PS}, b={"worker": {"memory": "700Gi"}, **PS})
    assert (
        "trainings.b.worker.memory: it shares the nodes of pool worker with a.worker, and no machine has both 100 CPUs and 700 GiB"
        in str(caught.value)
    )


@pytest.mark.parametrize(("written", "value"), [("2", 2), ("0.5", 0.5), ("500m", 0.5)])
def test_cpus(written: str, value: float) -> None:
    assert cpus(written) == value


@pytest.mark.parametrize(("written", "value"), [("4Gi", 4), ("512Mi", 0.5), ("1Ti", 1024), ("1073741824k", 1000)])
def test_memory(written: str, value: float) -> None:
    assert gibibytes(written) == pytest.approx(value, rel=0.03)


def test_what_a_node_keeps_for_itself_is_gkes_own_rule() -> None:
    """255 MiB + … as documented for a machine with 32 GiB and 8 CPUs: 3.56 GiB and 0.09 CPUs, and something for what runs on every node."""
    eight = Machine("g2-standard-8", 8, 32)
    assert eight.usable_memory == pytest.approx(32 - 3.56 - 0.1 - 0.65)
    assert eight.usable_cpus == pytest.approx(8 - 0.09 - 0.5)


@given(st.floats(0.1, 100), st.floats(0.1, 1000), st.sampled_from(sorted(ACCELERATORS)))
def test_the_smallest_machine_that_fits_is_taken(cpu: float, memory: float, name: str) -> None:
    for gpus, candidates in ACCELERATORS[name].machines.items():
        chosen = machine(cpu, memory, name, gpus)
        fitting = [each for each in candidates if each.fits(cpu, memory)]
        assert chosen == (fitting[0] if fitting else None)
        assert [each.memory for each in candidates] == sorted(each.memory for each in candidates)


def test_the_registry_knows_the_gpus_of_gke() -> None:
    assert {"t4", "l4", "v100", "p100", "a100-40", "a100-80", "h100"} <= set(ACCELERATORS)
    assert len({each.label for each in ACCELERATORS.values()}) == len(ACCELERATORS)
    assert all(each.label.startswith("nvidia-") for each in ACCELERATORS.values())
