"""Why a pod does not run, in one sentence with the next step. Pure: plain dicts as the API gives them.

The sentence follows the name of the task, as in `worker-1: no node has …`. Where Kubernetes gives several reasons at once, the one is told that is
nearest to running: the scheduler looks at taints first, then at labels, then at what is free, so a node with too little free is a node
that fits otherwise; and what the autoscaler says of new nodes goes before what the scheduler says of old ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from ops.states import (
    INDEX,
    Object,
    condition,
    container,
    container_status,
    indexes,
    is_unscheduled,
    labels,
    last_words,
    meaning,
    terminated,
)
from workloads import outcome
from workloads.kubernetes.names import COMPONENT
from workloads.topology import ROLES

GPU = "nvidia.com/gpu"
GPU_LABELS = ("cloud.google.com/gke-accelerator", "nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present")
UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
WAITING = re.compile(r"launcher: waiting for (\S+) \((\d+) s\)")


def explain(
    pod: Object,
    events: Iterable[Object] = (),
    claims: Iterable[Object] = (),
    nodes: Iterable[Object] = (),
    log: Sequence[str] = (),
    job: Object | None = None,
) -> str | None:
    """Why this pod does not run; None when it runs or is done.

    `events` and `claims` are those of the namespace, `log` holds the last lines of the pod, `job` is the Job that made it.
    """
    events, claims, nodes = list(events), list(claims), list(nodes)
    phase = pod["status"].get("phase")
    if phase == "Succeeded":
        return None
    if phase == "Failed":
        return _ended(pod, log, job)
    if pod["metadata"].get("deletionTimestamp"):
        grace = pod["metadata"].get("deletionGracePeriodSeconds", 0)
        return f"it was told to stop and is saving; it is gone within {grace} s: wait." if grace else "it is being removed; wait a moment."
    if is_unscheduled(pod):
        return _unscheduled(pod, events, claims, nodes)
    if held := _held(pod):
        return _kept_from_starting(pod, held, events, claims, log)
    if phase == "Running":
        return _running(pod, events, log)
    return "it has a node and is about to start; wait a moment."


def explain_job(job: Object, events: Iterable[Object] = ()) -> str | None:
    """Why a Job has no pod for an index that is not done; None when there is nothing to say."""
    if failed := condition(job, "Failed"):
        return _failed_job(job, failed)
    if job["spec"].get("suspend"):
        return "the run was cancelled (its Jobs are suspended); start it again where it stopped with `trainstack rerun`."
    if condition(job, "Complete"):
        return None
    refused = _of(events, "Job", job, "FailedCreate")
    if refused:
        return _refused(refused[-1]["message"])
    return "its pod is about to be made; wait a moment."


def waiting_for(log: Sequence[str]) -> tuple[str, int] | None:
    """The peer that a task waits for and since how many seconds, when that is the last thing its launcher said."""
    said = [line for line in log if line.strip()]
    found = WAITING.fullmatch(said[-1].strip()) if said else None
    return (found[1], int(found[2])) if found else None


# ---------------------------------------------------------------------------------------------------- no node yet


def _unscheduled(pod: Object, events: Sequence[Object], claims: Sequence[Object], nodes: Sequence[Object]) -> str:
    state = next(each for each in pod["status"]["conditions"] if each["type"] == "PodScheduled")
    said = " ".join([state.get("message") or "", *(event["message"] for event in _of(events, "Pod", pod, "FailedScheduling")[-1:])])
    if state.get("reason") == "SchedulingGated":
        return "something else in the cluster holds it back (scheduling gates), such as a queue; ask whoever runs the cluster."
    for claim in _claims_of(pod):
        if sentence := _claim(claim, events, claims, said):
            return sentence
    if "volume node affinity conflict" in said:
        return (
            f"the disk of {_named(_claims_of(pod))} is in a zone where no node fits; "
            "start a node in that zone, or use a claim with access: ReadWriteMany."
        )
    return _autoscaler(pod, events) or _scheduler(pod, said, nodes)


def _autoscaler(pod: Object, events: Sequence[Object]) -> str | None:
    """What the cluster autoscaler last said of this pod."""
    mine = _of(events, "Pod", pod, "TriggeredScaleUp", "NotTriggerScaleUp", "FailedScaleUp")
    if not mine:
        return None
    last = mine[-1]
    failed = next((event["message"] for event in reversed(mine) if event["reason"] == "FailedScaleUp"), "")
    role = _role(pod)
    if last["reason"] == "TriggeredScaleUp":
        return "a node is being added for it; that takes a minute or two, with GPUs two to five: wait."
    if last["reason"] == "FailedScaleUp" or "in backoff after failed scale-up" in last["message"]:
        if re.search(r"quota", failed, re.IGNORECASE):
            return (
                f"a node was refused because a quota of the project is used up; ask for more (console, IAM & Admin, Quotas), or write fewer {role}.replicas, "
                "another accelerator or another region."
            )
        if re.search(r"out of resources|stockout|resource_pool_exhausted|does not have enough resources", failed, re.IGNORECASE):
            way = "spot: false" if _is_spot(pod) else "another accelerator or machine"
            return (
                f"Google has no such {'spot ' if _is_spot(pod) else ''}machine left in the zone; it is tried again by itself, so wait, or write {way}, "
                "or more zones in cluster.node_locations."
            )
        because = f" ({_brief(failed)})" if failed else ""
        return f"a node could not be added{because}; it is tried again by itself within minutes: wait, or look at the cluster's node pools."
    if re.search(r"max node group size reached|max limit reached|max cluster (cpu|memory|limit)", last["message"]):
        return (
            f"no node fits and the node pool is at its maximum; wait until something else ends, write fewer {role}.replicas, "
            "or let the pool grow."
        )
    return None  # the reasons are those of the scheduler, which says more


def _scheduler(pod: Object, said: str, nodes: Sequence[Object]) -> str:
    short = sorted(set(re.findall(r"Insufficient (\S+?)[,.]?(?=\s|$)", said)))
    if GPU in short:
        return _no_gpu(pod, nodes)
    if short:
        return _too_little(pod, short, nodes)
    if "didn't match Pod's node affinity/selector" in said or "didn't match node selector" in said:
        asked = pod["spec"].get("nodeSelector") or {}
        wanted = ", ".join(f"{key}={value}" for key, value in asked.items()) or "of its affinity"
        return f"no node has the labels that it asks for ({wanted}); correct node_selector, or add a node with them."
    if taints := sorted(set(re.findall(r"untolerated taint(?:\(s\))? ?\{([^}]*)\}", said))):
        keys = [taint.split(":")[0].strip() for taint in taints]
        if all(key.startswith("node.kubernetes.io/") or key.startswith("node.cloudprovider.kubernetes.io/") for key in keys):
            return (
                f"no node is ready ({', '.join(key.partition('/')[2] for key in keys)}); wait until one is, or look at the cluster's nodes."
            )
        return (
            f"every node that might fit keeps others away by a taint ({', '.join(keys)}); "
            f"write tolerations: [{{key: {keys[0]}, operator: Exists}}], or add other nodes."
        )
    if "Too many pods" in said:
        return "every node has as many pods as it may; add nodes, or wait until something else ends."
    if "no nodes available" in said or (not nodes and not said):
        return "the cluster has no node; add one, or wait until one is ready."
    return f"no node fits: {_brief(said) or 'the scheduler has not said why'}; change what it asks for, or add a node that fits."


def _no_gpu(pod: Object, nodes: Sequence[Object]) -> str:
    asked, role = _asked(pod, GPU), _role(pod)
    fitting = [node for node in nodes if _has_labels(pod, node)]
    unready = [node for node in fitting if any(label in labels(node) for label in GPU_LABELS) and not _has(node, GPU)]
    if unready:
        return (
            f"node {unready[0]['metadata']['name']} is there, but its GPU driver is not ready; that takes up to five minutes after the node "
            "appears: wait, then look at the nvidia pods in the namespace kube-system."
        )
    most = max((_has(node, GPU) for node in fitting), default=0.0)
    if most == 0:
        return f"no node has a GPU, and it asks for {asked:.0f} ({GPU}); add nodes with GPUs and their device plug-in, or write {role}.gpus: 0."
    if most < asked:
        return f"no node has {asked:.0f} GPUs, the most is {most:.0f}; write {role}.gpus: {most:.0f}."
    return f"all GPUs are taken, and it asks for {asked:.0f}; wait until something else ends, or add nodes."


def _too_little(pod: Object, short: Sequence[str], nodes: Sequence[Object]) -> str:
    role, fitting = _role(pod), [node for node in nodes if _has_labels(pod, node)]
    for name in short:
        asked, most = _asked(pod, name), max((_has(node, name) for node in fitting), default=0.0)
        if fitting and asked > most:
            return (
                f"no node is large enough: it asks for {_shown(name, asked)} and the largest has {_shown(name, most)}; write less for "
                f"{role}.{name}, or add larger nodes."
            )
    wanted = " and ".join(_shown(name, _asked(pod, name)) for name in short)
    return f"the nodes have too little free, and it asks for {wanted}; wait until something else ends, write less for {role}, or add nodes."


# ------------------------------------------------------------------------------------------------------- claims


def _claim(name: str, events: Sequence[Object], claims: Sequence[Object], said: str) -> str | None:
    """Why a claim is not bound, unless it only waits for the pod to get a node."""
    claim = next((each for each in claims if each["metadata"]["name"] == name), None)
    if claim is None:
        missing = f'persistentvolumeclaim "{name}" not found' in said
        return f"there is no claim {name}; write create: true and a size beside it, or make it." if missing else None
    phase = (claim.get("status") or {}).get("phase")
    if claim["metadata"].get("deletionTimestamp"):
        return f"claim {name} is being deleted; wait until it is gone, then `pulumi up` makes it again."
    if phase == "Lost":
        return f"the disk of claim {name} is gone; delete the claim, and `pulumi up` makes a new one."
    if phase == "Bound":
        return None
    mine = _of(events, "PersistentVolumeClaim", claim)
    kind = claim["spec"].get("storageClassName")
    for event in reversed(mine):
        message = event["message"]
        if event["reason"] == "WaitForFirstConsumer" or event["reason"] == "WaitForPodScheduled":
            continue
        if re.search(r"storageclass\S* \"[^\"]*\" not found", message):
            return f"claim {name} is not bound: there is no storage class {kind!r}; write a class that `kubectl get storageclass` lists."
        if "no storage class is set" in message:
            return f"claim {name} is not bound: it names no class and the cluster has no default one; write class: NAME beside it."
        if event["reason"] == "ProvisioningFailed":
            return f"claim {name} is not bound: {_brief(message)}; correct its class, size or access."
        if event["reason"] == "ExternalProvisioning":
            return f"claim {name} is not bound: its disk is being made; wait, and if it takes minutes, look at the storage class {kind!r}."
    if mine or "unbound immediate PersistentVolumeClaims" not in said:
        return None
    return f"claim {name} is not bound yet; wait, or look at what `kubectl describe pvc {name}` says."


def _claims_of(pod: Object) -> list[str]:
    volumes = pod["spec"].get("volumes") or ()
    return [volume["persistentVolumeClaim"]["claimName"] for volume in volumes if volume.get("persistentVolumeClaim")]


# ------------------------------------------------------------------------------------------- a node, and not running


def _held(pod: Object) -> Object | None:
    """Why a container waits, those that run before it included."""
    before = (pod["status"].get("initContainerStatuses") or (), (container_status(pod),))
    waits = ((status.get("state") or {}).get("waiting") for statuses in before for status in statuses)
    return next((wait for wait in waits if wait and wait.get("reason") != "PodInitializing"), None)


def _kept_from_starting(pod: Object, held: Object, events: Sequence[Object], claims: Sequence[Object], log: Sequence[str]) -> str:
    reason, message = held.get("reason", ""), held.get("message") or ""
    if reason in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable"):
        return _image(pod, reason, " ".join([message, *(event["message"] for event in _of(events, "Pod", pod, "Failed"))]))
    if reason == "CrashLoopBackOff":
        return _crashed(pod, log)
    if reason == "CreateContainerConfigError":
        missing = re.search(r"(secret|configmap) \"([^\"]+)\" not found", message) or re.search(
            r"couldn't find key (\S+) in (\S+)", message
        )
        what = missing[0].replace('"', "") if missing else _brief(message)
        return f"its container cannot be set up: {what}; make that, or correct env and credentials."
    if reason in ("CreateContainerError", "RunContainerError"):
        return f"its container cannot be started: {_brief(message)}; correct command or image."
    return _being_made(pod, events, claims)


def _being_made(pod: Object, events: Sequence[Object], claims: Sequence[Object]) -> str:
    """ContainerCreating: the events say what takes so long, the newest first."""
    for event in reversed(_of(events, "Pod", pod)):
        message = event["message"]
        if "Multi-Attach error" in message:
            claim = _named(_claims_of(pod))
            return f"{claim} is ReadWriteOnce and another node has it; use access: ReadWriteMany, or let its tasks run on one node."
        if event["reason"] in ("FailedMount", "FailedAttachVolume"):
            missing = re.search(r"(secret|configmap) \"([^\"]+)\" not found", message)
            if missing:
                step = "make it, or correct credentials" if missing[1] == "secret" else "`pulumi up --refresh` makes it again"
                return f"{missing[1]} {missing[2]}, which it mounts, is not there; {step}."
            for claim in _claims_of(pod):
                if sentence := _claim(claim, events, claims, message):
                    return sentence
            return f"a volume cannot be mounted: {_brief(message)}; correct volumes, or look at the node's storage driver."
        if event["reason"] == "FailedCreatePodSandBox":
            return f"the node cannot set it up: {_brief(message)}; wait, and if that stays, the node's network is broken: replace the node."
        if event["reason"] == "Pulling":
            return f"its image {_image_name(pod)} is being pulled; the first time on a node that takes minutes: wait."
    return "its container is being made; wait a moment."


def _image(pod: Object, reason: str, message: str) -> str:
    name = _image_name(pod)
    if reason == "InvalidImageName":
        return f"{name!r} is no name of an image; correct image."
    if reason == "ErrImageNeverPull":
        return f"image {name} is not on the node, and pulling is switched off; load it onto the node, or let it be pulled."
    if re.search(r"unauthorized|authentication|denied|forbidden|\b40[13]\b", message, re.IGNORECASE):
        return f"image {name} may not be pulled (unauthorized); let the nodes read that registry, or correct image."
    if re.search(r"no match for platform|no matching manifest|exec format", message, re.IGNORECASE):
        return f"image {name} is not made for the nodes' processors; build it for them, as for linux/amd64."
    if re.search(r"not found|manifest unknown|does not exist", message, re.IGNORECASE):
        return f"image {name} was not found; correct image, or push it."
    if re.search(r"timeout|no such host|connection refused|unreachable|dial tcp", message, re.IGNORECASE):
        return (
            f"image {name} cannot be pulled because the node does not reach its registry; check the network, or correct the name in image."
        )
    return f"image {name} cannot be pulled: {_brief(message)}; correct image."


# ---------------------------------------------------------------------------------------------------- ended, running


def _running(pod: Object, events: Sequence[Object], log: Sequence[str]) -> str | None:
    if peer := waiting_for(log):
        return f"it waits for {peer[0]} since {peer[1]} s; see what is said of {peer[0]} here, and if nothing is, it is starting: wait."
    status = container_status(pod)
    if status.get("ready", True) or labels(pod).get(COMPONENT) in ROLES:
        return None
    if labels(pod).get(COMPONENT) == "serving":
        return "it runs but has no model to serve yet; one appears when a run succeeds: wait, or look at `trainstack models list`."
    unhealthy = _of(events, "Pod", pod, "Unhealthy")
    because = f" ({_brief(unhealthy[-1]['message'])})" if unhealthy else ""
    return f"it runs but does not answer yet{because}; wait, or look at its log."


def _ended(pod: Object, log: Sequence[str], job: Object | None) -> str | None:
    """A pod that failed. Whether its Job starts it again is said, too."""
    status, index = pod["status"], int(labels(pod).get(INDEX, "0"))
    reason, lost = status.get("reason"), condition(pod, "DisruptionTarget")
    if job is not None and (failed := condition(job, "Failed")) and failed.get("reason") == "DeadlineExceeded":
        return _failed_job(job, failed)
    if reason == "DeadlineExceeded":
        return "it took longer than its deadline; write a longer deadline, or fewer epochs."
    if reason == "UnexpectedAdmissionError" or reason == f"OutOf{GPU}":
        return "its node had no GPU ready for it, because the driver or its plug-in was not; it starts again by itself: wait."
    if reason == "Evicted":
        why = _brief(status.get("message") or "the node was low on something")
        return f"its node threw it out: {why}; ask for that much in {_role(pod)}, so that it gets a node that has it."
    if (lost and terminated(pod) is None) or (lost and reason in ("Terminated", "NodeShutdown", "Shutdown", "NodeLost")):
        return f"it lost its node ({lost.get('reason')}), as on spot nodes happens; it starts again by itself and is not counted: wait."
    sentence = _crashed(pod, log)
    out = job is not None and index in indexes((job.get("status") or {}).get("failedIndexes"))
    code = (terminated(pod) or {}).get("exitCode")
    if out and not (code is not None and outcome.final(code)):
        return f"out of restarts ({_limit(job)}): {sentence}"
    return sentence


def _limit(job: Object | None) -> str:
    limit = job["spec"].get("backoffLimitPerIndex") if job else None
    return f"max_restarts: {limit}" if limit is not None else "max_restarts"


def _crashed(pod: Object, log: Sequence[str]) -> str:
    ended, role = terminated(pod) or {}, _role(pod)
    code, words = ended.get("exitCode"), last_words(log)
    said = f'; its last words: "{words}"' if words else ""
    if ended.get("reason") == "OOMKilled":
        limit = _limits(pod).get("memory")
        more = f"; write more than {role}.memory: {limit}" if limit else f"; write more for {role}.memory"
        return f"it ran out of memory{f' (limit {limit})' if limit else ''}{more}, or a smaller batch_size{said}."
    if ended.get("reason") in ("StartError", "ContainerCannotRun"):
        return f"its command cannot be started: {_brief(ended.get('message') or '')}; correct command or image."
    if code is None:
        return (
            f"it failed ({pod['status'].get('reason') or pod['status'].get('message') or 'no container ran'}); look at `trainstack logs`."
        )
    step = {
        outcome.CONFIGURATION: "correct the settings, then `pulumi up` or `trainstack rerun`",
        outcome.GAVE_UP: "see why the task that it waited for did not run, then `trainstack rerun`",
        outcome.STALLED: "see in its log what it was doing; where one step, one save or one evaluation takes so long, write a longer stall_timeout",
        outcome.RETRY: "it starts again by itself: wait",
    }.get(code, "mend what its log says; `trainstack logs` shows all of it")
    return f"it {meaning(code)}{said}; {step}."


def _failed_job(job: Object, failed: Object) -> str:
    reason = failed.get("reason", "")
    if reason == "DeadlineExceeded":
        return f"it was not done after its deadline of {job['spec'].get('activeDeadlineSeconds')} s; write a longer deadline, then `pulumi up`."
    if reason in ("FailedIndexes", "MaxFailedIndexesExceeded", "BackoffLimitExceeded"):
        return f"its Job has failed because a task is out of restarts ({_limit(job)}); mend what its log says, then `trainstack rerun`."
    if reason == "PodFailurePolicy":
        return "its Job has failed because of a configuration error; correct the settings, then `pulumi up` or `trainstack rerun`."
    return f"its Job has failed ({_brief(failed.get('message') or reason)}); mend that, then `trainstack rerun`."


def _refused(message: str) -> str:
    """Why the API did not take a pod that a Job made."""
    if "exceeded quota" in message:
        return f"the namespace's quota is used up ({_brief(message.partition('exceeded quota:')[2])}); ask for less, or for more quota."
    if "violates PodSecurity" in message:
        return f"the namespace's Pod Security refuses its pod ({_brief(message.partition('violates PodSecurity')[2])}); correct what the training asks for."
    return f"its pod is refused: {_brief(message)}; correct what the training asks for."


# ------------------------------------------------------------------------------------------------------- reading


def _of(events: Iterable[Object], kind: str, thing: Object, *reasons: str) -> list[Object]:
    """The events of a thing, oldest first. An earlier thing of the same name had another uid."""
    name, uid = thing["metadata"]["name"], thing["metadata"].get("uid")
    mine = []
    for event in events:
        about = event["involvedObject"]
        same = about.get("kind") == kind and about.get("name") == name and about.get("uid", uid) == uid
        if same and (not reasons or event.get("reason") in reasons):
            mine.append({**event, "message": event.get("message") or "", "reason": event.get("reason") or ""})
    return sorted(mine, key=_when)


def _when(event: Object) -> str:
    series = event.get("series") or {}
    return str(
        event.get("lastTimestamp")
        or series.get("lastObservedTime")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
        or ""
    )


def _brief(message: str, longest: int = 200) -> str:
    """One line of what a machine said: without the scheduler's second part and without line ends."""
    line = re.split(r"(?: no new claims to deallocate,)? preemption: ", " ".join(message.split()))[0].strip(" .,:;")
    return line if len(line) <= longest else f"{line[:longest].rstrip()}…"


