"""Each component's raw inputs, as the provider would get them: the whole program on recording mocks, with the real SDK classes."""

from __future__ import annotations

import base64
import ipaddress
import json
from typing import Any

import pytest

from tests.infra.program import PROJECT, SHARED, Recorded, run, settings_of
from workloads.kubernetes import policies

NODES = f"ts-dev-nodes@{PROJECT}.iam.gserviceaccount.com"
TRAINER = f"serviceAccount:ts-dev-trainer@{PROJECT}.iam.gserviceaccount.com"
LABELS = {"managed-by": "trainstack", "stack": "dev"}


def dev(**changes: Any) -> Recorded:
    """The stack dev with other settings, given by their names after `trainstack:`; `training` changes its training."""
    config = settings_of("dev")
    training = {**config["trainstack:trainings"]["digits"], **changes.pop("training", {})}
    return run({**config, "trainstack:trainings": {"digits": training}, **{f"trainstack:{key}": value for key, value in changes.items()}})[
        0
    ]


@pytest.fixture(scope="module")
def plain() -> Recorded:
    return dev()


def only(found: dict[str, Any]) -> Any:
    (value,) = found.values()
    return value


def test_services_are_enabled_and_never_disabled(plain: Recorded) -> None:
    services = plain.inputs("projects/service")
    assert {each["service"] for each in services.values()} >= {
        f"{name}.googleapis.com" for name in ("compute", "container", "iam", "storage")
    }
    assert all(each["disableOnDestroy"] is False for each in services.values())
    assert "apis-secretmanager" not in services, "nothing is enabled that is not used"
    assert "apis-containerfilesystem" in services, "image streaming needs it"
    whole = {"location": "us-central1-a", "image_streaming": False}
    assert "apis-containerfilesystem" not in dev(cluster=whole).inputs("projects/service")
    assert "apis-secretmanager" in dev(secrets={"A": "x"}).inputs("projects/service")


def test_the_network_is_private_and_has_a_way_out(plain: Recorded) -> None:
    assert only(plain.inputs("compute/network"))["autoCreateSubnetworks"] is False
    nodes = only(plain.inputs("compute/subnetwork"))
    assert nodes["privateIpGoogleAccess"] is True
    assert {each["rangeName"]: each["ipCidrRange"] for each in nodes["secondaryIpRanges"]} == {
        "pods": "10.20.0.0/14",
        "services": "10.24.0.0/20",
    }
    nat = only(plain.inputs("compute/routerNat"))
    assert nat["subnetworks"] == [{"name": "network-nodes", "sourceIpRangesToNats": ["ALL_IP_RANGES"]}]


def test_an_existing_network_is_used_and_nothing_is_made_of_it() -> None:
    made = dev(network={"existing": "shared", "subnetwork": "nodes", "pods_range": "p", "services_range": "s"})
    for kind in ("compute/network", "compute/subnetwork", "compute/router", "compute/routerNat"):
        assert made.inputs(kind) == {}
    cluster = only(made.inputs("container/cluster"))
    assert (cluster["network"], cluster["subnetwork"]) == ("shared", "nodes")
    assert cluster["ipAllocationPolicy"] == {"clusterSecondaryRangeName": "p", "servicesSecondaryRangeName": "s"}


def test_the_cluster_is_what_it_should_be(plain: Recorded) -> None:
    cluster = only(plain.inputs("container/cluster"))
    expected = {
        "name": "trainstack-dev",
        "location": "us-central1-a",
        "resourceLabels": LABELS,
        "removeDefaultNodePool": True,
        "datapathProvider": "ADVANCED_DATAPATH",
        "enableShieldedNodes": True,
        "deletionProtection": False,
        "privateClusterConfig": {"enablePrivateNodes": True},
        "workloadIdentityConfig": {"workloadPool": f"{PROJECT}.svc.id.goog"},
        "releaseChannel": {"channel": "RAPID"},
        "costManagementConfig": {"enabled": True},
        "controlPlaneEndpointsConfig": {"dnsEndpointConfig": {"allowExternalTraffic": True}, "ipEndpointsConfig": {"enabled": False}},
        "monitoringConfig": {"enableComponents": ["SYSTEM_COMPONENTS", "DCGM"], "managedPrometheus": {"enabled": True}},
    }
    assert {key: cluster[key] for key in expected} == expected
    assert cluster["nodeConfig"]["serviceAccount"] == NODES, "the pool of the first minutes does not run as the default account either"
    assert cluster["addonsConfig"]["gcsFuseCsiDriverConfig"] == {"enabled": True}
    assert cluster["addonsConfig"]["gcpFilestoreCsiDriverConfig"] == {"enabled": False}
    assert "masterAuthorizedNetworksConfig" not in cluster


