"""TFJobs of Kubeflow become settings that the real engine previews, and nothing of them is lost in silence."""

from __future__ import annotations

import copy
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from infra.accelerators import ACCELERATORS
from infra.pools import gibibytes
from ops import __main__ as main
from ops import tfjob, tfpods
from ops.target import OpsError
from settings import parse
from tests.infra.simulation import simulation

MANIFESTS = sorted((Path(__file__).parent / "tfjobs").glob("*.yaml"))
CONTEXT = "kind-kind"
IMAGE = "example.com/train@sha256:" + 64 * "1"
Job = dict[str, Any]


def imported(path: Path) -> tfjob.Imported:
    return tfjob.convert(tfjob.load(path.read_text(), path.name), CONTEXT)


def role(container: Job | None = None, pod: Job | None = None, **spec: Any) -> Job:
    """A replica spec, and what is to be said of its container and its pod besides."""
    first = {"name": "tensorflow", "image": IMAGE, "command": ["python", "train.py"], **(container or {})}
    return {"replicas": 1, "restartPolicy": "OnFailure", "template": {"spec": {"containers": [first], **(pod or {})}}, **spec}


def job(*, policy: Job | None = None, name: str = "train", spec: Job | None = None, **roles: Job) -> Job:
    body = {"tfReplicaSpecs": roles, **({"runPolicy": policy} if policy else {}), **(spec or {})}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": name}, "spec": body}


def convert(*documents: Any) -> tuple[Job, list[str]]:
    """The one training, and what was said of it: what it is about, and of whom."""
    found = tfjob.convert(documents, CONTEXT)
    (training,) = found.config["trainstack:trainings"].values()
    return training, [note.about for note in found.notes if note.about != "every task"]


# --------------------------------------------------------------------------------------------- the ten manifests


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_becomes_these_settings_with_these_notes(manifest: Path) -> None:
    """Run with UPDATE_GOLDEN=1 to accept what has changed, and read the difference before it is committed."""
    found = imported(manifest)
    assert parse({key.removeprefix("trainstack:"): value for key, value in found.config.items()}).trainings
    assert yaml.safe_load(found.text()) == {"config": found.config}, "the text says what the program means"
    golden = manifest.parent / "imported" / manifest.name
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(found.text())
    assert found.text() == golden.read_text(), "read the difference; UPDATE_GOLDEN=1 accepts it"


@pytest.mark.full
@pytest.mark.engine
def test_the_manifests_preview_clean(tmp_path: Path) -> None:
    """All ten are the trainings of one stack: one preview by the real engine, with every Job of every role that there is to be."""
    assert len(MANIFESTS) == 10
    found = tfjob.convert([document for path in MANIFESTS for document in tfjob.load(path.read_text(), path.name)], CONTEXT)
    assert not [note for note in found.notes if note.about == "before the first preview"]
    with simulation(tmp_path / "moved") as stack:
        stack.config = found.config
        stack.write()
        plan = stack.preview()
    trainings = parse({key.removeprefix("trainstack:"): value for key, value in found.config.items()}).trainings
    jobs = {
        f"{name}-{role}"
        for name, training in trainings.items()
        for role, count in training.topology.counts().items()
        if count and training.deploy
    }
    assert set(plan) == {"create"}
    assert len(jobs) == 21
    assert jobs <= set(plan["create"])
    assert not [name for name in plan["create"] if name.startswith("secrets-and-helpers-") and name.rpartition("-")[2] in tfjob.ROLES]


# ------------------------------------------------------------------------------------------------------- strategies


