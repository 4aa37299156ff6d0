"""A network of the stack's own: one subnetwork with ranges for pods and services, and a NAT, because private nodes have no address of their own.

Or an existing network by name, of which nothing is made or changed; its subnetwork must have the two secondary ranges, and a way out.
No firewall rules: what is not allowed is denied, and GKE makes the rules that its nodes need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pulumi
from pulumi_gcp import compute

from infra.component import Component
from naming import Names

if TYPE_CHECKING:
    import settings

PODS = "pods"
SERVICES = "services"


class Network(Component):
    network: pulumi.Input[str]
    subnetwork: pulumi.Input[str]
    pods_range: pulumi.Input[str]
    services_range: pulumi.Input[str]

    def __init__(
        self,
        name: str,
        names: Names,
        region: str,
        wanted: settings.Network,
        needs: Sequence[pulumi.Resource] = (),
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(name, needs, opts)
        if wanted.existing:
            self.network, self.subnetwork = wanted.existing, wanted.subnetwork or ""
            self.pods_range, self.services_range = wanted.pods_range or "", wanted.services_range or ""
        else:
            self._make(name, names, region, wanted)
        self.register_outputs({})

    def _make(self, name: str, names: Names, region: str, wanted: settings.Network) -> None:
        vpc = compute.Network(f"{name}-vpc", name=names.base, auto_create_subnetworks=False, routing_mode="REGIONAL", opts=self.child())
        subnetwork = compute.Subnetwork(
            f"{name}-nodes",
            name=f"{names.base}-nodes",
            network=vpc.id,
            region=region,
            ip_cidr_range=wanted.nodes_cidr,
            private_ip_google_access=True,
            secondary_ip_ranges=[
                compute.SubnetworkSecondaryIpRangeArgs(range_name=PODS, ip_cidr_range=wanted.pods_cidr),
                compute.SubnetworkSecondaryIpRangeArgs(range_name=SERVICES, ip_cidr_range=wanted.services_cidr),
            ],
            log_config=compute.SubnetworkLogConfigArgs(
                aggregation_interval="INTERVAL_10_MIN", flow_sampling=0.1, metadata="EXCLUDE_ALL_METADATA"
            )
            if wanted.flow_logs
            else None,
            opts=self.child(),
        )
        router = compute.Router(f"{name}-router", name=names.base, network=vpc.id, region=region, opts=self.child())
        compute.RouterNat(
            f"{name}-nat",
            name=names.base,
            router=router.name,
            region=region,
            nat_ip_allocate_option="AUTO_ONLY",
            source_subnetwork_ip_ranges_to_nat="LIST_OF_SUBNETWORKS",
            subnetworks=[compute.RouterNatSubnetworkArgs(name=subnetwork.id, source_ip_ranges_to_nats=["ALL_IP_RANGES"])],
            log_config=compute.RouterNatLogConfigArgs(enable=True, filter="ERRORS_ONLY"),
            opts=self.child(),
        )
        self.network, self.subnetwork = vpc.id, subnetwork.id
        self.pods_range, self.services_range = PODS, SERVICES
