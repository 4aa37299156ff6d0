"""The GKE environment through the real engine on the simulated cloud: what `up`, `preview`, `refresh` and `destroy` do, and what a person reads."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cloud import google
from tests.cloud.cloud import Cloud, Fault
from tests.cloud.kinds import UNKNOWN
from tests.conftest import ROOT
from tests.infra.simulation import Simulation, simulation

pytestmark = pytest.mark.engine

ENVIRONMENTS = ("dev", "staging", "prod")
GOLDEN = Path(__file__).parent / "golden"
POOL = "projects/some-project/locations/us-central1-a/clusters/trainstack-dev/nodePools/gpu-l4-1-spot"


def workers(dev: Simulation, **changes: Any) -> dict[str, Any]:
    return {**dev.config["trainstack:trainings"]["digits"]["worker"], **changes}


def test_an_environment_comes_up_changes_and_goes(dev: Simulation) -> None:
    assert set(dev.preview()) == {"create"}
    assert set(dev.up()) == {"create"}
    assert dev.up().keys() == {"same"}, "a second up changes nothing"

    dev.training(worker=workers(dev, replicas=8))
    assert dev.preview() == {"update": ["pool-gpu-l4-1-spot"]}
    dev.up()
    pool = next(each for each in dev.cloud.resources() if each.id == POOL)
    assert pool.inputs["autoscaling"]["totalMaxNodeCount"] == 8

    dev.training(worker=workers(dev, accelerator="t4"))
    assert dev.preview() == {"create": ["pool-gpu-t4-1-spot"], "delete": ["pool-gpu-l4-1-spot"]}, (
        "another accelerator is another pool, no more"
    )
    dev.up()
    assert {each.inputs["name"] for each in dev.cloud.resources(google.NODE_POOL)} == {"cpu", "gpu-t4-1-spot"}

    dev.destroy()
    assert dev.left() == []
    assert dev.state().get("resources", []) == []
    assert "some-project/container.googleapis.com" in dev.cloud.enabled, "services stay enabled"


def test_only_the_maximum_of_the_pool_changes_with_the_number_of_workers(dev: Simulation) -> None:
    dev.up()
    dev.training(worker=workers(dev, replicas=8))
    events: list[Any] = []
    dev.stack.preview(diff=True, on_event=events.append)
    changed = [
        event.resource_pre_event.metadata
        for event in events
        if event.resource_pre_event and event.resource_pre_event.metadata.op.value == "update"
    ]
    assert [list(each.detailed_diff) for each in changed] == [["autoscaling.totalMaxNodeCount"]]


@pytest.mark.parametrize("registry", [{}, {"domain": "gcr.io", "create": False}], ids=["a registry that is made", "one that is used"])
def test_the_first_preview_asks_google_nothing(dev: Simulation, registry: dict[str, Any]) -> None:
    dev.write(registry=registry)
    dev.preview()
    assert dev.cloud.log == []


def test_refresh_finds_a_pool_that_was_resized_by_hand(dev: Simulation) -> None:
    dev.up()
    dev.cloud.change(POOL, "autoscaling.totalMaxNodeCount", 99)
    changes = dev.stack.refresh().summary.resource_changes or {}
    assert changes["update"] == 1
    assert dev.preview() == {"update": ["pool-gpu-l4-1-spot"]}
    dev.up()
    assert next(each for each in dev.cloud.resources() if each.id == POOL).inputs["autoscaling"]["totalMaxNodeCount"] == 2


def test_no_secret_is_in_plain_text_in_state_or_on_the_screen(dev: Simulation) -> None:
    dev.add_secrets()
    shown = dev.stack.up(color="never").stdout
    (version,) = dev.cloud.resources(google.SECRET_VERSION)
    (key,) = dev.cloud.resources(google.KEY)
    assert version.inputs["secretData"] == "hunter2", "it has arrived where it belongs"
    (mounted,) = dev.cloud.resources("kubernetes:core/v1:Secret")
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


def test_a_protected_stack_is_not_destroyed_and_its_buckets_are_found_again(tmp_path: Path) -> None:
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


def test_a_deleted_bucket_takes_its_objects_along(dev: Simulation) -> None:
    dev.up()
    dev.cloud.put_object("some-project-dev-checkpoints", "digits/checkpoints/1/step-40/manifest.json")
    dev.destroy()
    assert dev.left() == []


def test_two_stacks_share_the_one_gcr_repository(tmp_path: Path) -> None:
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
    import subprocess

    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PULUMI", "MFLAGS", "GOOGLE", "CLOUDSDK"))}
    return subprocess.run(
        ["make", *arguments, "CLOUD=simulated", f"STATE={folder}"], cwd=ROOT, env=clean, capture_output=True, text=True, timeout=180
    )


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_the_preview_of_an_environment_is_the_golden_one(tmp_path: Path, environment: str) -> None:
    """Run with UPDATE_GOLDEN=1 to accept what has changed, and read the difference before it is committed."""
    shown = make(tmp_path, "preview", f"STACK={environment}")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert re.search(r"\+ \d+ to create", shown.stdout)
    for output in ("buckets", "cluster", "console", "identity", "image", "kubeconfig", "on_destroy", "readme", "registry", "trainings"):
        assert re.search(rf"^ +{output} *:", shown.stdout, re.MULTILINE), f"{output} is not among the outputs"
    with simulation(tmp_path / "again", environment) as stack:
        plan = planned(stack)
    golden = GOLDEN / f"{environment}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(plan)
    assert plan == golden.read_text(), "read the difference; UPDATE_GOLDEN=1 accepts it"


def planned(stack: Simulation) -> str:
    """The plan as a page that can be read and compared: every resource with its inputs."""
    events: list[Any] = []
    stack.stack.preview(on_event=events.append)
    made = [event.resource_pre_event.metadata.new for event in events if event.resource_pre_event]
    resources = {
        f"{each.urn.rpartition('::')[2]} {each.type}": inputs(each) for each in made if each.custom and not each.type.startswith("pulumi:")
    }
    return yaml.safe_dump(resources, width=120)


def inputs(state: Any) -> dict[str, Any]:
    options = {key: True for key in ("protect", "retain_on_delete") if getattr(state, key)}
    text = json.dumps({key: value for key, value in state.inputs.items() if key != "__defaults"})
    return {**json.loads(text.replace(UNKNOWN, "(known after it is made)")), **options}


def test_make_up_and_down_on_the_simulated_cloud(tmp_path: Path) -> None:
    assert make(tmp_path, "up", "STACK=staging").returncode == 0
    down = make(tmp_path, "down", "STACK=staging")
    assert down.returncode == 0, down.stdout + down.stderr
    assert "data: {existing: simulated-project-staging-data}" in down.stdout, "destroy says what stays, and how to use it again"
    assert [each.id for each in Cloud(tmp_path / "cloud.json").resources()] == ["simulated-project-staging-data"]


def test_a_missing_project_is_asked_for_by_name(dev: Simulation) -> None:
    del dev.config["gcp:project"]
    dev.write()
    said = dev.refused()
    assert "gcp:project: target gke needs your Google Cloud project; run `pulumi config set gcp:project MY-PROJECT`." in " ".join(
        said.split()
    )
    assert "Traceback" not in said