@pytest.mark.parametrize(("location", "zones"), [("us-central1-a", ["us-central1-b"]), ("us-central1", ["us-central1-a", "us-central1-b"])])
def test_a_zonal_cluster_does_not_name_its_own_zone(location: str, zones: list[str]) -> None:
    made = dev(cluster={"location": location, "node_locations": ["us-central1-a", "us-central1-b"]})
    assert only(made.inputs("container/cluster"))["nodeLocations"] == zones


def test_authorised_networks_reach_the_address_and_nobody_else() -> None:
    made = dev(cluster={"location": "us-central1-a", "authorized_networks": ["203.0.113.0/24"]})
    cluster = only(made.inputs("container/cluster"))
    assert cluster["controlPlaneEndpointsConfig"] == {
        "dnsEndpointConfig": {"allowExternalTraffic": False},
        "ipEndpointsConfig": {"enabled": True},
    }
    assert cluster["masterAuthorizedNetworksConfig"] == {
        "cidrBlocks": [{"cidrBlock": "203.0.113.0/24"}],
        "gcpPublicCidrsAccessEnabled": False,
    }
    kubeconfig = json.loads(only(made.inputs("providers:kubernetes"))["kubeconfig"])
    assert kubeconfig["clusters"][0]["cluster"] == {"server": "https://203.0.113.7", "certificate-authority-data": "Y2E="}


def test_the_kubeconfig_holds_no_credential(plain: Recorded) -> None:
    kubeconfig = json.loads(only(plain.inputs("providers:kubernetes"))["kubeconfig"])
    assert kubeconfig["clusters"][0]["cluster"] == {"server": "https://gke-1.us-central1.gke.goog"}
    (user,) = kubeconfig["users"]
    assert list(user["user"]) == ["exec"]
    assert "gcloud components install gke-gcloud-auth-plugin" in user["user"]["exec"]["installHint"]


@pytest.mark.parametrize(
    ("start", "days", "expected"),
    [
        ("03:00", ["SA", "SU"], ("2025-01-04T03:00:00Z", "2025-01-04T09:00:00Z", "FREQ=WEEKLY;BYDAY=SA,SU")),
        ("20:30", ["MO", "TU"], ("2025-01-04T20:30:00Z", "2025-01-05T02:30:00Z", "FREQ=WEEKLY;BYDAY=MO,TU")),
    ],
)
def test_the_maintenance_window(start: str, days: list[str], expected: tuple[str, ...]) -> None:
    made = dev(cluster={"location": "us-central1-a", "maintenance": {"start": start, "days": days}})
    window = only(made.inputs("container/cluster"))["maintenancePolicy"]["recurringWindow"]
    assert (window["startTime"], window["endTime"], window["recurrence"]) == expected


def test_filestore_comes_with_a_claim_that_many_write() -> None:
    claim = {"claim": "ckpt", "create": True, "size": "10Gi", "access": "ReadWriteMany", "path": "/ckpt"}
    made = dev(training={"volumes": [claim]})
    assert only(made.inputs("container/cluster"))["addonsConfig"]["gcpFilestoreCsiDriverConfig"] == {"enabled": True}
    assert "apis-file" in made.inputs("projects/service")


