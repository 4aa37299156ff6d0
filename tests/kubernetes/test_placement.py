"""On which nodes pods run: the pools of this stack, the labels of another one's GKE cluster, or what a training says itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.made import CLAIM, DIGITS, DIRECTORIES, MIRRORED, Manifest, manifests, stack, template_of

L4 = {"gpus": 1, "accelerator": "l4"}
GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
WORKER = {"key": "trainstack/pool", "operator": "Equal", "value": "worker", "effect": "NoSchedule"}
BESIDE = {"evaluator": {"mode": "sidecar"}, "tensorboard": {}, "serving": {}, "data_prep": {"command": ["true"]}}

Where = tuple[dict[str, str], list[Any]]


def placed(found: list[Manifest]) -> dict[str, Where]:
    """From a component to the labels of its nodes and the taints that it tolerates."""
    return {
        template["metadata"]["labels"]["app.kubernetes.io/component"]: (
            template["spec"].get("nodeSelector", {}),
            template["spec"].get("tolerations", []),
        )
        for each in found
        if (template := template_of(each))
    }


def on(pool: str, *tolerations: Any) -> Where:
    return {"trainstack/pool": pool}, list(tolerations)


CPU = on("cpu")


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        (
            {**DIGITS, "worker": {"replicas": 2, **L4, "spot": True}, **BESIDE},
            {
                "worker": on("gpu-l4-1-spot", GPU),
                **dict.fromkeys(("chief", "ps", "evaluator", "tensorboard", "serving", "data-prep"), CPU),
            },
        ),
        ({**DIGITS, "worker": {"replicas": 2, "cpu": 3}}, {"worker": on("worker", WORKER), "chief": CPU, "ps": CPU}),
        (
            {
                **MIRRORED,
                "chief": {"gpus": 2, "accelerator": "t4"},
                "worker": {"replicas": 2, "gpus": 2, "accelerator": "t4"},
                "tensorboard": {},
            },
            {"chief": on("gpu-t4-2", GPU), "worker": on("gpu-t4-2", GPU), "tensorboard": CPU},
        ),
        ({**MIRRORED, "evaluator": {"mode": "sidecar"}}, {"worker": on("worker", WORKER), "evaluator": CPU}),
        ({"program": "digits", "strategy": "mirrored", "worker": L4}, {"worker": on("gpu-l4-1", GPU)}),
        ({**DIGITS, "deploy": False, "serving": L4, "tensorboard": {}}, {"serving": on("gpu-l4-1", GPU)}),
        ({**DIGITS, "deploy": False, "inspector": True, "volumes": [CLAIM]}, {"inspector": CPU}),
    ],
    ids=["parameter servers with GPUs", "with CPUs", "mirrored with a chief", "mirrored without", "one worker", "serving", "inspector"],
)
def test_roles_decide_the_pool(training: dict[str, Any], expected: dict[str, Where]) -> None:
    assert placed(manifests("gke", None, resnet=training)) == expected


def test_every_pool_that_is_selected_is_made_and_every_taint_of_ours_tolerated() -> None:
    made = stack("gke", a={**DIGITS, "worker": {"replicas": 2, **L4}}, b={**DIGITS, "worker": {"replicas": 2, "spot": True}})
    pools = {each["name"]: each["nodeConfig"] for each in made.inputs("container/nodePool").values()}
    for selector, tolerations in (where for each in made.manifests() if template_of(each) for where in placed([each]).values()):
        config = pools[selector["trainstack/pool"]]
        assert selector.items() <= config["labels"].items()
        for taint in config.get("taints", []):
            assert (taint["key"], taint["value"]) in [(each["key"], each.get("value")) for each in tolerations]
        if config.get("guestAccelerators"):
            assert GPU in tolerations


def test_what_a_training_asks_for_comes_to_it() -> None:
    own = {"node_selector": {"disk": "ssd"}, "tolerations": [{"key": "team", "value": "red", "effect": "NoSchedule"}]}
    selector, tolerations = placed(manifests("gke", None, resnet={**DIGITS, "worker": {"replicas": 2, **L4}, **own}))["worker"]
    assert selector == {"trainstack/pool": "gpu-l4-1", "disk": "ssd"}
    assert tolerations == [GPU, {"key": "team", "operator": "Equal", "value": "red", "effect": "NoSchedule"}]


def test_on_another_stacks_cluster_gkes_own_labels_are_known() -> None:
    training = {**DIGITS, **DIRECTORIES, "worker": {"replicas": 2, **L4, "spot": True}}
    found = placed(manifests("stack", None, resnet=training))
    assert found == {
        "worker": ({"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-spot": "true"}, [GPU]),
        "chief": ({}, []),
        "ps": ({}, []),
    }


def test_on_a_context_only_the_training_decides() -> None:
    training = {**DIGITS, **DIRECTORIES, "worker": {"replicas": 2, **L4, "spot": True}}
    assert placed(manifests("context", None, resnet=training)) == {"worker": ({}, [GPU]), "chief": ({}, []), "ps": ({}, [])}
    own = {**training, "node_selector": {"gpu": "l4"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    for selector, tolerations in placed(manifests("context", None, resnet=own)).values():
        assert selector == {"gpu": "l4"}
        assert tolerations[-1] == {"key": "gpu", "operator": "Exists"}


@pytest.mark.parametrize("where", ["gke", "context", "stack"])
def test_gpus_are_asked_for_by_who_computes_and_by_nobody_else(where: str) -> None:
    training = {**DIGITS, **DIRECTORIES, "worker": {"replicas": 2, "gpus": 2, "accelerator": "l4"}, "tensorboard": {}}
    asked = {
        template["metadata"]["labels"]["app.kubernetes.io/component"]: template["spec"]["containers"][0]["resources"]["limits"].get(
            "nvidia.com/gpu"
        )
        for each in manifests(where, None, resnet=training)
        if (template := template_of(each))
    }
    assert asked == {"worker": "2", "chief": None, "ps": None, "tensorboard": None}


def test_tasks_like_one_zone_and_servers_different_nodes() -> None:
    found = manifests("gke", None, resnet={**DIGITS, "ps": {"replicas": 3}, "serving": {"replicas": 2}})
    wishes = {
        template["metadata"]["labels"]["app.kubernetes.io/component"]: template["spec"]["affinity"]
        for each in found
        if (template := template_of(each))
    }
    mine = {"app.kubernetes.io/part-of": "trainstack-dev", "app.kubernetes.io/name": "resnet"}
    for wish in wishes.values():
        (near,) = wish["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert near["podAffinityTerm"] == {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": mine}}
    assert {component for component, wish in wishes.items() if "podAntiAffinity" in wish} == {"ps", "serving"}
    assert "required" not in str(wishes), "a wish keeps nobody from starting"
