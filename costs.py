"""What a stack costs: from its settings and a list of prices to a bill. Pure but for reading the list; asks no cloud anything.

Two figures matter, both per hour: while every training runs, and when none does. Nodes are counted as the autoscaler has them at full load. What has no
price in the list is unknown: it is named, never counted as 0, and a sum with it says "at least".
What is billed by volume (storage, traffic, logs, images) is not in the figures.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from infra import pools
from infra.accelerators import Machine

if TYPE_CHECKING:
    from settings import Settings, Volume

ROOT = Path(__file__).resolve().parent
LIST = ROOT / "prices.yaml"
HOURS = 730  # in a month, as Google counts
BOOT_DISK = 100  # GiB of each node, pd-balanced
NAT_NODES = 32  # a NAT is not dearer for more
ARMOR_RULES = 2  # the ranges that may, and everybody else
# From a storage class of GKE to the disk, and the least that Google makes of it, in GiB.
DISKS = {None: ("pd-balanced", 10), "standard-rwo": ("pd-balanced", 10), "premium-rwo": ("pd-ssd", 10), "standard": ("pd-standard", 10)}
FILESTORE = {
    None: ("filestore-standard", 1024),
    "standard-rwx": ("filestore-standard", 1024),
    "premium-rwx": ("filestore-premium", 2560),
    "zonal-rwx": ("filestore-zonal", 1024),
    "enterprise-rwx": ("filestore-enterprise", 1024),
    "enterprise-multishare-rwx": ("filestore-enterprise", 1024),
}
BY_VOLUME = "storage, traffic, logs and images are billed by volume and not in the figures (a bucket is about $0.02 per GB and month)"
NOWHERE = {
    "local": "target local costs nothing on a cloud",
    "kubernetes": "target kubernetes makes no nodes of its own; what the cluster costs is on its owner's bill",
}

How = Literal["on_demand", "spot", "flex_start"]
Price = Annotated[float, Field(ge=0)]
Rates = dict[str, Price | tuple[Price, Price]]


class PricesError(Exception):
    """What is wrong with a list of prices, as one clause."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Area(_Model):
    """Regions with the same prices."""

    regions: tuple[str, ...]
    on_demand: Rates = {}
    spot: Rates = {}
    flex_start: Rates = {}
    disks: dict[str, Price] = {}


class Prices(_Model):
    """A list of prices, in USD per hour; disks per month and GiB."""

    date: date
    areas: dict[str, Area]
    fees: dict[str, Price] = {}
    source: str = ""

    def node(self, region: str, machine: Machine, accelerator: str | None, gpus: int, how: How) -> float | None:
        """A node without its disk: a price of the whole machine, or of its CPUs, its memory and its GPUs."""
        rates: Rates = getattr(self._area(region), how, {})
        whole = rates.get(machine.name)
        if isinstance(whole, float):
            return whole
        family = rates.get(machine.name.rpartition("-")[0], rates.get(machine.name.split("-")[0]))
        gpu = rates.get(accelerator) if accelerator else 0.0
        if not isinstance(family, tuple) or not isinstance(gpu, float):
            return None
        return machine.cpus * family[0] + machine.memory * family[1] + gpus * gpu

    def disk(self, region: str, kind: str, size: float) -> float | None:
        area = self._area(region)
        return area.disks[kind] * size / HOURS if area and kind in area.disks else None

    def _area(self, region: str) -> Area | None:
        return next((area for area in self.areas.values() if region in area.regions), None)

    def __str__(self) -> str:
        return f"list prices of {self.date}{self.source}"


@functools.cache
def _shipped() -> Mapping[str, Any]:
    found: dict[str, Any] = yaml.safe_load(LIST.read_text())
    return found


