"""A TFJob of Kubeflow as the settings of a stack: documents of YAML in, settings and notes out. Pure.

Nothing is left out in silence: what has no equal here, or another one than it had there, has a note. What Trainstack does itself (TF_CONFIG, the
addresses, the end of servers and workers) needs none.
"""

from __future__ import annotations

import itertools
import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from naming import slug
from ops import tfpods
from ops.target import OpsError
from ops.tfpods import Document, Pods, left_out, listing, mapping, whole
from settings import PROJECT, SettingsError, parse
from workloads.topology import MIRRORED, MULTI_WORKER_MIRRORED, PARAMETER_SERVER

ROLES = {"chief": "chief", "master": "chief", "ps": "ps", "worker": "worker", "evaluator": "evaluator"}
RUN_POLICY = (
    "cleanPodPolicy",
    "ttlSecondsAfterFinished",
    "activeDeadlineSeconds",
    "backoffLimit",
)  # before v1 they were in the spec itself
NO_DIGEST = "@sha256:" + 64 * "0"
NO_CONTEXT = "my-cluster"
EVERY_TASK = (
    "it is started by a launcher that needs python3 in the image, runs as user 10001 with a root that cannot be written to but for /tmp, and reaches "
    "the other tasks, DNS and Google alone where the cluster enforces network policies; egress names more."
)
SCHEDULING = (
    "tasks are not scheduled as a gang; each waits for the others for peer_timeout, gives up then, and everything ends; "
    "queue, minAvailable and minResources are left out."
)
CLEAN_POD_POLICY = {
    "None": "there servers run on after the end; here all tasks end with the lead, and their pods stay to be read until `make down`.",
    "All": "there the pods go at the end; here they stay, ended and at no cost, to be read until `make down`.",
}
BESIDE = {
    "Job": "what prepares data is a data_prep of the training, which runs before it; write it so.",
    "Pod": "what prepares data is a data_prep of the training, and TensorBoard is tensorboard: {}; write it so.",
    "Deployment": "TensorBoard is tensorboard: {}, and a server for the model serving: {}; write it so.",
    "Service": "tasks, TensorBoard and serving have Services of their own; it is left out.",
    "ConfigMap": "files of the program belong into the image, and values into env; it is left out.",
    "Secret": "run `pulumi config set --secret --path trainstack:secrets.NAME` for each value; it is left out.",
    "Namespace": "the stack has a namespace of its own, trainstack-<stack>.",
    "PersistentVolume": "it stays as it is; a claim finds it by its class.",
    "ServiceAccount": tfpods.POD["serviceAccountName"],
}


@dataclass(frozen=True)
class Note:
    """What became of something."""

    training: str  # empty where it is about the whole file
    about: str
    sentence: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.training, self.about, self.sentence) if part)


@dataclass(frozen=True)
class Imported:
    config: dict[str, Any]  # what a Pulumi.<stack>.yaml has below `config`
    notes: tuple[Note, ...]

    def text(self) -> str:
        """The settings file, with the notes in front."""
        head = ["# yaml-language-server: $schema=schema/stack.json", "# Made of TFJobs by `trainstack import-tfjob`."]
        if self.notes:
            head.append("# What has no equal here, or another one than it had there:")
        for note in self.notes:
            head += textwrap.wrap(
                _in_a_comment(str(note)), 140, initial_indent="#   - ", subsequent_indent="#     ", break_long_words=False
            )
        body: str = yaml.dump({"config": self.config}, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=140)
        return "\n".join(head) + "\n" + body


def _in_a_comment(text: str) -> str:
    """Without line breaks and control characters, which somebody's value may have, and behind which the comment would end."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


class _Dumper(yaml.SafeDumper):
    """Without anchors: the same list in two trainings is written twice."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - as PyYAML has it
        return True


