"""Each rule of the policy pack: every environment keeps it, and a resource of theirs that is changed for the worse breaks it, in words that help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policy.rules import BUCKET, CLUSTER, ENFORCE, KEY, NODE_POOL, RULES, RULES_OF_STACKS, Resource, budget_per_hour
from tests.policy.stacks import CONFIG, EXAMPLES, broken, resources

JOB = "kubernetes:batch/v1:Job"
NAMESPACE = "kubernetes:core/v1:Namespace"
GRANT = "gcp:storage/bucketIAMMember:BucketIAMMember"
OF_STACK = {"app.kubernetes.io/managed-by": "trainstack", "app.kubernetes.io/part-of": "trainstack-kind"}
GONE = object()


def one(stack: str, kind: str, name: str = "") -> Resource:
    """The first resource of a kind whose name ends so."""
    return next(each for each in resources(stack) if each.kind == kind and each.name.endswith(name))


def changed(resource: Resource, path: str, value: Any = GONE) -> Resource:
    """The same with another value at a path, which must be there; or with what was there taken away."""
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    where: Any = resource.inputs
    for key in parents:
        where = where[key]
    if value is GONE:
        del where[last]
    else:
        where[last] = value
    return resource


@pytest.mark.parametrize("stack", ["dev", "staging", "prod", "kind", *EXAMPLES])
def test_every_environment_keeps_every_rule(stack: str) -> None:
    found = [broken(resource) for resource in resources(stack)]
    assert [each for each in found if each] == []
    assert len(found) > 10
    assert list(budget_per_hour(resources(stack), **CONFIG["budget-per-hour"])) == []


POD = "spec.template.spec"
TASK = f"{POD}.containers.0"
# From a rule to a resource of an environment, what is changed of it, and what a person reads.
BROKEN = [
    (
        "no-public-buckets",
        ("dev", BUCKET),
        ("publicAccessPrevention", "inherited"),
        "shows its data to everybody; write public_access_prevention: enforced",
    ),
    ("no-public-buckets", ("dev", BUCKET), ("uniformBucketLevelAccess", False), "write uniform_bucket_level_access: true"),
    ("no-public-buckets", ("dev", GRANT), ("member", "allUsers"), "allUsers is granted access, so anybody on the Internet has it"),
    (
        "private-nodes",
        ("dev", CLUSTER),
        ("privateClusterConfig",),
        "each node has an address on the Internet; write private_cluster_config",
    ),
    (
        "private-nodes",
        ("dev", NODE_POOL),
        ("networkConfig", {"enablePrivateNodes": False}),
        "leave out network_config.enable_private_nodes",
    ),
    ("no-default-service-account", ("dev", CLUSTER), ("nodeConfig.serviceAccount",), "the default account of the project"),
    (
        "no-default-service-account",
        ("dev", NODE_POOL),
        ("nodeConfig.serviceAccount", "1-compute@developer.gserviceaccount.com"),
        "may edit everything",
    ),
    ("no-default-service-account", ("dev", JOB), (f"{POD}.serviceAccountName",), "write serviceAccountName: trainer"),
    (
        "gpus-have-an-end",
        ("dev", NODE_POOL, "l4-1-spot"),
        ("autoscaling.totalMinNodeCount", 2),
        "keeps at least 2 GPU nodes, which are paid for also when",
    ),
    ("gpus-have-an-end", ("dev", NODE_POOL, "l4-1-spot"), ("autoscaling",), "keeps a fixed number of GPU nodes"),
    ("gpus-have-an-end", ("dev", NODE_POOL, "l4-1-spot"), ("initialNodeCount", 1), "write initial_node_count: 0"),
    ("gpus-have-an-end", ("dev", NODE_POOL, "l4-1-spot"), ("nodeConfig.flexStart", True), "Its flex-start nodes have no end"),
    (
        "gpus-have-an-end",
        ("dev", JOB, "worker"),
        ("spec.activeDeadlineSeconds",),
        "without a deadline, so a run that hangs is paid for until somebody looks",
    ),
    ("gpus-have-an-end", ("dev", JOB, "worker"), ("spec.activeDeadlineSeconds", 3600 * 1000), "for 1000 hours, and 168 are allowed"),
    (
        "labels-present",
        ("dev", NODE_POOL),
        ("nodeConfig.resourceLabels", {"stack": "dev"}),
        "no label managed-by, so no bill and no search for leftovers finds it",
    ),
    ("labels-present", ("dev", BUCKET), ("labels",), "It has no label managed-by and no label stack"),
    ("labels-present", ("kind", NAMESPACE), ("metadata.labels", {ENFORCE: "restricted"}), "add it to metadata.labels"),
    ("prod-protected", ("prod", CLUSTER), ("deletionProtection", False), "write trainstack:cluster: {deletion_protection: true}"),
    ("prod-protected", ("prod", BUCKET), ("forceDestroy", True), "deletes all that was trained; write on_destroy: keep"),
    (
        "images-by-digest",
        ("kind", JOB, "chief"),
        (f"{TASK}.image", "example.com/trainer:latest"),
        "example.com/trainer:latest, and what a tag means can be changed",
    ),
    (
        "pod-security-restricted",
        ("kind", NAMESPACE),
        ("metadata.labels", {**OF_STACK, ENFORCE: "baseline"}),
        "pod-security.kubernetes.io/enforce: restricted",
    ),
    (
        "pod-security-restricted",
        ("kind", JOB, "chief"),
        (f"{POD}.hostNetwork", True),
        "the node's own Network, and see what other pods do; write hostNetwork: false",
    ),
    (
        "pod-security-restricted",
        ("kind", JOB, "chief"),
        (f"{POD}.volumes.0", {"name": "tmp", "hostPath": {"path": "/"}}),
        "volume tmp is a hostPath",
    ),
    ("pod-security-restricted", ("kind", JOB, "chief"), (f"{TASK}.securityContext.runAsNonRoot", False), "Container task may run as root"),
    ("pod-security-restricted", ("kind", JOB, "chief"), (f"{TASK}.securityContext.runAsUser", 0), "Container task may run as root"),
    (
        "pod-security-restricted",
        ("kind", JOB, "chief"),
        (f"{TASK}.securityContext.allowPrivilegeEscalation",),
        "Container task may gain privileges",
    ),
    ("pod-security-restricted", ("kind", JOB, "chief"), (f"{TASK}.securityContext.privileged", True), "Container task may gain privileges"),
    (
        "pod-security-restricted",
        ("kind", JOB, "chief"),
        (f"{TASK}.securityContext.capabilities", {"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
        "write capabilities: {drop: [ALL]}",
    ),
    (
        "pod-security-restricted",
        ("kind", JOB, "chief"),
        (f"{POD}.securityContext.seccompProfile",),
        "write seccompProfile: {type: RuntimeDefault}",
    ),
    ("pod-security-restricted", ("kind", JOB, "chief"), (f"{TASK}.ports.0.hostPort", 80), "takes a port of its node"),
]


@pytest.mark.parametrize(("rule", "which", "change", "sentence"), BROKEN)
def test_what_breaks_a_rule_is_said(rule: str, which: tuple[str, ...], change: tuple[Any, ...], sentence: str) -> None:
    resource = one(*which)
    assert broken(resource) == {}
    said = broken(changed(resource, *change))
    assert list(said) == [rule]
    assert len(said[rule]) == 1
    assert sentence in said[rule][0]


def test_a_key_needs_the_team_as_well_as_the_training() -> None:
    key = Resource("dev", KEY, "identity-trainer-key", {"serviceAccountId": "projects/p/serviceAccounts/a"})
    (sentence,) = broken(key)["no-service-account-keys"]
    assert "have dev added to no-service-account-keys.stacks in policy/config.yaml" in sentence
    assert broken(key, **{"no-service-account-keys": {"stacks": ["dev"]}}) == {}


def test_protection_is_asked_of_production_only() -> None:
    for kind in (CLUSTER, BUCKET):
        open_to_all = replace(one("prod", kind), protect=False)
        assert list(broken(open_to_all)) == ["prod-protected"]
        assert broken(replace(open_to_all, stack="staging")) == {}


def test_an_image_by_tag_needs_the_team() -> None:
    (sentence,) = broken(one("dev", "kubernetes:apps/v1:Deployment"), **{"images-by-digest": {"by_tag": []}})["images-by-digest"]
    assert "Container serving has the image tensorflow/serving:" in sentence


def test_everybody_is_found_however_access_is_written() -> None:
    written = [
        {"members": ["user:a@b.c", "allAuthenticatedUsers"]},
        {"policyData": '{"bindings":[{"members":["allUsers"]}]}'},
        {"entity": "allUsers"},
        {"roleEntities": ["OWNER:user-a@b.c", "READER:allUsers"]},
        {"predefinedAcl": "publicReadWrite"},
    ]
    for inputs in written:
        assert list(broken(Resource("dev", "gcp:storage/some:Grant", "a", inputs))) == ["no-public-buckets"]


def test_a_budget_is_no_more_than_the_team_allows() -> None:
    stack = resources("dev")
    assert "budget of the stack dev is $10 an hour, and $5 are allowed" in " ".join(budget_per_hour(stack, {"dev": 5}))
    assert list(budget_per_hour(stack, {"prod": 5})) == []
    del stack[0].inputs["stack_settings"]["budget"]
    (sentence,) = budget_per_hour(stack, {"dev": 5})
    assert "it may cost anything; write trainstack:budget: {per_hour: 5}, or less" in sentence
    del stack[0].inputs["stack_settings"]
    assert list(budget_per_hour(stack, {"dev": 5})) == [sentence]


def test_the_config_says_what_the_rules_ask_for() -> None:
    assert {name: set(values) for name, values in CONFIG.items()} == {
        rule.name: set(rule.settings) for rule in (*RULES, *RULES_OF_STACKS) if rule.settings
    }


def test_every_rule_has_a_case_that_breaks_it() -> None:
    assert {rule.name for rule in RULES} == {rule for rule, *_ in BROKEN} | {"no-service-account-keys"}
