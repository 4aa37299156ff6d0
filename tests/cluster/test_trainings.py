"""Trainings with real TensorFlow in real pods."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster
from tests.cluster.stack import SMALL, ClusterStack, cluster_stack
from tests.conftest import eventually
from workloads.topology import Task, Topology, cluster_dns, tf_config

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")]

CLAIM = {"claim": "runs", "create": True, "size": "1Gi", "access": "ReadWriteMany", "path": "/runs"}
PREPARE = """
import pathlib, shutil, importlib.util
source = pathlib.Path(importlib.util.find_spec('sklearn').submodule_search_locations[0]) / 'datasets' / 'data' / 'digits.csv.gz'
target = pathlib.Path('/runs/data/digits')
target.mkdir(parents=True, exist_ok=True)
shutil.copy(source, target)
print('prepared the digits')
"""
SERVERS: dict[str, Any] = {
    "program": "digits",
    "args": {"epochs": 20, "checkpoint_every": 2},
    "strategy": "parameter_server",
    "chief": SMALL,
    "worker": {**SMALL, "replicas": 2},
    "ps": {**SMALL, "replicas": 1},
    "evaluator": {"mode": "sidecar", **SMALL},
    "volumes": [CLAIM],
    "peer_timeout": "2m",
}
WHOLE: dict[str, Any] = {
    **SERVERS,
    "data_prep": {"command": ["python3", "-c", PREPARE], "deadline": "5m", **SMALL},
    "tensorboard": {"keep": "1h"},
    "serving": {**SMALL},
}
ROLES = ("chief", "worker", "ps", "evaluator")


class TestEverything:
    """One training with all there is: data prepared first, five tasks, TensorBoard, serving, a claim; looked at, scaled, inspected, destroyed."""

    @pytest.fixture(scope="class")
    def stack(self, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterStack]:
        with cluster_stack(cluster, tmp_path_factory.mktemp("everything")) as made:
            serving = {**WHOLE["serving"], "image": cluster.image}  # TensorFlow Serving's own image is not on the node
            made.up({"digits": {**WHOLE, "serving": serving}})
            made.wait_for_jobs({f"digits-{role}": "Complete" for role in ROLES}, 240)
            yield made

    def test_the_data_was_prepared_before_anything_trained(self, stack: ClusterStack) -> None:
        found = {job.metadata.name: job for job in stack.batch.list_namespaced_job(stack.namespace).items}
        prepared = found["digits-data-prep"].status.completion_time
        assert all(found[f"digits-{role}"].metadata.creation_timestamp >= prepared for role in ROLES)
        assert "prepared the digits" in stack.log("data-prep")

    def test_hostnames_are_the_addresses_of_tf_config(self, stack: ClusterStack) -> None:
        topology, address = Topology(1, 2, 1, 1), cluster_dns("digits", stack.namespace, 2222)
        for role in ROLES:
            for pod in stack.pods(role):
                index = int(pod.metadata.labels["batch.kubernetes.io/job-completion-index"])
                environment = {each.name: each.value for each in pod.spec.containers[0].env}
                said = environment["TF_CONFIG"].replace("$(TRAINSTACK_INDEX)", str(index))
                assert json.loads(said) == tf_config(topology, Task(role, index), address)
                host = f"{pod.spec.hostname}.{pod.spec.subdomain}.{stack.namespace}.svc:2222"
                assert host == address(Task(role, index))

    def test_it_learned_and_everybody_ended_with_the_chief(self, stack: ClusterStack) -> None:
        run = json.loads(stack.ops("--json", "status"))[0]
        assert run["state"] == "succeeded"
        assert run["evaluation"]["accuracy"] >= 0.95
        ends = {job.metadata.name: job.status.completion_time for job in stack.batch.list_namespaced_job(stack.namespace).items}
        chief = ends["digits-chief"]
        assert max(abs((ends[f"digits-{role}"] - chief).total_seconds()) for role in ROLES) <= 30

    def test_the_next_up_changes_nothing(self, stack: ClusterStack) -> None:
        assert stack.preview() == {}
        pods = {pod.metadata.uid for role in ROLES for pod in stack.pods(role)}
        stack.up()
        assert {pod.metadata.uid for role in ROLES for pod in stack.pods(role)} == pods

    def test_a_refresh_finds_nothing_else(self, stack: ClusterStack) -> None:
        assert "unchanged" in stack.pulumi("refresh", "--yes").stdout
        # A Job that goes on counts as not ready when it is read again, and the next `up` looks at it once more, changing nothing.
        assert stack.preview() in ({}, {"update": {"digits-tensorboard"}})
        before = {pod.metadata.uid for pod in stack.pods("tensorboard")}
        stack.up()
        assert ({pod.metadata.uid for pod in stack.pods("tensorboard")}, stack.preview()) == (before, {})

    def test_the_doctor_finds_the_cluster_ready(self, stack: ClusterStack) -> None:
        found = [each for each in json.loads(stack.ops("--json", "doctor", code=None)) if each["group"] == "the cluster"]
        assert {each["subject"]: each["state"] for each in found} == {"connection": "ok", "version": "ok", "permissions": "ok"}

    def test_ops_show_it(self, stack: ClusterStack) -> None:
        tasks = {task["name"]: task["state"] for task in json.loads(stack.ops("--json", "status"))[0]["tasks"]}
        assert {tasks[name] for name in ("chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0")} == {"succeeded"}
        assert "digits" in stack.ops("status")
        lines = stack.ops("logs", "worker").splitlines()
        assert {line.split()[0] for line in lines} == {"worker-0", "worker-1"}
        assert "done: the model is in /runs/digits/models/1/" in stack.ops("logs", "chief-0")
        assert re.search(r"succeeded after .*test accuracy 0\.9", stack.ops("watch"))
        assert json.loads(stack.ops("--json", "explain")) == [] or "digits" in stack.ops("explain")

    def test_tensorboard_answers_over_its_service(self, stack: ClusterStack) -> None:
        found = eventually(lambda: stack.ask("digits-tensorboard:http", "data/environment"), 60, "TensorBoard does not answer")
        assert found["data_location"] == "/runs/logs/digits/1"
        runs = eventually(lambda: stack.ask("digits-tensorboard:http", "data/plugin/scalars/tags"), 60, "TensorBoard has no figures")
        assert any("accuracy" in tag for tags in runs.values() for tag in tags)
        assert stack.jobs()["digits-tensorboard"] == "Running", "it stays for as long as `keep` says"

    def test_the_model_is_served(self, stack: ClusterStack, tmp_path: Path) -> None:
        status = eventually(lambda: stack.ask("digits-serving:rest", "v1/models/digits"), 60, "nothing is served")
        assert status["model_version_status"][0]["state"] == "AVAILABLE"
        images = digits()
        answer = stack.ask("digits-serving:rest", "v1/models/digits:predict", {"instances": [image for image, _ in images]})
        right = sum(max(range(10), key=guess.__getitem__) == label for guess, (_, label) in zip(answer["predictions"], images, strict=True))
        assert right >= 0.95 * len(images)
        file = tmp_path / "one.json"
        file.write_text(json.dumps({"instances": [images[0][0]]}))
        assert len(json.loads(stack.ops("--json", "predict", str(file)))["predictions"]) == 1

    def test_the_volume_can_be_inspected_and_the_data_is_not_prepared_again(self, stack: ClusterStack) -> None:
        rest = {key: value for key, value in WHOLE.items() if key not in ("serving", "tensorboard")}
        stack.up({"digits": {**rest, "deploy": False, "inspector": True}})
        assert set(stack.jobs()) == {"digits-data-prep"}
        assert "saved_model.pb" in stack.ops("inspect", "--", "sh", "-c", "ls /runs/digits/models/1/*")
        changed = {**rest["data_prep"], "deadline": "4m"}
        stack.up({"digits": {**rest, "data_prep": changed, "deploy": False, "inspector": False}})
        stack.pulumi(
            "destroy",
            "--yes",
            "--target",
            f"urn:pulumi:{stack.name}::trainstack::trainstack:workloads:KubernetesTraining$kubernetes:batch/v1:Job::digits-data-prep",
        )
        stack.up()
        assert "prepared the digits" not in stack.log("data-prep")

    def test_destroy_leaves_nothing(self, stack: ClusterStack) -> None:
        stack.destroy()
        stack.gone()


def digits() -> list[tuple[Any, int]]:
    """Images and labels that the model was not trained on."""
    from trainer.programs import digits as program

    images, labels = program.read(program.shipped())
    return [(images[index].tolist(), int(labels[index])) for index in range(0, 500, program.TEST_EVERY)]


def test_workers_that_train_together(cluster: Cluster, tmp_path: Path) -> None:
    with cluster_stack(cluster, tmp_path) as stack:
        training = {
            **{key: SERVERS[key] for key in ("program", "volumes", "peer_timeout")},
            "strategy": "multi_worker_mirrored",
            "args": {"epochs": 12, "checkpoint_every": 4},
            "worker": {**SMALL, "cpu": "500m", "replicas": 2},
        }
        stack.up({"together": training})
        stack.wait_for_jobs({"together-worker": "Complete"}, 240)
        run = json.loads(stack.ops("--json", "status"))[0]
        assert (run["state"], run["evaluation"]["accuracy"] >= 0.95) == ("succeeded", True)
        assert stack.preview() == {}


@pytest.mark.full
def test_a_worker_and_a_parameter_server_are_lost_in_the_middle(cluster: Cluster, tmp_path: Path) -> None:
    with cluster_stack(cluster, tmp_path) as stack:
        training = {**SERVERS, "evaluator": {"mode": "inline"}, "args": {"epochs": 80, "checkpoint_every": 5}}
        stack.up({"digits": training})
        stack.wait_for_line("chief", "epoch 6/80", 90)
        stack.delete_pod("worker")
        stack.wait_for_line("chief", "epoch 12/80", 60)
        stack.delete_pod("ps")
        stack.wait_for_jobs({f"digits-{role}": "Complete" for role in ("chief", "worker", "ps")}, 300)
        resumed = [int(left) for left in re.findall(r"replicas \d+: (\d+) of \d+ steps to go", stack.log("chief"))]
        assert len(resumed) >= 2, "the chief started again when it lost its parameter server"
        assert resumed[-1] < resumed[0], "and went on from a checkpoint"
        run = json.loads(stack.ops("--json", "status"))[0]
        assert (run["state"], run["evaluation"]["accuracy"] >= 0.95) == ("succeeded", True)


@pytest.mark.full
def test_a_rehearsal_with_a_training_that_is_running(cluster: Cluster, tmp_path: Path) -> None:
    """An eviction is no restart that counts: there are none here."""
    with cluster_stack(cluster, tmp_path) as stack:
        args = {"epochs": 100_000, "steps_per_epoch": 20, "checkpoint_every": 2}
        stack.up({"digits": {**SERVERS, "evaluator": {"mode": "none"}, "args": args, "max_restarts": 0}})
        stack.wait_for_line("chief", "epoch 4/", 90)
        said = stack.ops("rehearse", "--faults", "3", "--seed", "3").splitlines()
        assert said[-1].startswith("3 of 3 survived, at most ")
        assert json.loads(stack.ops("--json", "status"))[0]["state"] == "running"