def test_googles_services_have_addresses_of_their_own_in_the_stacks_network(plain: Recorded) -> None:
    """Which is the range that network policies let tasks reach."""
    zone = only(plain.inputs("dns/managedZone"))
    assert (zone["dnsName"], zone["visibility"], zone["name"]) == ("googleapis.com.", "private", "trainstack-dev-googleapis")
    assert zone["privateVisibilityConfig"] == {"networks": [{"networkUrl": "network-vpc"}]}, "nobody else's names change"
    assert zone["labels"] == LABELS
    records = {each["name"]: (each["type"], each["rrdatas"]) for each in plain.inputs("dns/recordSet").values()}
    assert records == {
        "private.googleapis.com.": ("A", [f"199.36.153.{number}" for number in (8, 9, 10, 11)]),
        "*.googleapis.com.": ("CNAME", ["private.googleapis.com."]),
    }
    allowed = ipaddress.ip_network(policies.GOOGLE_APIS)
    assert [str(address) for address in allowed] == records["private.googleapis.com."][1]
    assert "apis-dns" in plain.inputs("projects/service")
    assert "gcp:projects/service:Service::apis-dns" in plain.comes_after("private-google-zone")
    assert "gcp:dns/recordSet:RecordSet::private-google-names" in plain.comes_after("digits-chief"), "before a task asks for a name"


def test_the_names_of_an_existing_network_are_left_alone() -> None:
    made = dev(network={"existing": "shared", "subnetwork": "nodes", "pods_range": "p", "services_range": "s"})
    assert made.inputs("dns/managedZone") == made.inputs("dns/recordSet") == {}
    assert "apis-dns" not in made.inputs("projects/service")


@pytest.mark.parametrize("count", [1, 10, 11, 25])
def test_an_ingress_lets_some_ranges_through_and_nobody_else(count: int) -> None:
    ranges = [f"203.0.{number}.0/24" for number in range(count)]
    made = dev(training={"tensorboard": {"expose": "ingress", "allowed_cidrs": ranges}})
    policy = only(made.inputs("compute/securityPolicy"))
    assert policy["name"] == "trainstack-dev-digits"
    *allows, last = policy["rules"]
    assert (last["action"], last["priority"], last["match"]["config"]["srcIpRanges"]) == ("deny(403)", 2147483647, ["*"])
    assert {rule["action"] for rule in allows} == {"allow"}
    assert [each for rule in allows for each in rule["match"]["config"]["srcIpRanges"]] == ranges
    assert all(len(rule["match"]["config"]["srcIpRanges"]) <= 10 for rule in allows), "as many as Google takes"
    priorities = [rule["priority"] for rule in policy["rules"]]
    assert len(set(priorities)) == len(priorities)
    assert priorities == sorted(priorities), "what is denied comes last"
    assert {rule["match"]["versionedExpr"] for rule in policy["rules"]} == {"SRC_IPS_V1"}
    backend = only(made.inputs("cloud.google.com/v1:BackendConfig"))
    assert backend["spec"]["securityPolicy"] == {"name": policy["name"]}


def test_there_is_a_guard_for_each_ingress_and_for_nothing_else(plain: Recorded) -> None:
    assert plain.inputs("compute/securityPolicy") == {}
    balancer = dev(training={"tensorboard": {"expose": "load_balancer", "allowed_cidrs": ["10.0.0.0/8"]}})
    assert balancer.inputs("compute/securityPolicy") == {}, "it has its ranges itself"
    exposed = {"program": "digits", "strategy": "mirrored", "tensorboard": {"expose": "ingress", "allowed_cidrs": ["10.0.0.0/8"]}}
    long = {f"{'a' * 39}{letter}": exposed for letter in "xy"}
    config = {**settings_of("dev"), "trainstack:trainings": {**long, "idle": {**exposed, "deploy": False}}}
    stack = "a-stack-of-19-chars"
    names = [each["name"] for each in run(config, stack)[0].inputs("compute/securityPolicy").values()]
    assert len(set(names)) == 2, "long names that begin alike stay two"
    assert all(len(name) <= 63 for name in names)


# ------------------------------------------------------------------------------------------------- a cluster of others

