"""The simulated cloud keeps its rules, and the real engine gets on with it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pulumi
import pulumi.automation as automation
import pytest

from tests.cloud import docker, google, kubernetes
from tests.cloud.cloud import Cloud, Fault, NeverAnswers
from tests.cloud.kinds import UNKNOWN, CloudError
from tests.cloud.provider import differences, replacing, serve, written
from tests.conftest import ROOT, eventually

HERE = {"project": "demo", "region": "europe-west4"}
MEMBER = "gcp:projects/iAMMember:IAMMember"
EMAIL = "nodes@demo.iam.gserviceaccount.com"


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    made = Cloud(tmp_path / "cloud.json")
    made.enable("demo", *google.API_TITLES)
    return made


def make(cloud: Cloud, type: str, /, **inputs: Any) -> str:
    return cloud.create(type, inputs, HERE).id


def make_cluster(cloud: Cloud, **inputs: Any) -> dict[str, str]:
    """A cluster, and the configuration of a kubernetes provider for it."""
    made = cloud.create(google.CLUSTER, {"name": "main", "deletionProtection": False, **inputs}, HERE)
    return {"kubeconfig": f"clusters: [{{server: 'https://{made.outputs['endpoint']}'}}]"}


# The rules.


def test_ids_are_those_of_the_real_providers(cloud: Cloud) -> None:
    network = make(cloud, google.NETWORK, name="main")
    subnetwork = make(cloud, google.SUBNETWORK, name="main", network=network)
    make_cluster(cloud, network=google.COMPUTE + network, subnetwork=subnetwork)
    make(cloud, google.NODE_POOL, name="cpu", cluster="main", location="europe-west4")
    make(cloud, google.ROUTER, name="main", network="main")
    make(cloud, "gcp:compute/routerNat:RouterNat", name="out", router="main")
    account = make(cloud, google.ACCOUNT, accountId="nodes")
    make(cloud, "gcp:serviceaccount/iAMMember:IAMMember", serviceAccountId=account, role="roles/x", member="user:a@b")
    make(cloud, MEMBER, role="roles/x", member=f"serviceAccount:{EMAIL}")
    make(cloud, google.BUCKET, name="data")
    make(cloud, "gcp:storage/bucketIAMMember:BucketIAMMember", bucket="data", role="roles/x", member="user:a@b")
    make(cloud, google.REPOSITORY, repositoryId="images")
    secret = make(cloud, google.SECRET, secretId="token")
    make(cloud, "gcp:secretmanager/secretIamMember:SecretIamMember", secretId="token", role="roles/x", member="user:a@b")
    make(cloud, google.SECRET_VERSION, secret=secret, secretData="1")
    make(cloud, google.SECRET_VERSION, secret=f"projects/{google.number('demo')}/secrets/token", secretData="2")
    make(cloud, google.ZONE, name="private")
    make(cloud, "gcp:dns/recordSet:RecordSet", managedZone="private", name="a.b.", type="A")
    assert [one.id for one in cloud.resources()] == [
        "projects/demo/global/networks/main",
        "projects/demo/regions/europe-west4/subnetworks/main",
        "projects/demo/locations/europe-west4/clusters/main",
        "projects/demo/locations/europe-west4/clusters/main/nodePools/cpu",
        "projects/demo/regions/europe-west4/routers/main",
        "demo/europe-west4/main/out",
        f"projects/demo/serviceAccounts/{EMAIL}",
        f"projects/demo/serviceAccounts/{EMAIL}/roles/x/user:a@b",
        f"demo/roles/x/serviceAccount:{EMAIL}",
        "data",
        "b/data/roles/x/user:a@b",
        "projects/demo/locations/europe-west4/repositories/images",
        "projects/demo/secrets/token",
        "projects/demo/secrets/token/roles/x/user:a@b",
        f"projects/{google.number('demo')}/secrets/token/versions/1",
        f"projects/{google.number('demo')}/secrets/token/versions/2",
        "projects/demo/managedZones/private",
        "projects/demo/managedZones/private/rrsets/a.b./A",
    ]


def test_a_name_is_taken_once(cloud: Cloud) -> None:
    make(cloud, google.BUCKET, name="data")
    with pytest.raises(CloudError, match=r"you already own it\., conflict"):
        make(cloud, google.BUCKET, name="data")
    make(cloud, google.NETWORK, name="main")
    with pytest.raises(CloudError, match=r"Already exists: projects/demo/global/networks/main\., alreadyExists"):
        make(cloud, google.NETWORK, name="main")
    assert cloud.creations == 2
    assert [(call.type, bool(call.error)) for call in cloud.log] == [
        (google.BUCKET, False),
        (google.BUCKET, True),
        (google.NETWORK, False),
        (google.NETWORK, True),
    ]


def test_a_member_can_be_made_twice_and_is_there_once(cloud: Cloud) -> None:
    for _ in range(2):
        make(cloud, MEMBER, role="roles/x", member="user:a@b")
    assert (len(cloud.resources()), cloud.creations) == (1, 1)


def test_an_api_must_be_enabled_in_the_project_itself(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path / "cloud.json")
    with pytest.raises(CloudError, match=r"Kubernetes Engine API has not been used in project demo .* SERVICE_DISABLED"):
        make_cluster(cloud)
    service = make(cloud, google.SERVICE, service="container.googleapis.com", disableOnDestroy=False)
    make_cluster(cloud)
    with pytest.raises(CloudError, match="project other"):
        make_cluster(cloud, project="other")
    cloud.delete(google.SERVICE, service, HERE)
    assert cloud.enabled == ["demo/container.googleapis.com"]
    cloud.delete(google.SERVICE, make(cloud, google.SERVICE, service="container.googleapis.com", disableOnDestroy=True), HERE)
    assert cloud.enabled == []


def test_a_project_must_be_said(cloud: Cloud) -> None:
    with pytest.raises(CloudError, match=r"^project: required field is not set$"):
        cloud.create(google.NETWORK, {"name": "main"}, {})


@pytest.mark.parametrize(
    ("type", "inputs"),
    [
        (google.SUBNETWORK, {"name": "main", "network": "projects/demo/global/networks/main"}),
        (google.CLUSTER, {"name": "main", "subnetwork": "projects/demo/regions/europe-west4/subnetworks/main"}),
        (google.NODE_POOL, {"name": "cpu", "cluster": "main"}),
        (google.KEY, {"serviceAccountId": EMAIL}),
        (google.SECRET_VERSION, {"secret": "projects/demo/secrets/token"}),
        ("gcp:storage/bucketIAMMember:BucketIAMMember", {"bucket": "data", "role": "r", "member": "user:a@b"}),
        (MEMBER, {"role": "r", "member": f"serviceAccount:{EMAIL}"}),
        (docker.IMAGE, {"push": True, "tags": ["europe-west4-docker.pkg.dev/demo/images/trainer:1"]}),
        (docker.IMAGE, {"push": True, "tags": ["gcr.io/demo/trainer:1"]}),
    ],
)
def test_a_parent_must_exist(cloud: Cloud, type: str, inputs: dict[str, Any]) -> None:
    with pytest.raises(CloudError, match="not found"):
        make(cloud, type, **inputs)
    assert cloud.resources() == []


def test_the_account_of_a_node_pool_must_exist(cloud: Cloud) -> None:
    make_cluster(cloud)
    with pytest.raises(CloudError, match=f"not found: .*{EMAIL}"):
        make(cloud, google.NODE_POOL, name="cpu", cluster="main", nodeConfig={"serviceAccount": EMAIL})
    make(cloud, google.ACCOUNT, accountId="nodes")
    make(cloud, google.NODE_POOL, name="cpu", cluster="main", nodeConfig={"serviceAccount": EMAIL})


def test_the_name_of_somebody_elses_network_is_allowed(cloud: Cloud) -> None:
    make_cluster(cloud, network="shared", subnetwork="shared")


def test_an_identity_pool_exists_after_the_first_cluster_that_uses_it(cloud: Cloud) -> None:
    member = {"role": "roles/x", "member": "serviceAccount:demo.svc.id.goog[default/trainer]"}
    with pytest.raises(CloudError, match=r"Identity Pool does not exist \(demo.svc.id.goog\)"):
        make(cloud, MEMBER, **member)
    make_cluster(cloud, workloadIdentityConfig={"workloadPool": "demo.svc.id.goog"})
    make(cloud, MEMBER, **member)


def test_what_is_in_use_is_not_deleted(cloud: Cloud) -> None:
    network = make(cloud, google.NETWORK, name="main")
    subnetwork = make(cloud, google.SUBNETWORK, name="main", network="main")
    make_cluster(cloud, network=network, subnetwork=subnetwork)
    for type, id in ((google.NETWORK, network), (google.SUBNETWORK, subnetwork)):
        with pytest.raises(CloudError, match="is already being used by"):
            cloud.delete(type, id, HERE)
    cloud.delete(google.CLUSTER, "projects/demo/locations/europe-west4/clusters/main", HERE)
    cloud.delete(google.SUBNETWORK, subnetwork, HERE)
    cloud.delete(google.NETWORK, network, HERE)
    cloud.delete(google.NETWORK, network, HERE)
    assert cloud.resources() == []


@pytest.mark.parametrize("protection", [{}, {"deletionProtection": True}])
def test_a_cluster_is_protected_until_it_says_otherwise(cloud: Cloud, protection: dict[str, bool]) -> None:
    id = make(cloud, google.CLUSTER, name="main", **protection)
    with pytest.raises(CloudError, match="Cannot destroy cluster because deletion_protection is set to true"):
        cloud.delete(google.CLUSTER, id, HERE)
    cloud.update(google.CLUSTER, id, {"name": "main", "deletionProtection": False}, HERE)
    cloud.delete(google.CLUSTER, id, HERE)
    assert cloud.resources() == []


def test_a_bucket_with_objects_stays(cloud: Cloud) -> None:
    make(cloud, google.BUCKET, name="data")
    cloud.put_object("data", "checkpoint")
    with pytest.raises(CloudError, match="without `force_destroy` set to true"):
        cloud.delete(google.BUCKET, "data", HERE)
    cloud.update(google.BUCKET, "data", {"name": "data", "forceDestroy": True}, HERE)
    cloud.delete(google.BUCKET, "data", HERE)
    make(cloud, google.BUCKET, name="data")
    cloud.delete(google.BUCKET, "data", HERE)


def test_a_cluster_takes_along_what_is_in_it(cloud: Cloud) -> None:
    account = make(cloud, google.ACCOUNT, accountId="nodes")
    inside = make_cluster(cloud)
    make(cloud, google.NODE_POOL, name="cpu", cluster="main", nodeConfig={"serviceAccount": EMAIL})
    make(cloud, google.KEY, serviceAccountId=account)
    cloud.create(kubernetes.NAMESPACE, {"metadata": {"name": "runs"}}, inside)
    cloud.create("kubernetes:batch/v1:Job", {"metadata": {"name": "a", "namespace": "runs"}}, inside)
    cloud.create("kubernetes:core/v1:ConfigMap", {"metadata": {"name": "a"}}, inside)
    cloud.delete(kubernetes.NAMESPACE, "runs", inside)
    assert [one.id for one in cloud.resources("kubernetes:*")] == ["default/a"]
    cloud.delete(google.CLUSTER, "projects/demo/locations/europe-west4/clusters/main", HERE)
    assert [one.type for one in cloud.resources()] == [google.ACCOUNT, google.KEY]
    with pytest.raises(CloudError, match="cluster is unreachable"):
        cloud.delete("kubernetes:core/v1:ConfigMap", "default/a", inside)
    cloud.delete("kubernetes:core/v1:ConfigMap", "default/a", {**inside, "deleteUnreachable": "true"})
    cloud.delete(google.ACCOUNT, account, HERE)
    assert cloud.resources() == []


def test_objects_of_two_clusters_do_not_meet(cloud: Cloud) -> None:
    one, other = make_cluster(cloud), make_cluster(cloud, name="other")
    for inside in (one, other):
        cloud.create(kubernetes.NAMESPACE, {"metadata": {"name": "runs"}}, inside)
    with pytest.raises(CloudError, match='Namespace "runs" already exists'):
        cloud.create(kubernetes.NAMESPACE, {"metadata": {"name": "runs"}}, other)
    with pytest.raises(CloudError, match='namespaces "missing" not found'):
        cloud.create("kubernetes:batch/v1:Job", {"metadata": {"name": "a", "namespace": "missing"}}, one)


def test_an_image_is_what_it_is_built_from(cloud: Cloud) -> None:
    make(cloud, google.REPOSITORY, repositoryId="images")
    tag = "europe-west4-docker.pkg.dev/demo/images/trainer:1"
    made = [
        cloud.create(docker.IMAGE, {"push": True, "tags": [tag], "registries": [{"password": password}]}, {}) for password in ("a", "b")
    ]
    assert made[0].outputs["ref"] == made[1].outputs["ref"] == f"{tag}@{made[0].id}"
    assert len(cloud.resources(docker.IMAGE)) == 1


def test_an_unknown_type_says_which_table_to_extend(cloud: Cloud) -> None:
    with pytest.raises(CloudError, match=r"a row in KINDS of tests/cloud/google\.py"):
        make(cloud, "gcp:redis/instance:Instance")


# Changes.


@pytest.mark.parametrize(
    ("type", "old", "new", "expected"),
    [
        (google.BUCKET, {"labels": {"a.b/c": "1"}}, {"labels": {"a.b/c": "2"}}, {'labels["a.b/c"]': False}),
        (google.BUCKET, {"location": "EU"}, {"location": "US"}, {"location": True}),
        (google.NODE_POOL, {"autoscaling": {"maxNodeCount": 1}}, {"autoscaling": {"maxNodeCount": 2}}, {"autoscaling.maxNodeCount": False}),
        (
            google.NODE_POOL,
            {},
            {"nodeConfig": {"spot": True, "machineType": "x"}},
            {"nodeConfig.machineType": False, "nodeConfig.spot": True},
        ),
        (
            google.NODE_POOL,
            {"nodeConfig": {"guestAccelerators": [{"count": 1}]}},
            {"nodeConfig": {"guestAccelerators": [{"count": 2}]}},
            {"nodeConfig.guestAccelerators[0].count": True},
        ),
        (google.SUBNETWORK, {"ipCidrRange": "10.0.0.0/20"}, {"ipCidrRange": "10.0.0.0/16"}, {"ipCidrRange": False}),
        (google.SUBNETWORK, {"ipCidrRange": "10.0.0.0/20"}, {"ipCidrRange": "10.0.0.0/24"}, {"ipCidrRange": True}),
        (
            google.SUBNETWORK,
            {"network": "a", "ipCidrRange": "10.0.0.0/20"},
            {"network": "a", "ipCidrRange": UNKNOWN},
            {"ipCidrRange": True},
        ),
        (MEMBER, {"role": "a"}, {"role": "b"}, {"role": True}),
        ("kubernetes:batch/v1:Job", {"spec": {"template": {"a": 1}}}, {"spec": {"template": {}}}, {"spec.template.a": True}),
        ("kubernetes:batch/v1:Job", {"spec": {"suspend": True}}, {"spec": {}}, {"spec.suspend": False}),
    ],
)
def test_what_a_change_means(type: str, old: dict[str, Any], new: dict[str, Any], expected: dict[str, bool]) -> None:
    assert {written(path): replacing(type, path, was, becomes) for path, was, becomes in differences(old, new)} == expected


# Faults.


def test_faults_come_once_and_in_their_turn(cloud: Cloud) -> None:
    cloud.script([Fault(number=2, type="gcp:compute/*", message=google.QUOTA), Fault("delete", type=google.NETWORK)])
    make(cloud, google.NETWORK, name="first")
    make(cloud, google.BUCKET, name="data")
    with pytest.raises(CloudError, match="Insufficient regional quota"):
        make(cloud, google.NETWORK, name="second")
    second = make(cloud, google.NETWORK, name="second")
    with pytest.raises(CloudError, match="Error 503"):
        cloud.delete(google.NETWORK, second, HERE)
    cloud.delete(google.NETWORK, second, HERE)


@pytest.mark.parametrize(("what", "left"), [("hang", 0), ("lose", 1)])
def test_what_is_lost_was_done_and_what_hangs_was_not(cloud: Cloud, what: Any, left: int) -> None:
    cloud.script([Fault(what=what)])
    assert not cloud.lost.is_set()
    with pytest.raises(NeverAnswers):
        make(cloud, google.BUCKET, name="data")
    assert cloud.lost.wait(1)
    assert len(cloud.resources()) == left


# Several processes.


def test_two_see_the_same_cloud(cloud: Cloud) -> None:
    other = Cloud(cloud.path)
    make(other, google.BUCKET, name="data")
    assert [one.id for one in cloud.resources()] == ["data"]
    cloud.change("data", "storageClass", "COLDLINE")
    assert other.resources()[0].outputs["storageClass"] == "COLDLINE"


def test_many_at_once_lose_nothing(cloud: Cloud) -> None:
    def work(name: str) -> None:
        mine = Cloud(cloud.path)
        for index in range(10):
            make(mine, google.BUCKET, name=f"{name}{index}")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cloud.resources()) == cloud.creations == 40


@pytest.mark.full
@pytest.mark.process
def test_gcloud_lists_and_deletes_keys_and_versions(cloud: Cloud) -> None:
    account = make(cloud, google.ACCOUNT, accountId="nodes")
    key = make(cloud, google.KEY, serviceAccountId=account)
    secret = make(cloud, google.SECRET, secretId="token")
    for data in ("1", "2"):
        make(cloud, google.SECRET_VERSION, secret=secret, secretData=data)

    def gcloud(line: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.cloud", "--state", str(cloud.path), "--", "gcloud", *line.split()]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

    listed = gcloud(f"iam service-accounts keys list --iam-account={EMAIL} --project=demo --managed-by=user --format=json")
    assert [(one["name"], one["keyType"]) for one in json.loads(listed.stdout)] == [(key, "USER_MANAGED")]
    deletion = f"iam service-accounts keys delete {key.rpartition('/')[2]} --iam-account={EMAIL} --project=demo --quiet"
    assert [gcloud(deletion).returncode for _ in range(2)] == [0, 1]
    assert gcloud("secrets versions destroy 1 --secret=token --project=demo --quiet").returncode == 0
    versions = json.loads(gcloud("secrets versions list token --project=demo --format=json").stdout)
    assert [(one["name"], one["state"]) for one in versions] == [(f"projects/{google.number('demo')}/secrets/token/versions/2", "ENABLED")]
    refused = gcloud("compute instances list")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert cloud.resources(google.KEY) == []


# Through the engine.


EVERYTHING = len(google.API_TITLES) + 13  # the number of resources in this program, the stack itself included


def program(maximum: int = 3, accelerators: int = 1) -> Callable[[], None]:
    def declare() -> None:
        import pulumi_gcp as gcp
        import pulumi_kubernetes as k8s

        apis = [gcp.projects.Service(name, service=name, disable_on_destroy=False) for name in google.API_TITLES]
        enabled = pulumi.ResourceOptions(depends_on=apis)
        network = gcp.compute.Network("network", auto_create_subnetworks=False, opts=enabled)
        subnetwork = gcp.compute.Subnetwork("subnetwork", network=network.id, ip_cidr_range="10.0.0.0/20")
        account = gcp.serviceaccount.Account("nodes", account_id="nodes", opts=enabled)
        cluster = gcp.container.Cluster(
            "cluster",
            network=network.self_link,
            subnetwork=subnetwork.self_link,
            deletion_protection=False,
            control_plane_endpoints_config={"dns_endpoint_config": {"allow_external_traffic": True}},
        )
        pool = gcp.container.NodePool(
            "pool",
            name="pool",
            cluster=cluster.id,
            autoscaling={"total_max_node_count": maximum},
            node_config={
                "service_account": account.email,
                "guest_accelerators": [{"type": "nvidia-l4", "count": accelerators}],
            },
        )
        bucket = gcp.storage.Bucket("bucket", location="EU", opts=enabled)
        secret = gcp.secretmanager.Secret("secret", secret_id="token", replication={"auto": {}}, opts=enabled)
        gcp.secretmanager.SecretVersion("version", secret=secret.id, secret_data=pulumi.Output.secret("hush"))
        host = cluster.control_plane_endpoints_config.dns_endpoint_config.endpoint
        provider = k8s.Provider("inside", kubeconfig=pulumi.Output.format("server: https://{0}", host))
        inside = pulumi.ResourceOptions(provider=provider, depends_on=pool)
        namespace = k8s.core.v1.Namespace("runs", metadata={"name": "runs"}, opts=inside)
        k8s.core.v1.ConfigMap("settings", metadata={"namespace": namespace.metadata.name}, data={"a": "b"}, opts=inside)
        key = gcp.serviceaccount.Key("key", service_account_id=account.name)
        pulumi.export("bucket", bucket.url)
        pulumi.export("key", key.private_key)
        pulumi.export("token", gcp.organizations.get_client_config_output().access_token)

    return declare


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """A cloud without any API enabled, and the environment in which the engine uses it."""
    cloud = Cloud(tmp_path / "cloud.json")
    (tmp_path / "state").mkdir()
    with serve(cloud) as values:
        values |= {
            "PULUMI_BACKEND_URL": f"file://{tmp_path}/state",
            "PULUMI_HOME": str(tmp_path / "home"),
            "PULUMI_CONFIG_PASSPHRASE": "test",
            "PULUMI_SKIP_UPDATE_CHECK": "1",
        }
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        yield cloud


def stack_of(declare: Callable[[], None]) -> automation.Stack:
    stack = automation.create_or_select_stack("test", project_name="cloud", program=declare)
    stack.set_all_config({f"gcp:{name}": automation.ConfigValue(value) for name, value in HERE.items()})
    return stack


def changes(result: Any) -> dict[str, int]:
    """What a run of the engine did or would do, without what stays the same."""
    counts = result.change_summary if hasattr(result, "change_summary") else result.summary.resource_changes
    return {str(getattr(name, "value", name)): count for name, count in counts.items() if getattr(name, "value", name) != "same"}


@pytest.mark.full
@pytest.mark.engine
def test_the_engine_creates_changes_and_destroys(environment: Cloud, tmp_path: Path) -> None:
    stack = stack_of(program())
    assert changes(stack.preview()) == {"create": EVERYTHING}
    assert [each for each in environment.log if each.call != "invoke"] == []

    outputs = stack.up().outputs
    assert outputs["bucket"].value.startswith("gs://bucket-")
    assert {name: one.secret for name, one in outputs.items()} == {"bucket": False, "key": True, "token": True}
    state = (tmp_path / "state/.pulumi/stacks/cloud/test.json").read_text()
    assert "hush" not in state
    assert "FAKE" not in state
    assert [one.inputs["secretData"] for one in environment.resources(google.SECRET_VERSION)] == ["hush"]
    assert changes(stack.up()) == {}

    pool = environment.resources(google.NODE_POOL)[0]
    environment.change(pool.id, "autoscaling.totalMaxNodeCount", 9)
    assert changes(stack.up()) == {}
    assert changes(stack.refresh()) == {"update": 1}
    assert changes(stack.up()) == {"update": 1}
    assert environment.resources(google.NODE_POOL)[0].outputs["autoscaling"] == {"totalMaxNodeCount": 3}

    assert changes(stack_of(program(maximum=4)).up()) == {"update": 1}
    calls = len(environment.log)
    assert changes(stack_of(program(maximum=4, accelerators=2)).up()) == {"replace": 1}
    assert [call.call for call in environment.log[calls:] if call.call != "invoke"] == ["delete", "create"]

    stack.destroy()
    assert environment.resources() == []
    assert len(environment.enabled) == len(google.API_TITLES)


@pytest.mark.full
@pytest.mark.engine
def test_an_error_of_the_cloud_reaches_the_person_and_the_rest_can_go_on(environment: Cloud) -> None:
    stack = stack_of(program())
    environment.script([Fault(type=google.NODE_POOL, message=google.QUOTA)])
    with pytest.raises(automation.CommandError, match="Insufficient regional quota"):
        stack.up()
    assert environment.resources(google.NODE_POOL) == []
    assert len(environment.resources(google.CLUSTER)) == 1
    assert set(changes(stack.up())) == {"create"}
    assert changes(stack.up()) == {}


@pytest.mark.full
@pytest.mark.engine
def test_a_killed_engine_leaves_a_pending_creation(environment: Cloud, tmp_path: Path) -> None:
    stack = stack_of(program())
    environment.script([Fault(type=google.BUCKET, what="lose")])
    failures: list[Exception] = []

    def up() -> None:
        try:
            stack.up()
        except automation.CommandError as error:
            failures.append(error)

    thread = threading.Thread(target=up)
    thread.start()
    assert environment.lost.wait(60)
    file = tmp_path / "state/.pulumi/stacks/cloud/test.json"

    def written_down() -> int:
        resources = json.loads(file.read_text())["checkpoint"]["latest"].get("resources", [])
        return sum(one["type"].startswith(("gcp:", "kubernetes:")) for one in resources)

    # All but the bucket, the stack and the provider.
    eventually(lambda: written_down() == EVERYTHING - 3, 60, "the engine has not written down all the others")
    (engine,) = (one for one in psutil.Process().children(recursive=True) if one.name() == "pulumi")
    engine.kill()
    thread.join(60)
    assert len(failures) == 1
    deployment = json.loads(file.read_text())["checkpoint"]["latest"]
    pending = deployment["pending_operations"]
    assert [(one["type"], one["resource"]["type"]) for one in pending] == [("creating", google.BUCKET)]
    assert not pending[0]["resource"].get("id")
    assert pending[0]["resource"]["inputs"]["name"] == environment.resources(google.BUCKET)[0].id
