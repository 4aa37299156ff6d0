"""The services of Google Cloud that a stack uses. They are enabled and never disabled again: others in the project may use them."""

from __future__ import annotations

from collections.abc import Iterable

import pulumi
from pulumi_gcp import projects

from infra.component import Component


class Apis(Component):
    def __init__(self, name: str, services: Iterable[str], opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(name, opts=opts)
        self.services = {
            service: projects.Service(f"{name}-{service}", service=f"{service}.googleapis.com", disable_on_destroy=False, opts=self.child())
            for service in services
        }
        self.register_outputs({})

    def need(self, *services: str) -> list[pulumi.Resource]:
        return [self.services[service] for service in services]
