"""The buckets: data, checkpoints, logs. Uniform access, never public, beside the cluster.

`on_destroy: keep` leaves the bucket when the stack goes; `existing: NAME` uses it again. `on_destroy: delete` takes the objects along, and leaves
no soft-deleted ones that would cost for another week.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pulumi
from pulumi_gcp import storage

from infra.component import Component
from naming import Names

if TYPE_CHECKING:
    import settings

KINDS = ("data", "checkpoints", "logs")
WEEK = 7 * 24 * 3600
READ = "roles/storage.objectViewer"
WRITE = "roles/storage.objectUser"
SEE = "roles/storage.legacyBucketReader"  # TensorFlow asks whether the bucket itself is there


class Storage(Component):
    def __init__(
        self,
        name: str,
        names: Names,
        location: str,
        wanted: settings.Storage,
        trainer: pulumi.Input[str],
        writes_data: bool = False,
        protect: bool = False,
        needs: Sequence[pulumi.Resource] = (),
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(name, needs, opts)
        self.buckets: dict[str, pulumi.Output[str]] = {}
        for kind in KINDS:
            bucket: settings.Bucket = getattr(wanted, kind)
            self.buckets[kind] = self._bucket(name, names, location, kind, bucket, protect)
            for role in (WRITE if kind != "data" or writes_data else READ, SEE):
                storage.BucketIAMMember(
                    f"{name}-{kind}-{role.rpartition('.')[2]}", bucket=self.buckets[kind], role=role, member=trainer, opts=self.child()
                )
        self.urls = urls(wanted, names)
        self.register_outputs({"urls": self.urls})

    def _bucket(self, name: str, names: Names, location: str, kind: str, wanted: settings.Bucket, protect: bool) -> pulumi.Output[str]:
        if wanted.existing:
            return pulumi.Output.from_input(wanted.existing)
        keep = wanted.on_destroy == "keep"
        return storage.Bucket(
            f"{name}-{kind}",
            name=names.bucket(kind),
            location=location.upper(),
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            force_destroy=not keep,
            soft_delete_policy=storage.BucketSoftDeletePolicyArgs(retention_duration_seconds=WEEK if keep else 0),
            versioning=storage.BucketVersioningArgs(enabled=wanted.versioning),
            lifecycle_rules=list(lifecycle(wanted)),
            labels=names.labels(),
            opts=self.child(retain_on_delete=keep, protect=keep and protect),
        ).name


def urls(wanted: settings.Storage, names: Names) -> dict[str, str]:
    """Where the buckets are. Their names are fixed, so this is known before there are any."""
    return {kind: f"gs://{getattr(wanted, kind).existing or names.bucket(kind)}" for kind in KINDS}


def lifecycle(wanted: settings.Bucket) -> Sequence[storage.BucketLifecycleRuleArgs]:
    """What the bucket deletes by itself."""
    conditions = (
        [storage.BucketLifecycleRuleConditionArgs(age=wanted.delete_after_days, with_state="LIVE")] if wanted.delete_after_days else []
    )
    if wanted.versioning:
        conditions.append(
            storage.BucketLifecycleRuleConditionArgs(days_since_noncurrent_time=wanted.delete_versions_after_days, with_state="ARCHIVED")
        )
    delete = storage.BucketLifecycleRuleActionArgs(type="Delete")
    return [storage.BucketLifecycleRuleArgs(action=delete, condition=condition) for condition in conditions]


def kept(wanted: settings.Storage, names: Names) -> Mapping[str, str]:
    """The buckets that stay when the stack is destroyed, by kind."""
    written = {kind: getattr(wanted, kind) for kind in KINDS}
    return {
        kind: bucket.existing or names.bucket(kind) for kind, bucket in written.items() if bucket.existing or bucket.on_destroy == "keep"
    }


def to_use_again(buckets: Mapping[str, str]) -> str:
    """The lines that let the next stack use buckets that stayed."""
    lines = "\n".join(f"    {kind}: {{existing: {bucket}}}" for kind, bucket in buckets.items())
    return f"  trainstack:storage:\n{lines}"
