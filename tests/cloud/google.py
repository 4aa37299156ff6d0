"""Google Cloud's rules as tables: ids, what must be enabled and exist first, what replaces, what is computed.

The replacing fields are those of the google provider 7 (pulumi-gcp 10). Left out on purpose: quotas, billing, permissions and how long
anything takes – a test scripts those as faults – and every type that has no row in KINDS.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

from tests.cloud.kinds import CloudError, Fields, Kind, Parent, Reference, Values, at

# Messages of faults, ready to be scripted.
UNAVAILABLE = "googleapi: Error 503: The service is currently unavailable., backendError"
QUOTA = (
    "googleapi: Error 403: Insufficient regional quota to satisfy request: resource \"NVIDIA_L4_GPUS\": request requires '4.0' and is "
    "short '4.0'. project has a quota of '0.0' with '0.0' available. View and manage quotas at "
    "https://console.cloud.google.com/iam-admin/quotas?usage=USED&project=PROJECT., forbidden"
)
PERMISSION_DENIED = (
    'googleapi: Error 403: Required "container.clusters.create" permission(s) for "projects/PROJECT". See '
    "https://cloud.google.com/kubernetes-engine/docs/troubleshooting#gke_service_account_deleted for more info., forbidden"
)
NAME_TAKEN = "googleapi: Error 409: Your previous request to create the named bucket succeeded and you already own it., conflict"
IN_USE = "googleapi: Error 400: The resource '{id}' is already being used by '{user}', resourceInUseByAnotherResource"
NO_IDENTITY_POOL = (
    "googleapi: Error 400: Identity Pool does not exist ({pool}). Please check that you specified a valid resource name., badRequest"
)

SERVICE = "gcp:projects/service:Service"
NETWORK = "gcp:compute/network:Network"
SUBNETWORK = "gcp:compute/subnetwork:Subnetwork"
ROUTER = "gcp:compute/router:Router"
CLUSTER = "gcp:container/cluster:Cluster"
NODE_POOL = "gcp:container/nodePool:NodePool"
ACCOUNT = "gcp:serviceaccount/account:Account"
KEY = "gcp:serviceaccount/key:Key"
BUCKET = "gcp:storage/bucket:Bucket"
REPOSITORY = "gcp:artifactregistry/repository:Repository"
SECRET = "gcp:secretmanager/secret:Secret"
SECRET_VERSION = "gcp:secretmanager/secretVersion:SecretVersion"
ZONE = "gcp:dns/managedZone:ManagedZone"
SECURITY_POLICY = "gcp:compute/securityPolicy:SecurityPolicy"
KEY_RING = "gcp:kms/keyRing:KeyRing"
CRYPTO_KEY = "gcp:kms/cryptoKey:CryptoKey"

API_TITLES = {
    "artifactregistry.googleapis.com": "Artifact Registry API",
    "cloudkms.googleapis.com": "Cloud Key Management Service (KMS) API",
    "cloudresourcemanager.googleapis.com": "Cloud Resource Manager API",
    "compute.googleapis.com": "Compute Engine API",
    "container.googleapis.com": "Kubernetes Engine API",
    "dns.googleapis.com": "Cloud DNS API",
    "iam.googleapis.com": "Identity and Access Management (IAM) API",
    "secretmanager.googleapis.com": "Secret Manager API",
    "storage.googleapis.com": "Cloud Storage JSON API",
}

VERSION = "1.34.1-gke.1000000"
FIRST_NUMBER = 100_000_000_000
COMPUTE = "https://www.googleapis.com/compute/v1/"
CONTAINER = "https://container.googleapis.com/v1/"


def api_disabled(api: str, project: str) -> str:
    return (
        f"googleapi: Error 403: {API_TITLES[api]} has not been used in project {project} before or it is disabled. Enable it by visiting "
        f"https://console.developers.google.com/apis/api/{api}/overview?project={project} then retry. If you enabled this API recently, "
        "wait a few minutes for the action to propagate to our systems and retry., SERVICE_DISABLED"
    )


API_DISABLED = api_disabled("container.googleapis.com", "PROJECT")


def number(text: str) -> str:
    """A number that is always the same for the same text: project numbers, unique ids."""
    return str(FIRST_NUMBER + zlib.crc32(text.encode()))


# References: a self-link, an id, or the bare name of something in the same place.


def within(template: str, field: str) -> Any:
    """Reads a reference; a bare name is completed with the template of what it refers to."""

    def identify(value: str, fields: Fields) -> str:
        path = value.partition("/v1/")[2] or value
        if "/" not in path:
            return template.format_map(_Named(fields, field, path))
        project = fields.find("project")
        return path.replace(f"projects/{number(project)}/", f"projects/{project}/")

    return identify


class _Named(dict[str, str]):
    """The fields of one resource seen from another that knows its name only."""

    def __init__(self, fields: Fields, field: str, name: str) -> None:
        super().__init__({field: name})
        self.fields = fields

    def __missing__(self, key: str) -> str:
        return self.fields[key]


def account(value: str, fields: Fields) -> str:
    """The id of the service account that an e-mail address or a member means; none if it is not of this project."""
    email, project = value.rpartition("/")[2].removeprefix("serviceAccount:"), fields.find("project")
    return f"projects/{project}/serviceAccounts/{email}" if email.endswith(f"@{project}.iam.gserviceaccount.com") else ""


def bucket_name(value: str, _: Fields) -> str:
    return value.removeprefix("b/")


# Fields that an id needs and that no input holds as it is.


def with_project_of(name: str) -> Any:
    """The project is the one that the reference in this input carries, if it carries one."""

    def fields(inputs: Values) -> Mapping[str, Any]:
        found = re.search(r"projects/([^/]*[a-z][^/]*)/", str(inputs.get(name, "")))
        return {"project": found[1], **inputs} if found else inputs

    return fields


def nodes_fields(inputs: Values) -> Mapping[str, Any]:
    return {**with_project_of("cluster")(inputs), "account": at(inputs, "nodeConfig.serviceAccount")}


def binding_fields(name: str) -> Any:
    def fields(inputs: Values) -> Mapping[str, Any]:
        member, condition = inputs["member"], at(inputs, "condition.title")
        binding = "/".join(part for part in (inputs["role"], member, condition) if part)
        return {**with_project_of(name)(inputs), "binding": binding, "account": member if member.startswith("serviceAccount:") else None}

    return fields


# Outputs.


def labelled(inputs: Values, name: str = "labels") -> Values:
    return {"effectiveLabels": {**inputs.get(name, {}), "goog-pulumi-provisioned": "true"}, "pulumiLabels": inputs.get(name, {})}


def compute_outputs(fields: Fields, _: Values) -> Values:
    return {"selfLink": COMPUTE + fields["id"], "creationTimestamp": fields["now"]}


def network_outputs(fields: Fields, _: Values) -> Values:
    return {"selfLink": COMPUTE + fields["id"], "networkId": number(fields["id"]), "numericId": number(fields["id"]), "gatewayIpv4": ""}


def endpoint(id: str) -> str:
    """The address of a cluster's control plane, from a range that is nobody's."""
    digest = hashlib.sha256(id.encode()).digest()
    return f"203.0.{digest[0]}.{digest[1]}"


def dns_endpoint(id: str, project: str) -> str:
    return f"gke-{hashlib.sha256(id.encode()).hexdigest()[:32]}-{number(project)}.us-central1.gke.goog"


def is_endpoint(host: str) -> bool:
    """Whether a control plane with this name or address is one of this cloud's, living or gone."""
    if found := re.fullmatch(r"gke-[0-9a-f]{32}-(\d+)\.us-central1\.gke\.goog", host):
        return 0 <= int(found[1]) - FIRST_NUMBER < 2**32
    return host.startswith("203.0.")