TRAINING = {
    "program": "digits",
    "worker": {"replicas": 2},
    "ps": {},
    **{f"{kind}_dir": f"gs://b/{kind}" for kind in ("checkpoint", "log", "model")},
}


def on_cluster(**where: str) -> Recorded:
    reference = {"reference": "example.com/i@sha256:" + "0" * 64}
    values = {"target": "kubernetes", "kubernetes": where, "image": reference, "trainings": {"digits": TRAINING}}
    return run({f"trainstack:{key}": value for key, value in values.items()})[0]


def test_on_another_stacks_cluster_tasks_act_as_its_trainer() -> None:
    made = on_cluster(stack="acme/trainstack/shared")
    account = only(made.inputs("core/v1:ServiceAccount"))
    assert account["metadata"]["annotations"] == {"iam.gke.io/gcp-service-account": SHARED["identity"]}
    binding = only(made.inputs("serviceaccount/iAMMember"))
    assert binding["role"] == "roles/iam.workloadIdentityUser"
    assert binding["serviceAccountId"] == f"projects/their-project/serviceAccounts/{SHARED['identity']}"
    assert binding["member"] == "serviceAccount:their-project.svc.id.goog[trainstack-dev/trainer]"
    assert "gcp:serviceaccount/iAMMember:IAMMember::workload-identity-user" in made.comes_after("digits-chief"), (
        "it may act before it starts"
    )
    provider = only(made.inputs("providers:kubernetes"))
    assert provider == {
        "kubeconfig": SHARED["kubeconfig"],
        "clusterIdentifier": "stack acme/trainstack/shared",
        "enableConfigMapMutable": "true",
        "enableSecretMutable": "true",
    }
    assert made.is_secret("cluster", "kubeconfig")


def test_on_a_context_nothing_is_made_around_the_trainings() -> None:
    made = on_cluster(context="kind")
    assert only(made.inputs("providers:kubernetes")) == {
        "context": "kind",
        "clusterIdentifier": "context kind",
        "enableConfigMapMutable": "true",
        "enableSecretMutable": "true",
    }
    assert not [each for each in made.resources if each.startswith(("gcp:", "docker-build:"))]
    assert "annotations" not in only(made.inputs("core/v1:ServiceAccount"))["metadata"]


@pytest.mark.parametrize("where", [{"context": "kind"}, {"stack": "acme/trainstack/shared"}])
def test_every_object_is_on_the_cluster_that_is_named(where: dict[str, str]) -> None:
    made = on_cluster(**where)
    providers = {args.provider for args in made.resources.values() if args.typ.startswith("kubernetes:")}
    assert len(providers) == 1
    assert "pulumi:providers:kubernetes::cluster" in providers.pop()


def test_the_cluster_stays_the_same_when_its_address_changes(plain: Recorded) -> None:
    """Another identifier would replace every object."""
    provider = only(plain.inputs("providers:kubernetes"))
    assert provider["clusterIdentifier"] == f"{PROJECT}/us-central1-a/trainstack-dev"
    assert (provider["enableConfigMapMutable"], provider["enableSecretMutable"]) == ("true", "true"), "which are changed in place"


def test_jobs_are_replaced_by_deleting_them_first(plain: Recorded) -> None:
    """Their names are fixed, and the API server refuses to change them."""
    for name in ("digits-chief", "digits-worker", "digits-ps", "digits-evaluator", "digits-tensorboard"):
        asked = plain.options[name]
        assert asked.deleteBeforeReplace
        assert {"spec.template", "spec.completions", "spec.parallelism", "spec.podFailurePolicy"} <= set(asked.replaceOnChanges)
    assert not plain.options["digits-service"].replaceOnChanges


