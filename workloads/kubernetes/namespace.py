"""The namespace of a stack: Pod Security `restricted`, nothing allowed on the network, the service account of the tasks, secrets, and keys where asked for."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping

import pulumi
from pulumi_kubernetes.core import v1 as core
from pulumi_kubernetes.meta import v1 as meta

from workloads.kubernetes import names, policies
from workloads.kubernetes.declare import declare


class Namespace(pulumi.ComponentResource):
    def __init__(
        self,
        name: str,
        namespace: str,
        annotations: Mapping[str, pulumi.Input[str]],
        secrets: Mapping[str, str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("trainstack:workloads:Namespace", name, None, opts)
        self.labels = names.of_stack(namespace)
        levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
        made = core.Namespace(
            f"{name}-namespace",
            metadata=meta.ObjectMetaArgs(name=namespace, labels={**self.labels, **levels}),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.name = namespace  # as a text and not as the object's output: it is known before there is one
        self.inside = inside = pulumi.ResourceOptions(parent=self, depends_on=[made])
        core.ServiceAccount(
            f"{name}-{names.SERVICE_ACCOUNT}",
            metadata=meta.ObjectMetaArgs(
                name=names.SERVICE_ACCOUNT, namespace=namespace, labels=self.labels, annotations=annotations or None
            ),
            automount_service_account_token=False,
            opts=inside,
        )
        declare(f"{name}-default-deny", policies.denied(namespace), inside)
        if secrets:
            values = {key: pulumi.Output.secret(value) for key, value in secrets.items()}
            core.Secret(
                f"{name}-secrets",
                metadata=meta.ObjectMetaArgs(name=names.SECRETS, namespace=namespace, labels=self.labels),
                string_data=values,
                opts=inside,
            )
        self.register_outputs({})

    def keys(self, key: pulumi.Input[str], wanted: Iterable[tuple[str, str]]) -> None:
        """The account's JSON key, as Google hands it out (base64), under the secrets and file names that trainings name."""
        files: dict[str, list[str]] = {}
        for secret, file in sorted(set(wanted)):
            files.setdefault(secret, []).append(file)
        text = pulumi.Output.secret(key).apply(lambda encoded: base64.b64decode(encoded).decode())
        for secret, file_names in files.items():
            core.Secret(
                f"credentials-{secret}",
                metadata=meta.ObjectMetaArgs(name=secret, namespace=self.name, labels=self.labels),
                string_data=dict.fromkeys(file_names, text),
                opts=self.inside,
            )