def load(text: str, name: str) -> list[Any]:
    """The documents of a file."""
    try:
        return [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise OpsError(f"{name} is not YAML{f' (line {mark.line + 1})' if mark else ''}; a template has to be filled in first.") from None


def convert(documents: Iterable[Any], context: str | None = None) -> Imported:
    """All TFJobs among the documents as the trainings of one stack; claims that are among them are made by it."""
    flat = list(_flat(documents))
    jobs = [each for each in flat if each.get("kind") == "TFJob"]
    if not jobs:
        kinds = ", ".join(sorted({str(each.get("kind")) for each in flat})) or "no document"
        raise OpsError(f"there is no TFJob here, but {kinds}; name a file with `kind: TFJob` in it.")
    claims = {_name(each): each for each in flat if each.get("kind") == "PersistentVolumeClaim"}
    notes: list[Note] = []
    if context is None:
        notes.append(Note("", "kubernetes.context", f"write a context of your kubeconfig in place of {NO_CONTEXT}, or give --context."))
    trainings: dict[str, Any] = {}
    for job in jobs:
        name, training = _training(job, claims, notes)
        if name in trainings:
            raise OpsError(f"there are two TFJobs with the name {name}; import them into two stacks.")
        trainings[name] = training
    mounted = {volume.get("claim") for training in trainings.values() for volume in training.get("volumes", ())}
    for each in flat:
        kind = str(each.get("kind"))
        if kind != "TFJob" and not (kind == "PersistentVolumeClaim" and _name(each) in mounted):
            notes.append(Note("", f"{kind} {_name(each)}", BESIDE.get(kind, tfpods.NO_EQUAL)))
    notes.append(Note("", "every task", EVERY_TASK))
    values = {"target": "kubernetes", "kubernetes": {"context": context or NO_CONTEXT}, "trainings": trainings}
    notes += [Note("", "before the first preview", problem) for problem in _problems(values)]
    return Imported({f"{PROJECT}:{key}": value for key, value in values.items()}, tuple(notes))


def _problems(values: Mapping[str, Any]) -> list[str]:
    """What the settings do not allow, in their own words."""
    try:
        parse(values)
    except SettingsError as error:
        return error.problems
    return []


def _flat(documents: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Also what is in lists, as `kubectl get -o yaml` prints them."""
    for document in documents:
        if not isinstance(document, dict):
            raise OpsError(f"{str(document)[:40]!r} is not an object of Kubernetes; name a file with `kind: TFJob` in it.")
        if document.get("kind") in ("List", "TFJobList"):
            yield from _flat(listing(document.get("items"), "items"))
        else:
            yield document


def _name(document: Document) -> str:
    metadata = mapping(document.get("metadata"), "metadata")
    return str(metadata.get("name") or metadata.get("generateName") or "").rstrip("-")


# ------------------------------------------------------------------------------------------------------- a training


def _training(job: Document, claims: Mapping[str, Document], notes: list[Note]) -> tuple[str, dict[str, Any]]:
    written = _name(job)
    if not written:
        raise OpsError("a TFJob has no metadata.name; write one.")
    name = slug(written, 40)
    name = name if name[0].isalpha() else slug(f"job-{written}", 40)

    def say(about: str, sentence: str) -> None:
        notes.append(Note(name, about, sentence))

    if name != written:
        say("name", f"{written} becomes part of host names, so it is {name} here.")
    _metadata(job, say)
    spec = mapping(job.get("spec"), f"{written}.spec")
    roles = _roles(written, spec, say)
    lead = roles.get("chief") or roles["worker"]
    image = max(roles.values(), key=lambda pods: (pods.amounts.get("gpus", 0), pods is lead))
    _say_all(roles.values(), say)
    training: dict[str, Any] = {
        "command": _one(lead, roles, "command", shlex.join, say),
        "image": _image(_one(image, roles, "image", str, say), say),
        "env": _environment(lead, roles, say),
        **_topology(roles, say),
        "port": _one(lead, roles, "port", str, say),
        "volumes": _volumes(roles, claims, say),
        "credentials": _one(lead, roles, "credentials", str, say),
        "node_selector": _selector(roles, say),
        "tolerations": _tolerations(roles, say),
        **_run_policy(spec, roles, say),
    }
    if training["port"] == tfpods.PORT:
        del training["port"]
    handled = ("tfReplicaSpecs", "runPolicy", "successPolicy", "enableDynamicWorker", *RUN_POLICY)
    left_out(spec, handled, {}, say)
    return name, {key: value for key, value in training.items() if value not in ({}, [])}


def _metadata(job: Document, say: tfpods.Say) -> None:
    metadata = mapping(job.get("metadata"), "metadata")
    if "name" not in metadata:
        say("generateName", "a training has one name, and each `run` of it is a new one.")
    if namespace := metadata.get("namespace"):
        say("namespace", f"the tasks are in trainstack-<stack>, not in {namespace}; what they use of it (claims, secrets) has to be there.")
    tfpods.metadata_left_out(metadata, say)
    left_out(job, ("apiVersion", "kind", "metadata", "spec", "status"), {}, say)


def _roles(name: str, spec: Document, say: tfpods.Say) -> dict[str, Pods]:
    """The pods of each role that has any."""
    written = mapping(spec.get("tfReplicaSpecs"), f"{name}.tfReplicaSpecs")
    if not written:
        raise OpsError(f"{name} has no tfReplicaSpecs, so nothing would run; write the roles there, as TFJob v1 has them.")
    roles: dict[str, Pods] = {}
    for title, replica in written.items():
        role = ROLES.get(str(title).lower())
        if role is None:
            raise OpsError(f"{name} has the role {title!r}; TFJob has Chief, Master, PS, Worker and Evaluator.")
        pods = tfpods.read(str(title), mapping(replica, str(title)))
        if not pods.replicas:
            say(str(title), "it has no replicas; it is left out.")
            continue
        if role in roles or (role == "chief" and pods.replicas > 1):
            raise OpsError(f"{name} has two {role}s, and TensorFlow wants one cluster with one; remove one of them.")
        if role == "evaluator" and pods.replicas > 1:
            say(str(title), f"{pods.replicas} replicas, but TensorFlow knows one evaluator; it is one here.")
        roles[role] = pods
    if not roles.keys() & {"chief", "worker"}:
        raise OpsError(f"{name} has neither a Chief nor a Worker, so nothing would train; write one of them.")
    if "worker" not in roles and "ps" not in roles:
        roles["worker"] = alone = roles.pop("chief")
        say(alone.title, "one task that trains alone is the worker of strategy mirrored here, and so TF_CONFIG calls it.")
    return roles


def _topology(roles: Mapping[str, Pods], say: tfpods.Say) -> dict[str, Any]:
    """The strategy, and the roles with what each of their tasks gets."""
    tasks = sum(roles[role].replicas for role in ("chief", "worker") if role in roles)
    strategy = PARAMETER_SERVER if "ps" in roles else MULTI_WORKER_MIRRORED if tasks > 1 else MIRRORED
    result: dict[str, Any] = {"strategy": strategy}
    if strategy == PARAMETER_SERVER and "chief" not in roles:
        result["chief"] = {"replicas": 0}  # unless it is written, parameter_server has one
    for role in ("chief", "worker", "ps"):
        if role in roles:
            result[role] = {"replicas": roles[role].replicas, **roles[role].amounts}
    if evaluator := roles.get("evaluator"):
        result["evaluator"] = {"mode": "sidecar", **{key: evaluator.amounts[key] for key in ("cpu", "memory") if key in evaluator.amounts}}
        if evaluator.amounts.get("gpus"):
            say(f"{evaluator.title}", "the evaluator has no GPU here; it runs on a CPU.")
    return result


def _say_all(roles: Iterable[Pods], say: tfpods.Say) -> None:
    """What several roles have in common is said once."""
    together: dict[tuple[str, str], list[str]] = {}
    for pods in roles:
        for note in dict.fromkeys(pods.notes):
            together.setdefault(note, []).append(pods.title)
    for (about, sentence), titles in together.items():
        say(f"{about} of {joined(titles)}", sentence)


# ---------------------------------------------------------------------------- what all tasks of a training have alike


def _one(chosen: Pods, roles: Mapping[str, Pods], what: str, shown: Callable[[Any], str], say: tfpods.Say) -> Any:
    """What the chosen role has, and a note for each role that has something else."""
    value = getattr(chosen, what)
    others: dict[str, list[str]] = {}
    for pods in roles.values():
        if (its_own := getattr(pods, what)) != value:
            others.setdefault(shown(its_own) if its_own else "none", []).append(pods.title)
    for other, titles in others.items():
        say(
            f"{what} of {joined(titles)}",
            f"{other}: all tasks of a training have one, and TF_CONFIG tells them apart; it is that of {chosen.title}.",
        )
    return value


def _selector(roles: Mapping[str, Pods], say: tfpods.Say) -> dict[str, str]:
    """Labels that all roles ask for: one that some do not might keep them from every node."""
    first, *others = (pods.selector for pods in roles.values())
    shared = {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
    for pods in roles.values():
        for key, value in pods.selector.items():
            if key not in shared:
                say(
                    f"nodeSelector of {pods.title}",
                    f"{key}: {value} is not asked for by all roles, and node_selector is for all tasks; it is left out.",
                )
    return shared


def joined(titles: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(titles[:-1]), titles[-1])))


def _image(image: str, say: tfpods.Say) -> str:
    if not image:
        raise OpsError("a container has no image, and Kubernetes wants one; write it.")
    if "@sha256:" in image:
        return image
    plain = image.rpartition("/")[2].partition(":")[0]
    say(
        "image",
        f"{image} may be another one tomorrow; write its digest in place of the zeros (`docker buildx imagetools inspect {image}` shows it).",
    )
    return image[: len(image) - len(image.rpartition("/")[2])] + plain + NO_DIGEST


def _environment(lead: Pods, roles: Mapping[str, Pods], say: tfpods.Say) -> dict[str, str]:
    everybody = [lead, *(pods for pods in roles.values() if pods is not lead)]
    result: dict[str, str] = {}
    for pods in everybody:
        for name, value in pods.env.items():
            if result.setdefault(name, value) != value:
                say(f"env {name} of {pods.title}", f"it is {value!r}, but all tasks of a training have one value; it is {result[name]!r}.")
    for name in result:
        without = [pods.title for pods in everybody if name not in pods.env]
        if without:
            say(f"env {name}", f"{joined(without)} did not have it; all tasks have it now.")
    return result


def _tolerations(roles: Mapping[str, Pods], say: tfpods.Say) -> list[dict[str, Any]]:
    """What somebody tolerates, all do: it keeps nobody away."""
    result: list[dict[str, Any]] = []
    for each in itertools.chain.from_iterable(pods.tolerations for pods in roles.values()):
        if each not in result:
            result.append(each)
            without = [pods.title for pods in roles.values() if each not in pods.tolerations]
            if without:
                say(f"toleration {each.get('key', 'of everything')}", f"{joined(without)} did not have it; all tasks have it now.")
    return result


def _volumes(roles: Mapping[str, Pods], claims: Mapping[str, Document], say: tfpods.Say) -> list[dict[str, Any]]:
    where: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for role, pods in roles.items():
        for mounted in pods.volumes:
            where.setdefault(tuple(mounted.items()), []).append(role)
    result = []
    for items, mounting in where.items():
        volume: dict[str, Any] = dict(items)
        if claim := volume.get("claim"):
            volume |= _claim(claim, claims.get(claim), sum(roles[role].replicas for role in mounting), say)
        result.append({**volume, **({"roles": mounting} if len(mounting) < len(roles) else {})})
    return result


def _claim(claim: str, made: Document | None, pods: int, say: tfpods.Say) -> dict[str, Any]:
    about = f"claim {claim}"
    if made is None:
        many = f" It has to be ReadWriteMany, because {pods} pods mount it." if pods > 1 else ""
        say(about, f"it has to be in the namespace of the stack; create: true and a size would make a new one.{many}")
        return {"access": "ReadWriteMany"} if pods > 1 else {}
    spec = mapping(made.get("spec"), f"{about}.spec")
    asked = mapping(mapping(spec.get("resources"), f"{about}.resources").get("requests"), f"{about}.requests")
    modes = tfpods.words(spec.get("accessModes"), f"{about}.accessModes")
    storage_class = spec.get("storageClassName")
    left_out(spec, ("resources", "accessModes", "storageClassName"), {}, say, f"{about}, ")
    return {
        "create": True,
        "size": tfpods.memory(asked.get("storage")),
        **({"access": "ReadWriteMany"} if {"ReadWriteMany", "ReadOnlyMany"} & set(modes) else {}),
        **({"class": storage_class} if storage_class else {}),
    }


# ------------------------------------------------------------------------------------------------------ how it ends


def _run_policy(spec: Document, roles: Mapping[str, Pods], say: tfpods.Say) -> dict[str, Any]:
    policy = {**{key: spec[key] for key in RUN_POLICY if key in spec}, **mapping(spec.get("runPolicy"), "runPolicy")}
    result: dict[str, Any] = {}
    scheduling = mapping(policy.get("schedulingPolicy"), "schedulingPolicy")
    if scheduling:
        say("schedulingPolicy", SCHEDULING)
        if scheduling.get("priorityClass"):
            say("schedulingPolicy.priorityClass", tfpods.POD["priorityClassName"])
        if seconds := scheduling.get("scheduleTimeoutSeconds"):
            result["peer_timeout"] = duration(whole(seconds, "scheduleTimeoutSeconds"))
    result |= _restarts(policy, roles, say)
    if seconds := policy.get("activeDeadlineSeconds"):
        result["deadline"] = duration(whole(seconds, "activeDeadlineSeconds"))
    elif "ps" in roles and "chief" not in roles:
        result["deadline"] = "24h"
        say("deadline", "parameter servers without a Chief need one here, in case worker 0 never ends; 24h is a guess.")
    if (seconds := policy.get("ttlSecondsAfterFinished")) is not None:
        result["ttl_after_finished"] = duration(max(1, whole(seconds, "ttlSecondsAfterFinished")))
        say(
            "ttlSecondsAfterFinished",
            "an ended Job costs nothing, and the next `up` trains again when it is gone; better remove ttl_after_finished.",
        )
    clean = str(policy.get("cleanPodPolicy") or "Running")
    if clean in CLEAN_POD_POLICY:
        say(f"cleanPodPolicy {clean}", CLEAN_POD_POLICY[clean])
    if policy.get("suspend"):
        result["deploy"] = False
        say("suspend", "deploy: false makes the claims and no task; deploy: true starts the training.")
    if spec.get("successPolicy"):
        say(
            f"successPolicy {spec['successPolicy']}",
            "the run succeeds with its lead: the chief, or worker 0 where there is none; the others end then.",
        )
    if spec.get("enableDynamicWorker"):
        say(
            "enableDynamicWorker",
            "another number of workers is a change of worker.replicas and an `up`; the run goes on from its checkpoint.",
        )
    handled = (*RUN_POLICY, "schedulingPolicy", "suspend")
    left_out(policy, handled, {}, say)
    return result


def _restarts(policy: Document, roles: Mapping[str, Pods], say: tfpods.Say) -> dict[str, Any]:
    """There restarts are a matter of each role, here of exit codes: 0 done, 75 again, 78 never again, others again up to max_restarts."""
    by_policy: dict[str, list[str]] = {}
    for pods in roles.values():
        by_policy.setdefault(pods.restart_policy, []).append(pods.title)
    never, limit = by_policy.pop("Never", []), policy.get("backoffLimit")
    if not by_policy:
        say(
            "restartPolicy Never",
            "a task that fails is out of restarts at once (max_restarts: 0); one that is evicted, or ends with 75, starts again.",
        )
        return {"max_restarts": 0}
    if never:
        say(f"restartPolicy Never of {joined(never)}", "restarts are counted for every task alike here; it may start again, too.")
    if titles := by_policy.pop("Always", None):
        say(f"restartPolicy Always of {joined(titles)}", "a task that ends with 0 is done here and does not start again.")
    if titles := by_policy.pop("ExitCode", None):
        say(
            f"restartPolicy ExitCode of {joined(titles)}",
            "there 1 to 127 end the job; here 78 does, 75 starts again uncounted, and every other code starts again up to max_restarts.",
        )
    by_policy.pop("OnFailure", None)
    for unknown, titles in by_policy.items():
        say(f"restartPolicy {unknown} of {joined(titles)}", "it is not known here; a task that fails starts again up to max_restarts.")
    if limit is None:
        return {}
    say("backoffLimit", f"there {limit} restarts are of all tasks together; here each task has so many.")
    return {"max_restarts": whole(limit, "backoffLimit")}


def duration(seconds: int) -> str:
    """As the settings write it, in the largest unit that leaves a whole number."""
    unit, name = next((unit, name) for unit, name in ((3600, "h"), (60, "m"), (1, "s")) if seconds % unit == 0)
    return f"{seconds // unit}{name}"