def cluster_outputs(fields: Fields, inputs: Values) -> Values:
    certificate = base64.b64encode(f"-----BEGIN CERTIFICATE-----\n{fields['id']}\n-----END CERTIFICATE-----\n".encode()).decode()
    return {
        "endpoint": endpoint(fields["id"]),
        "masterAuth": {"clusterCaCertificate": certificate, "clientCertificate": "", "clientKey": ""},
        "masterVersion": VERSION,
        "nodeVersion": VERSION,
        "selfLink": CONTAINER + fields["id"],
        "servicesIpv4Cidr": "34.118.224.0/20",
        "controlPlaneEndpointsConfig": {"dnsEndpointConfig": {"endpoint": dns_endpoint(fields["id"], fields["project"])}},
        **labelled(inputs, "resourceLabels"),
    }


def node_pool_outputs(fields: Fields, _: Values) -> Values:
    group = f"{COMPUTE}projects/{fields.find('project')}/zones/ZONE/instanceGroupManagers/gke-{number(fields['id'])}-grp"
    return {
        "instanceGroupUrls": [group],
        "managedInstanceGroupUrls": [group.replace("Managers", "s")],
        "location": fields.find("location"),
        "project": fields.find("project"),
        "version": VERSION,
        "initialNodeCount": 0,
    }