def prices(own: str | None = None) -> Prices:
    """The list that comes with the project, and a user's own laid over it; a path is below the project's folder."""
    if own is None:
        return Prices.model_validate(_shipped())
    path = ROOT / own
    if not path.is_file():
        raise PricesError(f"there is no file {own} below the project's folder; correct the path, or remove it")
    try:
        written = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise PricesError(f"{own} is no YAML ({' '.join(str(error).split())}); mend it") from None
    if not isinstance(written, dict):
        raise PricesError(f"{own} is no list of prices; write it with the keys of prices.yaml")
    source = f" with {own}" + (f" of {written['date']}" if "date" in written else "")
    over = {key: value for key, value in written.items() if key != "date"}
    try:
        return Prices.model_validate({**_over(_shipped(), over), "source": source})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PricesError(f"{own} is not like prices.yaml at {where} ({first['msg'].lower()}); correct it") from None


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """One mapping laid over another, at every depth."""
    both = {key: _over(below[key], value) for key, value in above.items() if isinstance(value, dict) and isinstance(below.get(key), dict)}
    return {**below, **above, **both}


# --------------------------------------------------------------------------------------------------------- a bill


@dataclass(frozen=True)
class Amount:
    """So many USD, as far as it is known."""

    known: float
    unknown: tuple[str, ...] = ()  # what has no price

    def times(self, factor: float) -> Amount:
        return Amount(self.known * factor, self.unknown)

    def __str__(self) -> str:
        text = "under $0.01" if 0 < self.known < 0.005 else f"${self.known:,.2f}"
        if not self.unknown:
            return text
        return f"at least {text}" if self.known else "unknown"


@dataclass(frozen=True)
class Line:
    """A kind of thing that is paid for by the hour: how many while every training runs, and how many when none does."""

    what: str
    running: int
    idle: int
    each: float | None  # USD per hour; None is unknown
    gpus: str = ""  # on each, as in "1 × l4 spot"


@dataclass(frozen=True)
class Bill:
    lines: tuple[Line, ...]
    prices: str
    notes: tuple[str, ...]

    @property
    def running(self) -> Amount:
        """Per hour, while every training runs."""
        return _sum({line: line.running for line in self.lines})

    @property
    def idle(self) -> Amount:
        """Per hour, when no training runs."""
        return _sum({line: line.idle for line in self.lines})

    @property
    def added(self) -> Amount:
        """Per hour, what trainings that run add to the idle stack."""
        return _sum({line: line.running - line.idle for line in self.lines})

    @property
    def largest(self) -> Line:
        return max(self.lines, key=lambda line: line.running * (line.each or 0.0))

    def __str__(self) -> str:
        return f"about {self.running} an hour while all trainings run, {self.idle} when none does ({self.prices})"


def _sum(counts: Mapping[Line, int]) -> Amount:
    there = {line: count for line, count in counts.items() if count}
    known = sum(line.each * count for line, count in there.items() if line.each is not None)
    return Amount(known, tuple(line.what for line in there if line.each is None))


def bill(settings: Settings, list_of_prices: Prices) -> Bill:
    """What a stack of target gke costs."""
    nodes = list(_nodes(settings, list_of_prices))
    rest = _around(settings, list_of_prices, sum(line.running for line in nodes), sum(line.idle for line in nodes))
    return Bill((*nodes, *rest), str(list_of_prices), tuple(_notes(settings)))


def of_training(settings: Settings, name: str, list_of_prices: Prices) -> Amount:
    """Per hour, what one training adds to the idle stack while it runs, were it alone."""
    alone = settings.model_copy(update={"trainings": {name: settings.trainings[name]}})
    return bill(alone, list_of_prices).added


def _nodes(settings: Settings, list_of_prices: Prices) -> Iterator[Line]:
    wanted = list(pools.demands(settings.trainings))
    least = settings.cluster.min_nodes
    stays = {pool.name: pool.full for pool in pools.pools([each for each in wanted if each.role == "serving"], least)}
    for pool in pools.pools(wanted, least):
        how: How = "spot" if pool.spot else "flex_start" if pool.flex_start else "on_demand"
        each = list_of_prices.node(settings.region, pool.machine, pool.accelerator, pool.gpus, how)
        words = {"spot": "spot", "flex_start": "flex-start", "on_demand": "reserved" if pool.reservation else "on demand"}[how]
        gpus = f"{pool.gpus} × {pool.accelerator}" if pool.accelerator else ""
        what = f"{pool.machine.name}{f' with {gpus}' if gpus else ''}, {words} (pool {pool.name})"
        yield Line(what, pool.full, min(stays.get(pool.name, 0), pool.full), each, f"{gpus} {words}" if gpus else "")


