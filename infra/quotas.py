"""Which quotas of Compute Engine the node pools of a stack need, at their largest. Pure; the names are those of `gcloud compute regions describe`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from infra.accelerators import ACCELERATORS
from infra.pools import DISK, Pool

PREEMPTIBLE = "PREEMPTIBLE_"  # spot nodes have quotas of their own, and those of flex-start count there too
SHARED = ("e2", "n1")  # machines that count against CPUS; those of other families have a quota of their own, as in N2_CPUS


def regional(pools: Iterable[Pool]) -> dict[str, int]:
    """From a quota of the region to what is needed of it. What comes from a reservation has its quota already."""
    needed: Counter[str] = Counter()
    for pool in pools:
        if pool.reservation:
            continue
        prefix = PREEMPTIBLE if pool.spot or pool.flex_start else ""
        family = pool.machine.name.split("-")[0]
        cpus = "CPUS" if prefix or family in SHARED else f"{family.upper()}_CPUS"
        needed[f"{prefix}{cpus}"] += pool.most * pool.machine.cpus
        needed["SSD_TOTAL_GB"] += pool.most * DISK
        if pool.accelerator:
            needed[f"{prefix}{ACCELERATORS[pool.accelerator].quota}_GPUS"] += pool.most * pool.gpus
    return dict(needed)


def everywhere(pools: Iterable[Pool]) -> dict[str, int]:
    """The same for the quotas that a project has over all regions."""
    needed: Counter[str] = Counter()
    for pool in pools:
        if not pool.reservation:
            needed["CPUS_ALL_REGIONS"] += pool.most * pool.machine.cpus
            needed["GPUS_ALL_REGIONS"] += pool.most * pool.gpus
    return {name: amount for name, amount in needed.items() if amount}
