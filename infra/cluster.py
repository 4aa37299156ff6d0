"""A GKE Standard cluster: private nodes, Workload Identity, Dataplane V2, no default node pool.

Its control plane is reached by its DNS endpoint, which asks Google's IAM who you are; or, where `authorized_networks` are written, by its
address from those networks only. What it deliberately does not do: node auto-provisioning, because pools are declared and reviewed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pulumi
from pulumi_gcp import container

from infra.component import Component
from infra.kubeconfig import kubeconfig
from infra.network import Network
from infra.node_pools import node_config
from naming import Names

if TYPE_CHECKING:
    import settings

WINDOW_HOURS = 6


class Cluster(Component):
    def __init__(
        self,
        name: str,
        names: Names,
        location: str,
        wanted: settings.Cluster,
        network: Network,
        node_account: pulumi.Input[str],
        filestore: bool = False,
        secret_manager: bool = False,
        needs: Sequence[pulumi.Resource] = (),
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(name, needs, opts)
        self.location = location
        self.workload_pool = f"{names.project}.svc.id.goog"
        self.resource = container.Cluster(
            f"{name}-gke",
            name=names.base,
            description=f"Made by Trainstack, stack {names.stack}",
            location=location,
            node_locations=[zone for zone in wanted.node_locations if zone != location] or None,  # its own zone is not named
            resource_labels=names.labels(),
            # A pool that is there for some minutes only: node pools of our own follow, but GKE wants one to begin with.
            remove_default_node_pool=True,
            initial_node_count=1,
            node_config=container.ClusterNodeConfigArgs(**node_config(node_account, names.labels(), "e2-medium", disk_size_gb=20)),
            # The network
            networking_mode="VPC_NATIVE",
            network=network.network,
            subnetwork=network.subnetwork,
            ip_allocation_policy=container.ClusterIpAllocationPolicyArgs(
                cluster_secondary_range_name=network.pods_range, services_secondary_range_name=network.services_range
            ),
            datapath_provider="ADVANCED_DATAPATH",
            private_cluster_config=container.ClusterPrivateClusterConfigArgs(enable_private_nodes=True),
            **control_plane(wanted),
            # Who may do what
            workload_identity_config=container.ClusterWorkloadIdentityConfigArgs(workload_pool=self.workload_pool),
            enable_shielded_nodes=True,
            enable_legacy_abac=False,
            master_auth=container.ClusterMasterAuthArgs(
                client_certificate_config=container.ClusterMasterAuthClientCertificateConfigArgs(issue_client_certificate=False)
            ),
            secret_manager_config=container.ClusterSecretManagerConfigArgs(enabled=secret_manager),
            # Upkeep
            release_channel=container.ClusterReleaseChannelArgs(channel=wanted.release_channel.upper()),
            maintenance_policy=maintenance(wanted.maintenance),
            cluster_autoscaling=container.ClusterClusterAutoscalingArgs(enabled=False, autoscaling_profile="OPTIMIZE_UTILIZATION"),
            # What is seen of it
            monitoring_config=container.ClusterMonitoringConfigArgs(
                enable_components=["SYSTEM_COMPONENTS", "DCGM"],
                managed_prometheus=container.ClusterMonitoringConfigManagedPrometheusArgs(enabled=True),
            ),
            logging_config=container.ClusterLoggingConfigArgs(enable_components=["SYSTEM_COMPONENTS", "WORKLOADS"]),
            cost_management_config=container.ClusterCostManagementConfigArgs(enabled=True),
            # Disks
            addons_config=container.ClusterAddonsConfigArgs(
                gce_persistent_disk_csi_driver_config=container.ClusterAddonsConfigGcePersistentDiskCsiDriverConfigArgs(enabled=True),
                gcs_fuse_csi_driver_config=container.ClusterAddonsConfigGcsFuseCsiDriverConfigArgs(enabled=True),
                gcp_filestore_csi_driver_config=container.ClusterAddonsConfigGcpFilestoreCsiDriverConfigArgs(enabled=filestore),
            ),
            deletion_protection=wanted.deletion_protection,
            opts=self.child(
                protect=wanted.deletion_protection,
                ignore_changes=["nodeConfig"],  # of the pool that is gone
                custom_timeouts=pulumi.CustomTimeouts(create="60m", update="60m", delete="60m"),
            ),
        )
        by_address, authority = self.resource.endpoint, self.resource.master_auth.cluster_ca_certificate
        self.endpoint = (
            by_address if wanted.authorized_networks else self.resource.control_plane_endpoints_config.dns_endpoint_config.endpoint
        )
        ca = authority if wanted.authorized_networks else None
        config: pulumi.Output[str] = pulumi.Output.all(endpoint=self.endpoint, ca=ca).apply(
            lambda known: kubeconfig(names.base, known["endpoint"], known["ca"])
        )
        self.kubeconfig: pulumi.Output[str] = pulumi.Output.secret(config)
        self.register_outputs({"endpoint": self.endpoint})


def control_plane(wanted: settings.Cluster) -> dict[str, Any]:
    """How the control plane is reached."""
    by_dns = not wanted.authorized_networks
    reached: dict[str, Any] = {
        "control_plane_endpoints_config": container.ClusterControlPlaneEndpointsConfigArgs(
            dns_endpoint_config=container.ClusterControlPlaneEndpointsConfigDnsEndpointConfigArgs(allow_external_traffic=by_dns),
            ip_endpoints_config=container.ClusterControlPlaneEndpointsConfigIpEndpointsConfigArgs(enabled=not by_dns),
        )
    }
    if not by_dns:
        reached["master_authorized_networks_config"] = container.ClusterMasterAuthorizedNetworksConfigArgs(
            gcp_public_cidrs_access_enabled=False,
            cidr_blocks=[
                container.ClusterMasterAuthorizedNetworksConfigCidrBlockArgs(cidr_block=cidr) for cidr in wanted.authorized_networks
            ],
        )
    return reached


def maintenance(wanted: settings.Maintenance) -> container.ClusterMaintenancePolicyArgs:
    """A window on the days that are written. The date only says when the first one was: a Saturday long past."""
    hour, minute = wanted.start.split(":")
    end = (int(hour) + WINDOW_HOURS) % 24
    next_day = int(hour) + WINDOW_HOURS >= 24
    return container.ClusterMaintenancePolicyArgs(
        recurring_window=container.ClusterMaintenancePolicyRecurringWindowArgs(
            start_time=f"2025-01-04T{hour}:{minute}:00Z",
            end_time=f"2025-01-{'05' if next_day else '04'}T{end:02}:{minute}:00Z",
            recurrence=f"FREQ=WEEKLY;BYDAY={','.join(wanted.days)}",
        )
    )
