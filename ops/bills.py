"""What a stack and its runs cost, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from costs import Amount, Bill
from ops.spending import Spent


def bill_table(stack: str, bill: Bill) -> Table:
    """What is paid for by the hour."""
    result = Table(title=f"{stack}, {bill.prices}", title_justify="left", show_footer=True)
    result.add_column("USD an hour", footer="together")
    result.add_column("each", justify="right")
    for name, total in (("training", bill.running), ("idle", bill.idle)):
        result.add_column("", justify="right")
        result.add_column(name, justify="right", footer=str(total))
    for line in bill.lines:
        each = f"{line.each:.4f}" if line.each is not None else "unknown"
        cells = (part for count in (line.running, line.idle) for part in (f"{count} ×", price(line.each, count)))
        result.add_row(line.what, each, *cells)
    return result


def price(each: float | None, count: int) -> str:
    return "0" if count == 0 else "unknown" if each is None else f"{each * count:.2f}"


def spent_table(spent: Sequence[Spent]) -> Table:
    """What runs cost, beside the idle stack."""
    names = ("an hour", "so far", "per epoch", "to the end", "by its deadline")
    result = Table("run", "state", *names, title="runs, beside the idle stack", title_justify="left")
    for each in spent:
        amounts: list[Amount | None] = [each.per_hour, each.so_far, each.per_epoch, each.to_the_end, each.at_most]
        result.add_row(f"{each.training}, {each.run}", each.state, *(str(amount) if amount else "" for amount in amounts))
    return result