def account_outputs(fields: Fields, _: Values) -> Values:
    email = Reference(fields["id"]).tail
    return {"email": email, "name": fields["id"], "member": f"serviceAccount:{email}", "uniqueId": number(email)}


def key_outputs(fields: Fields, _: Values) -> Values:
    key = {
        "type": "service_account",
        "project_id": fields.find("project"),
        "private_key_id": fields["token"],
        "private_key": "-----BEGIN PRIVATE KEY-----\nFAKE-PRIVATE-KEY-OF-THE-SIMULATED-CLOUD\n-----END PRIVATE KEY-----\n",
        "client_email": Reference(fields["serviceAccountId"]).tail,
    }
    return {
        "name": fields["id"],
        "privateKey": base64.b64encode(json.dumps(key).encode()).decode(),
        "publicKey": base64.b64encode(b"-----BEGIN CERTIFICATE-----\nFAKE\n-----END CERTIFICATE-----\n").decode(),
        "validAfter": fields["now"],
        "validBefore": "9999-12-31T23:59:59Z",
    }


def bucket_outputs(fields: Fields, inputs: Values) -> Values:
    return {
        "url": f"gs://{fields['id']}",
        "selfLink": f"https://www.googleapis.com/storage/v1/b/{fields['id']}",
        "project": fields["project"],
        "projectNumber": number(fields["project"]),
        "timeCreated": fields["now"],
        "updated": fields["now"],
        **labelled(inputs),
    }


def repository_outputs(fields: Fields, inputs: Values) -> Values:
    return {
        "name": fields["repositoryId"],
        "registryUri": f"{fields['location']}-docker.pkg.dev/{fields['project']}/{fields['repositoryId']}",
        "createTime": fields["now"],
        "updateTime": fields["now"],
        **labelled(inputs),
    }


def secret_outputs(fields: Fields, inputs: Values) -> Values:
    return {
        "name": f"projects/{number(fields['project'])}/secrets/{fields['secretId']}",
        "createTime": fields["now"],
        "effectiveAnnotations": inputs.get("annotations", {}),
        **labelled(inputs),
    }


def secret_version_outputs(fields: Fields, _: Values) -> Values:
    return {"name": fields["id"], "version": Reference(fields["id"]).tail, "createTime": fields["now"], "enabled": True, "destroyTime": ""}


def zone_outputs(fields: Fields, inputs: Values) -> Values:
    servers = [f"ns-cloud-a{index}.googledomains.com." for index in range(1, 5)]
    return {"nameServers": servers, "managedZoneId": number(fields["id"]), "creationTime": fields["now"], **labelled(inputs)}


def shrinks(old: Any, new: Any) -> bool:
    """A range can be made wider in place, nothing else."""
    try:
        return not ipaddress.ip_network(old).subnet_of(ipaddress.ip_network(new))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return True


