"""A cluster that is there already: a context of the user's kubeconfig, or the cluster of another stack, which any number of stacks can train on.

Nothing is made around it. On another stack's cluster the tasks act as that stack's trainer, so that they reach its buckets without a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pulumi
import pulumi_kubernetes

from infra import pools
from infra.accelerators import ACCELERATORS

if TYPE_CHECKING:
    import settings


class SharedCluster:
    def __init__(self, wanted: settings.Settings, namespace: str, service_account: str) -> None:
        self.wanted = wanted
        self.kubeconfig: pulumi.Input[str] = ""
        self.annotations: dict[str, pulumi.Input[str]] = {}
        self.before_workloads: list[pulumi.Resource] = []
        where = wanted.kubernetes
        if where.stack:
            self._of_stack(where.stack, namespace, service_account)
        self.kubernetes = pulumi_kubernetes.Provider(
            "cluster",
            kubeconfig=self.kubeconfig or None,
            context=where.context,
            cluster_identifier=f"stack {where.stack}"
            if where.stack
            else f"context {where.context}",  # an address may change, the cluster stays
            enable_config_map_mutable=True,
            enable_secret_mutable=True,
        )

    def _of_stack(self, stack: str, namespace: str, service_account: str) -> None:
        from infra.identity import WorkloadIdentity

        other = pulumi.StackReference(stack)
        self.kubeconfig = pulumi.Output.secret(other.require_output("kubeconfig"))
        cluster, trainer = other.require_output("cluster"), other.require_output("identity")
        account = pulumi.Output.format("projects/{0}/serviceAccounts/{1}", cluster["project"], trainer)
        self.annotations = {"iam.gke.io/gcp-service-account": trainer}
        self.before_workloads = [WorkloadIdentity("workload-identity", account, cluster["workload_pool"], namespace, service_account)]

    def nodes(self) -> dict[tuple[str, str], tuple[int, str | None, bool]]:
        """For every training and role: the GPUs, and on a GKE cluster the labels of their nodes. Elsewhere the training's own selectors decide."""
        known = self.wanted.kubernetes.stack is not None
        return {
            (demand.training, demand.role): (demand.gpus, _label(demand.accelerator) if known else None, known and demand.spot)
            for demand in pools.demands(self.wanted.trainings)
        }


def _label(accelerator: str | None) -> str | None:
    return ACCELERATORS[accelerator].label if accelerator and accelerator in ACCELERATORS else None
