"""From trainings to node pools. Pure: what is asked for, which pools that makes, and what GKE would refuse.

Roles decide placement. What computes gradients goes to worker nodes, with GPUs and spot prices where the settings say so: workers, under
multi_worker_mirrored also the chief. Everything else – the chief and the parameter servers of parameter_server, evaluator, TensorBoard, serving,
data preparation – runs on on-demand CPU nodes, which do not vanish.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from infra.accelerators import ACCELERATORS, Machine, machine

if TYPE_CHECKING:
    from settings import Role, Serving, Settings, Training

CPU_POOL = "cpu"
DISK = 100  # GB of pd-balanced that a node has
WEEK = 7 * 24 * 3600  # seconds; a flex-start node is taken back after this long
COMPANIONS = ("tensorboard", "serving", "data_prep")
FILESTORE_CLASSES = (None, "standard-rwx", "premium-rwx", "zonal-rwx", "enterprise-rwx", "enterprise-multishare-rwx")


@dataclass(frozen=True)
class Demand:
    """So many pods of one kind, and the nodes they want."""

    training: str
    role: str
    count: int
    cpus: float
    memory: float  # GiB
    accelerator: str | None = None
    gpus: int = 0
    spot: bool = False
    flex_start: bool = False
    reservation: str | None = None
    computes: bool = False  # gradients, or predictions on a GPU

    @property
    def pool(self) -> str:
        """The name of the node pool it goes to. The same needs share a pool; a changed need is another pool."""
        if not self.computes:
            return CPU_POOL
        kind = f"gpu-{self.accelerator}-{self.gpus}" if self.accelerator else "worker"
        if self.reservation:
            return f"{kind}-res-{hashlib.sha256(self.reservation.encode()).hexdigest()[:6]}"
        return f"{kind}-spot" if self.spot else f"{kind}-flex" if self.flex_start else kind


@dataclass(frozen=True)
class Pool:
    """One node pool as GKE should have it."""

    name: str
    machine: Machine
    most: int  # nodes over all zones
    least: int = 0
    accelerator: str | None = None
    gpus: int = 0
    spot: bool = False
    flex_start: bool = False
    reservation: str | None = None
    training: str | None = None  # whose nodes these are, where it is one training alone

    @property
    def for_workers(self) -> bool:
        return self.name != CPU_POOL

    @property
    def full(self) -> int:
        """Nodes when everything runs; the CPU pool may have one more, so that an upgrade has somewhere to go."""
        return self.most - (not self.for_workers)

    @property
    def tainted(self) -> bool:
        """Whether this project keeps others away from its nodes; from nodes with GPUs GKE does."""
        return self.for_workers and not self.accelerator


def cpus(text: str) -> float:
    """CPUs as Kubernetes writes them: 2, 0.5 or 500m."""
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def gibibytes(text: str) -> float:
    """Memory as Kubernetes writes it, in GiB."""
    units = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    unit = text.lstrip("0123456789")
    return int(text.removesuffix(unit)) * units[unit] / 2**30


def demands(trainings: Mapping[str, Training]) -> Iterator[Demand]:
    """Everything the trainings want to run, by role; without `deploy` only what prepares data, and what serves a model that is there."""
    for name, training in trainings.items():
        for role, count in training.topology.counts().items() if training.deploy else ():
            written = getattr(training, role)
            need = _demand(name, training, role, count, computes(training, role))
            if count:
                yield _on_nodes(need, written) if need.computes and written else need
        for companion in COMPANIONS:
            present = getattr(training, companion)
            if present and (training.deploy or companion != "tensorboard"):
                gpus = getattr(present, "gpus", 0)
                need = _demand(name, training, companion, getattr(present, "replicas", 1), bool(gpus))
                yield replace(need, accelerator=present.accelerator, gpus=gpus) if gpus else need


def _demand(name: str, training: Training, component: str, count: int, computes: bool) -> Demand:
    cpu, memory = training.needs(component)
    return Demand(name, component, count, cpus(cpu), gibibytes(memory), computes=computes)


def _on_nodes(need: Demand, role: Role) -> Demand:
    """The nodes that the settings of a role ask for."""
    return replace(
        need,
        accelerator=role.accelerator if role.gpus else None,
        gpus=role.gpus,
        spot=role.spot,
        flex_start=role.flex_start,
        reservation=role.reservation,
    )


def computes(training: Training, role: str) -> bool:
    """Whether a role computes gradients."""
    return role == "worker" or (role == "chief" and training.chosen_strategy == "multi_worker_mirrored")


def pools(wanted: Iterable[Demand], least: int) -> tuple[Pool, ...]:
    """The node pools for these demands; the CPU pool is always there, with at least `least` nodes."""
    return tuple(_pool(name, there, least if name == CPU_POOL else 0) for name, there in sorted(_by_pool(wanted).items()))


def _by_pool(wanted: Iterable[Demand]) -> dict[str, list[Demand]]:
    by_pool: dict[str, list[Demand]] = {CPU_POOL: []}
    for demand in wanted:
        by_pool.setdefault(demand.pool, []).append(demand)
    return by_pool


def _machine(there: list[Demand]) -> Machine | None:
    """The machine on which each of these fits, or none."""
    accelerator, gpus = next(((each.accelerator, each.gpus) for each in there), (None, 0))
    return machine(max((each.cpus for each in there), default=0), max((each.memory for each in there), default=0), accelerator, gpus)


def _pool(name: str, there: list[Demand], least: int) -> Pool:
    accelerator, gpus = next(((each.accelerator, each.gpus) for each in there), (None, 0))
    chosen = _machine(there)
    assert chosen, f"problems() has refused pool {name}"
    needed = sum(each.count for each in there) if accelerator else math.ceil(sum(each.count / _per_node(chosen, each) for each in there))
    first = there[0] if there else None
    trainings = {each.training for each in there}
    return Pool(
        name,
        chosen,
        most=max(needed, least, 1) + (name == CPU_POOL),  # see Pool.full
        least=least,
        accelerator=accelerator,
        gpus=gpus,
        spot=bool(first and first.spot),
        flex_start=bool(first and first.flex_start),
        reservation=first.reservation if first else None,
        training=trainings.pop() if len(trainings) == 1 else None,
    )


def _per_node(chosen: Machine, demand: Demand) -> int:
    return max(1, min(int(chosen.usable_cpus / demand.cpus), int(chosen.usable_memory / demand.memory)))


# ------------------------------------------------------------------------------------------------------- checks


def problems(settings: Settings) -> Iterator[str]:
    """What GKE would refuse, or what would be paid for and not used."""
    for name, training in settings.trainings.items():
        for role in ("chief", "worker", "ps"):
            written: Role | None = getattr(training, role)
            if written and written.replicas:
                prefix = f"trainings.{name}.{role}"
                found = _problems_of_nodes(written) if computes(training, role) else _problems_of_support(written)
                yield from (f"{prefix}.{problem}" for problem in found)
                if written.flex_start and training.deadline and training.deadline > WEEK:
                    yield f"{prefix}.flex_start: its nodes live a week at the most, and deadline is longer; write deadline: 168h or less."
        if training.serving and training.serving.gpus:
            yield from (f"trainings.{name}.serving.{problem}" for problem in _problems_of_gpus(training.serving))
    sound = [each for each in demands(settings.trainings) if not each.gpus or each.gpus in _counts(each.accelerator)]
    for name, there in _by_pool(sound).items():
        too_large = [each for each in there if _machine([each]) is None]
        for need in too_large:
            yield (
                f"trainings.{need.training}.{need.role}: {need.cpus:g} CPUs and {need.memory:g} GiB fit on no machine"
                f"{f' with {need.gpus} × {need.accelerator}' if need.accelerator else ''}, and the pods would wait for ever; ask for less cpu or memory."
            )
        if not too_large and _machine(there) is None:
            most_cpus, most_memory = max(there, key=lambda each: each.cpus), max(there, key=lambda each: each.memory)
            yield (
                f"trainings.{most_memory.training}.{most_memory.role}.memory: it shares the nodes of pool {name} with {most_cpus.training}.{most_cpus.role}, and "
                f"no machine has both {most_cpus.cpus:g} CPUs and {most_memory.memory:g} GiB; ask for less cpu or memory."
            )


def _counts(accelerator: str | None) -> list[int]:
    return sorted(ACCELERATORS[accelerator].machines) if accelerator and accelerator in ACCELERATORS else []


def _problems_of_gpus(role: Role | Serving) -> Iterator[str]:
    counts = _counts(role.accelerator)
    if role.gpus and role.accelerator is None:
        yield f"accelerator: gpus: {role.gpus} on gke needs the kind of GPU; write accelerator: NAME, one of {', '.join(ACCELERATORS)}."
    elif role.gpus and not counts:
        yield f"accelerator: {role.accelerator!r} is not a GPU of GKE that is known here; write one of {', '.join(ACCELERATORS)}."
    elif role.gpus and role.gpus not in counts:
        yield (
            f"gpus: no machine of GKE has {role.gpus} × {role.accelerator}, so the node pool would be refused; "
            f"write one of {', '.join(map(str, counts))}."
        )
    elif (
        role.accelerator
        and role.gpus
        and role.gpus in ACCELERATORS[role.accelerator].never_on_demand
        and not (getattr(role, "spot", False) or getattr(role, "flex_start", False))
    ):
        ways = "spot: true or flex_start: true, or " if hasattr(role, "spot") else ""  # which a server is not
        yield f"gpus: {role.gpus} × {role.accelerator} can only be had as spot or flex-start nodes; write {ways}gpus: {max(counts)}."


def _problems_of_nodes(role: Role) -> Iterator[str]:
    yield from _problems_of_gpus(role)
    counts = _counts(role.accelerator)
    if role.flex_start and (not counts or not ACCELERATORS[role.accelerator or ""].flex_start):
        known = ", ".join(name for name, each in ACCELERATORS.items() if each.flex_start)
        yield f"flex_start: Google gives such nodes only with GPUs of newer machines; write accelerator: one of {known}, or remove flex_start."
    if role.flex_start and role.spot:
        yield "flex_start: GKE refuses flex-start together with spot; remove one of the two."
    if role.flex_start and role.reservation:
        yield "flex_start: GKE refuses flex-start together with a reservation; remove one of the two."
    if role.spot and role.reservation:
        yield "spot: spot nodes cannot use a reservation, which would be paid for and stay empty; remove one of the two."


def _problems_of_support(role: Role) -> Iterator[str]:
    if role.gpus:
        yield "gpus: under this strategy it computes no gradients, and a GPU would idle and bill; remove gpus."
    for option in ("spot", "flex_start", "reservation"):
        if getattr(role, option):
            yield f"{option}: it runs on on-demand CPU nodes, because losing it stops the training; remove {option}."


def needs_shared_class(trainings: Mapping[str, Training]) -> bool:
    """Whether a claim that many nodes mount is made, and names no class."""
    made = [volume for training in trainings.values() for volume in training.volumes if volume.create]
    return any(volume.access == "ReadWriteMany" and volume.storage_class is None for volume in made)


def filestore_claims(trainings: Mapping[str, Training]) -> list[str]:
    """The claims that need Filestore, which is the only ReadWriteMany disk of GKE."""
    return [
        f"{name}.{volume.claim}"
        for name, training in trainings.items()
        for volume in training.volumes
        if volume.create and volume.access == "ReadWriteMany" and volume.storage_class in FILESTORE_CLASSES
    ]