def identity_pool(fields: Fields) -> str:
    """The Workload Identity pool that a member is in; it exists once the project has had a cluster that uses it."""
    found = re.search(r"[^/:]+\.svc\.id\.goog", fields["member"])
    return found[0] if found else ""


def protected(inputs: Values, _: list[str]) -> str:
    if inputs.get("deletionProtection", True):
        return "Cannot destroy cluster because deletion_protection is set to true. Set it to false to proceed with instance deletion"
    return ""


def not_empty(inputs: Values, objects: list[str]) -> str:
    if objects and not inputs.get("forceDestroy"):
        return f"Error trying to delete bucket {inputs['name']} containing objects without `force_destroy` set to true"
    return ""


NODE_CONFIG_REPLACES = [
    "advancedMachineFeatures",
    "bootDiskKmsKey",
    "confidentialNodes",
    "enableConfidentialStorage",
    "ephemeralStorageConfig",
    "ephemeralStorageLocalSsdConfig",
    "flexStart",
    "gpudirectStrategy",
    "guestAccelerators",
    "gvnic",
    "hostMaintenancePolicy",
    "localNvmeSsdBlockConfig",
    "localSsdCount",
    "localSsdEncryptionMode",
    "maxRunDuration",
    "metadata",
    "minCpuPlatform",
    "nodeGroup",
    "oauthScopes",
    "preemptible",
    "reservationAffinity",
    "sandboxConfig",
    "secondaryBootDisks",
    "serviceAccount",
    "shieldedInstanceConfig",
    "soleTenantConfig",
    "spot",
]

ACCOUNT_TEMPLATE = "projects/{project}/serviceAccounts/{accountId}@{project}.iam.gserviceaccount.com"
NETWORK_TEMPLATE = "projects/{project}/global/networks/{name}"
SUBNETWORK_TEMPLATE = "projects/{project}/regions/{region}/subnetworks/{name}"
ROUTER_TEMPLATE = "projects/{project}/regions/{region}/routers/{name}"
CLUSTER_TEMPLATE = "projects/{project}/locations/{location}/clusters/{name}"
REPOSITORY_TEMPLATE = "projects/{project}/locations/{location}/repositories/{repositoryId}"
SECRET_TEMPLATE = "projects/{project}/secrets/{secretId}"
ZONE_TEMPLATE = "projects/{project}/managedZones/{name}"

NETWORK_OF = Parent("network", NETWORK, "refuse", foreign=True, identify=within(NETWORK_TEMPLATE, "name"))
ACCOUNT_OF = Parent("account", ACCOUNT, "keep", identify=account)


def binding(id: str, name: str, parent: Parent | None = None, api: str = "") -> Kind:
    """The membership of somebody in a role, on something."""
    return Kind(
        id=id,
        api=api,
        fields=binding_fields(name),
        parents=(parent, ACCOUNT_OF) if parent else (ACCOUNT_OF,),
        needs=identity_pool,
        idempotent=True,
        replaces=("*",),
        outputs=lambda fields, _: {"etag": number(fields["id"])},
    )


