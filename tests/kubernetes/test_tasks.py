"""The tasks as Indexed Jobs: who they are told to be, how many objects that takes, and what their ends mean."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.kubernetes.made import (
    DIGEST,
    DIGITS,
    MIRRORED,
    NAMESPACE,
    Manifest,
    command_of_task,
    container_of,
    environment_of,
    environment_of_task,
    expanded,
    manifests,
    of_kind,
    wanted,
)
from workloads import launcher, outcome
from workloads.kubernetes import beside, names, pods, tasks
from workloads.kubernetes.wanted import INDEX, Wanted
from workloads.topology import Task, tf_config

COMMAND = {"command": ["python", "train.py"], "image": DIGEST, "worker": {"replicas": 2}, "ps": {}}


def job(made: Wanted, role: str) -> Manifest:
    return tasks.job(made, role, f"{made.revision} {DIGEST}")


def with_workers(count: int, **changes: Any) -> Wanted:
    return wanted(worker={"replicas": count}, **changes)


def said(made: Wanted, role: str, index: int) -> dict[str, Any]:
    """The TF_CONFIG that one pod finds, whichever way it is delivered: by the environment, or by what its launcher writes out."""
    manifest = job(made, role)
    environment = environment_of_task(manifest, index)
    if "TF_CONFIG" in environment:
        return json.loads(environment["TF_CONFIG"])
    words = command_of_task(manifest, index)
    assert f"--cluster={pods.FILES}/cluster.json" in words
    (task,) = (word.partition("=")[2] for word in words if word.startswith("--task="))
    role_said, _, index_said = task.rpartition("-")
    return launcher.written_out(json.loads(tasks.files(made)["data"]["cluster.json"]), role_said, int(index_said))


# ------------------------------------------------------------------------------------------------- who they are


def fits(count: int) -> bool:
    return with_workers(count).tf_config("worker") is not None


@pytest.fixture(scope="module")
def most() -> int:
    """The most workers whose TF_CONFIG one environment variable holds."""
    low, high = 1, 4096
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def test_the_way_changes_where_one_variable_is_full(most: int) -> None:
    assert 1000 < most < 4096, "both ways are used"
    near, far = with_workers(most), with_workers(most + 1)
    longest = len(f"TF_CONFIG={near.tf_config('worker')}".encode())
    one_more = len(f",{json.dumps(near.address(Task('worker', most)))}".encode())
    assert longest < launcher.LONGEST <= longest + one_more
    real = environment_of_task(job(near, "worker"), most - 1)["TF_CONFIG"]
    assert len(f"TF_CONFIG={real}\0") <= 128 * 1024, "what Linux takes, with its name and a zero behind it"
    assert "TF_CONFIG" in environment_of(job(near, "worker"))
    assert "TF_CONFIG" not in environment_of(job(far, "worker"))
    assert set(near.files) == {"launcher.py", "prepare.py"}
    assert set(far.files) == {"launcher.py", "prepare.py", "cluster.json"}


@pytest.mark.parametrize("beyond", [0, 1], ids=["near side", "far side"])
def test_every_task_is_told_what_the_topology_says_at_both_sides(most: int, beyond: int) -> None:
    made = with_workers(most + beyond, evaluator={"mode": "sidecar"})
    topology = made.training.topology
    for task in (
        Task("chief", 0),
        Task("worker", 0),
        Task("worker", 7),
        Task("worker", most - 1 + beyond),
        Task("ps", 0),
        Task("evaluator", 0),
    ):
        assert said(made, task.role, task.index) == tf_config(topology, task, made.address)


def test_the_evaluator_keeps_its_own_short_one() -> None:
    made = with_workers(4096, evaluator={"mode": "sidecar"})
    manifest = job(made, "evaluator")
    assert json.loads(environment_of(manifest)["TF_CONFIG"])["cluster"] == {"evaluator": [made.address(Task("evaluator", 0))]}
    words = container_of(manifest)["command"]
    assert not [word for word in words if word.startswith(("--cluster", "--task"))]
    assert f"--lead=chief-0@resnet-chief-0.resnet.{NAMESPACE}.svc:2223" in words, (
        "it asks the chief's launcher, which is in no cluster of its own"
    )


topologies = st.one_of(
    st.fixed_dictionaries({"worker": st.integers(1, 40), "ps": st.integers(1, 9), "chief": st.just(1), "evaluator": st.integers(0, 1)}),
    st.fixed_dictionaries({"worker": st.integers(1, 40), "ps": st.just(0), "chief": st.integers(0, 1), "evaluator": st.integers(0, 1)}),
)


@hypothesis_settings(max_examples=60, deadline=None)
@given(topologies, st.sampled_from(["a", "resnet", "a" * 40]), st.integers(1024, 65534), st.data())
def test_one_template_says_to_every_task_who_it_is(counts: dict[str, int], name: str, port: int, data: st.DataObject) -> None:
    strategy = "parameter_server" if counts["ps"] else "multi_worker_mirrored"
    roles = {role: {"replicas": counts[role]} for role in ("worker", "ps", "chief")}
    evaluator = {"mode": "sidecar" if counts["evaluator"] else "none"}
    made = wanted(name=name, program="digits", strategy=strategy, port=port, evaluator=evaluator, **roles)
    task = data.draw(st.sampled_from(made.training.topology.tasks()))
    assert said(made, task.role, task.index) == tf_config(made.training.topology, task, made.address)


def test_the_index_stands_before_what_needs_it() -> None:
    for role in ("chief", "worker", "ps"):
        listed = [each["name"] for each in container_of(job(wanted(), role))["env"]]
        assert listed.index(INDEX) < listed.index("TF_CONFIG")


def test_hosts_are_the_addresses_in_tf_config() -> None:
    """An Indexed Job gives its pods its own name and their number as host names, and the subdomain leads to the headless Service."""
    made = wanted(evaluator={"mode": "sidecar"})
    service = tasks.service(made)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True, "tasks look for each other before they are ready"
    for role, count in made.counts.items():
        manifest = job(made, role)
        spec = manifest["spec"]
        assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", count, count)
        assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
        assert service["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()
        for index in range(count):
            host = f"{manifest['metadata']['name']}-{index}.{service['metadata']['name']}.{NAMESPACE}.svc"
            assert made.address(Task(role, index)) == f"{host}:2222"
        assert {port["name"]: port["containerPort"] for port in container_of(manifest)["ports"]} == {"tensorflow": 2222, "launcher": 2223}


def test_the_service_selects_tasks_and_nothing_beside_them() -> None:
    found = manifests("gke", None, resnet={**DIGITS, "tensorboard": {}, "serving": {}, "data_prep": {"command": ["true"]}})
    selector = of_kind(found, "Service")["resnet"]["spec"]["selector"]
    selected = {
        each["metadata"]["name"]
        for each in found
        if each["kind"] in ("Job", "Deployment") and selector.items() <= each["spec"]["template"]["metadata"]["labels"].items()
    }
    assert selected == {"resnet-chief", "resnet-worker", "resnet-ps"}


def test_the_number_of_objects_does_not_grow() -> None:
    """Neither with the workers nor with the parameter servers."""
    everything = {**DIGITS, "evaluator": {"mode": "sidecar"}, "tensorboard": {}, "serving": {}}
    few, many = (
        manifests("gke", None, resnet={**everything, "worker": {"replicas": workers}, "ps": {"replicas": servers}})
        for workers, servers in ((4, 1), (4096, 64))
    )
    assert Counter(each["kind"] for each in few) == Counter(each["kind"] for each in many)
    assert max(len(json.dumps(each)) for each in many) < 1_000_000, "etcd takes 1.5 MB"


def test_what_ops_needs_to_know_of_a_run_is_on_its_service() -> None:
    made = wanted(args={"epochs": 5}, run="2", evaluator={"mode": "sidecar"})
    about = json.loads(tasks.service(made)["metadata"]["annotations"][names.RUN])
    root = "gs://some-project-dev"
    assert about == {
        "stack": "dev",
        "training": "resnet",
        "run": "2",
        "strategy": "parameter_server",
        "topology": {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1},
        "checkpoint_dir": f"{root}-checkpoints/resnet/checkpoints/2",
        "log_dir": f"{root}-logs/resnet/2",
        "model_dir": f"{root}-checkpoints/resnet/models/2",
        "settings": {**DIGITS, "args": {"epochs": 5}, "run": "2", "evaluator": {"mode": "sidecar"}},
    }


# --------------------------------------------------------------------------------------------------- their ends


def action(rules: list[Manifest], exit_code: int, disrupted: bool) -> str:
    """What Kubernetes does with a failed pod: the first rule that matches counts, and without one the failure is counted."""
    for rule in rules:
        if "onExitCodes" in rule:
            wanted_codes, operator = rule["onExitCodes"]["values"], rule["onExitCodes"]["operator"]
            assert rule["onExitCodes"].get("containerName", "task") == "task", "or it would never match"
            if (exit_code in wanted_codes) == (operator == "In"):
                return rule["action"]
        if any((each["type"], each["status"]) == ("DisruptionTarget", "True") for each in rule.get("onPodConditions", [])) and disrupted:
            return rule["action"]
    return "Count"


@pytest.mark.parametrize("disrupted", [False, True], ids=["by itself", "its node is drained"])
@pytest.mark.parametrize("exit_code", [1, 2, 69, 75, 78, 134, 137, 143])
def test_the_job_and_the_supervisor_agree_on_exit_codes(exit_code: int, disrupted: bool) -> None:
    """0 is no failure, and no policy is asked."""
    done = action(tasks.failure_rules(), exit_code, disrupted)
    assert (done in ("FailJob", "FailIndex")) == outcome.final(exit_code)
    assert (done == "FailJob") == (exit_code == outcome.CONFIGURATION), "a configuration error is everybody's"
    if not outcome.final(exit_code):
        assert (done == "Count") == (outcome.counts(exit_code) and not disrupted), "an eviction is not the task's fault"


def test_the_policy_is_that_of_every_role_and_of_the_container_that_runs() -> None:
    made = wanted(evaluator={"mode": "sidecar"})
    for role in made.counts:
        spec = job(made, role)["spec"]
        assert spec["podFailurePolicy"]["rules"] == tasks.failure_rules()
        assert container_of(job(made, role))["name"] == "task"
        assert spec["template"]["spec"]["restartPolicy"] == "Never", "the policy needs it"
        assert spec["podReplacementPolicy"] == "Failed", "the next pod of an index comes when the one before is gone, also from its address"


@pytest.mark.parametrize(
    ("training", "may_fail"),
    [
        ({**DIGITS, "worker": {"replicas": 4}, "ps": {"replicas": 3}}, {"chief": 0, "worker": 3, "ps": 0}),
        ({**DIGITS, "worker": {"replicas": 1}}, {"chief": 0, "worker": 0, "ps": 0}),
        ({**DIGITS, "evaluator": {"mode": "sidecar"}}, {"chief": 0, "worker": 1, "ps": 0, "evaluator": 0}),
        (MIRRORED, {"worker": 0}),
        ({**MIRRORED, "chief": {}}, {"chief": 0, "worker": 0}),
        ({"program": "digits", "tier": "basic"}, {"worker": 0}),
        ({"program": "digits", "tier": "premium_1"}, {"chief": 0, "worker": 18, "ps": 0}),
    ],
)
def test_a_job_fails_when_the_run_does(training: dict[str, Any], may_fail: dict[str, int]) -> None:
    made = wanted(**training)
    specs = {role: job(made, role)["spec"] for role in made.counts}
    assert {role: spec["maxFailedIndexes"] for role, spec in specs.items()} == may_fail
    topology, strategy = made.training.topology, made.training.chosen_strategy
    for role, count in made.counts.items():
        if role == "evaluator":
            continue  # its Job may fail, and the run does not
        for failed in range(count + 1):
            gone = [Task(role, count - 1 - index) for index in range(failed)]  # the last ones first: worker 0 may be the lead
            assert (failed > may_fail[role]) == bool(outcome.why_the_run_fails(topology, strategy, gone)), (role, failed)


@pytest.mark.parametrize("restarts", [0, 3])
def test_each_task_has_its_own_restarts(restarts: int) -> None:
    assert {job(wanted(max_restarts=restarts), role)["spec"]["backoffLimitPerIndex"] for role in ("chief", "worker", "ps")} == {restarts}
    assert "backoffLimit" not in job(wanted(), "worker")["spec"], "which would count all tasks together"


def test_limits_are_there_where_they_are_written() -> None:
    for role in ("chief", "worker", "ps"):
        spec = job(wanted(), role)["spec"]
        assert not {"activeDeadlineSeconds", "ttlSecondsAfterFinished"} & set(spec)
        spec = job(wanted(deadline="2h", ttl_after_finished="1h"), role)["spec"]
        assert (spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (7200, 3600)


def options_of(made: Wanted, role: str) -> list[str]:
    """The options of the launcher, before the command."""
    words = container_of(job(made, role))["command"]
    assert words[:2] == ["python3", "/trainstack/launcher.py"]
    return words[2 : words.index("--")]


def test_the_lead_stays_until_everybody_has_heard_of_the_end() -> None:
    made = wanted(evaluator={"mode": "sidecar"}, tensorboard={}, peer_timeout="90s")
    farewell = ["--farewell=90", "--tell=evaluator-0"]
    assert [option for option in options_of(made, "chief") if option.startswith(("--farewell", "--tell"))] == farewell
    for role in ("worker", "ps", "evaluator"):
        assert not [option for option in options_of(made, role) if option.startswith(("--farewell", "--tell"))]
    assert "--farewell=900" in options_of(wanted(**MIRRORED), "worker"), "without a chief, worker 0 is the lead"
    assert all("--peer-timeout=90" in options_of(made, role) and "--grace=120" in options_of(made, role) for role in made.counts)


def test_the_lead_is_told_when_it_has_stalled() -> None:
    made = wanted(stall_timeout="10m")
    assert "--stall-timeout=600" in options_of(made, "chief")
    for role in ("worker", "ps"):
        assert not [option for option in options_of(made, role) if option.startswith("--stall-timeout")]
    assert "--stall-timeout=1800" in options_of(wanted(**MIRRORED), "worker"), "without a chief, worker 0 is the lead"


def test_the_kubelet_looks_after_the_launcher() -> None:
    """A launcher that is stopped does not end by itself; it has nothing to save, so it gets little time."""
    for role in ("chief", "worker", "ps"):
        probe = container_of(job(wanted(), role))["livenessProbe"]
        assert probe["httpGet"] == {"path": "/alive", "port": "launcher"}, (
            "not what the readiness asks: scanners take two equal probes for a mistake"
        )
        assert probe["periodSeconds"] * probe["failureThreshold"] <= 30
        assert probe["terminationGracePeriodSeconds"] < 30
    assert outcome.STALLED not in [
        code
        for rule in job(wanted(), "chief")["spec"]["podFailurePolicy"]["rules"]
        for code in rule.get("onExitCodes", {}).get("values", [])
    ], "a stall is tried again, and counted"


def test_a_command_is_started_by_the_launcher_too() -> None:
    made = wanted(**COMMAND)
    words = container_of(job(made, "chief"))["command"]
    assert words[words.index("--") + 1 :] == ["python", "train.py"]
    assert "--wait-for-servers" in options_of(made, "chief"), "it may not wait itself"
    assert "--wait-for-servers" not in options_of(wanted(), "chief")
    assert container_of(job(made, "chief"))["image"] == DIGEST


# ------------------------------------------------------------------------------------------- what a person wrote

texts = st.text(st.sampled_from("$()aHOME{}\\'\" "), max_size=20)


@given(texts)
def test_what_a_person_wrote_is_not_expanded(text: str) -> None:
    assert expanded(pods.literal(text), {"HOME": "/home/trainer", "aHOME": "x", "": "empty"}) == text


@pytest.mark.parametrize("text", ["$(HOME)", "$$(HOME)", "$$", "a$", "$((1+2))", "${HOME}", "$HOME"])
def test_commands_arguments_and_variables_arrive_as_they_are_written(text: str) -> None:
    made = wanted(
        command=["sh", "-c", text],
        image=DIGEST,
        args={"name": text},
        env={"VALUE": text},
        worker={},
        ps={},
        data_dir=f"gs://bucket/{text}",
        model_dir=f"gs://models/{text}",
        log_dir=f"gs://logs/{text}",
        data_prep={"command": ["prepare", text]},
        tensorboard={},
        serving={},
    )
    manifest = job(made, "worker")
    assert environment_of_task(manifest, 1)["VALUE"] == text
    words = command_of_task(manifest, 1)
    assert words[words.index("--") + 1 :] == ["sh", "-c", text, f"--name={text}"]
    assert f"--revision={made.revision} {DIGEST}" in words, "what is meant to be expanded is"
    data_prep = command_of_task(beside.data_prep(made), 0)
    assert data_prep[data_prep.index("--") + 1 :] == ["prepare", text]
    assert f"--marker=gs://bucket/{text}" in data_prep
    assert f"--logdir=gs://logs/{text}/1" in command_of_task(beside.tensorboard(made, "revision"), 0)
    assert f"--model_base_path=gs://models/{text}/1" in command_of_task(beside.serving(made), 0)


# --------------------------------------------------------------------------------------------------- the revision


@pytest.mark.parametrize(
    "changes",
    [
        {"args": {"epochs": 6}},
        {"worker": {"replicas": 3}},
        {"ps": {"replicas": 2}},
        {"evaluator": {"mode": "sidecar"}},
        {"port": 3333},
        {"run": "2"},
        {"env": {"LOG_LEVEL": "debug"}},
        {"mixed_precision": True},
        {"checkpoint_dir": "gs://elsewhere"},
        {"resume_from": "0"},
        {"program": "trainer.programs.digits"},
    ],
    ids=str,
)
def test_what_changes_the_tasks_changes_the_revision(changes: dict[str, Any]) -> None:
    assert wanted(**{**DIGITS, **changes}).revision != wanted(**DIGITS).revision


@pytest.mark.parametrize(
    "changes",
    [
        {"tensorboard": {}},
        {"tensorboard": {"keep": "2h", "expose": "load_balancer", "allowed_cidrs": ["10.0.0.0/8"]}},
        {"serving": {}},
        {"serving": {"replicas": 2, "cpu": 2}},
        {"egress": ["10.0.0.0/8"]},
    ],
    ids=str,
)
def test_what_is_beside_the_tasks_leaves_them_alone(changes: dict[str, Any]) -> None:
    """Whoever adds a TensorBoard to a running training does not interrupt it."""
    with_it, without = wanted(**{**DIGITS, **changes}), wanted(**DIGITS)
    assert with_it.revision == without.revision
    for role in without.counts:
        assert job(with_it, role) == job(without, role)


def test_another_launcher_is_another_revision(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    before = wanted().revision
    other = tmp_path / "launcher.py"
    other.write_text("# another one\n")
    monkeypatch.setattr(launcher, "__file__", str(other))
    assert wanted().revision != before


def test_the_image_comes_to_the_revision() -> None:
    """Pulumi may not know it when the objects are declared, so it stands beside the hash."""
    found = manifests("gke", None, resnet=DIGITS)
    revisions = {environment_of(each)["TRAINSTACK_REVISION"] for each in found if each["kind"] == "Job"}
    (revision,) = revisions
    image = container_of(of_kind(found, "Job")["resnet-worker"])["image"]
    assert revision == f"{wanted().revision} {image}"