def test_tasks_come_after_what_they_need(plain: Recorded) -> None:
    before = plain.comes_after("digits-worker")
    assert {
        "kubernetes:core/v1:Namespace::trainings-namespace",
        "kubernetes:core/v1:ServiceAccount::trainings-trainer",
        "kubernetes:networking.k8s.io/v1:NetworkPolicy::trainings-default-deny",
        "kubernetes:networking.k8s.io/v1:NetworkPolicy::digits-policy-tasks",
        "kubernetes:core/v1:ConfigMap::digits-launcher",
        "kubernetes:core/v1:Service::digits-service",
        "gcp:container/nodePool:NodePool::pool-gpu-l4-1-spot",
        "gcp:serviceaccount/iAMMember:IAMMember::workload-identity-user",
        "gcp:storage/bucketIAMMember:BucketIAMMember::storage-checkpoints-objectUser",
    } <= before
    secrets = dev(secrets={"A": "x"})
    assert "kubernetes:core/v1:Secret::trainings-secrets" in secrets.comes_after("digits-worker")


def worker(**changes: Any) -> dict[str, Any]:
    return {"worker": {"replicas": 4, "gpus": 1, "accelerator": "l4", **changes}, "deadline": "2h"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"spot": True}, {"spot": True}),
        (
            {"flex_start": True},
            {"flexStart": True, "maxRunDuration": "604800s", "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"}},
        ),
        (
            {"reservation": "r"},
            {
                "reservationAffinity": {
                    "consumeReservationType": "SPECIFIC_RESERVATION",
                    "key": "compute.googleapis.com/reservation-name",
                    "values": ["r"],
                }
            },
        ),
        ({}, {}),
    ],
    ids=["spot", "flex-start", "reservation", "on demand"],
)
def test_how_gpu_nodes_are_had(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    pools = dev(training=worker(**changes)).inputs("container/nodePool")
    (gpu,) = (pool for name, pool in pools.items() if name.startswith("pool-gpu-l4-1"))
    config = gpu["nodeConfig"]
    ways = ("spot", "flexStart", "maxRunDuration", "reservationAffinity")
    assert {key: config[key] for key in ways if key in config} == expected
    assert config["guestAccelerators"] == [
        {"type": "nvidia-l4", "count": 1, "gpuDriverInstallationConfig": {"gpuDriverVersion": "DEFAULT"}}
    ]
    assert config["gvnic"] == {"enabled": True}
    assert config["gcfsConfig"] == {"enabled": True}
    assert config["resourceLabels"] == {**LABELS, "training": "digits"}
    assert gpu["autoscaling"] == {"totalMinNodeCount": 0, "totalMaxNodeCount": 4, "locationPolicy": "ANY"}
    assert gpu["management"] == {"autoRepair": "flex_start" not in changes, "autoUpgrade": True}
    assert "nodeCount" not in gpu


def test_cpu_workers_keep_others_off_their_nodes() -> None:
    pools = dev(training={"worker": {"replicas": 2, "cpu": 3}}).inputs("container/nodePool")
    assert pools["pool-worker"]["nodeConfig"]["taints"] == [{"key": "trainstack/pool", "value": "worker", "effect": "NO_SCHEDULE"}]
    assert "taints" not in pools["pool-cpu"]["nodeConfig"]


def test_identities_have_the_least(plain: Recorded) -> None:
    granted = {(each["role"], each["member"]) for each in plain.inputs("projects/iAMMember").values()}
    assert granted == {
        ("roles/container.defaultNodeServiceAccount", f"serviceAccount:{NODES}"),
        ("roles/logging.logWriter", TRAINER),
    }
    binding = only(plain.inputs("serviceaccount/iAMMember"))
    assert binding["role"] == "roles/iam.workloadIdentityUser"
    assert binding["member"] == f"serviceAccount:{PROJECT}.svc.id.goog[trainstack-dev/trainer]"
    assert plain.inputs("serviceaccount/key") == {}


def test_the_trainer_reads_data_and_writes_what_it_makes(plain: Recorded) -> None:
    granted = {
        (each["bucket"].rpartition("-")[2], each["role"].rpartition(".")[2]) for each in plain.inputs("storage/bucketIAMMember").values()
    }
    see = "legacyBucketReader"
    assert granted == {
        ("data", "objectViewer"), ("data", see), ("checkpoints", "objectUser"), ("checkpoints", see), ("logs", "objectUser"), ("logs", see),
    }  # fmt: skip
    assert all(each["member"] == TRAINER for each in plain.inputs("storage/bucketIAMMember").values())
    prepares = dev(training={"data_prep": {"command": ["python", "prepare.py"]}})
    assert "storage-data-objectUser" in prepares.inputs("storage/bucketIAMMember")


def test_a_key_is_made_where_it_is_asked_for() -> None:
    made = dev(training={"credentials": {"mode": "key_secret", "secret": "credential", "key": "key.json"}})
    assert only(made.inputs("serviceaccount/key"))["serviceAccountId"].endswith("ts-dev-trainer@some-project.iam.gserviceaccount.com")
    secret = only(made.inputs("core/v1:Secret"))
    assert made.is_secret("credentials-credential", "stringData")
    assert secret["metadata"]["name"] == "credential"
    assert secret["metadata"]["namespace"] == "trainstack-dev"
    assert json.loads(secret["stringData"]["key.json"]) == json.loads(base64.b64decode("eyJ0eXBlIjogInNlcnZpY2VfYWNjb3VudCJ9"))


def test_buckets_are_closed_and_deleted_or_kept_as_written(plain: Recorded) -> None:
    made = plain.inputs("storage/bucket")
    assert {each["name"] for each in made.values()} == {f"{PROJECT}-dev-{kind}" for kind in ("data", "checkpoints", "logs")}
    for each in made.values():
        assert (each["uniformBucketLevelAccess"], each["publicAccessPrevention"], each["location"]) == (True, "enforced", "US-CENTRAL1")
        assert (each["forceDestroy"], each["softDeletePolicy"]) == (True, {"retentionDurationSeconds": 0})
        assert each["labels"] == LABELS
    assert not any(plain.options[name].retainOnDelete for name in made)
    keeps = dev(storage={"logs": {"versioning": True, "delete_after_days": 30, "delete_versions_after_days": 7}})
    assert keeps.options["storage-logs"].retainOnDelete
    kept = keeps.inputs("storage/bucket")["storage-logs"]
    assert (kept["forceDestroy"], kept["softDeletePolicy"]) == (False, {"retentionDurationSeconds": 604800})
    assert kept["versioning"] == {"enabled": True}
    assert [each["condition"] for each in kept["lifecycleRules"]] == [
        {"age": 30, "withState": "LIVE"},
        {"daysSinceNoncurrentTime": 7, "withState": "ARCHIVED"},
    ]
    assert all(each["action"] == {"type": "Delete"} for each in kept["lifecycleRules"])


def test_an_existing_bucket_is_used_and_not_made() -> None:
    made = dev(storage={"data": {"existing": "team-data"}})
    assert "storage-data" not in made.inputs("storage/bucket")
    assert made.inputs("storage/bucketIAMMember")["storage-data-objectViewer"]["bucket"] == "team-data"


@pytest.mark.parametrize(
    ("registry", "made", "tag"),
    [
        ({}, ("us-central1", "trainstack-dev"), f"us-central1-docker.pkg.dev/{PROJECT}/trainstack-dev/trainer:dev"),
        ({"domain": "gcr.io"}, ("us", "gcr.io"), f"gcr.io/{PROJECT}/trainer:dev"),
        ({"domain": "gcr.io", "create": False}, None, f"gcr.io/{PROJECT}/trainer:dev"),
        ({"name": "images", "create": False}, None, f"us-central1-docker.pkg.dev/{PROJECT}/images/trainer:dev"),
    ],
)
def test_the_registry_and_the_image_in_it(registry: dict[str, Any], made: tuple[str, str] | None, tag: str) -> None:
    recorded = dev(registry=registry)
    repositories = recorded.inputs("artifactregistry/repository")
    assert [(each["location"], each["repositoryId"]) for each in repositories.values()] == ([made] if made else [])
    for repository in repositories.values():
        assert [policy["action"] for policy in repository["cleanupPolicies"]] == ["KEEP", "DELETE"]
        assert repository["cleanupPolicyDryRun"] is False
    image = only(recorded.inputs("index:Image"))
    assert image["tags"] == [tag]
    assert (image["push"], image["buildOnPreview"]) == (True, False)
    assert image["registries"] == [{"address": tag.partition("/")[0], "username": "oauth2accesstoken", "password": "a token"}]
    assert recorded.is_secret("image-build", "registries")
    assert {each["role"] for each in recorded.inputs("artifactregistry/repositoryIamMember").values()} == {"roles/artifactregistry.reader"}


def test_the_image_has_the_tensorflow_that_its_trainings_need() -> None:
    assert only(dev().inputs("index:Image"))["buildArgs"] == {"TENSORFLOW": "tensorflow[and-cuda]"}
    cpu = dev(training={"worker": {"replicas": 2}}, image={"base": "python:3.12-slim"})
    assert only(cpu.inputs("index:Image"))["buildArgs"] == {"TENSORFLOW": "tensorflow-cpu", "BASE": "python:3.12-slim"}


def test_a_ready_image_is_not_built() -> None:
    reference = "example.com/i@sha256:" + "0" * 64
    recorded, outputs = run({**settings_of("dev"), "trainstack:image": {"reference": reference}})
    assert recorded.inputs("index:Image") == {}
    assert recorded.calls == [], "no look-up"
    assert outputs["image"] == reference


def test_secrets_are_readable_by_the_trainer_only() -> None:
    made = dev(secrets={"API_KEY": "hunter2"})
    assert only(made.inputs("secretmanager/secret"))["secretId"].startswith("trainstack-dev-api-key")
    assert only(made.inputs("secretmanager/secretVersion"))["secretData"] == "hunter2"
    assert made.is_secret("secrets-API_KEY-value", "secretData")
    reader = only(made.inputs("secretmanager/secretIamMember"))
    assert (reader["role"], reader["member"]) == ("roles/secretmanager.secretAccessor", TRAINER)


def test_the_namespace_is_restricted_and_its_account_is_the_trainer(plain: Recorded) -> None:
    namespace = only(plain.inputs("core/v1:Namespace"))
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    account = only(plain.inputs("core/v1:ServiceAccount"))
    assert account["metadata"]["annotations"] == {"iam.gke.io/gcp-service-account": TRAINER.removeprefix("serviceAccount:")}
    assert account["automountServiceAccountToken"] is False


def test_no_output_shows_a_secret() -> None:
    """The settings of the stack are an output, without its secrets and without the environment variables of its tasks."""
    config = settings_of("dev")
    training = {**config["trainstack:trainings"]["digits"], "env": {"TOKEN": "hunter3"}}
    recorded, outputs = run({**config, "trainstack:secrets": {"API_KEY": "hunter2"}, "trainstack:trainings": {"digits": training}})
    assert recorded.secret_outputs == {"kubeconfig"}
    assert outputs["stack_settings"]["trainings"]["digits"]["program"] == "digits"
    shown = json.dumps({name: value for name, value in outputs.items() if name not in recorded.secret_outputs})
    assert "hunter" not in shown


def test_the_outputs_are_what_people_and_other_stacks_need() -> None:
    _, outputs = run(settings_of("dev"))
    assert outputs["cluster"] == {
        "name": "trainstack-dev",
        "location": "us-central1-a",
        "project": PROJECT,
        "workload_pool": f"{PROJECT}.svc.id.goog",
        "endpoint": "gke-1.us-central1.gke.goog",
    }
    assert outputs["buckets"] == {kind: f"gs://{PROJECT}-dev-{kind}" for kind in ("data", "checkpoints", "logs")}
    assert outputs["image"].endswith("@sha256:" + "0" * 64)
    assert outputs["trainings"]["digits"]["checkpoint_dir"] == f"gs://{PROJECT}-dev-checkpoints/digits/checkpoints/1"
    assert "gcloud container clusters get-credentials trainstack-dev --location=us-central1-a" in outputs["readme"]
    assert outputs["on_destroy"] == "nothing stays"
    _, prod = run(settings_of("prod"), "prod")
    assert "deletion_protection: false" in prod["on_destroy"]
