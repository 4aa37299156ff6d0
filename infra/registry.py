"""The container registry: an Artifact Registry repository of the stack's own in the region, or the project's `gcr.io`.

There is one `gcr.io` repository in a project. One stack may make it; the others use it (`create: false`) and never delete it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pulumi
from pulumi_gcp import artifactregistry

from infra.component import Component
from naming import Names

if TYPE_CHECKING:
    import settings

GCR = "gcr.io"


class Registry(Component):
    def __init__(
        self,
        name: str,
        names: Names,
        region: str,
        wanted: settings.Registry,
        readers: Mapping[str, pulumi.Input[str]],
        protect: bool = False,
        needs: Sequence[pulumi.Resource] = (),
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(name, needs, opts)
        self.location, repository_id = ("us", GCR) if wanted.domain == GCR else (region, wanted.name or names.base)
        self.host = GCR if wanted.domain == GCR else f"{region}-docker.pkg.dev"
        self.url = f"{GCR}/{names.project}" if wanted.domain == GCR else f"{self.host}/{names.project}/{repository_id}"
        repository: pulumi.Input[str] = repository_id
        self.made: list[pulumi.Resource] = []
        if wanted.create:
            resource = artifactregistry.Repository(
                f"{name}-repository",
                repository_id=repository_id,
                location=self.location,
                format="DOCKER",
                description=f"Images of the Trainstack stack {names.stack}",
                cleanup_policy_dry_run=False,
                cleanup_policies=cleanup(wanted.keep_images),
                labels=names.labels(),
                opts=self.child(protect=protect and wanted.domain == GCR),
            )
            repository, self.made = resource.repository_id, [resource]
        for reader, member in readers.items():
            granted = artifactregistry.RepositoryIamMember(
                f"{name}-{reader}",
                location=self.location,
                repository=repository,
                role="roles/artifactregistry.reader",
                member=member,
                opts=self.child(),
            )
            self.made.append(granted)
        self.register_outputs({"url": self.url})


def cleanup(keep: int) -> list[artifactregistry.RepositoryCleanupPolicyArgs]:
    """The newest images stay, others go after a month; a policy that keeps wins over one that deletes."""
    return [
        artifactregistry.RepositoryCleanupPolicyArgs(
            id="keep-newest",
            action="KEEP",
            most_recent_versions=artifactregistry.RepositoryCleanupPolicyMostRecentVersionsArgs(keep_count=keep),
        ),
        artifactregistry.RepositoryCleanupPolicyArgs(
            id="delete-old",
            action="DELETE",
            condition=artifactregistry.RepositoryCleanupPolicyConditionArgs(tag_state="ANY", older_than=f"{30 * 24 * 3600}s"),
        ),
    ]