@pytest.mark.parametrize(
    ("roles", "strategy", "counts"),
    [
        ({"PS": 2, "Worker": 3}, "parameter_server", (0, 3, 2, 0)),
        ({"Chief": 1, "PS": 1, "Worker": 1}, "parameter_server", (1, 1, 1, 0)),
        ({"Master": 1, "PS": 1, "Worker": 1, "Evaluator": 1}, "parameter_server", (1, 1, 1, 1)),
        ({"Worker": 2}, "multi_worker_mirrored", (0, 2, 0, 0)),
        ({"Chief": 1, "Worker": 1}, "multi_worker_mirrored", (1, 1, 0, 0)),
        ({"Worker": 1}, "mirrored", (0, 1, 0, 0)),
        ({"Chief": 1}, "mirrored", (0, 1, 0, 0)),
        ({"Worker": 1, "PS": 0}, "mirrored", (0, 1, 0, 0)),
    ],
)
def test_roles_decide_on_the_strategy(roles: dict[str, int], strategy: str, counts: tuple[int, ...]) -> None:
    training, _ = convert(job(**{title: role(replicas=count) for title, count in roles.items()}))
    settings = parse({"target": "kubernetes", "kubernetes": {"context": CONTEXT}, "trainings": {"a": training}}).trainings["a"]
    assert settings.chosen_strategy == strategy
    assert tuple(settings.topology.counts().values()) == counts


@pytest.mark.parametrize("label", [each.label for each in ACCELERATORS.values()])
def test_every_gpu_is_known_by_its_label(label: str) -> None:
    pod = {"nodeSelector": {"cloud.google.com/gke-accelerator": label}}
    training, notes = convert(job(Worker=role({"resources": {"limits": {"nvidia.com/gpu": "1"}}}, pod)))
    assert ACCELERATORS[training["worker"]["accelerator"]].label == label
    assert "node_selector" not in training
    assert notes == ["nodeSelector of Worker"]


def test_a_selector_of_one_role_is_not_put_upon_the_others() -> None:
    gpu, both = {"gpu": "yes"}, {"disk": "ssd"}
    training, notes = convert(job(Chief=role(pod={"nodeSelector": both}), Worker=role(pod={"nodeSelector": {**both, **gpu}})))
    assert training["node_selector"] == both
    assert notes == ["nodeSelector of Worker"]


@pytest.mark.parametrize(
    ("policies", "limit", "expected"),
    [
        (("Never", "Never"), None, 0),
        (("Never", "Never"), 3, 0),
        ((None, None), None, 0),
        (("OnFailure", "OnFailure"), None, None),
        (("OnFailure", "OnFailure"), 3, 3),
        (("OnFailure", "Never"), 3, 3),
        (("ExitCode", "Always"), None, None),
        (("ExitCode", "Never"), 0, 0),
    ],
)
def test_restarts(policies: tuple[str | None, str | None], limit: int | None, expected: int | None) -> None:
    policy = {"backoffLimit": limit} if limit is not None else None
    chief, worker = (role(restartPolicy=each) for each in policies)
    training, _ = convert(job(policy=policy, Chief=chief, Worker=worker))
    assert training.get("max_restarts") == expected


def test_a_claim_for_many_pods_that_is_not_in_the_file_must_be_for_many() -> None:
    pod = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "shared"}}]}
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/train"}]}
    training, notes = convert(job(Chief=role(mount, pod), Worker=role()))
    assert training["volumes"] == [{"claim": "shared", "path": "/train", "roles": ["chief"]}]
    assert notes == ["claim shared"]
    training, _ = convert(job(Worker=role(mount, pod, replicas=2)))
    assert training["volumes"] == [{"claim": "shared", "path": "/train", "access": "ReadWriteMany"}]


def test_what_the_settings_refuse_is_said_in_their_words() -> None:
    found = tfjob.convert([job(Worker=role({"ports": [{"name": "tfjob-port", "containerPort": 80}]}))], CONTEXT)
    (refused,) = (note.sentence for note in found.notes if note.about == "before the first preview")
    assert refused.startswith("trainings.train.port: 80 is out of range")


