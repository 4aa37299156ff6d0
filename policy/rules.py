"""What a platform team asks of every stack: plain functions from a resource to sentences, one for each thing that is wrong.

Nothing is imported here but the standard library, because two virtual environments use it: the policy pack's, whose SDK cannot be installed beside
TensorFlow, and the project's, in which the tests hold every environment to the same rules. A value that is not known yet raises when it is
looked at (the SDK does that), so rules look at no more than they need.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BUCKET = "gcp:storage/bucket:Bucket"
CLUSTER = "gcp:container/cluster:Cluster"
NODE_POOL = "gcp:container/nodePool:NodePool"
KEY = "gcp:serviceaccount/key:Key"
STACK = "pulumi:pulumi:Stack"
GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class Resource:
    """A resource as it is asked for: its inputs, with the keys that providers use."""

    stack: str
    kind: str  # Pulumi's token, as in gcp:storage/bucket:Bucket
    name: str
    inputs: Mapping[str, Any]
    protect: bool = False

    def at(self, path: str) -> Any:
        """What is written at a path such as nodeConfig.serviceAccount; None where there is nothing."""
        return at(self.inputs, path)


def at(value: Any, path: str) -> Any:
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


# -------------------------------------------------------------------------------------------------- Google Cloud

EVERYBODY = re.compile(r"allUsers|allAuthenticatedUsers|publicRead|authenticatedRead")


def no_public_buckets(resource: Resource) -> Iterator[str]:
    if resource.kind == BUCKET:
        if resource.at("publicAccessPrevention") != "enforced":
            yield "Public access is not prevented, so one wrong grant shows its data to everybody; write public_access_prevention: enforced."
        if resource.at("uniformBucketLevelAccess") is not True:
            yield "Each object can have an access list of its own, which no review sees; write uniform_bucket_level_access: true."
    elif resource.kind.startswith("gcp:"):
        for granted in sorted(_granted(resource)):
            yield f"{granted} is granted access, so anybody on the Internet has it; name the accounts that need it instead."


def _granted(resource: Resource) -> set[str]:
    """Everybody, in the words of a resource that grants access."""
    texts = [resource.at(key) for key in ("member", "entity", "predefinedAcl", "policyData") if key in resource.inputs]
    texts += [each for key in ("members", "roleEntities") for each in resource.at(key) or []]
    return {found for text in texts for found in EVERYBODY.findall(str(text))}


def no_service_account_keys(resource: Resource, stacks: Sequence[str]) -> Iterator[str]:
    if resource.kind == KEY and resource.stack not in stacks:
        yield (
            "It is a key of a service account: a file that works anywhere, for years, for whoever has it; leave out credentials.mode: key_secret, "
            f"which is Workload Identity, or have {resource.stack} added to no-service-account-keys.stacks in policy/config.yaml."
        )


def private_nodes(resource: Resource) -> Iterator[str]:
    consequence = "so each node has an address on the Internet"
    if resource.kind == CLUSTER and resource.at("privateClusterConfig.enablePrivateNodes") is not True:
        yield f"Its nodes are not private, {consequence}; write private_cluster_config: {{enable_private_nodes: true}}."
    if resource.kind == NODE_POOL and resource.at("networkConfig.enablePrivateNodes") is False:
        yield f"Its nodes are not private, {consequence}; leave out network_config.enable_private_nodes: what the cluster says holds."


def no_default_service_account(resource: Resource) -> Iterator[str]:
    if resource.kind in (CLUSTER, NODE_POOL):
        account = resource.at("nodeConfig.serviceAccount")
        if not account or account == "default" or account.endswith("-compute@developer.gserviceaccount.com"):
            yield (
                "Its nodes act as the default account of the project, which in many projects may edit everything; "
                "write node_config.service_account: an account of their own."
            )
    pod = pod_of(resource)
    if pod and pod.get("serviceAccountName", "default") == "default":
        yield "Its pods act as the default account of the namespace, and have what is granted to that for any other reason; write serviceAccountName: trainer."


def gpus_have_an_end(resource: Resource, longest_hours: float) -> Iterator[str]:
    """GPU pools go back to zero, and what runs on them ends. A Deployment (serving) is meant to stay; what it costs is the budget's business."""
    if resource.kind == NODE_POOL and resource.at("nodeConfig.guestAccelerators"):
        yield from _goes_to_zero(resource)
        if resource.at("nodeConfig.flexStart") and not resource.at("nodeConfig.maxRunDuration"):
            yield "Its flex-start nodes have no end; write node_config.max_run_duration: 604800s, the most there is."
    if resource.kind.endswith((":Job", ":Pod")) and _gpus(resource):
        seconds = resource.at("spec.activeDeadlineSeconds")
        if not seconds:
            yield "It runs on GPUs without a deadline, so a run that hangs is paid for until somebody looks; write deadline: 6h in the training."
        elif seconds > longest_hours * 3600:
            yield (
                f"It may run on GPUs for {seconds / 3600:.0f} hours, and {longest_hours:.0f} are allowed; write a shorter deadline in the training, "
                "or have gpus-have-an-end.longest_hours raised in policy/config.yaml."
            )


