"""Names are valid wherever they are used, and two stacks never get the same."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from naming import Names, slug

stacks = st.from_regex(r"[A-Za-z0-9_.-]{1,100}", fullmatch=True)  # what Pulumi allows


@given(stacks)
def test_every_name_is_valid(stack: str) -> None:
    names = Names("example.com:my-project-123456", stack)
    assert re.fullmatch(r"[a-z][a-z0-9-]{4,28}[a-z0-9]", names.account("trainer")), "a service account"
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,38}[a-z0-9]", names.base), "a cluster, a network, a repository and a namespace"
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]", names.bucket("checkpoints"))
    assert all(re.fullmatch(r"[a-z0-9_-]{0,63}", value) for value in names.labels("a" * 40).values())


@given(stacks, stacks)
def test_two_stacks_have_different_names(one: str, other: str) -> None:
    assert (Names("p", one).base == Names("p", other).base) == (one == other)


def test_usual_names_stay_as_they_are() -> None:
    assert Names("my-project", "dev").bucket("data") == "my-project-dev-data"
    assert slug("Feature/Über", 19).startswith("feature-ber-")
    assert Names("p", "dev").labels() == {"managed-by": "trainstack", "stack": "dev"}
