"""Who has to reach which directory when tasks run on several machines, and what of that cannot be. Pure.

On `gs://` everybody reaches everything. A path is reached by the pods that mount the volume it is on, and a ReadWriteOnce claim by the pods of one
node. Under parameter_server the chief alone writes and reads checkpoints; under multi_worker_mirrored the lead does and hands on what it read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from workloads.places import places, roots_on_volume

if TYPE_CHECKING:
    from settings import Training, Volume

PINNED = "kubernetes.io/hostname"  # a node selector that names one node
READS = {"tensorboard": "log_dir", "serving": "model_dir"}


def directories(name: str, training: Training, roots: Mapping[str, str] | None, run: str | None = None) -> dict[str, str]:
    """The directories of a run: as written, in the buckets of the stack, or on a volume of the training."""
    return places(name, training, roots or roots_on_volume(training), run)


def users(training: Training) -> dict[str, set[str]]:
    """From each directory to the roles, and to what is beside them, that read or write it."""
    lead = training.topology.lead.role
    present = {role for role, count in training.topology.counts().items() if count} if training.deploy else set()
    evaluator = {"evaluator"} & present
    return {
        "data_dir": (present - {"ps"} if training.data_dir or training.data_prep else set())
        | ({"data_prep"} if training.data_prep else set()),
        "checkpoint_dir": ({lead} & present) | evaluator,
        "log_dir": ({lead} & present) | evaluator | ({"tensorboard"} if training.tensorboard and training.deploy else set()),
        "model_dir": ({lead} & present) | ({"serving"} if training.serving else set()),
    }


def mounts(training: Training, component: str, where: Mapping[str, str]) -> list[Volume]:
    """The volumes that a pod mounts: a role those that name it, TensorBoard and serving those that hold what they read, the others all."""
    if component in ("data_prep", "inspector"):
        return list(training.volumes)
    if component in READS:
        return [volume for volume in training.volumes if volume.holds(where.get(READS[component], ""))]
    return [volume for volume in training.volumes if component in volume.roles]


def problems(name: str, training: Training, roots: Mapping[str, str] | None) -> Iterator[str]:
    where = directories(name, training, roots)
    for kind, needed in users(training).items():
        if training.command and kind != "data_dir":  # the command has directories of its own; these are for what is beside it
            needed &= {"tensorboard", "serving"}
        if needed:
            yield from _problems_of_directory(training, kind, where.get(kind), needed)
    for index, volume in enumerate(training.volumes):
        if volume.claim and volume.access == "ReadWriteOnce" and PINNED not in training.node_selector:
            pods = _pods(training, volume, where)
            if sum(pods.values()) > 1:
                yield (
                    f"volumes.{index}.access: a ReadWriteOnce claim can be mounted on one node, but {', '.join(f'{n} × {role}' for role, n in pods.items())} would "
                    f"mount {volume.claim} and wait for ever; write access: ReadWriteMany (with a class that has it), {_fewer(training, pods)}, or gs:// directories "
                    "instead of it."
                )


def _problems_of_directory(training: Training, kind: str, place: str | None, needed: set[str]) -> Iterator[str]:
    who = ", ".join(sorted(needed))
    if place is None:
        yield (
            f"{kind}: target kubernetes has no bucket of its own, and what a pod writes to its own disk is gone with it; write {kind}: gs://…, or a volume "
            "for the lead (volumes: [{claim: NAME, path: /ckpt}]), where it then is."
        )
    elif "://" not in place:
        volume = next((volume for volume in training.volumes if volume.holds(place)), None)
        if volume is None:
            yield f"{kind}: {place} is on the disk of one pod, and {who} would not find there what another one wrote; write a gs:// directory, or a path on one of its volumes."
        else:
            missing = sorted(needed & {"chief", "worker", "ps", "evaluator"} - set(volume.roles))
            if missing:
                yield f"{kind}: {place} is on the volume {volume.name}, which {', '.join(missing)} does not mount; add it to the volume's roles."


def _pods(training: Training, volume: Volume, where: Mapping[str, str]) -> dict[str, int]:
    """How many pods of each kind mount a volume at the same time. Data is prepared before, and an inspector comes after."""
    counts = {role: count for role, count in training.topology.counts().items() if count} if training.deploy else {}
    if training.tensorboard and training.deploy:
        counts["tensorboard"] = 1
    if training.serving:
        counts["serving"] = training.serving.replicas
    return {component: count for component, count in counts.items() if volume in mounts(training, component, where)}


def _fewer(training: Training, pods: Mapping[str, int]) -> str:
    """What leaves one pod of these, as the settings write it."""
    advice = [f"{kind}: gs://…" for component, kind in READS.items() if component in pods]
    if sum(count for component, count in pods.items() if component not in READS) > 1:
        alone = "roles: [chief]" if training.topology.chief else "chief: {replicas: 1} and roles: [chief]"
        advice.insert(0, alone + (" with evaluator: {mode: inline}" if training.topology.evaluator else ""))
    return " and ".join(advice)
