"""Which services of Google Cloud a stack uses. Pure: `trainstack doctor` asks for the same list before there is a stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra import pools

if TYPE_CHECKING:
    from settings import Settings

ALWAYS = (
    "artifactregistry",
    "cloudresourcemanager",
    "compute",
    "container",
    "iam",
    "iamcredentials",
    "logging",
    "monitoring",
    "storage",
)


def services(wanted: Settings) -> tuple[str, ...]:
    """Their names without `.googleapis.com`."""
    more = {
        "secretmanager": bool(wanted.secrets),
        "file": bool(pools.filestore_claims(wanted.trainings)),
        "containerfilesystem": wanted.cluster.image_streaming,
        "dns": not wanted.network.existing,
    }
    return tuple(sorted([*ALWAYS, *(service for service, used in more.items() if used)]))