@pytest.mark.parametrize("strange", ["a\nconfig: {}", "a\x85b", "a\x1fb", "a\x00b", "a\u2028b"])
def test_no_value_gets_out_of_a_comment(strange: str) -> None:
    found = tfjob.convert([job(Worker=role({"image": strange}))], CONTEXT)
    assert yaml.safe_load(found.text()) == {"config": found.config}


def test_a_list_of_kubectl_is_what_is_in_it_and_what_the_server_added_is_nothing() -> None:
    kept = job(Worker=role())
    kept["metadata"] |= {"uid": "1", "resourceVersion": "2", "creationTimestamp": "now", "managedFields": [{"a": 1}]}
    kept["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    kept["status"] = {"conditions": [{"type": "Running"}]}
    training, notes = convert({"kind": "List", "items": [kept]})
    assert training["worker"] == {"replicas": 1}
    assert notes == []


# -------------------------------------------------------------------------------------------------------- properties


@given(st.text(st.characters(codec="ascii", categories=("L",)), min_size=3, max_size=8).map(lambda text: f"x{text}"), st.integers(0, 6))
@hypothesis_settings(max_examples=60, deadline=None)
def test_no_key_is_left_out_in_silence(key: str, place: int) -> None:
    """One that nobody knows, at each of the places where a TFJob has keys."""
    made = copy.deepcopy(job(policy={"backoffLimit": 1}, Worker=role({"resources": {"limits": {"cpu": 1}}})))
    worker = made["spec"]["tfReplicaSpecs"]["Worker"]
    pod = worker["template"]["spec"]
    limits = pod["containers"][0]["resources"]["limits"]
    places = [made, made["metadata"], made["spec"], made["spec"]["runPolicy"], worker, pod, pod["containers"][0]]
    before = convert(made)[1]
    places[place][key] = "something"
    limits[f"{key}.example.com/thing"] = 1
    after = convert(made)[1]
    assert {about.split(" of ")[0] for about in set(after) - set(before)} == {key, f"resource {key}.example.com/thing"}


amounts = st.one_of(
    st.integers(1, 10**13), st.builds("{}{}".format, st.decimals(0, 500, places=2), st.sampled_from(["", *tfpods.MEMORY_UNITS]))
)


@given(amounts)
def test_memory_is_never_less_than_it_was(written: Any) -> None:
    found = tfpods.memory(written)
    number = str(written).rstrip("KMGTPik")
    bytes_there = float(number) * tfpods.MEMORY_UNITS.get(str(written).removeprefix(number), 1)
    if bytes_there == 0:
        assert found is None
    else:
        assert found is not None
        assert bytes_there * (1 - 1e-9) <= gibibytes(found) * 2**30 <= bytes_there + 2**20


junk: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "key", "image", "value", "claimName"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def attempted(document: Job) -> tfjob.Imported | str:
    """What came of it, or the sentence of a refusal; everything else is a bug."""
    try:
        return tfjob.convert([document], CONTEXT)
    except OpsError as refusal:
        return str(refusal)


@given(st.sampled_from(["env", "ports", "resources", "volumeMounts", "command", "args", "envFrom", "image"]), junk)
@hypothesis_settings(max_examples=150, deadline=None)
def test_a_strange_container_is_a_sentence_or_settings(key: str, value: Any) -> None:
    found = attempted(job(Worker=role({key: value})))
    if isinstance(found, str):
        assert found.endswith(".")
    else:
        assert yaml.safe_load(found.text()) == {"config": found.config}


@given(st.sampled_from(["volumes", "nodeSelector", "tolerations", "containers", "serviceAccountName"]), junk)
@hypothesis_settings(max_examples=100, deadline=None)
def test_a_strange_pod_is_a_sentence_or_settings(key: str, value: Any) -> None:
    found = attempted(job(Worker=role(pod={key: value})))
    assert not isinstance(found, str) or found.endswith(".")


@given(st.sampled_from(["persistentVolumeClaim", "secret", "csi", "emptyDir", "nfs"]), junk)
@hypothesis_settings(max_examples=60, deadline=None)
def test_a_strange_volume_is_a_sentence_or_settings(kind: str, value: Any) -> None:
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    found = attempted(job(Worker=role(mount, {"volumes": [{"name": "v", kind: value}]})))
    assert not isinstance(found, str) or found.endswith(".")


@given(st.lists(st.sampled_from(["A", "B", "$(A)", "$(B)", "$$(A)", "$$$(B)", "$"]), max_size=6))
def test_variables_are_filled_in_as_kubernetes_does(parts: list[str]) -> None:
    meaning = {"$(A)": "one", "$(B)": "$(B)", "$$(A)": "$(A)", "$$$(B)": "$$(B)", "$": "$"}
    separated = "-".join(parts)
    assert tfpods.expanded(separated, {"A": "one"}) == "-".join(meaning.get(part, part) for part in parts)


# ------------------------------------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "is not YAML (line 1)"),
        ("{{ if .Values.x }}\na: b", "is not YAML"),
        ("", "there is no TFJob here, but no document"),
        ("kind: Job", "there is no TFJob here, but Job"),
        ("just text", "is not an object of Kubernetes"),
        ("kind: TFJob", "no metadata.name"),
        ("{kind: TFJob, metadata: {name: a}}", "no tfReplicaSpecs"),
        ("{kind: TFJob, metadata: {name: a}, spec: {replicaSpecs: [{replicas: 1}]}}", "no tfReplicaSpecs"),
        (job(Chef=role()), "the role 'Chef'"),
        (job(Chief=role(), Master=role()), "two chiefs"),
        (job(Chief=role(replicas=2)), "two chiefs"),
        (job(PS=role()), "neither a Chief nor a Worker"),
        (job(Worker=role({"name": "main"})), "no container named tensorflow"),
        (job(Worker=role({"image": None})), "no image"),
        (job(Worker=role(replicas="three")), "Worker.replicas is 'three', not a whole number"),
        (job(Worker=role({"volumeMounts": [{"name": "v", "mountPath": "/v"}]})), "has no volume of this name"),
    ],
)
def test_what_is_no_tfjob_is_one_sentence(
    text: Any, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run(monkeypatch, capsys, text if isinstance(text, str) else yaml.safe_dump(text), "import-tfjob", "-")
    assert code == 1
    assert said.out == ""
    assert says in said.err
    assert said.err.count("\n") == 1
    assert said.err.rstrip().endswith(".")


def test_two_of_a_name_are_one_sentence() -> None:
    with pytest.raises(OpsError, match="two TFJobs with the name train"):
        tfjob.convert([job(Worker=role()), job(Worker=role())])


# ------------------------------------------------------------------------------------------------------- the command


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, *arguments: str) -> tuple[int, Any]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    monkeypatch.setattr(sys, "argv", ["trainstack", *arguments])
    return main.main(), capsys.readouterr()


def test_the_file_is_printed_and_the_notes_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job(Worker=role())))
    code, said = run(monkeypatch, capsys, yaml.safe_dump(job(name="other", Worker=role())), "import-tfjob", str(file), "-")
    assert code == 0
    assert set(yaml.safe_load(said.out)["config"]["trainstack:trainings"]) == {"train", "other"}
    assert "note: kubernetes.context: write a context" in said.err
    assert "#   - kubernetes.context: write a context" in said.out
    code, said = run(monkeypatch, capsys, "", "--json", "import-tfjob", "--context", "prod", str(file))
    answer = json.loads(said.out)
    assert (code, said.err) == (0, "")
    assert answer["config"]["trainstack:kubernetes"] == {"context": "prod"}
    assert [note["about"] for note in answer["notes"]] == ["every task"]
    assert run(monkeypatch, capsys, "", "import-tfjob", str(tmp_path / "none"))[0] == 1
