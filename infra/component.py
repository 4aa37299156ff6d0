"""What every component of infra/ is: a group of resources that come after what they need, and explain themselves when they fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pulumi


class Component(pulumi.ComponentResource):
    """A part of the environment. Every child waits for `needs`, the services that must be enabled first."""

    def __init__(self, name: str, needs: Sequence[pulumi.Resource] = (), opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(f"trainstack:infra:{type(self).__name__}", name, None, opts)
        self.needs = list(needs)

    def child(self, depends_on: Sequence[pulumi.Resource] = (), **options: Any) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, depends_on=[*self.needs, *depends_on], **options)
