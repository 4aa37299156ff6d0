"""Who may reach whom: the meaning of network policies, evaluated without a cluster. Pure.

A pod that no policy selects for a direction is open in that direction; one that is selected may do what any of its policies allows. A connection needs
both: that its source may leave, and that its destination may be entered. Answers to a connection are always let through, so only the first packet counts.
An address range is met by whoever has the address, a pod too: some clusters see it so, and the strict reading is the safe one here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Direction = Literal["Ingress", "Egress"]
Policy = Mapping[str, Any]


@dataclass(frozen=True)
class End:
    """One end of a connection: an address, and the pod that has it, if one has."""

    address: str
    namespace: str | None = None  # None: it is no pod
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)  # the names of its ports


def allowed(policies: Iterable[Policy], source: End, destination: End, port: int, protocol: str = "TCP") -> bool:
    every = list(policies)
    return may(every, "Egress", source, destination, port, protocol) and may(every, "Ingress", destination, source, port, protocol)


def may(policies: Iterable[Policy], direction: Direction, end: End, other: End, port: int, protocol: str = "TCP") -> bool:
    """Whether the policies of one end let a connection with the other end through."""
    relevant = [policy for policy in policies if _selects(policy, end) and direction in _directions(policy)]
    if not relevant:
        return True
    target = end if direction == "Ingress" else other
    side = "from" if direction == "Ingress" else "to"
    return any(
        _peers(rule.get(side), other, policy) and _ports(rule.get("ports"), target, port, protocol)
        for policy in relevant
        for rule in policy["spec"].get(direction.lower()) or ()
    )


def _directions(policy: Policy) -> list[str]:
    """What a policy is about when it does not say: what comes in, and what goes out where there are rules for it."""
    return policy["spec"].get("policyTypes") or ["Ingress", *(["Egress"] if policy["spec"].get("egress") else [])]


def _selects(policy: Policy, end: End) -> bool:
    return end.namespace == policy["metadata"].get("namespace", "default") and matches(policy["spec"].get("podSelector") or {}, end.labels)


def _peers(peers: list[dict[str, Any]] | None, other: End, policy: Policy) -> bool:
    """No list, or an empty one, is everybody."""
    return not peers or any(_peer(each, other, policy["metadata"].get("namespace", "default")) for each in peers)


def _peer(peer: Mapping[str, Any], other: End, namespace: str) -> bool:
    if "ipBlock" in peer:
        address, block = ipaddress.ip_address(other.address), peer["ipBlock"]
        return address in ipaddress.ip_network(block["cidr"]) and not any(
            address in ipaddress.ip_network(hole) for hole in block.get("except", ())
        )
    if other.namespace is None:
        return False
    if "namespaceSelector" in peer:
        if not matches(peer["namespaceSelector"] or {}, other.namespace_labels):
            return False
    elif other.namespace != namespace:
        return False
    return matches(peer.get("podSelector") or {}, other.labels)


def _ports(ports: list[dict[str, Any]] | None, target: End, port: int, protocol: str) -> bool:
    return not ports or any(_port(each, target, port, protocol) for each in ports)


def _port(rule: Mapping[str, Any], target: End, port: int, protocol: str) -> bool:
    if rule.get("protocol", "TCP") != protocol:
        return False
    first = rule.get("port")
    if first is None:
        return True
    if isinstance(first, str):
        return target.ports.get(first) == port
    return int(first) <= port <= int(rule.get("endPort", first))


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """An empty selector is everybody."""
    tests = {
        "In": lambda key, values: labels.get(key) in values,
        "NotIn": lambda key, values: labels.get(key) not in values,
        "Exists": lambda key, _: key in labels,
        "DoesNotExist": lambda key, _: key not in labels,
    }
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()) and all(
        tests[each["operator"]](each["key"], each.get("values", ())) for each in selector.get("matchExpressions") or ()
    )
