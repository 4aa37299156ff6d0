"""The namespace of a stack: Pod Security `restricted`, the service account of the tasks, and keys where a training asked for one."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping

import pulumi
from pulumi_kubernetes.core import v1 as core
from pulumi_kubernetes.meta import v1 as meta

SERVICE_ACCOUNT = "trainer"


class Namespace(pulumi.ComponentResource):
    def __init__(
        self,
        name: str,
        namespace: str,
        annotations: Mapping[str, pulumi.Input[str]],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("trainstack:workloads:Namespace", name, None, opts)
        self.labels = {"app.kubernetes.io/managed-by": "trainstack", "app.kubernetes.io/part-of": namespace}
        levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
        child = pulumi.ResourceOptions(parent=self)
        self.resource = core.Namespace(
            f"{name}-namespace", metadata=meta.ObjectMetaArgs(name=namespace, labels={**self.labels, **levels}), opts=child
        )
        self.name = self.resource.metadata.name
        core.ServiceAccount(
            f"{name}-{SERVICE_ACCOUNT}",
            metadata=meta.ObjectMetaArgs(name=SERVICE_ACCOUNT, namespace=self.name, labels=self.labels, annotations=annotations),
            automount_service_account_token=False,
            opts=child,
        )
        self.register_outputs({})

    def keys(self, key: pulumi.Input[str], wanted: Iterable[tuple[str, str]]) -> None:
        """The account's JSON key, as Google hands it out (base64), under the secrets and file names that trainings name."""
        files: dict[str, list[str]] = {}
        for secret, file in sorted(set(wanted)):
            files.setdefault(secret, []).append(file)
        text = pulumi.Output.secret(key).apply(lambda encoded: base64.b64decode(encoded).decode())
        for secret, names in files.items():
            core.Secret(
                f"credentials-{secret}",
                metadata=meta.ObjectMetaArgs(name=secret, namespace=self.name, labels=self.labels),
                string_data=dict.fromkeys(names, text),
                opts=pulumi.ResourceOptions(parent=self),
            )
