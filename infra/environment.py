"""Everything a stack has on Google Cloud, as a table of contents: which components there are, and what each gets from the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pulumi
import pulumi_kubernetes

from infra import outputs, pools
from infra.advice import explain
from infra.apis import Apis
from infra.cluster import Cluster
from infra.guard import Guard
from infra.identity import Identity, WorkloadIdentity
from infra.image import Image
from infra.network import Network
from infra.node_pools import NodePools
from infra.private_google import PrivateGoogle
from infra.registry import Registry
from infra.secrets import Secrets
from infra.storage import Storage, kept, to_use_again
from naming import Names

if TYPE_CHECKING:
    import settings


class Environment:
    def __init__(self, stack: str, wanted: settings.Settings, service_account: str) -> None:
        self.wanted = wanted
        self.names = names = Names(wanted.gcp.project or "", stack)
        self.namespace = names.base
        protected = wanted.cluster.deletion_protection
        filestore = pools.filestore_claims(wanted.trainings)
        explain(names.project)
        if filestore:
            pulumi.log.info(
                f"{', '.join(filestore)}: a ReadWriteMany claim on GKE is a Filestore instance, whose smallest size is 1Ti (premium-rwx: 2.5Ti); that is what it has and costs"
            )

        apis = Apis("apis", wanted.services)
        network = Network("network", names, wanted.region, wanted.network, apis.need("compute"))
        private = [] if wanted.network.existing else [PrivateGoogle("private-google", names, network.network, apis.need("dns"))]
        self.network_name = wanted.network.existing or names.base
        self.needs_shared_class = pools.needs_shared_class(wanted.trainings)
        self.identity = identity = Identity(
            "identity",
            names,
            with_key=any(training.credentials.mode == "key_secret" for training in wanted.trainings.values()),
            needs=apis.need("iam", "cloudresourcemanager"),
        )
        self.cluster = Cluster(
            "cluster",
            names,
            wanted.location,
            wanted.cluster,
            network,
            identity.nodes.email,
            filestore=bool(filestore),
            secret_manager=bool(wanted.secrets),
            needs=apis.need("container", "logging", "monitoring"),
        )
        self.pools = wanted.pools
        node_pools = NodePools(
            "pool",
            names,
            self.cluster.resource,
            self.pools,
            identity.nodes.email,
            wanted.cluster.gpu_driver,
            wanted.cluster.image_streaming,
            needs=apis.need("containerfilesystem") if wanted.cluster.image_streaming else [],
        )
        workload_identity = WorkloadIdentity(
            "workload-identity",
            identity.trainer.name,
            self.cluster.resource.workload_identity_config.workload_pool,
            self.namespace,
            service_account,
        )
        self.storage = Storage(
            "storage",
            names,
            wanted.region,
            wanted.storage,
            identity.trainer.member,
            writes_data=any(training.data_prep for training in wanted.trainings.values()),
            protect=protected,
            needs=apis.need("storage"),
        )
        self.registry = Registry(
            "registry",
            names,
            wanted.region,
            wanted.registry,
            {"nodes": identity.nodes.member, "trainer": identity.trainer.member},
            protect=protected,
            needs=apis.need("artifactregistry"),
        )
        if wanted.secrets:
            Secrets("secrets", names, wanted.secrets, identity.trainer.member, apis.need("secretmanager"))
        self.image: pulumi.Input[str] = wanted.image.reference or ""
        if wanted.builds_image:
            self.image = Image("image", names.short, wanted.image, self.registry, wanted.tensorflow).reference

        exposed = {
            name: training.tensorboard.allowed_cidrs
            for name, training in wanted.trainings.items()
            if training.tensorboard and training.tensorboard.expose == "ingress" and training.deploy
        }
        guard = Guard("guard", names, exposed, apis.need("compute")) if exposed else None
        self.policies = guard.policies if guard else {}

        self.kubernetes = pulumi_kubernetes.Provider(
            "cluster",
            kubeconfig=self.cluster.kubeconfig,
            cluster_identifier=f"{names.project}/{wanted.location}/{names.base}",
            enable_config_map_mutable=True,
            enable_secret_mutable=True,
        )
        self.before_workloads: list[pulumi.Resource] = [node_pools, workload_identity, self.storage, *private]

    def nodes(self) -> dict[tuple[str, str], tuple[str, int, bool]]:
        """For every training and role, and what is beside them: the node pool, the GPUs, and whether the pool keeps others away."""
        tainted = {pool.name: pool.tainted for pool in self.pools}
        found = {
            (demand.training, demand.role): (demand.pool, demand.gpus, tainted[demand.pool])
            for demand in pools.demands(self.wanted.trainings)
        }
        inspectors = {(name, "inspector"): (pools.CPU_POOL, 0, False) for name, each in self.wanted.trainings.items() if each.inspector}
        return {**found, **inspectors}

    def on_destroy(self) -> str:
        """What a person should know who takes the stack down."""
        if self.wanted.cluster.deletion_protection:
            return "the stack is protected; to destroy it, write trainstack:cluster: {deletion_protection: false}, run `pulumi up`, then `pulumi destroy`"
        staying = kept(self.wanted.storage, self.names)
        return f"these buckets stay; to use them again, write:\n{to_use_again(staying)}" if staying else "nothing stays"

    def outputs(self, trainings: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
        """The outputs of the stack. `cluster` is what another stack needs to train on this one's cluster."""
        names, wanted = self.names, self.wanted
        cluster = {
            "name": self.cluster.resource.name,
            "location": wanted.location,
            "project": names.project,
            "workload_pool": self.cluster.workload_pool,
            "endpoint": self.cluster.endpoint,
        }
        links = pulumi.Output.all(**self.storage.buckets).apply(
            lambda buckets: outputs.console_links(names.project, wanted.location, names.base, buckets)
        )
        page = pulumi.Output.all(image=self.image, links=links, buckets=self.storage.buckets, trainings=trainings).apply(
            lambda known: outputs.readme(
                stack=names.stack,
                project=names.project,
                location=wanted.location,
                cluster=names.base,
                by_dns=not wanted.cluster.authorized_networks,
                **known,
            )
        )
        return {
            "cluster": cluster,
            "kubeconfig": self.cluster.kubeconfig,
            "buckets": self.storage.urls,
            "registry": self.registry.url,
            "image": self.image,
            "identity": self.identity.trainer.email,
            "trainings": trainings,
            "console": links,
            "on_destroy": self.on_destroy(),
            "readme": page,
        }