KINDS: dict[str, Kind] = {
    SERVICE: Kind(
        id="{project}/{service}",
        enables=lambda fields, _: fields["id"],
        stays_enabled=lambda inputs: not inputs.get("disableOnDestroy", False),
        idempotent=True,
        replaces=("service", "project"),
    ),
    NETWORK: Kind(
        id=NETWORK_TEMPLATE,
        api="compute.googleapis.com",
        autonamed="name",
        replaces=("name", "project", "autoCreateSubnetworks", "description", "internalIpv6Range"),
        outputs=network_outputs,
    ),
    SUBNETWORK: Kind(
        id=SUBNETWORK_TEMPLATE,
        api="compute.googleapis.com",
        parents=(NETWORK_OF,),
        autonamed="name",
        replaces=("name", "project", "region", "network", "description", "purpose"),
        replaces_when={"ipCidrRange": shrinks},
        outputs=compute_outputs,
    ),
    ROUTER: Kind(
        id=ROUTER_TEMPLATE,
        api="compute.googleapis.com",
        parents=(NETWORK_OF,),
        autonamed="name",
        replaces=("name", "project", "region", "network"),
        outputs=compute_outputs,
    ),
    "gcp:compute/routerNat:RouterNat": Kind(
        id="{project}/{region}/{router.tail}/{name}",
        parents=(Parent("router", ROUTER, "remove", identify=within(ROUTER_TEMPLATE, "name")),),
        autonamed="name",
        replaces=("name", "project", "region", "router", "type"),
    ),
    "gcp:compute/firewall:Firewall": Kind(
        id="projects/{project}/global/firewalls/{name}",
        api="compute.googleapis.com",
        parents=(NETWORK_OF,),
        autonamed="name",
        replaces=("name", "project", "network", "direction"),
        outputs=compute_outputs,
    ),
    SECURITY_POLICY: Kind(
        id="projects/{project}/global/securityPolicies/{name}",
        api="compute.googleapis.com",
        autonamed="name",
        replaces=("name", "project"),
        outputs=lambda fields, _: {"selfLink": COMPUTE + fields["id"], "fingerprint": number(fields["id"])},
    ),
    CLUSTER: Kind(
        id=CLUSTER_TEMPLATE,
        api="container.googleapis.com",
        fields=nodes_fields,
        parents=(
            NETWORK_OF,
            Parent("subnetwork", SUBNETWORK, "refuse", foreign=True, identify=within(SUBNETWORK_TEMPLATE, "name")),
            ACCOUNT_OF,
        ),
        enables=lambda _, inputs: at(inputs, "workloadIdentityConfig.workloadPool") or "",
        unreadable=("removeDefaultNodePool",),  # the default pool is deleted once the cluster is there
        autonamed="name",
        replaces=(
            *[
                "name",
                "project",
                "location",
                "network",
                "subnetwork",
                "description",
                "clusterIpv4Cidr",
                "confidentialNodes",
                "datapathProvider",
            ],
            *[
                "defaultMaxPodsPerNode",
                "enableAutopilot",
                "enableKubernetesAlpha",
                "enableTpu",
                "initialNodeCount",
                "masterAuth",
                "networkingMode",
            ],
            *(f"ipAllocationPolicy.{name}" for name in ["clusterIpv4CidrBlock", "clusterSecondaryRangeName", "stackType"]),
            *(f"ipAllocationPolicy.{name}" for name in ["servicesIpv4CidrBlock", "servicesSecondaryRangeName"]),
            *(f"privateClusterConfig.{name}" for name in ["masterIpv4CidrBlock", "privateEndpointSubnetwork"]),
            *(f"nodeConfig.{name}" for name in [*NODE_CONFIG_REPLACES, "labels", "workloadMetadataConfig"]),
        ),
        outputs=cluster_outputs,
        refuses_deletion=protected,
    ),
    NODE_POOL: Kind(
        id="{cluster}/nodePools/{name}",
        fields=nodes_fields,
        parents=(
            Parent("cluster", CLUSTER, "remove", identify=within(CLUSTER_TEMPLATE, "name")),
            ACCOUNT_OF,
        ),
        autonamed="name",
        replaces=(
            *[
                "name",
                "namePrefix",
                "project",
                "location",
                "cluster",
                "initialNodeCount",
                "maxPodsPerNode",
                "placementPolicy",
                "queuedProvisioning",
            ],
            *(f"networkConfig.{name}" for name in ["createPodRange", "podRange", "podIpv4CidrBlock", "podCidrOverprovisionConfig"]),
            *(f"nodeConfig.{name}" for name in NODE_CONFIG_REPLACES),
        ),
        outputs=node_pool_outputs,
    ),
    ACCOUNT: Kind(
        id=ACCOUNT_TEMPLATE,
        api="iam.googleapis.com",
        replaces=("accountId", "project"),
        outputs=account_outputs,
    ),
    KEY: Kind(
        id="{serviceAccountId}/keys/{token}",
        fields=with_project_of("serviceAccountId"),
        parents=(Parent("serviceAccountId", ACCOUNT, "remove", identify=account),),
        replaces=("*",),
        outputs=key_outputs,
        secret=("privateKey",),
    ),
    "gcp:projects/iAMMember:IAMMember": binding("{project}/{binding}", "project", api="cloudresourcemanager.googleapis.com"),
    "gcp:serviceaccount/iAMMember:IAMMember": binding(
        "{serviceAccountId}/{binding}", "serviceAccountId", Parent("serviceAccountId", ACCOUNT, "remove", identify=account)
    ),
    BUCKET: Kind(
        id="{name}",
        api="storage.googleapis.com",
        autonamed="name",
        replaces=("name", "project", "location", "customPlacementConfig", "enableObjectRetention", "hierarchicalNamespace"),
        outputs=bucket_outputs,
        refuses_deletion=not_empty,
        taken=NAME_TAKEN,
    ),
    "gcp:storage/bucketIAMMember:BucketIAMMember": binding(
        "b/{bucket}/{binding}", "bucket", Parent("bucket", BUCKET, "remove", identify=bucket_name)
    ),
    REPOSITORY: Kind(
        id=REPOSITORY_TEMPLATE,
        api="artifactregistry.googleapis.com",
        replaces=("repositoryId", "project", "location", "format", "kmsKeyName", "mode"),
        outputs=repository_outputs,
    ),
    "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": binding(
        "{repository}/{binding}",
        "repository",
        Parent("repository", REPOSITORY, "remove", identify=within(REPOSITORY_TEMPLATE, "repositoryId")),
    ),
    SECRET: Kind(
        id=SECRET_TEMPLATE,
        api="secretmanager.googleapis.com",
        replaces=("secretId", "project", "replication"),
        outputs=secret_outputs,
    ),
    SECRET_VERSION: Kind(
        id="projects/{number}/secrets/{secret.tail}/versions/{count}",
        fields=with_project_of("secret"),
        parents=(Parent("secret", SECRET, "remove", identify=within(SECRET_TEMPLATE, "secretId")),),
        replaces=("secret", "secretData", "secretDataWoVersion", "isSecretDataBase64"),
        outputs=secret_version_outputs,
    ),
    "gcp:secretmanager/secretIamMember:SecretIamMember": binding(
        "{secretId}/{binding}", "secretId", Parent("secretId", SECRET, "remove", identify=within(SECRET_TEMPLATE, "secretId"))
    ),
    ZONE: Kind(
        id=ZONE_TEMPLATE,
        api="dns.googleapis.com",
        autonamed="name",
        replaces=("name", "project", "dnsName", "visibility"),
        outputs=zone_outputs,
    ),
    KEY_RING: Kind(id="projects/{project}/locations/{location}/keyRings/{name}", api="cloudkms.googleapis.com", replaces=("*",)),
    CRYPTO_KEY: Kind(
        id="{keyRing}/cryptoKeys/{name}",
        parents=(Parent("keyRing", KEY_RING, "refuse"),),
        replaces=("name", "keyRing", "purpose"),
        outputs=lambda fields, _: {"primaries": [{"name": f"{fields['id']}/cryptoKeyVersions/1", "state": "ENABLED"}]},
    ),
    "gcp:dns/recordSet:RecordSet": Kind(
        id="projects/{project}/managedZones/{managedZone.tail}/rrsets/{name}/{type}",
        parents=(Parent("managedZone", ZONE, "refuse", identify=within(ZONE_TEMPLATE, "name")),),
        replaces=("name", "project", "managedZone", "type"),
    ),
}


def kind(type: str) -> Kind:
    if type not in KINDS:
        raise CloudError(f"the simulated cloud does not know {type}: it needs a row in KINDS of tests/cloud/google.py")
    return KINDS[type]