def _around(settings: Settings, listed: Prices, running: int, idle: int) -> Iterator[Line]:
    """What is paid for beside the machines."""
    region, fees = settings.region, listed.fees
    yield Line(f"boot disk, {BOOT_DISK} GiB", running, idle, listed.disk(region, "pd-balanced", BOOT_DISK))
    yield Line("control plane of the cluster", 1, 1, fees.get("control_plane"))
    if not settings.network.existing:
        yield Line("Cloud NAT, for each node", min(running, NAT_NODES), min(idle, NAT_NODES), fees.get("nat_per_node"))
        yield Line("address of the NAT", 1, 1, fees.get("address"))
        yield Line("private DNS zone", 1, 1, fees.get("dns_zone"))
    exposed = [each.tensorboard.expose for each in settings.trainings.values() if each.tensorboard and each.deploy]
    if balanced := len([each for each in exposed if each != "port_forward"]):
        yield Line("load balancer", balanced, balanced, fees.get("load_balancer"))
    if guarded := exposed.count("ingress"):
        yield Line("Cloud Armor policy", guarded, guarded, fees.get("armor_policy"))
        yield Line("rule of Cloud Armor", guarded * ARMOR_RULES, guarded * ARMOR_RULES, fees.get("armor_rule"))
    for volume in _claims(settings):
        kinds = FILESTORE if volume.access == "ReadWriteMany" else DISKS
        kind, least = kinds.get(volume.storage_class, (volume.storage_class or "", 0))
        size = max(pools.gibibytes(volume.size or "0Gi"), least)
        yield Line(f"{kind}, {size:g} GiB (claim {volume.claim})", 1, 1, listed.disk(region, kind, size))


def _claims(settings: Settings) -> Iterator[Volume]:
    """The disks that the stack makes."""
    for training in settings.trainings.values():
        yield from (volume for volume in training.volumes if volume.claim and volume.create)


def _notes(settings: Settings) -> Iterator[str]:
    yield BY_VOLUME
    if settings.location != settings.region:
        yield "a billing account has the control plane of one zonal cluster free; that credit is not in the figures"
    if kept := [name for name, each in settings.trainings.items() if each.tensorboard and each.deploy]:
        yield f"TensorBoard of {', '.join(kept)} holds a CPU node for as long as `keep` says after its run"
    if any(pool.reservation for pool in pools.pools(pools.demands(settings.trainings), settings.cluster.min_nodes)):
        yield "a reservation is billed whether its nodes are used or not, by whoever has it"


def over_budget(settings: Settings) -> str | None:
    """Why a stack must not be made, or None."""
    limit = settings.budget.per_hour
    try:
        found = bill(settings, prices(settings.budget.prices))
    except PricesError as error:
        return f"budget.prices: {error}."
    if limit is None or found.running.known <= limit:
        return None
    line = found.largest
    part = f"{line.running} × {line.what} at ${line.running * (line.each or 0.0):,.2f}"
    enough = -int(-found.running.known // 1)
    return (
        f"budget.per_hour: the stack costs {found.running} an hour while all trainings run, above {limit:g} ({found.prices}); the largest part is {part}; "
        f"ask for less of it, or write per_hour: {enough}."
    )


def unchecked(settings: Settings, found: Bill) -> str | None:
    """Why a budget could not be checked to the end, or None."""
    if settings.budget.per_hour is None or not found.running.unknown:
        return None
    return (
        f"the budget of {settings.budget.per_hour:g} an hour could not be checked fully: {'; '.join(found.running.unknown)} has no price; "
        "write it into a file of yours, and trainstack:budget: {prices: FILE}"
    )
