"""The stack's secrets in Secret Manager, readable by the trainer and nobody else that this stack makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulumi
from pulumi_gcp import secretmanager

from infra.component import Component
from naming import Names, slug


class Secrets(Component):
    def __init__(
        self,
        name: str,
        names: Names,
        values: Mapping[str, str],
        reader: pulumi.Input[str],
        needs: Sequence[pulumi.Resource] = (),
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(name, needs, opts)
        self.ids: dict[str, pulumi.Output[str]] = {}
        for key, value in values.items():
            secret = secretmanager.Secret(
                f"{name}-{key}",
                secret_id=f"{names.base}-{slug(key, 60)}",
                replication=secretmanager.SecretReplicationArgs(auto=secretmanager.SecretReplicationAutoArgs()),
                labels=names.labels(),
                opts=self.child(),
            )
            secretmanager.SecretVersion(
                f"{name}-{key}-value",
                secret=secret.id,
                secret_data=pulumi.Output.secret(value),
                opts=self.child(additional_secret_outputs=["secret_data"]),
            )
            secretmanager.SecretIamMember(
                f"{name}-{key}-reader",
                secret_id=secret.id,
                role="roles/secretmanager.secretAccessor",
                member=reader,
                opts=self.child(),
            )
            self.ids[key] = secret.id
        self.register_outputs({})