def _role(pod: Object) -> str:
    return labels(pod).get(COMPONENT, "the task").replace("-", "_")


def _image_name(pod: Object) -> str:
    return str(container(pod).get("image"))


def _is_spot(pod: Object) -> bool:
    return (pod["spec"].get("nodeSelector") or {}).get("cloud.google.com/gke-spot") == "true"


def _limits(pod: Object) -> Object:
    resources: dict[str, Any] = (container(pod).get("resources") or {}).get("limits") or {}
    return resources


def _asked(pod: Object, name: str) -> float:
    return sum(_quantity(((each.get("resources") or {}).get("requests") or {}).get(name, "0")) for each in pod["spec"]["containers"])


def _has(node: Object, name: str) -> float:
    return _quantity(((node.get("status") or {}).get("allocatable") or {}).get(name, "0"))


def _has_labels(pod: Object, node: Object) -> bool:
    return all(labels(node).get(key) == value for key, value in (pod["spec"].get("nodeSelector") or {}).items())


def _quantity(text: str) -> float:
    found = re.fullmatch(r"([\d.]+)([a-zA-Z]*)", str(text))
    return float(found[1]) * UNITS.get(found[2], 1.0) if found else 0.0


def _shown(name: str, amount: float) -> str:
    if name == "cpu":
        return f"{amount:g} CPUs"
    return f"{amount / 2**30:.3g} GiB of {name}" if name in ("memory", "ephemeral-storage") else f"{amount:g} {name}"


def _named(claims: Sequence[str]) -> str:
    return f"claim {' or '.join(claims)}" if claims else "its claim"
