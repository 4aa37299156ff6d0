"""Who acts: the nodes, and the trainer that the tasks run as.

The nodes may write logs and metrics and pull images, no more. The trainer may write logs; what it may read and write besides is granted by the component
that owns it (storage, registry, secrets), one thing at a time. It has no key unless a training asks for `credentials.mode: key_secret`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
from pulumi_gcp import projects, serviceaccount

from infra.component import Component
from naming import Names


class Identity(Component):
    def __init__(
        self,
        name: str,
        names: Names,
        with_key: bool = False,
        needs: Sequence[pulumi.Resource] = (),
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(name, needs, opts)
        self.nodes = self._account(name, names, "nodes", "roles/container.defaultNodeServiceAccount")
        self.trainer = self._account(name, names, "trainer", "roles/logging.logWriter")
        self.key: pulumi.Output[str] | None = None
        if with_key:
            key = serviceaccount.Key(f"{name}-trainer-key", service_account_id=self.trainer.name, opts=self.child())
            self.key = pulumi.Output.secret(key.private_key)
        self.register_outputs({"trainer": self.trainer.email})

    def _account(self, name: str, names: Names, role: str, granted: str) -> serviceaccount.Account:
        account = serviceaccount.Account(
            f"{name}-{role}",
            account_id=names.account(role),
            display_name=f"{role} of the Trainstack stack {names.stack}",
            opts=self.child(),
        )
        projects.IAMMember(f"{name}-{role}-role", project=names.project, role=granted, member=account.member, opts=self.child())
        return account


class WorkloadIdentity(Component):
    """Lets a Kubernetes service account act as the trainer. It comes after the cluster: before it, the workload pool does not exist."""

    def __init__(
        self,
        name: str,
        account: pulumi.Input[str],
        workload_pool: pulumi.Input[str],
        namespace: str,
        service_account: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(name, opts=opts)
        serviceaccount.IAMMember(
            f"{name}-user",
            service_account_id=account,
            role="roles/iam.workloadIdentityUser",
            member=pulumi.Output.format("serviceAccount:{0}[{1}/{2}]", workload_pool, namespace, service_account),
            opts=self.child(),
        )
        self.register_outputs({})
