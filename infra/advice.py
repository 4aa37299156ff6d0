"""What a person reads when Google says no: the next thing to do, beside the provider's own words.

`explain()` hangs a hook on every resource of the stack. `advice()` is pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi.runtime.proto.resource_pb2_grpc import ResourceMonitorStub

from infra.storage import KINDS, to_use_again


def advice(kind: str, inputs: Mapping[str, Any], error: str, project: str) -> str | None:
    """One sentence for what went wrong, with the command or the setting that mends it; None for what is not known here."""
    found = re.search(r"([A-Z0-9_]+_GPUS|CPUS\w*|SSD_TOTAL_GB|IN_USE_ADDRESSES)", error)
    if re.search(r"quota", error, re.IGNORECASE) and "409" not in error:
        what = found[1] if found else "this resource"
        return (
            f"the project {project} has not enough quota for {what}; ask for more at "
            f"https://console.cloud.google.com/iam-admin/quotas?project={project}, or ask for fewer workers, another accelerator or another location, and run `pulumi up` again."
        )
    if re.search(r"SERVICE_DISABLED|has not been used in project|it is disabled", error):
        service = re.search(r"([a-z]+)\.googleapis\.com", error)
        name = f"{service[1]}.googleapis.com" if service else "SERVICE.googleapis.com"
        return (
            f"a service that was enabled a moment ago may need a minute: run `pulumi up` again; if that does not help, run "
            f"`gcloud services enable {name} --project={project}`."
        )
    if re.search(r"\b409\b|already ?exists|already own", error, re.IGNORECASE):
        return _taken(kind, inputs)
    if re.search(r"\b403\b|permission|forbidden", error, re.IGNORECASE):
        permission = re.search(r"['\"]([a-z]+\.[A-Za-z]+\.[A-Za-z]+)['\"]", error)
        right = f"the permission {permission[1]}" if permission else "a permission"
        return (
            f"your account lacks {right} in {project}; see who you are with `gcloud auth list`, ask an owner of the project for a role that has it, "
            "and run `pulumi up` again."
        )
    return None


def _taken(kind: str, inputs: Mapping[str, Any]) -> str:
    name = inputs.get("name") or inputs.get("repositoryId") or inputs.get("accountId") or inputs.get("secretId") or "this name"
    if kind == "gcp:storage/bucket:Bucket":
        which = next((each for each in KINDS if str(name).endswith(f"-{each}")), "data")
        return f"the bucket {name} is there already, perhaps kept by an earlier stack; to use it again, write:\n{to_use_again({which: str(name)})}"
    if name == "gcr.io":
        return "the project has its gcr.io repository already, and there is only one; write trainstack:registry: {domain: gcr.io, create: false}."
    return (
        f"{name} is there already and this stack does not know it: if an `up` of this stack was interrupted, run `make recover STACK=NAME`; "
        "otherwise it belongs to somebody else, and another stack name avoids it."
    )


def explain(project: str) -> None:
    """From now on, every resource that cannot be made says what to do next."""
    if not isinstance(pulumi.runtime.settings.get_monitor(), ResourceMonitorStub):
        return  # mocks, which have no engine that calls back

    def say(failed: pulumi.ErrorHookArgs) -> bool:
        sentence = advice(failed.type, failed.new_inputs or {}, " ".join(failed.errors[:1]), project)
        if sentence:
            pulumi.log.error(f"{failed.name}: {sentence}")
        return False  # the person decides when to try again

    hook = pulumi.ErrorHook("trainstack-advice", say)

    def attach(made: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult:
        binding = pulumi.ResourceOptions(hooks=pulumi.ResourceHookBinding(on_error=[hook]))
        return pulumi.ResourceTransformationResult(made.props, pulumi.ResourceOptions.merge(made.opts, binding))

    pulumi.runtime.register_stack_transformation(attach)
