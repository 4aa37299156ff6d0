"""The GPUs of GKE, and the machines that carry them. The only place where a GPU's name becomes a label or a machine type.

Pure data and two look-ups. What a GPU costs and where it can be had is not in here: that changes by the month.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """A machine type of Compute Engine."""

    name: str
    cpus: int
    memory: float  # GiB

    @property
    def usable_cpus(self) -> float:
        """What GKE leaves of the CPUs, less half a CPU for what runs on every node."""
        reserved = 0.06 + 0.01 * (self.cpus > 1) + 0.005 * min(max(self.cpus - 2, 0), 2) + 0.0025 * max(self.cpus - 4, 0)
        return self.cpus - reserved - 0.5

    @property
    def usable_memory(self) -> float:
        """What GKE leaves of the memory (a quarter of the first 4 GiB, a fifth of the next 4, …), less what runs on every node."""
        reserved, left = 0.0, self.memory
        for part, share in ((4, 0.25), (4, 0.20), (8, 0.10), (112, 0.06), (math.inf, 0.02)):
            step = min(left, part)
            reserved, left = reserved + step * share, left - step
        return self.memory - reserved - 0.1 - 0.65

    def fits(self, cpus: float, memory: float) -> bool:
        return cpus <= self.usable_cpus and memory <= self.usable_memory


def _family(family: str, memory_per_cpu: float, *sizes: int) -> tuple[Machine, ...]:
    return tuple(Machine(f"{family}-{size}", size, size * memory_per_cpu) for size in sizes)


def _n1(most: int) -> tuple[Machine, ...]:
    """The N1 machines that a GPU can be put into, up to a number of CPUs."""
    sizes = [size for size in (4, 8, 16, 32, 64, 96) if size <= most]
    return tuple(sorted(_family("n1-standard", 3.75, *sizes) + _family("n1-highmem", 6.5, *sizes), key=lambda machine: machine.memory))


@dataclass(frozen=True)
class Accelerator:
    """A kind of GPU."""

    label: str  # GKE's name for it: the type of a guest accelerator and the value of cloud.google.com/gke-accelerator
    quota: str  # the name of its quota, without _GPUS
    memory: int  # GB on each GPU
    machines: Mapping[int, tuple[Machine, ...]]  # GPUs on a node → machines with so many, the smallest first
    never_on_demand: tuple[int, ...] = ()  # numbers of GPUs that can only be had as spot or flex-start
    flex_start: bool = True  # whether it can be had by flex-start: only machines that are made for their GPU can


ACCELERATORS: Mapping[str, Accelerator] = {
    "t4": Accelerator("nvidia-tesla-t4", "NVIDIA_T4", 16, {1: _n1(32), 2: _n1(32), 4: _n1(96)}, flex_start=False),
    "p100": Accelerator("nvidia-tesla-p100", "NVIDIA_P100", 16, {1: _n1(16), 2: _n1(32), 4: _n1(32)}, flex_start=False),
    "v100": Accelerator("nvidia-tesla-v100", "NVIDIA_V100", 16, {1: _n1(8), 2: _n1(16), 4: _n1(32), 8: _n1(96)}, flex_start=False),
    "l4": Accelerator(
        "nvidia-l4",
        "NVIDIA_L4",
        24,
        {
            1: _family("g2-standard", 4, 4, 8, 12, 16, 32),
            2: _family("g2-standard", 4, 24),
            4: _family("g2-standard", 4, 48),
            8: _family("g2-standard", 4, 96),
        },
    ),
    "a100-40": Accelerator(
        "nvidia-tesla-a100",
        "NVIDIA_A100",
        40,
        {
            **{count: (Machine(f"a2-highgpu-{count}g", 12 * count, 85 * count),) for count in (1, 2, 4, 8)},
            16: (Machine("a2-megagpu-16g", 96, 1360),),
        },
    ),
    "a100-80": Accelerator(
        "nvidia-a100-80gb",
        "NVIDIA_A100_80GB",
        80,
        {count: (Machine(f"a2-ultragpu-{count}g", 12 * count, 170 * count),) for count in (1, 2, 4, 8)},
    ),
    "h100": Accelerator(
        "nvidia-h100-80gb",
        "NVIDIA_H100",
        80,
        {count: (Machine(f"a3-highgpu-{count}g", 26 * count, 234 * count),) for count in (1, 2, 4, 8)},
        never_on_demand=(1, 2, 4),
    ),
    "h100-mega": Accelerator("nvidia-h100-mega-80gb", "NVIDIA_H100_MEGA", 80, {8: (Machine("a3-megagpu-8g", 208, 1872),)}),
}

# For what needs no GPU, the smallest first. Four CPUs are the least: with fewer, what runs on every node takes a third.
CPU_MACHINES = (
    *_family("e2-standard", 4, 4, 8, 16, 32),
    *_family("n2-standard", 4, 48, 64, 80, 96, 128),
)
CPU_MACHINES_WITH_MEMORY = (*_family("e2-highmem", 8, 4, 8, 16), *_family("n2-highmem", 8, 32, 48, 64, 80, 96))


def machine(cpus: float, memory: float, accelerator: str | None = None, gpus: int = 0) -> Machine | None:
    """The smallest machine on which a task with these needs fits, or none."""
    if accelerator:
        candidates = ACCELERATORS[accelerator].machines[gpus]
    else:
        candidates = tuple(sorted(CPU_MACHINES + CPU_MACHINES_WITH_MEMORY, key=lambda each: (each.cpus, each.memory)))
    return next((each for each in candidates if each.fits(cpus, memory)), None)
