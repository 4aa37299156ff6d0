"""Amounts as Kubernetes writes them. Pure.

The API server keeps an amount in one way only: 0.5 CPUs as 500m, 1024Mi as 1Gi. What is declared in another way looks like a change after a refresh,
and a changed Job is a replaced one.
"""

from __future__ import annotations

import re
from decimal import Decimal

BINARY = ("", "Ki", "Mi", "Gi", "Ti")
DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T")


def canonical(amount: str) -> str:
    """The same amount with the largest unit that leaves a whole number."""
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", amount).groups()  # type: ignore[union-attr]
    units, factor = (BINARY, 1024) if unit in BINARY[1:] else (DECIMAL, 1000)
    value, position = Decimal(number) * factor ** units.index(unit), 0  # in the smallest unit there is
    while position + 1 < len(units) and value % factor == 0:
        value, position = value / factor, position + 1
    return f"{int(value)}{units[position]}"
