"""What a stack costs: figures that can be checked by hand, and what is not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import costs
import settings
from infra.accelerators import ACCELERATORS, CPU_MACHINES, CPU_MACHINES_WITH_MEMORY
from tests.conftest import ROOT

DIGITS: dict[str, Any] = {
    "program": "digits",
    "worker": {"replicas": 4, "gpus": 1, "accelerator": "l4", "spot": True, "cpu": 3, "memory": "10Gi"},
    "ps": {"replicas": 1},
    "deadline": "2h",
}
# By hand, in USD per hour.
L4_SPOT = 4 * 0.009995 + 16 * 0.001171 + 0.2231  # g2-standard-4
E2 = 4 * 0.021811 + 16 * 0.002923  # e2-standard-4
DISK = 100 * 0.10 / 730


def stack(
    location: str = "us-central1-a", budget: dict[str, Any] | None = None, training: dict[str, Any] | None = None, **more: Any
) -> Any:
    values = {
        "target": "gke",
        "cluster": {"location": location, "min_nodes": 0},
        "budget": budget or {},
        "trainings": {"a": {**DIGITS, **(training or {})}},
        **more,
    }
    return settings.parse(values, {"project": "p"})


def bill(*arguments: Any, **more: Any) -> costs.Bill:
    return costs.bill(stack(*arguments, **more), costs.prices())


def test_a_bill_by_hand() -> None:
    found = bill()
    around = 0.10 + 0.005 + 0.0003
    assert found.idle.known == pytest.approx(E2 + DISK + 0.0014 + around), "one CPU node, because the cluster itself needs one"
    assert found.running.known == pytest.approx(4 * L4_SPOT + E2 + 5 * (DISK + 0.0014) + around)
    assert found.added.known == pytest.approx(4 * (L4_SPOT + DISK + 0.0014))
    assert found.running.unknown == found.idle.unknown == ()


def test_what_serves_costs_when_nothing_trains() -> None:
    assert bill(training={"serving": {"replicas": 9}}).idle.known > bill().idle.known + E2


def test_spot_is_cheaper_and_gpus_are_dear() -> None:
    on_demand = bill(training={"worker": {**DIGITS["worker"], "spot": False}})
    assert on_demand.running.known > 1.5 * bill().running.known
    assert on_demand.largest.what == "g2-standard-4 with 1 × l4, on demand (pool gpu-l4-1)"


@pytest.mark.parametrize(
    ("changes", "what", "each"),
    [
        ({"tensorboard": {"expose": "load_balancer", "allowed_cidrs": ["10.0.0.0/8"]}}, "load balancer", 0.025),
        (
            {"volumes": [{"claim": "c", "create": True, "size": "50Gi", "path": "/c", "roles": ["chief"]}]},
            "pd-balanced, 50 GiB (claim c)",
            5 / 730,
        ),
        (
            {"volumes": [{"claim": "c", "create": True, "size": "50Gi", "path": "/c", "access": "ReadWriteMany"}]},
            "filestore-standard, 1024 GiB (claim c)",
            1024 * 0.16 / 730,
        ),
        (
            {"volumes": [{"claim": "c", "create": True, "size": "50Gi", "path": "/c", "class": "own", "roles": ["chief"]}]},
            "own, 50 GiB (claim c)",
            None,
        ),
    ],
)
def test_what_stands_beside_the_machines(changes: dict[str, Any], what: str, each: float | None) -> None:
    line = next(line for line in bill(training=changes).lines if line.what == what)
    assert line.each == (None if each is None else pytest.approx(each))
    assert line.idle == 1, "it stays when nothing runs"


def test_an_unknown_price_is_never_nothing() -> None:
    elsewhere = bill("europe-west12-a")
    assert elsewhere.running.unknown
    assert "g2-standard-4 with 1 × l4, spot (pool gpu-l4-1-spot)" in elsewhere.running.unknown
    assert str(elsewhere.running) == "at least $0.11", "the control plane and the address cost the same everywhere"
    assert str(costs.Amount(0.0, ("something",))) == "unknown"
    waits = bill(training={"worker": {"replicas": 1, "gpus": 1, "accelerator": "l4", "flex_start": True}})
    assert [line.each for line in waits.lines if "flex-start" in line.what] == [None], "another way of having nodes has another price"


def test_every_machine_has_a_price() -> None:
    """Where the list knows a region at all, it knows everything that a pool can be made of."""
    listed = costs.prices()
    machines = [(machine, None, 0) for machine in (*CPU_MACHINES, *CPU_MACHINES_WITH_MEMORY)]
    machines += [
        (machine, name, count) for name, each in ACCELERATORS.items() for count, there in each.machines.items() for machine in there
    ]
    for machine, accelerator, gpus in machines:
        on_demand, spot = (listed.node("us-central1", machine, accelerator, gpus, how) for how in ("on_demand", "spot"))
        assert on_demand
        assert spot
        assert spot < on_demand, f"{machine.name}: spot is cheaper"
        assert 0.02 < on_demand / machine.cpus < 6, f"{machine.name}: plausible"


# ------------------------------------------------------------------------------------------------------------- budget


def test_a_budget_refuses_what_costs_more() -> None:
    with pytest.raises(settings.SettingsError) as refused:
        stack(budget={"per_hour": 1})
    (problem,) = refused.value.problems
    assert problem.startswith("budget.per_hour: the stack costs $1.44 an hour while all trainings run, above 1 (list prices of 2025-07-01)")
    assert "the largest part is 4 × g2-standard-4 with 1 × l4, spot (pool gpu-l4-1-spot) at $1.13" in problem
    assert problem.endswith("or write per_hour: 2.")
    assert stack(budget={"per_hour": 2})


def test_a_budget_that_cannot_be_checked_says_so() -> None:
    elsewhere = stack("europe-west12-a", budget={"per_hour": 1})
    said = costs.unchecked(elsewhere, costs.bill(elsewhere, costs.prices()))
    assert said
    assert "could not be checked fully" in said
    assert "g2-standard-4" in said
    here = stack(budget={"per_hour": 2})
    assert costs.unchecked(here, costs.bill(here, costs.prices())) is None


def test_prices_of_ones_own_lie_over_the_list(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(yaml.safe_dump({"date": "2026-01-31", "areas": {"us": {"spot": {"g2-standard-4": 0.5}}}}))
    assert costs.prices(str(own)).date.isoformat() == "2025-07-01"
    found = costs.bill(stack(), costs.prices(str(own)))
    assert found.running.known == pytest.approx(bill().running.known + 4 * (0.5 - L4_SPOT))
    assert found.prices == f"list prices of 2025-07-01 with {own} of 2026-01-31"
    with pytest.raises(settings.SettingsError, match=r"budget.per_hour: the stack costs \$2.31"):
        stack(budget={"per_hour": 2, "prices": str(own)})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no file"),
        ("areas: [", "is no YAML"),
        ("- 1", "is no list of prices"),
        ("areas: {us: {spot: {l4: cheap}}}", "is not like prices.yaml at areas.us.spot.l4"),
        ("area: {}", "is not like prices.yaml at area"),
    ],
)
def test_a_bad_list_is_one_sentence(tmp_path: Path, text: str | None, words: str) -> None:
    own = tmp_path / "mine.yaml"
    if text is not None:
        own.write_text(text)
    with pytest.raises(settings.SettingsError) as refused:
        stack(budget={"prices": str(own)})
    (problem,) = refused.value.problems
    assert problem.startswith("budget.prices: ")
    assert words in problem


@pytest.mark.parametrize("name", ["dev", "staging", "prod"])
def test_the_committed_environments_are_within_their_budgets(name: str) -> None:
    values = yaml.safe_load((ROOT / f"Pulumi.{name}.yaml").read_text())["config"]
    found = settings.parse({key.removeprefix("trainstack:"): value for key, value in values.items()}, {"project": "p"})
    total = costs.bill(found, costs.prices()).running
    assert not total.unknown
    assert found.budget.per_hour
    assert total.known < found.budget.per_hour
