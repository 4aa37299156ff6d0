"""The step between namespace and cluster: it waits for the disks of the stack's claims, and for nothing else."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cloud.cloud import Cloud
from tests.cloud.volumes import serve_volumes
from tests.kubernetes.made import CLAIM, DIGITS, stack
from workloads.kubernetes import disks


def volume(name: str, namespace: str | None = "trainstack-dev", policy: str = "Delete") -> Any:
    claim = SimpleNamespace(namespace=namespace) if namespace else None
    return SimpleNamespace(
        metadata=SimpleNamespace(name=name), spec=SimpleNamespace(claim_ref=claim, persistent_volume_reclaim_policy=policy)
    )


def test_the_disks_of_the_stack_are_those_of_its_namespace_that_go_with_their_claims() -> None:
    there = [
        volume("mine"),
        volume("of another stack", "trainstack-prod"),
        volume("of nobody", None),
        volume("to keep", policy="Retain"),
        volume("mine too"),
    ]
    assert disks.left(there, "trainstack-dev") == ["mine", "mine too"]


def answers(*found: list[str]) -> Callable[[], list[str]]:
    """One after the other; the last for ever."""
    everything = itertools.chain(found, itertools.repeat(found[-1]))
    return lambda: next(everything)


def test_it_waits_until_they_are_gone() -> None:
    looks = iter([["a", "b"], ["b"], []])
    disks.wait(lambda: next(looks), patience=30, every=0)
    assert list(looks) == [], "it looked three times"


def test_it_does_not_wait_where_there_are_none() -> None:
    disks.wait(answers([]), patience=0, every=60)


def test_it_gives_up_with_a_sentence() -> None:
    with pytest.raises(disks.DisksError) as caught:
        disks.wait(answers(["pvc-1", "pvc-2"]), patience=0.05, every=0.01)
    said = str(caught.value)
    assert "would be paid for after the cluster is gone: pvc-1, pvc-2" in said
    assert "`kubectl describe pv pvc-1`" in said
    assert "run `pulumi destroy` again" in said
    assert "\n" not in said


def test_it_asks_the_cluster_that_it_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kubeconfig of the stack, by a context of the user's, or by what TRAINSTACK_KUBECONFIG names instead."""
    cloud = Cloud(tmp_path / "cloud.json")
    with serve_volumes(cloud) as kubeconfig:
        monkeypatch.delenv("TRAINSTACK_KUBECONFIG", raising=False)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
        inline = disks.client(kubeconfig.read_text(), None)
        assert inline.list_persistent_volume().items == []
        renamed = json.loads(kubeconfig.read_text())
        renamed["contexts"].insert(0, {"name": "mine", "context": renamed["contexts"][0]["context"]})
        renamed["current-context"] = "nothing"
        assert disks.client(json.dumps(renamed), "mine").list_persistent_volume().items == []
        monkeypatch.setenv("TRAINSTACK_KUBECONFIG", str(kubeconfig))
        assert disks.client("", "a context that nobody has").list_persistent_volume().items == []


def test_deletion_waits_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([[volume("pvc-1")], [volume("pvc-1", policy="Retain")]])
    asked: list[tuple[str, str | None]] = []

    def client(kubeconfig: str, context: str | None) -> Any:
        asked.append((kubeconfig, context))
        return SimpleNamespace(list_persistent_volume=lambda: SimpleNamespace(items=next(looks)))

    monkeypatch.setattr(disks, "client", client)
    monkeypatch.setattr(disks.time, "sleep", lambda _: None)
    provider = disks.Provider()
    props = {"namespace": "trainstack-dev", "kubeconfig": "", "context": "kind"}
    made = provider.create(props)
    assert (made.id, asked) == ("trainstack-dev", [])
    provider.delete(made.id, props)
    assert asked == [("", "kind")]
    assert list(looks) == []


@pytest.mark.parametrize("how", ["nobody answers", "not allowed", "no such context"])
def test_a_cluster_that_does_not_answer_is_one_sentence(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes import client

    kubeconfig = tmp_path / "config"
    monkeypatch.delenv("TRAINSTACK_KUBECONFIG", raising=False)
    with serve_volumes(Cloud(tmp_path / "cloud.json")) as served:
        kubeconfig.write_text(served.read_text())
        if how == "not allowed":

            def refuse(*_: Any, **__: Any) -> Any:
                raise client.ApiException(403, "Forbidden")

            monkeypatch.setattr(client.CoreV1Api, "list_persistent_volume", refuse)
            with pytest.raises(disks.DisksError) as caught:
                disks.Provider().delete("x", {"namespace": "x", "kubeconfig": kubeconfig.read_text(), "context": ""})
    if how != "not allowed":
        context = "another" if how == "no such context" else ""
        with pytest.raises(disks.DisksError) as caught:
            disks.Provider().delete("x", {"namespace": "x", "kubeconfig": kubeconfig.read_text(), "context": context})
    said = str(caught.value)
    assert said.startswith("the cluster does not say which disks are left (")
    assert "see that `kubectl get pv` works and run `pulumi destroy` again" in said
    assert "\n" not in said


def test_another_address_of_the_cluster_changes_the_step_and_another_namespace_replaces_it() -> None:
    provider, olds = disks.Provider(), {"namespace": "a", "kubeconfig": "1", "context": ""}
    assert not provider.diff("a", olds, dict(olds)).changes
    moved = provider.diff("a", olds, {**olds, "kubeconfig": "2"})
    assert (moved.changes, moved.replaces) == (True, [])
    assert provider.diff("a", olds, {**olds, "namespace": "b"}).replaces == ["namespace"]


def test_the_step_stands_between_the_namespace_and_the_nodes() -> None:
    """Going down is the other way round: trainings, namespace, disks, then nodes and cluster."""
    made = stack("gke", a={**DIGITS, "volumes": [{**CLAIM, "roles": ["chief"]}], "tensorboard": {}})
    step = "pulumi-python:dynamic/trainstack:Disks::disks"
    for name in ("trainings-namespace", "a-chief", "a-claim-ckpt", "a-tensorboard-service"):
        assert step in made.comes_after(name)
    assert "kubernetes:core/v1:Namespace::trainings-namespace" in made.comes_after("a-claim-ckpt")
    before = made.comes_after("disks")
    assert {"gcp:container/nodePool:NodePool::pool-cpu", "gcp:container/cluster:Cluster::cluster-gke"} <= before
    assert not [each for each in before if each.startswith("kubernetes:")]
    assert made.is_secret("disks", "kubeconfig")


@pytest.mark.parametrize("volumes", [[], [{"claim": "theirs", "path": "/c", "roles": ["chief"]}], [{"bucket": "b-1", "path": "/b"}]])
def test_without_a_claim_that_is_made_there_is_nothing_to_wait_for(volumes: list[dict[str, Any]]) -> None:
    made = stack("gke", a={**DIGITS, "volumes": volumes})
    assert not [each for each in made.resources if "Disks" in each]
    before = made.comes_after("trainings-namespace")
    assert "gcp:container/nodePool:NodePool::pool-cpu" in before, "namespaces must be gone while their nodes are there"
    assert "gcp:storage/bucket:Bucket::storage-checkpoints" in before, "tasks that are told to stop still save"
