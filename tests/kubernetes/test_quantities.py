"""Amounts are declared as the API server keeps them."""

from __future__ import annotations

import pytest

from workloads.kubernetes.quantities import canonical


@pytest.mark.parametrize(
    ("written", "kept"),  # as a server of Kubernetes 1.36 answered
    [
        *[("0.5", "500m"), ("2000m", "2"), ("2.50", "2500m"), ("1500", "1500"), ("1000", "1k"), ("2", "2"), ("250m", "250m")],
        *[
            ("1024Mi", "1Gi"),
            ("1536Mi", "1536Mi"),
            ("2048Ki", "2Mi"),
            ("1000M", "1G"),
            ("1000Ki", "1000Ki"),
            ("4Gi", "4Gi"),
            ("1024Gi", "1Ti"),
        ],
    ],
)
def test_amounts(written: str, kept: str) -> None:
    assert canonical(written) == kept
    assert canonical(kept) == kept
