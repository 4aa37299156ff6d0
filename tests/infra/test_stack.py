"""The GKE environment through the real engine on the simulated cloud: what `up`, `preview`, `refresh` and `destroy` do, and what a person reads."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cloud import google
from tests.cloud.cloud import Cloud, Fault
from tests.cloud.kinds import UNKNOWN
from tests.conftest import ROOT, eventually
from tests.infra.simulation import Simulation, simulation

pytestmark = pytest.mark.engine

GOLDEN = Path(__file__).parent / "golden"
POOL = "projects/some-project/locations/us-central1-a/clusters/trainstack-dev/nodePools/gpu-l4-1-spot"


def workers(dev: Simulation, **changes: Any) -> dict[str, Any]:
    return {**dev.config["trainstack:trainings"]["digits"]["worker"], **changes}


# What is started again when the tasks change.
TASKS = ("chief", "worker", "ps", "evaluator", "tensorboard")


ENV = "spec.template.spec.containers.env.value"


def changed_fields(stack: Simulation) -> dict[str, tuple[str, list[str]]]:
    """What a preview shows as changed: from a resource to the operation and the fields."""
    _, events = stack.engine("preview", diff=True)
    shown = [event.resource_pre_event.metadata for event in events if event.resource_pre_event]
    return {
        metadata.urn.rpartition("::")[2]: (metadata.op.value, [re.sub(r"\[\d+\]", "", path) for path in metadata.detailed_diff])
        for metadata in shown
        if metadata.op.value in ("create", "update", "replace", "delete")
    }


def changes(stack: Simulation) -> dict[str, set[str]]:
    """What a preview shows: what a replacement consists of is not told again."""
    return {op: set(names) for op, names in stack.preview().items() if op not in ("create-replacement", "delete-replaced")}


def test_an_environment_comes_up_changes_and_goes(dev: Simulation) -> None:
    assert set(dev.preview()) == {"create"}
    assert set(dev.up()) == {"create"}
    assert dev.up().keys() == {"same"}, "a second up changes nothing"

    dev.training(worker=workers(dev, replicas=8))
    assert changed_fields(dev) == {
        "pool-gpu-l4-1-spot": ("update", ["autoscaling.totalMaxNodeCount"]),
        "digits-service": ("update", ['metadata.annotations["trainstack/run"]']),
        "digits-worker": ("replace", ["spec.completions", "spec.maxFailedIndexes", "spec.parallelism", ENV, ENV]),
        "digits-chief": ("replace", [ENV, ENV]),
        "digits-ps": ("replace", [ENV, ENV]),
        "digits-evaluator": ("replace", [ENV]),
        "digits-tensorboard": ("replace", [ENV]),
    }, "of the pool the maximum changes, of the workers' Job their number, of every task its TF_CONFIG or its revision"
    assert dev.up().keys() == {"same", "update", "replace"}
    pool = next(each for each in dev.cloud.resources() if each.id == POOL)
    assert pool.inputs["autoscaling"]["totalMaxNodeCount"] == 8

    dev.destroy()
    assert dev.left() == []
    assert dev.state().get("resources", []) == []
    assert "some-project/container.googleapis.com" in dev.cloud.enabled, "services stay enabled"


@pytest.mark.full
def test_another_accelerator_is_another_pool(live_dev: Simulation) -> None:
    live_dev.training(worker=workers(live_dev, accelerator="t4"))
    assert changes(live_dev) == {
        "create": {"pool-gpu-t4-1-spot"},
        "update": {"digits-service"},
        "replace": {"digits-worker"},
        "delete": {"pool-gpu-l4-1-spot"},
    }, "another accelerator is another pool, and workers that go there, no more"
    live_dev.up()
    assert {each.inputs["name"] for each in live_dev.cloud.resources(google.NODE_POOL)} == {"cpu", "gpu-t4-1-spot"}


def test_what_is_beside_a_training_comes_and_goes_without_it(live_dev: Simulation) -> None:
    training = live_dev.config["trainstack:trainings"]["digits"]
    live_dev.write(trainings={"digits": {key: value for key, value in training.items() if key not in ("tensorboard", "serving")}})
    assert changes(live_dev) == {
        "delete": {"digits-tensorboard", "digits-tensorboard-service", "digits-serving", "digits-serving-service", "digits-policy-serving"},
        "update": {"digits-service", "pool-cpu"},
    }, "no task is touched"


@pytest.mark.full
def test_a_new_run_replaces_the_tasks_and_a_new_launcher_does(live_dev: Simulation) -> None:
    before = dict(live_dev.config)
    live_dev.training(run="2")
    replaced = changes(live_dev)
    assert replaced["replace"] == {f"digits-{each}" for each in TASKS}
    assert not {"create", "delete"} & set(replaced)
    live_dev.config = before
    live_dev.write()
    other = live_dev.folder / "launcher.py"
    other.write_text("# another one\n")
    live_dev.launcher = str(other)
    assert changes(live_dev) == {"update": {"digits-launcher"}, "replace": {f"digits-{each}" for each in TASKS}}, (
        "the ConfigMap is changed in place"
    )


# ------------------------------------------------------------------------------------------------------- going down

CLAIM = {"claim": "ckpt", "create": True, "size": "10Gi", "path": "/ckpt", "roles": ["chief"]}
KUBERNETES, CLAIMS = "kubernetes:", "kubernetes:core/v1:PersistentVolumeClaim"


def deleted(stack: Simulation) -> list[str]:
    """The types of what was deleted, in that order."""
    return [call.type for call in stack.cloud.log if call.call == "delete" and not call.error]


def test_nothing_of_kubernetes_is_left_when_the_nodes_go(dev: Simulation) -> None:
    dev.training(volumes=[CLAIM], tensorboard={"expose": "ingress", "allowed_cidrs": ["203.0.113.0/24"]})
    dev.up()
    there = {each.type for each in dev.cloud.resources(f"{KUBERNETES}*")}
    dev.destroy()
    assert dev.left() == []
    order = deleted(dev)
    last = {kind: max(index for index, each in enumerate(order) if each == kind) for kind in {*order}}
    first = {kind: order.index(kind) for kind in {*order}}
    namespace = "kubernetes:core/v1:Namespace"
    for kind in there - {namespace}:
        assert last[kind] < first[namespace], f"{kind} goes by itself, and not with its namespace"
    for kind in (google.NODE_POOL, google.CLUSTER, "gcp:serviceaccount/iAMMember:IAMMember", google.BUCKET, "gcp:dns/recordSet:RecordSet"):
        assert last[namespace] < first[kind], f"tasks that save need {kind}"
    assert last["kubernetes:networking.k8s.io/v1:Ingress"] < first["gcp:compute/securityPolicy:SecurityPolicy"]
    gone = [f"{call.type.rpartition(':')[2]} {call.id}" for call in dev.cloud.log if call.call == "delete"]
    for role in ("chief", "worker", "ps", "evaluator"):
        assert gone.index(f"Job trainstack-dev/digits-{role}") < gone.index("Service trainstack-dev/digits"), (
            "they find each other while they save"
        )


@pytest.mark.full
def test_the_cluster_stays_until_the_disks_are_gone(dev: Simulation) -> None:
    """A claim's deletion is not its disk's. Here one stays for a while after the namespace has gone."""
    dev.training(volumes=[CLAIM])
    dev.up()
    (claim,) = dev.cloud.resources(CLAIMS)
    lingering = dataclasses.replace(claim, scope="for a while", parents={})
    with dev.cloud.opened(write=True) as state:
        state.resources[lingering.key] = lingering
    with (dev.folder / "destroy.log").open("w") as log:
        command = ["pulumi", *dev.of_this_stack("destroy", "--yes")]
        engine = subprocess.Popen(command, cwd=ROOT, env=dev.environment, stdout=log, stderr=log)
        try:
            eventually(lambda: "kubernetes:core/v1:Namespace" in deleted(dev) or engine.poll() is not None, 40, "the namespace stays")
            time.sleep(2)
            assert engine.poll() is None, (dev.folder / "destroy.log").read_text()
            assert google.NODE_POOL not in deleted(dev)
            assert google.CLUSTER not in deleted(dev)
            with dev.cloud.opened(write=True) as state:
                del state.resources[lingering.key]
            assert engine.wait(120) == 0, (dev.folder / "destroy.log").read_text()
        finally:
            engine.kill()
    assert dev.left() == []


@pytest.mark.parametrize("registry", [{}, {"domain": "gcr.io", "create": False}], ids=["a registry that is made", "one that is used"])
def test_the_first_preview_asks_google_nothing(dev: Simulation, registry: dict[str, Any]) -> None:
    dev.write(registry=registry)
    dev.preview()
    assert dev.cloud.log == []


def test_refresh_finds_a_pool_that_was_resized_by_hand(live_dev: Simulation) -> None:
    look = ("refresh", "--preview-only", "--expect-no-changes", "--run-program")  # `make drift`
    live_dev.pulumi(*look)
    live_dev.cloud.change(POOL, "autoscaling.totalMaxNodeCount", 99)
    drift = live_dev.pulumi(*look, check=False)
    assert drift.returncode != 0
    assert "pool-gpu-l4-1-spot" in drift.stdout
    changes = live_dev.engine("refresh")[0].summary.resource_changes or {}
    assert changes["update"] == 1
    assert live_dev.preview() == {"update": ["pool-gpu-l4-1-spot"]}
    live_dev.up()
    assert next(each for each in live_dev.cloud.resources() if each.id == POOL).inputs["autoscaling"]["totalMaxNodeCount"] == 2


def test_no_secret_is_in_plain_text_in_state_or_on_the_screen(dev: Simulation) -> None:
    dev.add_secrets()
    shown = dev.engine("up", color="never")[0].stdout
    (version,) = dev.cloud.resources(google.SECRET_VERSION)
    (key,) = dev.cloud.resources(google.KEY)
    assert version.inputs["secretData"] == "hunter2", "it has arrived where it belongs"
    mounted, shared = (
        next(each for each in dev.cloud.resources("kubernetes:core/v1:Secret") if each.id.endswith(f"/{name}"))
        for name in ("credential", "secrets")
    )
    assert shared.inputs["stringData"] == {"API_KEY": "hunter2"}
    assert json.loads(mounted.inputs["stringData"]["key.json"])["type"] == "service_account"
    private = key.outputs["privateKey"]
    state = json.dumps(dev.state())
    outputs = json.dumps({name: "a secret" if output.secret else output.value for name, output in dev.stack.outputs().items()})
    everywhere = [path.read_text(errors="ignore") for path in (dev.folder / "state").rglob("*") if path.is_file()]
    for hidden in ("hunter2", private, json.loads(mounted.inputs["stringData"]["key.json"])["private_key"]):
        assert [text for text in (shown, state, outputs, *everywhere) if hidden in text] == []
    assert dev.stack.outputs()["kubeconfig"].secret


REFUSALS = [
    (google.BUCKET, google.NAME_TAKEN, "{existing: some-project-dev-"),
    (google.CLUSTER, google.API_DISABLED, "run `gcloud services enable container.googleapis.com --project=some-project`"),
    (google.CLUSTER, google.PERMISSION_DENIED, "lacks the permission container.clusters.create in some-project"),
    (
        google.NODE_POOL,
        google.QUOTA,
        "not enough quota for NVIDIA_L4_GPUS; ask for more at https://console.cloud.google.com/iam-admin/quotas",
    ),
]


def test_what_google_refuses_comes_with_what_to_do_next(dev: Simulation) -> None:
    for kind, message, advice in REFUSALS:
        dev.cloud.script([Fault(type=kind, message=message)])
        said = dev.refused()
        assert advice in " ".join(said.split())
        assert "Traceback" not in said
    assert set(dev.up()) <= {"create", "same"}, "the same command again goes on where it stopped"


@pytest.mark.full
def test_a_protected_stack_is_not_destroyed_and_its_buckets_are_found_again(tmp_path: Path) -> None:
    """Four times `up` and three times `destroy`, because each step of the advice is followed as it is printed."""
    with simulation(tmp_path / "prod", "prod") as prod:
        prod.up()
        before = [(each.type, each.id) for each in prod.cloud.resources()]
        said = prod.destroy(check=False)
        assert "protect" in said
        assert [(each.type, each.id) for each in prod.cloud.resources()] == before, "nothing is deleted"
        advice = prod.stack.outputs()["on_destroy"].value
        assert "deletion_protection: false" in advice

        prod.write(cluster={**prod.config["trainstack:cluster"], "deletion_protection": False})
        prod.up()
        first = prod.stack.outputs()
        place = first["trainings"].value["digits"]["checkpoint_dir"]
        bucket, _, path = place.removeprefix("gs://").partition("/")
        prod.cloud.put_object(bucket, f"{path}/step-40/manifest.json")
        advice = first["on_destroy"].value
        prod.destroy()
        assert {each.id for each in prod.left()} == {f"some-project-prod-{kind}" for kind in ("data", "checkpoints", "logs")}

        said = prod.refused()
        assert "checkpoints: {existing: some-project-prod-checkpoints}" in said, "a taken name says what to write"
        prod.write(**yaml.safe_load(advice.partition("write:\n")[2].replace("trainstack:", "")))
        prod.up()
        again = prod.stack.outputs()["trainings"].value["digits"]["checkpoint_dir"]
        assert again == place, "the run looks for its checkpoint where it left it"
        with prod.cloud.opened() as state:
            assert f"{path}/step-40/manifest.json" in state.objects[bucket]
        prod.destroy()
        assert len(prod.left()) == 3, "a bucket that was only used is never deleted"


def test_a_deleted_bucket_takes_its_objects_along(live_dev: Simulation) -> None:
    live_dev.cloud.put_object("some-project-dev-checkpoints", "digits/checkpoints/1/step-40/manifest.json")
    live_dev.destroy()
    assert live_dev.left() == []


@pytest.mark.full
def test_two_stacks_share_the_one_gcr_repository(tmp_path: Path) -> None:
    """Two whole environments come up, one of them twice."""
    with simulation(tmp_path / "both") as one:
        two = Simulation(one.folder, {**one.env}, "staging")
        for stack in (one, two):
            stack.write(registry={"domain": "gcr.io"})
        one.up()
        assert "{domain: gcr.io, create: false}" in two.refused()
        two.write(registry={"domain": "gcr.io", "create": False})
        two.up()
        assert two.stack.outputs()["image"].value.startswith("gcr.io/some-project/trainer:staging@sha256:")
        two.destroy()
        assert [each.inputs["repositoryId"] for each in one.cloud.resources(google.REPOSITORY)] == ["gcr.io"]


# ------------------------------------------------------------------------------------------------ as it is typed


def make(folder: Path, *arguments: str) -> Any:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PULUMI", "MFLAGS", "GOOGLE", "CLOUDSDK"))}
    return subprocess.run(
        ["make", *arguments, "CLOUD=simulated", f"STATE={folder}"], cwd=ROOT, env=clean, capture_output=True, text=True, timeout=180
    )


OUTPUTS = (
    *("buckets", "cluster", "console", "identity", "image", "kubeconfig", "on_destroy", "readme", "registry", "stack_settings"),
    "trainings",
)


@pytest.mark.full
@pytest.mark.parametrize("environment", ["dev", "staging", "prod"])
def test_make_preview_shows_every_output(tmp_path: Path, environment: str) -> None:
    shown = make(tmp_path, "preview", f"STACK={environment}")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert re.search(r"\+ \d+ to create", shown.stdout)
    for output in OUTPUTS:
        assert re.search(rf"^ +{output} *:", shown.stdout, re.MULTILINE), f"{output} is not among the outputs"


@pytest.mark.parametrize("environment", ["dev", *(pytest.param(name, marks=pytest.mark.full) for name in ("staging", "prod"))])
def test_the_plan_of_an_environment_is_the_golden_one(tmp_path: Path, environment: str) -> None:
    """Run with UPDATE_GOLDEN=1 to accept what has changed, and read the difference before it is committed."""
    with simulation(tmp_path / "again", environment) as stack:
        plan = planned(stack)
    golden = GOLDEN / f"{environment}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(plan)
    assert plan == golden.read_text(), "read the difference; UPDATE_GOLDEN=1 accepts it"


def planned(stack: Simulation) -> str:
    """The plan as a page that can be read and compared: every resource with its inputs."""
    _, events = stack.engine("preview")
    made = [event.resource_pre_event.metadata.new for event in events if event.resource_pre_event]
    resources = {
        f"{each.urn.rpartition('::')[2]} {each.type}": inputs(each) for each in made if each.custom and not each.type.startswith("pulumi:")
    }
    return yaml.safe_dump(resources, width=120)


def inputs(state: Any) -> dict[str, Any]:
    """Without the text of files, whose every change would change the plan."""
    options = {key: True for key in ("protect", "retain_on_delete") if getattr(state, key)}
    text = json.dumps({key: value for key, value in state.inputs.items() if key != "__defaults"})
    known = json.loads(text.replace(UNKNOWN, "(known after it is made)"))
    if state.type == "kubernetes:core/v1:ConfigMap":
        known["data"] = dict.fromkeys(known["data"], "(a file)")
    return {**known, **options}


@pytest.mark.full
def test_make_up_and_down_on_the_simulated_cloud(tmp_path: Path) -> None:
    assert make(tmp_path, "up", "STACK=staging").returncode == 0
    down = make(tmp_path, "down", "STACK=staging")
    assert down.returncode == 0, down.stdout + down.stderr
    assert "data: {existing: simulated-project-staging-data}" in down.stdout, "destroy says what stays, and how to use it again"
    assert (
        "Nothing else is left of stack staging in simulated-project.\nKept on purpose:\n  bucket simulated-project-staging-data"
        in down.stdout
    )
    assert [each.id for each in Cloud(tmp_path / "cloud.json").resources()] == ["simulated-project-staging-data"]


def test_a_missing_project_is_asked_for_by_name(dev: Simulation) -> None:
    del dev.config["gcp:project"]
    dev.write()
    said = dev.refused()
    assert "gcp:project: target gke needs your Google Cloud project; run `pulumi config set gcp:project MY-PROJECT`." in " ".join(
        said.split()
    )
    assert "Traceback" not in said
