"""Who may reach what an ingress exposes: a Cloud Armor policy that lets some ranges through and nobody else.

An ingress on GKE is a load balancer of Google's: pods see its addresses, not those of whoever asks, so a network policy cannot tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulumi
from pulumi_gcp import compute

from infra.component import Component
from naming import Names, slug

IN_A_RULE = 10  # ranges, at the most
LAST = 2147483647  # the priority of the rule for everybody else


class Guard(Component):
    def __init__(
        self,
        name: str,
        names: Names,
        allowed: Mapping[str, Sequence[str]],
        needs: Sequence[pulumi.Resource] = (),
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """`allowed`: from a training to the ranges that may see its TensorBoard."""
        super().__init__(name, needs, opts)
        self.policies = {
            training: compute.SecurityPolicy(
                f"{name}-{training}",
                name=slug(f"{names.base}-{training}", 63),
                description=f"TensorBoard of {training}, stack {names.stack}",
                rules=[*_rules(cidrs), _rule("deny(403)", LAST, ["*"])],
                opts=self.child(),
            ).name
            for training, cidrs in allowed.items()
        }
        self.register_outputs({})


def _rules(cidrs: Sequence[str]) -> list[compute.SecurityPolicyRuleArgs]:
    groups = [cidrs[start : start + IN_A_RULE] for start in range(0, len(cidrs), IN_A_RULE)]
    return [_rule("allow", 1000 + number, group) for number, group in enumerate(groups)]


def _rule(action: str, priority: int, ranges: Sequence[str]) -> compute.SecurityPolicyRuleArgs:
    return compute.SecurityPolicyRuleArgs(
        action=action,
        priority=priority,
        match=compute.SecurityPolicyRuleMatchArgs(
            versioned_expr="SRC_IPS_V1", config=compute.SecurityPolicyRuleMatchConfigArgs(src_ip_ranges=list(ranges))
        ),
    )
