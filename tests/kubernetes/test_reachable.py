"""Who may reach whom: first that the evaluator reads policies as Kubernetes documents them, then what the policies of a stack mean."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.made import DIGITS, NAMESPACE, manifests, template_of
from tests.kubernetes.reachable import End, Policy, allowed, matches, may

# -------------------------------------------------------------------------------------------------- the evaluator


def policy(spec: dict[str, Any], namespace: str = "a") -> Policy:
    return {"metadata": {"name": "p", "namespace": namespace}, "spec": spec}


def pod(namespace: str = "a", address: str = "10.0.0.1", **labels: str) -> End:
    return End(address, namespace, labels, {"kubernetes.io/metadata.name": namespace}, {"http": 8080})


WEB, DATABASE, ELSEWHERE = pod(role="web"), pod(address="10.0.0.2", role="db"), pod("b", "10.0.1.1", role="web")
WORLD = End("203.0.113.9")
DENY = policy({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})


def incoming(**rule: Any) -> Policy:
    return policy({"podSelector": {"matchLabels": {"role": "db"}}, "policyTypes": ["Ingress"], "ingress": [rule]})


def test_without_policies_everything_is_open() -> None:
    assert allowed([], WEB, DATABASE, 5432)
    assert allowed([], WORLD, WEB, 80)


def test_a_policy_without_rules_denies_in_its_namespace_alone() -> None:
    assert not allowed([DENY], WEB, DATABASE, 5432)
    assert not allowed([DENY], WEB, WORLD, 443)
    assert not allowed([DENY], ELSEWHERE, WEB, 80)
    assert allowed([DENY], ELSEWHERE, WORLD, 443), "it is in another namespace"


def test_both_ends_have_to_agree() -> None:
    lets_in = incoming(**{"from": [{"podSelector": {"matchLabels": {"role": "web"}}}]})
    assert allowed([lets_in], WEB, DATABASE, 5432)
    assert not allowed([DENY, lets_in], WEB, DATABASE, 5432), "the source may not leave"
    lets_out = policy({"podSelector": {"matchLabels": {"role": "web"}}, "policyTypes": ["Egress"], "egress": [{}]})
    assert allowed([DENY, lets_in, lets_out], WEB, DATABASE, 5432)


def test_policies_add_up() -> None:
    one, other = (incoming(**{"from": [{"ipBlock": {"cidr": cidr}}]}) for cidr in ("203.0.113.0/24", "198.51.100.0/24"))
    assert allowed([one, other], WORLD, DATABASE, 1)
    assert not allowed([other], WORLD, DATABASE, 1)


@pytest.mark.parametrize(
    ("peers", "who"),
    [
        (None, {"web", "elsewhere", "world"}),
        ([], {"web", "elsewhere", "world"}),
        ([{"podSelector": {}}], {"web"}),
        ([{"namespaceSelector": {}}], {"web", "elsewhere"}),
        ([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "b"}}}], {"elsewhere"}),
        (
            [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "b"}}, "podSelector": {"matchLabels": {"role": "db"}}}],
            set(),
        ),
        ([{"podSelector": {"matchLabels": {"role": "db"}}}, {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}], {"world"}),
    ],
)
def test_who_a_rule_is_about(peers: Any, who: set[str]) -> None:
    rule = incoming(**({"from": peers} if peers is not None else {}))
    ends = {"web": WEB, "elsewhere": ELSEWHERE, "world": WORLD}
    assert {name for name, end in ends.items() if allowed([rule], end, DATABASE, 5432)} == who


@pytest.mark.parametrize(
    ("ports", "open_ones"),
    [
        (None, {("TCP", 53), ("UDP", 53), ("TCP", 8080), ("TCP", 9000)}),
        ([{"port": 53}], {("TCP", 53)}),
        ([{"port": 53, "protocol": "UDP"}], {("UDP", 53)}),
        ([{"port": "http"}], {("TCP", 8080)}),
        ([{"port": 8000, "endPort": 9000}], {("TCP", 8080), ("TCP", 9000)}),
        ([{"protocol": "TCP"}], {("TCP", 53), ("TCP", 8080), ("TCP", 9000)}),
    ],
)
def test_which_ports_a_rule_is_about(ports: Any, open_ones: set[tuple[str, int]]) -> None:
    rule = incoming(**({"ports": ports} if ports is not None else {}))
    tried = [("TCP", 53), ("UDP", 53), ("TCP", 8080), ("TCP", 9000)]
    assert {(protocol, port) for protocol, port in tried if allowed([rule], WEB, DATABASE, port, protocol)} == open_ones


def test_what_a_policy_is_about_when_it_does_not_say() -> None:
    silent = policy({"podSelector": {}})
    assert not may([silent], "Ingress", WEB, WORLD, 80)
    assert may([silent], "Egress", WEB, WORLD, 80)
    speaks = policy({"podSelector": {}, "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]})
    assert not may([speaks], "Egress", WEB, WORLD, 80)


@pytest.mark.parametrize(
    ("expression", "matched"),
    [
        ({"key": "role", "operator": "In", "values": ["web", "db"]}, True),
        ({"key": "role", "operator": "NotIn", "values": ["web"]}, False),
        ({"key": "role", "operator": "Exists"}, True),
        ({"key": "role", "operator": "DoesNotExist"}, False),
    ],
)
def test_selectors_with_expressions(expression: dict[str, Any], matched: bool) -> None:
    assert matches({"matchExpressions": [expression]}, {"role": "web"}) is matched


# ------------------------------------------------------------------------------------------- the policies of a stack

RANGE, OFFICE, STRANGER = "203.0.113.0/24", End("203.0.113.7"), End("198.51.100.7")
HEALTH_CHECKS = (End("130.211.1.2"), End("35.191.200.1"))
METADATA, OTHER_METADATA = End("169.254.169.254"), End("169.254.169.252")
NODE_DNS = End("169.254.20.10")
GOOGLE, GOOGLES_NEIGHBOUR = End("199.36.153.10"), End("199.36.153.12")
DNS = End("10.24.0.53", "kube-system", {"k8s-app": "kube-dns"}, {"kubernetes.io/metadata.name": "kube-system"})
FOREIGN = End("10.20.9.9", "default", {"app.kubernetes.io/name": "resnet", "app.kubernetes.io/part-of": NAMESPACE}, {})
RESNET = {
    **DIGITS,
    "evaluator": {"mode": "sidecar"},
    "tensorboard": {},
    "serving": {},
    "data_prep": {"command": ["true"]},
    "egress": ["10.1.0.0/16"],
}
COMPONENTS = ("chief", "worker", "ps", "evaluator", "tensorboard", "serving", "data-prep")
PORTS = (22, 53, 80, 443, 988, 2222, 2223, 6006, 8500, 8501, 10250)


class Network:
    """The policies of a stack, and one pod of each kind with its labels."""

    def __init__(self, **trainings: Any) -> None:
        found = manifests("gke", None, **trainings)
        self.policies = [each for each in found if each["kind"] == "NetworkPolicy"]
        self.pods: dict[str, End] = {}
        for number, template in enumerate(filter(None, map(template_of, found))):
            labels = template["metadata"]["labels"]
            name = f"{labels['app.kubernetes.io/name']}-{labels['app.kubernetes.io/component']}"
            self.pods[name] = End(f"10.20.0.{number + 1}", NAMESPACE, labels, {"kubernetes.io/metadata.name": NAMESPACE})

    def allows(self, source: End | str, destination: End | str, port: int, protocol: str = "TCP") -> bool:
        ends = [self.pods[end] if isinstance(end, str) else end for end in (source, destination)]
        return allowed(self.policies, ends[0], ends[1], port, protocol)

    def open_ports(self, source: End | str, destination: End | str) -> set[int]:
        return {port for port in PORTS if self.allows(source, destination, port)}

    def lets_in(self, destination: str, source: End) -> set[int]:
        """The ports on which a pod may be entered, whatever the policies of whoever comes."""
        return {port for port in PORTS if may(self.policies, "Ingress", self.pods[destination], source, port)}


@pytest.fixture(scope="module")
def network() -> Network:
    return Network(resnet=RESNET, taxi=DIGITS)


def test_the_pods_are_all_there(network: Network) -> None:
    assert set(network.pods) == {f"resnet-{each}" for each in COMPONENTS} | {f"taxi-{each}" for each in ("chief", "worker", "ps")}


def test_tasks_of_a_training_reach_each_other(network: Network) -> None:
    for one in COMPONENTS:
        for other in COMPONENTS:
            assert {2222, 2223} <= network.open_ports(f"resnet-{one}", f"resnet-{other}")


def test_tasks_of_another_training_reach_nobody_here(network: Network) -> None:
    for one in COMPONENTS:
        for other in ("chief", "worker", "ps"):
            assert network.open_ports(f"taxi-{other}", f"resnet-{one}") == set()
            assert network.open_ports(f"resnet-{one}", f"taxi-{other}") == set()


def test_other_namespaces_stay_out_whatever_their_labels(network: Network) -> None:
    for one in COMPONENTS:
        assert network.lets_in(f"resnet-{one}", FOREIGN) == set()
        more = {443} if one == "data-prep" else set()
        assert network.open_ports(f"resnet-{one}", FOREIGN) - more == {53}, "names are asked for wherever the cluster's DNS is"


@pytest.mark.parametrize("resolver", [DNS, NODE_DNS, METADATA], ids=["the cluster's", "the node's", "Google's"])
def test_everybody_asks_for_names(network: Network, resolver: End) -> None:
    for one in network.pods:
        assert network.allows(one, resolver, 53, "UDP")
        assert network.allows(one, resolver, 53, "TCP")
        assert not network.allows(one, resolver, 5353, "UDP")


def test_everybody_reaches_the_metadata_server(network: Network) -> None:
    for one in network.pods:
        assert {80, 988} & network.open_ports(one, METADATA) == {80}
        assert network.open_ports(one, OTHER_METADATA) - {443} == {988}
    assert network.open_ports("resnet-worker", METADATA) == {53, 80}


def test_everybody_reaches_google_and_nobody_the_internet(network: Network) -> None:
    for one in network.pods:
        prepares = one == "resnet-data-prep"
        assert network.open_ports(one, GOOGLE) == {443}
        for far in (STRANGER, OFFICE, GOOGLES_NEIGHBOUR, End("8.8.8.8")):
            assert network.open_ports(one, far) == ({443} if prepares else set()), "data is fetched by https, and by data_prep alone"
        assert not network.allows(one, STRANGER, 443, "UDP")


def test_egress_adds_ranges_for_one_training(network: Network) -> None:
    there, beside = End("10.1.200.3"), End("10.2.0.1")
    for one in COMPONENTS:
        assert network.open_ports(f"resnet-{one}", there) == set(PORTS)
        assert network.open_ports(f"resnet-{one}", beside) == ({443} if one == "data-prep" else set())
    assert network.open_ports("taxi-worker", there) == set()


def test_nobody_comes_in_from_outside(network: Network) -> None:
    for one in network.pods:
        for end in (OFFICE, STRANGER, GOOGLE, METADATA, *HEALTH_CHECKS, End("10.10.0.4"), End("10.1.0.1")):
            assert network.lets_in(one, end) == set()


def test_a_model_is_asked_from_within_the_namespace_on_its_ports_only(network: Network) -> None:
    neighbour = End("10.20.3.3", NAMESPACE, {"app": "a person's own"})
    assert network.lets_in("resnet-serving", neighbour) == {8500, 8501}
    assert network.lets_in("resnet-serving", FOREIGN) == set()
    for one in set(network.pods) - {"resnet-serving"}:
        assert network.lets_in(one, neighbour) == set()


@pytest.mark.parametrize(
    ("expose", "guests"),
    [("port_forward", set()), ("load_balancer", {"office"}), ("ingress", {"office", "health checks"})],
)
def test_tensorboard_is_seen_where_it_is_exposed_by_whom_it_is_meant_for(expose: str, guests: set[str]) -> None:
    network = Network(resnet={**RESNET, "tensorboard": {"expose": expose, "allowed_cidrs": [RANGE]}})
    ends = {"office": (OFFICE,), "health checks": HEALTH_CHECKS, "a stranger": (STRANGER,), "a neighbour": (FOREIGN,)}
    for one in network.pods:
        seen = {name for name, group in ends.items() for end in group if network.lets_in(one, end)}
        assert seen == (guests if one == "resnet-tensorboard" else set())
    for end in (end for name in guests for end in ends[name]):
        assert network.lets_in("resnet-tensorboard", end) == {6006}


def test_an_inspector_and_a_stack_without_trainings_are_closed_too() -> None:
    network = Network(resnet={**DIGITS, "deploy": False, "inspector": True, "volumes": [{"bucket": "b-1", "path": "/b"}]})
    assert network.open_ports("resnet-inspector", STRANGER) == set()
    assert network.lets_in("resnet-inspector", OFFICE) == set()
    empty = Network()
    somebody = End("10.20.0.9", NAMESPACE, {"app": "x"})
    assert empty.open_ports(somebody, STRANGER) == set()
    assert {port for port in PORTS if may(empty.policies, "Ingress", somebody, OFFICE, port)} == set()
