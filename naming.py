"""Names and labels. Pure. Names are fixed, so that a stack that is made again meets what it left, and people find things in the console."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

PROJECT = "trainstack"  # in Pulumi.yaml, and before the colon of every setting


def slug(text: str, longest: int) -> str:
    """A text as small letters, digits and '-'. What had to be changed gets a few digits of its own, so that two never become one."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if plain == text and len(plain) <= longest:
        return plain
    digits = hashlib.sha256(text.encode()).hexdigest()[:5]
    return f"{plain[: longest - 6].rstrip('-')}-{digits}".lstrip("-")


@dataclass(frozen=True)
class Names:
    """What the things of one stack are called."""

    project: str
    stack: str

    @property
    def short(self) -> str:
        return slug(self.stack, 19)  # a service account has at most 30 characters

    @property
    def base(self) -> str:
        return f"trainstack-{self.short}"

    def account(self, role: str) -> str:
        return f"ts-{self.short}-{role}"

    def bucket(self, kind: str) -> str:
        """Bucket names are shared by the whole world, so the project's is in front."""
        return f"{slug(self.project, 30)}-{self.short}-{kind}"

    def labels(self, training: str | None = None) -> dict[str, str]:
        return {"managed-by": "trainstack", "stack": self.short} | ({"training": training} if training else {})
