"""What a stack costs by the hour, and what a run has cost and will. Pure: settings as written, and runs as a target shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import costs
import settings
from costs import Amount, Bill
from ops.target import OpsError, Run


@dataclass(frozen=True)
class Spent:
    """What a run costs, beside the idle stack."""

    training: str
    run: str
    state: str
    per_hour: Amount
    so_far: Amount | None = None
    per_epoch: Amount | None = None
    to_the_end: Amount | None = None  # from now
    at_most: Amount | None = None  # a run of this training, by its deadline


def parsed(written: Mapping[str, Any], stack: str) -> settings.Settings:
    """The settings in a file. Its secrets are nobody's business, and its project changes no price."""
    texts = {key.removeprefix("trainstack:"): value for key, value in written.items() if key.startswith("trainstack:")}
    google = {key: value for key in ("region", "zone") if (value := written.get(f"gcp:{key}"))}
    try:
        return settings.parse({key: value for key, value in texts.items() if key != "secrets"}, {"project": "none", **google})
    except settings.SettingsError as error:
        raise OpsError(f"the settings of stack {stack} are not valid: {' '.join(error.problems)}") from None


def bill(stack: settings.Settings) -> Bill | None:
    """The bill of a stack; None where it costs nothing that is known here."""
    if stack.target != "gke":
        return None
    try:
        return costs.bill(stack, costs.prices(stack.budget.prices))
    except costs.PricesError as error:
        raise OpsError(f"budget.prices: {error}.") from None


def spent(stack: settings.Settings, run: Run, now: float) -> Spent:
    """What a run costs: so far, and at its pace per epoch and to the end."""
    training = stack.trainings[run.training]
    rate = costs.of_training(stack, run.training, costs.prices(stack.budget.prices))
    so_far = _for(rate, (run.ended or now) - run.started) if run.started else None
    at_most = _for(rate, training.deadline) if training.deadline else None
    epoch, left = _pace(run)
    return Spent(
        run.training,
        run.run,
        run.state,
        rate,
        so_far,
        _for(rate, epoch) if epoch else None,
        _for(rate, left) if left is not None and not run.is_over else None,
        at_most,
    )


def _for(rate: Amount, seconds: float) -> Amount:
    return rate.times(seconds / 3600)


def _pace(run: Run) -> tuple[float | None, float | None]:
    """Seconds of an epoch, and seconds that are left, from the last few records."""
    recent = run.metrics[-6:]
    if len(recent) < 2 or recent[-1]["time"] <= recent[0]["time"]:
        return None, None
    first, last = recent[0], recent[-1]
    seconds = last["time"] - first["time"]
    epochs, steps = last.get("epoch", 0) - first.get("epoch", 0), last["step"] - first["step"]
    left = (last["steps"] - last["step"]) * seconds / steps if steps > 0 and "steps" in last else None
    return seconds / epochs if epochs > 0 else None, left


def standing(stack: str, written: Mapping[str, Any]) -> str:
    """What a stack costs when nothing runs, and how to end that; nothing where it costs nothing, or its settings cannot be read."""
    try:
        found = bill(parsed(written, stack))
    except OpsError:
        return ""
    if found is None:
        return ""
    return f"the idle stack still costs {found.idle} an hour ({found.prices}); `pulumi destroy --stack {stack}` ends it"


def as_data(found: Bill) -> dict[str, Any]:
    """A bill for programs. What is unknown is null, and a sum with it is a lower bound."""
    return {
        "prices": found.prices,
        "currency": "USD",
        "per_hour": {"running": amount(found.running), "idle": amount(found.idle)},
        "lines": [{"what": line.what, "running": line.running, "idle": line.idle, "each": line.each} for line in found.lines],
        "notes": list(found.notes),
    }


def amount(value: Amount | None) -> dict[str, Any] | None:
    return {"at_least" if value.unknown else "usd": round(value.known, 4), "unknown": list(value.unknown)} if value else None
