"""The node pools as pools.py plans them: one for what must not vanish, and one for each kind of worker nodes, from 0 to a maximum.

Sizes are the autoscaler's: nothing here ever says how many nodes there are now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
from pulumi_gcp import container

from infra.accelerators import ACCELERATORS
from infra.component import Component
from infra.pools import DISK, WEEK, Pool
from naming import Names

SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]  # what a node may do is said by its account's roles, not by scopes
TAINT = "trainstack/pool"
LOCAL_DISKS = ("ephemeralStorageLocalSsdConfig", "localNvmeSsdBlockConfig")


class NodePools(Component):
    def __init__(
        self,
        name: str,
        names: Names,
        cluster: container.Cluster,
        wanted: Sequence[Pool],
        node_account: pulumi.Input[str],
        gpu_driver: str = "default",
        image_streaming: bool = True,
        needs: Sequence[pulumi.Resource] = (),
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(name, needs, opts)
        first: list[pulumi.Resource] = []
        # The CPU pool comes first: GKE taints GPU nodes by itself only where there is a pool without GPUs.
        for pool in sorted(wanted, key=lambda each: each.for_workers):
            made = container.NodePool(
                f"{name}-{pool.name}",
                name=pool.name,
                cluster=cluster.id,
                location=cluster.location,
                initial_node_count=0 if pool.for_workers else 1,
                autoscaling=container.NodePoolAutoscalingArgs(
                    total_min_node_count=pool.least,
                    total_max_node_count=pool.most,
                    location_policy="ANY" if pool.for_workers else "BALANCED",
                ),
                management=container.NodePoolManagementArgs(auto_repair=not pool.flex_start, auto_upgrade=True),
                node_config=container.NodePoolNodeConfigArgs(
                    **node_config(node_account, names.labels(pool.training), pool.machine.name),
                    gcfs_config=container.NodePoolNodeConfigGcfsConfigArgs(enabled=image_streaming),
                    **_provisioning(pool),
                    **_hardware(pool, gpu_driver),
                ),
                opts=self.child(
                    depends_on=first,
                    # GKE says what local disks the machines of some GPUs have; nobody here asked for them.
                    ignore_changes=["initialNodeCount", *(f"nodeConfig.{disks}" for disks in LOCAL_DISKS)],
                    custom_timeouts=pulumi.CustomTimeouts(create="40m", update="60m", delete="40m"),
                ),
            )
            first = first or [made]
        self.resources = first
        self.register_outputs({})


def node_config(account: pulumi.Input[str], labels: Mapping[str, str], machine_type: str, disk_size_gb: int = DISK) -> dict[str, Any]:
    """What every node has, of whatever pool."""
    return {
        "machine_type": machine_type,
        "image_type": "COS_CONTAINERD",
        "disk_type": "pd-balanced",
        "disk_size_gb": disk_size_gb,
        "service_account": account,
        "oauth_scopes": SCOPES,
        "metadata": {"disable-legacy-endpoints": "true"},
        "resource_labels": labels,
        "workload_metadata_config": {"mode": "GKE_METADATA"},
    }


def _provisioning(pool: Pool) -> dict[str, Any]:
    """How its nodes are had: on demand, as spot, by flex-start, or from a reservation."""
    if pool.spot:
        return {"spot": True}
    if pool.flex_start:
        return {
            "flex_start": True,
            "max_run_duration": f"{WEEK}s",  # the most there is: a run's own deadline ends it, and another value would replace the pool
            "reservation_affinity": container.NodePoolNodeConfigReservationAffinityArgs(consume_reservation_type="NO_RESERVATION"),
        }
    if pool.reservation:
        return {
            "reservation_affinity": container.NodePoolNodeConfigReservationAffinityArgs(
                consume_reservation_type="SPECIFIC_RESERVATION",
                key="compute.googleapis.com/reservation-name",
                values=[pool.reservation],
            )
        }
    return {}


def _hardware(pool: Pool, gpu_driver: str) -> dict[str, Any]:
    """GPUs with their driver and the fast network card; a taint keeps everybody else from nodes that should go back to zero."""
    # Secure Boot loads signed drivers only; with GPUs it is left off, so that every driver version can be installed.
    shielded = container.NodePoolNodeConfigShieldedInstanceConfigArgs(
        enable_integrity_monitoring=True, enable_secure_boot=not pool.accelerator
    )
    hardware: dict[str, Any] = {
        "shielded_instance_config": shielded,
        "gvnic": container.NodePoolNodeConfigGvnicArgs(enabled=True),
        "labels": {TAINT: pool.name},
    }
    if pool.accelerator:
        hardware["guest_accelerators"] = [
            container.NodePoolNodeConfigGuestAcceleratorArgs(
                type=ACCELERATORS[pool.accelerator].label,
                count=pool.gpus,
                gpu_driver_installation_config=container.NodePoolNodeConfigGuestAcceleratorGpuDriverInstallationConfigArgs(
                    gpu_driver_version=gpu_driver.upper()
                ),
            )
        ]
    elif pool.tainted:
        hardware["taints"] = [container.NodePoolNodeConfigTaintArgs(key=TAINT, value=pool.name, effect="NO_SCHEDULE")]
    return hardware
