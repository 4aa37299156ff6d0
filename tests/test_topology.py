"""From roles to TF_CONFIG, over a thousand topologies; TensorFlow reads every one of them back."""

from __future__ import annotations

import json
import os
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads import launcher
from workloads.topology import (
    Task,
    Topology,
    cluster,
    cluster_dns,
    condensed,
    dns_pattern,
    encode,
    for_any_index,
    loopback,
    tf_config,
)

topologies = st.builds(Topology, chief=st.integers(0, 1), worker=st.integers(1, 40), ps=st.integers(0, 12), evaluator=st.integers(0, 1))


def addresses(topology: Topology):
    ports = {task.name: 2222 + 2 * number for number, task in enumerate(topology.tasks())}
    return st.sampled_from([loopback(ports), cluster_dns("resnet", "research", 2222)])


@pytest.mark.tensorflow
@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_tensorflow_reads_back_what_was_meant(data: st.DataObject) -> None:
    import tensorflow as tf

    topology = data.draw(topologies)
    address = data.draw(addresses(topology))
    task = data.draw(st.sampled_from(topology.tasks()))
    with mock.patch.dict(os.environ, TF_CONFIG=encode(tf_config(topology, task, address))):
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        spec = resolver.cluster_spec().as_dict()
        assert (resolver.task_type, resolver.task_id) == (task.role, task.index)
    assert spec[task.role][task.index] == address(task)
    if task.role == "evaluator":
        assert spec == {"evaluator": [address(task)]}
    else:
        assert {role: len(hosts) for role, hosts in spec.items()} == {
            role: count for role, count in topology.counts().items() if count and role != "evaluator"
        }
        every = [host for hosts in spec.values() for host in hosts]
        assert len(set(every)) == len(every)


@given(topologies)
def test_all_tasks_of_the_cluster_see_the_same_one(topology: Topology) -> None:
    address = cluster_dns("resnet", "research", 2222)
    seen = {json.dumps(tf_config(topology, task, address)["cluster"]) for task in topology.tasks() if task.role != "evaluator"}
    assert seen == {json.dumps(cluster(topology, address))}


@given(topologies)
def test_one_text_serves_all_tasks_of_a_role(topology: Topology) -> None:
    """Somebody fills in the number later, and then it is the TF_CONFIG of that task, letter by letter."""
    address = cluster_dns("resnet", "research", 2222)
    for task in topology.tasks():
        text = for_any_index(topology, task.role, address, "NUMBER")
        assert text.replace("NUMBER", str(task.index)) == encode(tf_config(topology, task, address))
        assert ("NUMBER" in text) == (task.role != "evaluator"), "of which there is one at the most"


@given(topologies)
def test_the_launcher_writes_out_what_is_condensed(topology: Topology) -> None:
    address = cluster_dns("resnet", "research", 2222)
    short = json.loads(json.dumps(condensed(topology, dns_pattern("resnet", "research", 2222))))
    for task in topology.tasks():
        if task.role != "evaluator":
            assert launcher.written_out(short, task.role, task.index) == tf_config(topology, task, address)


def test_a_condensed_cluster_does_not_grow() -> None:
    sizes = [len(json.dumps(condensed(Topology(1, count, 9), dns_pattern("resnet", "research", 2222)))) for count in (10, 99)]
    assert sizes[0] == sizes[1]


@given(topologies)
def test_the_lead_is_the_chief_or_else_worker_0(topology: Topology) -> None:
    assert topology.lead == (Task("chief", 0) if topology.chief else Task("worker", 0))
    assert topology.lead in topology.tasks()


def test_kubernetes_hosts_are_those_of_an_indexed_job_behind_a_headless_service() -> None:
    assert cluster_dns("resnet", "research", 2222)(Task("worker", 3)) == "resnet-worker-3.resnet.research.svc:2222"


def test_local_hosts_are_on_loopback() -> None:
    assert loopback({"ps-0": 4000})(Task("ps", 0)) == "127.0.0.1:4000"


@pytest.mark.parametrize("counts", [{"chief": 2, "worker": 1}, {"worker": 1, "evaluator": 2}, {"worker": -1}])
def test_what_tensorflow_refuses_cannot_be_made(counts: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"negative|one chief and one evaluator"):
        Topology(**counts)


def test_a_task_outside_of_the_topology_has_no_tf_config() -> None:
    with pytest.raises(ValueError, match="worker-2"):
        tf_config(Topology(worker=2), Task("worker", 2), cluster_dns("a", "b", 2222))
