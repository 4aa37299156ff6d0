"""Google's services by addresses of their own, within the stack's network: a private zone that leads googleapis.com to private.googleapis.com.

Network policies know addresses, not names. With this, "may reach Google's services" is one small range and not half of the Internet.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
from pulumi_gcp import dns

from infra.component import Component
from naming import Names

ADDRESSES = tuple(f"199.36.153.{number}" for number in range(8, 12))
DOMAIN = "googleapis.com."


class PrivateGoogle(Component):
    def __init__(
        self,
        name: str,
        names: Names,
        network: pulumi.Input[str],
        needs: Sequence[pulumi.Resource] = (),
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(name, needs, opts)
        zone = dns.ManagedZone(
            f"{name}-zone",
            name=f"{names.base}-googleapis",
            dns_name=DOMAIN,
            description=f"Google's services for the Trainstack stack {names.stack}",
            visibility="private",
            private_visibility_config=dns.ManagedZonePrivateVisibilityConfigArgs(
                networks=[dns.ManagedZonePrivateVisibilityConfigNetworkArgs(network_url=network)]
            ),
            labels=names.labels(),
            opts=self.child(),
        )
        for suffix, host, kind, values in (
            ("addresses", f"private.{DOMAIN}", "A", list(ADDRESSES)),
            ("names", f"*.{DOMAIN}", "CNAME", [f"private.{DOMAIN}"]),
        ):
            dns.RecordSet(f"{name}-{suffix}", managed_zone=zone.name, name=host, type=kind, ttl=300, rrdatas=values, opts=self.child())
        self.register_outputs({})