def _goes_to_zero(pool: Resource) -> Iterator[str]:
    least = [pool.at(f"autoscaling.{key}") or 0 for key in ("minNodeCount", "totalMinNodeCount")]
    fixed = "nodeCount" in pool.inputs or not pool.at("autoscaling")
    if fixed or any(least):
        kept = "a fixed number of" if fixed else f"at least {max(least):.0f}"
        yield f"It keeps {kept} GPU nodes, which are paid for also when nothing trains; write autoscaling: {{total_min_node_count: 0, …}}."
    if pool.at("initialNodeCount"):
        yield "It begins with GPU nodes that nobody asked for yet; write initial_node_count: 0."


def _gpus(resource: Resource) -> bool:
    return any(GPU in (at(container, "resources.limits") or {}) for container in _containers(pod_of(resource) or {}))


# What costs money or is looked for after a destroy, and where its labels are.
LABELLED = {
    BUCKET: "labels",
    CLUSTER: "resourceLabels",
    NODE_POOL: "nodeConfig.resourceLabels",
    "gcp:artifactregistry/repository:Repository": "labels",
    "gcp:compute/address:Address": "labels",
    "gcp:compute/disk:Disk": "labels",
    "gcp:compute/instance:Instance": "labels",
    "gcp:dns/managedZone:ManagedZone": "labels",
    "gcp:filestore/instance:Instance": "labels",
    "gcp:secretmanager/secret:Secret": "labels",
}
LABELS = ("managed-by", "stack")
KUBERNETES_LABELS = ("app.kubernetes.io/managed-by", "app.kubernetes.io/part-of")
OF_KUBERNETES = re.compile(r"kubernetes:[a-z]\S*/v\d\w*:(?!\w+Patch$|\w+List$)\w+")  # objects, not providers and not parts of objects


def labels_present(resource: Resource) -> Iterator[str]:
    path, needed = LABELLED.get(resource.kind), LABELS
    if OF_KUBERNETES.fullmatch(resource.kind):
        path, needed = "metadata.labels", KUBERNETES_LABELS
    if path:
        written = resource.at(path) or {}
        missing = [label for label in needed if not written.get(label)]
        if missing:
            yield f"It has no label {' and no label '.join(missing)}, so no bill and no search for leftovers finds it; add it to {path}."


def prod_protected(resource: Resource, stacks: Sequence[str]) -> Iterator[str]:
    if resource.stack not in stacks:
        return
    if resource.kind == CLUSTER and not (resource.protect and resource.at("deletionProtection") is True):
        yield "One `pulumi destroy` takes the cluster and all that runs on it; write trainstack:cluster: {deletion_protection: true}."
    if resource.kind == BUCKET:
        if resource.at("forceDestroy"):
            yield "A destroy deletes all that was trained; write on_destroy: keep for this bucket in trainstack:storage."
        elif not resource.protect:
            yield "A destroy of the stack gives the bucket up; write trainstack:cluster: {deletion_protection: true}."


# ---------------------------------------------------------------------------------------------------- Kubernetes

DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
ENFORCE = "pod-security.kubernetes.io/enforce"
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def pod_of(resource: Resource) -> Mapping[str, Any] | None:
    """The pods of an object: what stands in their `spec`."""
    if not resource.kind.startswith("kubernetes:"):
        return None
    paths = {"Pod": "spec", "CronJob": "spec.jobTemplate.spec.template.spec"}
    pod = resource.at(paths.get(resource.kind.rpartition(":")[2], "spec.template.spec"))
    return pod if isinstance(pod, Mapping) else None


def _containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [container for key in ("initContainers", "containers", "ephemeralContainers") for container in pod.get(key) or []]


def images_by_digest(resource: Resource, by_tag: Sequence[str]) -> Iterator[str]:
    for container in _containers(pod_of(resource) or {}):
        image = str(container.get("image"))
        if not DIGEST.search(image) and image.rpartition(":")[0] not in by_tag:
            yield (
                f"Container {container['name']} has the image {image}, and what a tag means can be changed behind your back; "
                "write NAME@sha256:…, as `docker buildx imagetools inspect` shows it."
            )


