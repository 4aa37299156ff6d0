"""Who has to reach which directory, and what of that cannot be: decision 9, as a table."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from settings import SettingsError, Training, parse
from tests.infra.program import PROJECT
from tests.kubernetes.made import CLAIM, DIGEST, DIGITS, DIRECTORIES, MIRRORED, ON, wanted
from workloads import reach
from workloads.topology import ROLES

CHIEF = {**CLAIM, "roles": ["chief"]}
MANY = {**CLAIM, "access": "ReadWriteMany"}
WITH_CHIEF = {**MIRRORED, "chief": {}}
ALONE = {"program": "digits", "strategy": "mirrored"}
SIDECAR = {"evaluator": {"mode": "sidecar"}}
PINNED = {"node_selector": {"kubernetes.io/hostname": "node-1"}}
COMMAND = {"command": ["python", "x.py"], "image": DIGEST, "worker": {}, "ps": {}}


def problems(on: str, training: dict[str, Any]) -> list[str]:
    try:
        parse({**ON[on], "trainings": {"a": training}}, {"project": PROJECT})
    except SettingsError as error:
        return error.problems
    return []


# What is said of a training on a cluster that has no bucket of its own: words of each sentence, in their order.
TABLE: dict[str, tuple[dict[str, Any], list[str]]] = {
    # Somewhere that everybody reaches
    "buckets": ({**DIGITS, **DIRECTORIES}, []),
    "buckets, with everything beside": ({**DIGITS, **DIRECTORIES, **SIDECAR, "tensorboard": {}, "serving": {"replicas": 3}}, []),
    # Nowhere
    "nowhere": (DIGITS, ["a.checkpoint_dir: .*no bucket of its own", "a.log_dir: ", "a.model_dir: "]),
    "nowhere, with data to prepare": (
        {**DIGITS, **DIRECTORIES, "data_prep": {"command": ["true"]}},
        ["a.data_dir: target kubernetes has no bucket of its own.*write data_dir: gs://"],
    ),
    "on the disk of a pod": (
        {**DIGITS, **DIRECTORIES, "checkpoint_dir": "/out"},
        ["a.checkpoint_dir: /out/1 is on the disk of one pod.*write a gs:// directory, or a path on one of its volumes"],
    ),
    "beside a volume": ({**DIGITS, "volumes": [CHIEF], "log_dir": "/ckpt-2/logs"}, ["a.log_dir: /ckpt-2/logs/1 is on the disk of one pod"]),
    "data on the disk of a pod": (
        {**DIGITS, **DIRECTORIES, "data_dir": "/data"},
        ["a.data_dir: /data is on the disk of one pod, and chief, worker"],
    ),
    # A claim that one node mounts
    "a claim of the chief's": ({**DIGITS, "volumes": [CHIEF]}, []),
    "a claim of everybody's": (
        {**DIGITS, "volumes": [CLAIM]},
        ["a.volumes.0.access: .*1 × chief, 2 × worker, 1 × ps would mount ckpt.*ReadWriteMany.*roles: .chief."],
    ),
    "a claim of chief and evaluator": (
        {**DIGITS, **SIDECAR, "volumes": [{**CLAIM, "roles": ["chief", "evaluator"]}]},
        ["a.volumes.0.access: .*1 × chief, 1 × evaluator.*evaluator: .mode: inline."],
    ),
    "a claim of everybody's, who are on one node": ({**DIGITS, **SIDECAR, **PINNED, "volumes": [CLAIM], "tensorboard": {}}, []),
    "a claim of the one worker's": ({**ALONE, "volumes": [CLAIM]}, []),
    "a claim of many workers": (
        {**MIRRORED, "volumes": [CLAIM]},
        ["a.volumes.0.access: .*3 × worker.*chief: .replicas: 1. and roles: .chief."],
    ),
    "a claim of an explicit chief alone": ({**WITH_CHIEF, "volumes": [CHIEF]}, []),
    "a claim that nobody mounts twice at a time": (
        {**DIGITS, "volumes": [CHIEF], "data_prep": {"command": ["true"]}, "data_dir": "gs://b/d"},
        [],
    ),
    "a claim that TensorBoard reads too": (
        {**DIGITS, "volumes": [CHIEF], "tensorboard": {}},
        ["a.volumes.0.access: .*1 × chief, 1 × tensorboard would mount ckpt.*log_dir: gs://"],
    ),
    "a claim that a server reads too": (
        {**DIGITS, "volumes": [CHIEF], "serving": {"replicas": 2}},
        ["a.volumes.0.access: .*1 × chief, 2 × serving would mount ckpt.*model_dir: gs://"],
    ),
    "a claim of one worker that TensorBoard reads too": (
        {**ALONE, "volumes": [CLAIM], "tensorboard": {}},
        ["a.volumes.0.access: .*1 × worker, 1 × tensorboard would mount ckpt.*log_dir: gs://"],
    ),
    "logs elsewhere": (
        {**DIGITS, "volumes": [CHIEF], "tensorboard": {}, "serving": {}, "log_dir": "gs://b/l", "model_dir": "gs://b/m"},
        [],
    ),
    "a claim without a training": ({**DIGITS, "deploy": False, "volumes": [CLAIM], "inspector": True}, []),
    "a server on what a training left": ({**DIGITS, "deploy": False, "volumes": [CLAIM], "serving": {}}, []),
    "two servers on what a training left": (
        {**DIGITS, "deploy": False, "volumes": [CLAIM], "serving": {"replicas": 2}},
        ["a.volumes.0.access: .*2 × serving would mount ckpt"],
    ),
    # A claim that many nodes mount
    "a claim for many": ({**DIGITS, **SIDECAR, "volumes": [MANY], "tensorboard": {}, "serving": {"replicas": 2}}, []),
    "a claim for many under mirrored": ({**MIRRORED, "volumes": [MANY]}, []),
    # A claim that somebody needs and does not mount
    "the chief does not mount it": (
        {**DIGITS, "volumes": [{**MANY, "roles": ["worker"]}], **DIRECTORIES, "checkpoint_dir": "/ckpt/c"},
        ["a.checkpoint_dir: /ckpt/c/1 is on the volume ckpt, which chief does not mount; add it to the volume's roles"],
    ),
    "the evaluator does not mount it": (
        {**DIGITS, **SIDECAR, "volumes": [CHIEF]},
        [*(f"a.{kind}: .*on the volume ckpt, which evaluator does not mount" for kind in ("checkpoint_dir", "log_dir"))],
    ),
    "the workers do not mount the data": (
        {**DIGITS, "volumes": [{**MANY, "roles": ["chief"]}], "data_dir": "/ckpt/d"},
        ["a.data_dir: /ckpt/d is on the volume ckpt, which worker does not mount"],
    ),
    "the lead of mirrored does not mount it": (
        {**MIRRORED, **DIRECTORIES, "volumes": [{**MANY, "roles": ["evaluator"]}], "checkpoint_dir": "/ckpt"},
        ["a.checkpoint_dir: .*which worker does not mount"],
    ),
    "the servers need nothing": ({**DIGITS, "volumes": [{**MANY, "roles": ["chief", "worker"]}], "data_dir": "/ckpt/d"}, []),
    # A bucket as a volume
    "a bucket as a volume": ({**DIGITS, "volumes": [{"bucket": "b-1", "path": "/b"}]}, []),
    # A command has directories of its own
    "a command": (COMMAND, []),
    "a command with TensorBoard": ({**COMMAND, "tensorboard": {}}, ["a.log_dir: target kubernetes has no bucket"]),
    "a command with TensorBoard on a volume": (
        {**COMMAND, "tensorboard": {}, "volumes": [{**MANY, "roles": ["worker"]}], "log_dir": "/ckpt/l"},
        [],
    ),
    "a command that is served": ({**COMMAND, "serving": {}, "model_dir": "gs://b/m"}, []),
}


@pytest.mark.parametrize("case", TABLE)
def test_what_cannot_be_is_refused_with_what_to_write_instead(case: str) -> None:
    training, expected = TABLE[case]
    found = problems("context", training)
    assert len(found) == len(expected), found
    for sentence, words in zip(found, expected, strict=True):
        assert re.search(f"^trainings.{words}", sentence), sentence
        assert sentence.endswith(".")


ADVICE = [
    ({**DIGITS, "volumes": [CLAIM]}, {"volumes": [MANY]}),
    ({**DIGITS, "volumes": [CLAIM]}, {"volumes": [CHIEF]}),
    ({**DIGITS, **SIDECAR, "volumes": [CLAIM]}, {"volumes": [CHIEF], "evaluator": {"mode": "inline"}}),
    ({**MIRRORED, "volumes": [CLAIM]}, {"chief": {"replicas": 1}, "volumes": [CHIEF]}),
    ({**DIGITS, "volumes": [CHIEF], "tensorboard": {}}, {"log_dir": "gs://b/l"}),
    ({**DIGITS, "volumes": [CHIEF], "serving": {}}, {"model_dir": "gs://b/m"}),
    ({**ALONE, "volumes": [CLAIM], "tensorboard": {}}, {"log_dir": "gs://b/l"}),
    ({**DIGITS, **SIDECAR, "volumes": [CHIEF]}, {"volumes": [{**MANY, "roles": ["chief", "evaluator"]}]}),
]


@pytest.mark.parametrize(("training", "advice"), ADVICE)
def test_the_advice_helps(training: dict[str, Any], advice: dict[str, Any]) -> None:
    """Whoever writes what a sentence says has a training that is accepted."""
    assert problems("context", training)
    assert problems("context", {**training, **advice}) == []


def test_on_gke_the_buckets_of_the_stack_are_there() -> None:
    assert problems("gke", {**DIGITS, **SIDECAR, "tensorboard": {}, "serving": {"replicas": 2}, "data_prep": {"command": ["true"]}}) == []
    assert problems("gke", {**DIGITS, "volumes": [CLAIM]}), "a claim on many nodes waits there as well"
    assert wanted("gke").where["checkpoint_dir"] == f"gs://{PROJECT}-dev-checkpoints/resnet/checkpoints/1"


def test_without_buckets_the_directories_are_on_the_leads_volume() -> None:
    made = wanted("context", volumes=[{"claim": "data", "path": "/data/", "roles": ["worker"], "access": "ReadWriteMany"}, CHIEF])
    assert made.where == {
        "data_dir": "/ckpt/data/resnet",
        "checkpoint_dir": "/ckpt/resnet/checkpoints/1",
        "log_dir": "/ckpt/logs/resnet/1",
        "model_dir": "/ckpt/resnet/models/1",
    }
    assert wanted("context", **{**MIRRORED, "volumes": [MANY]}).where["checkpoint_dir"] == "/ckpt/resnet/checkpoints/1"


def test_what_is_written_comes_before_what_is_by_itself() -> None:
    made = wanted("context", volumes=[CHIEF], log_dir="gs://b/l/", run="7")
    assert (made.where["log_dir"], made.where["model_dir"]) == ("gs://b/l/7", "/ckpt/resnet/models/7")


@pytest.mark.parametrize(
    ("path", "place", "held"),
    [
        ("/ckpt", "/ckpt", True),
        ("/ckpt", "/ckpt/a/b", True),
        ("/ckpt/", "/ckpt", True),
        ("/ckpt", "/ckpt-2", False),
        ("/ckpt", "gs://b/ckpt", False),
        ("/a/b", "/a", False),
    ],
)
def test_what_is_on_a_volume(path: str, place: str, held: bool) -> None:
    (volume,) = wanted("gke", volumes=[{"claim": "c", "path": path, "roles": ["chief"]}]).training.volumes
    assert volume.holds(place) is held


roles = st.sets(st.sampled_from(ROLES), min_size=1)
volumes = st.fixed_dictionaries(
    {
        "access": st.sampled_from(["ReadWriteOnce", "ReadWriteMany"]),
        "roles": roles.map(sorted),
        "claim": st.just("c"),
        "path": st.just("/ckpt"),
    }
)
trainings = st.sampled_from([DIGITS, MIRRORED, WITH_CHIEF, ALONE, {**DIGITS, **SIDECAR}, {**WITH_CHIEF, **SIDECAR}])
beside = st.fixed_dictionaries({}, optional={"tensorboard": st.just({}), "serving": st.fixed_dictionaries({"replicas": st.integers(1, 2)})})


@hypothesis_settings(max_examples=300, deadline=None)
@given(trainings, volumes, beside)
def test_what_is_accepted_works(training: dict[str, Any], volume: dict[str, Any], more: dict[str, Any]) -> None:
    """No claim of one node is mounted by two pods, and whoever needs a directory has it."""
    written = {**training, **more, "volumes": [volume]}
    found = problems("context", written)
    made = Training.model_validate(written)
    where = reach.directories("a", made, None)
    counts = {**made.topology.counts(), "tensorboard": int("tensorboard" in more), "serving": more.get("serving", {}).get("replicas", 0)}
    mounted = {component: count for component, count in counts.items() if count and reach.mounts(made, component, where)}
    lead = made.topology.lead.role
    fits = volume["access"] == "ReadWriteMany" or sum(mounted.values()) <= 1
    needs = {lead, *(["evaluator"] if made.topology.evaluator else []), *more}
    assert (not found) == (fits and needs <= set(mounted)), found