def pod_security_restricted(resource: Resource) -> Iterator[str]:
    """What people get wrong of `restricted`, before anything runs. The API server asks for all of it in a namespace with the label."""
    if resource.kind == "kubernetes:core/v1:Namespace" and (resource.at("metadata.labels") or {}).get(ENFORCE) != "restricted":
        yield f"Its pods may be anything, root on the node included; give the namespace the label {ENFORCE}: restricted."
    pod = pod_of(resource)
    if pod:
        for wrong, consequence, write in _unrestricted(pod):
            yield f"{wrong}, {consequence}; write {write}."


def _unrestricted(pod: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(key):
            yield f"Its pods have the node's own {key.removeprefix('host')}", "and see what other pods do", f"{key}: false"
    for volume in pod.get("volumes") or []:
        for kind in set(volume) - {"name"} - VOLUMES:
            yield f"Its volume {volume['name']} is a {kind}", "which can reach the node's own files", "a claim, a bucket or an emptyDir"
    for container in _containers(pod):
        name, own, whole = container["name"], container.get("securityContext") or {}, pod.get("securityContext") or {}
        either = {**whole, **own}
        if either.get("runAsNonRoot") is not True or either.get("runAsUser") == 0:
            yield f"Container {name} may run as root", "and a hole in its program is one in the node", "runAsNonRoot: true and a runAsUser"
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            yield f"Container {name} may gain privileges", "and leave its container", "allowPrivilegeEscalation: false"
        if "ALL" not in (at(own, "capabilities.drop") or []) or set(at(own, "capabilities.add") or []) - {"NET_BIND_SERVICE"}:
            yield f"Container {name} keeps capabilities of root", "which nothing here needs", "capabilities: {drop: [ALL]}"
        if at(either, "seccompProfile.type") not in ("RuntimeDefault", "Localhost"):
            yield f"Container {name} may use every system call", "also those that break out", "seccompProfile: {type: RuntimeDefault}"
        if any(port.get("hostPort") for port in container.get("ports") or []):
            yield f"Container {name} takes a port of its node", "past every network policy", "ports without hostPort"


# -------------------------------------------------------------------------------------------------------- budget


def budget_per_hour(resources: Sequence[Resource], per_hour: Mapping[str, float]) -> Iterator[str]:
    """A stack that costs more than the budget in its settings is not made (costs.py); here that budget is held to the team's. The settings are an output."""
    (stack,) = (resource for resource in resources if resource.kind == STACK)
    allowed = per_hour.get(stack.stack)
    if allowed is None or not any(resource.kind == NODE_POOL for resource in resources):
        return
    budget = stack.at("stack_settings.budget.per_hour")
    if budget is None:
        yield f"The stack {stack.stack} says no budget, so it may cost anything; write trainstack:budget: {{per_hour: {allowed:g}}}, or less."
    elif budget > allowed:
        yield (
            f"The budget of the stack {stack.stack} is ${budget:g} an hour, and ${allowed:g} are allowed; write a smaller trainstack:budget, "
            "or have budget-per-hour raised in policy/config.yaml."
        )


# --------------------------------------------------------------------------------------------------------- rules

NAMES = {"type": "array", "items": {"type": "string"}}


@dataclass(frozen=True)
class Rule:
    """A rule: `check` yields a sentence for each thing that is wrong – what it is, what comes of it, what to write.

    `settings` are its further arguments, as JSON schemas; policy/config.yaml has their values.
    """

    name: str
    description: str
    check: Callable[..., Iterator[str]]
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


# Of one resource, by what is asked for, before it is made.
RULES = (
    Rule("no-public-buckets", "Nothing in Google Cloud is open to everybody.", no_public_buckets),
    Rule("no-service-account-keys", "Service accounts have no keys unless the team allows it.", no_service_account_keys, {"stacks": NAMES}),
    Rule("private-nodes", "Nodes have no address on the Internet.", private_nodes),
    Rule("no-default-service-account", "Nodes and pods act as accounts of their own.", no_default_service_account),
    Rule(
        "gpus-have-an-end",
        "GPU pools go back to zero, and what trains on them has a deadline.",
        gpus_have_an_end,
        {"longest_hours": {"type": "number"}},
    ),
    Rule("labels-present", "Everything says whose it is.", labels_present),
    Rule("prod-protected", "What production has cannot be destroyed by one command.", prod_protected, {"stacks": NAMES}),
    Rule("images-by-digest", "Images are named by their digests.", images_by_digest, {"by_tag": NAMES}),
    Rule("pod-security-restricted", "Pods are what Pod Security `restricted` allows.", pod_security_restricted),
)
# Of a stack, by what all its resources are in the end.
RULES_OF_STACKS = (Rule("budget-per-hour", "A stack may cost so much and no more.", budget_per_hour, {"per_hour": {"type": "object"}}),)
