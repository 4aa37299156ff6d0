"""Every reason for which a pod does not run becomes one sentence with the next step."""

from __future__ import annotations

from typing import Any

import pytest

from ops.explain import explain, explain_job, waiting_for
from tests.ops.objects import Object, claim, condition, ended, event, held, job, node, pod, unscheduled

NO_HELP = " no new claims to deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
L4 = {"cloud.google.com/gke-accelerator": "nvidia-l4"}
VOLUME = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "ckpt"}}]}


def asks(**amounts: str) -> Object:
    named = {key.replace("gpu", "nvidia.com/gpu"): value for key, value in amounts.items()}
    return {"requests": named, "limits": named}


def pending(message: str, **more: Any) -> Object:
    return pod(phase="Pending", conditions=unscheduled(f"0/3 nodes are available: {message}.{NO_HELP}"), **more)


GPU = pending("1 Insufficient nvidia.com/gpu, 2 node(s) didn't match Pod's node affinity/selector", resources=asks(gpu="1"))
ELSEWHERE = pending("3 node(s) didn't match Pod's node affinity/selector", spec={"nodeSelector": L4}, resources=asks(gpu="1"))
SPOT = pending("3 node(s) didn't match Pod's node affinity/selector", spec={"nodeSelector": {**L4, "cloud.google.com/gke-spot": "true"}})
UNBOUND = pending("pod has unbound immediate PersistentVolumeClaims", spec=VOLUME)
MOUNTING = pod(phase="Pending", state=held("ContainerCreating"), spec=VOLUME)
IMAGE = "example.com/trainer@sha256:" + "0" * 64
RESOLVE = f'failed to pull and unpack image "{IMAGE}": failed to resolve reference "{IMAGE}": '


def pulling(trouble: str, reason: str = "ImagePullBackOff") -> Object:
    return pod(phase="Pending", state=held(reason, f'Back-off pulling image "{IMAGE}": ErrImagePull: {RESOLVE}{trouble}'))


SCHEDULING: dict[str, tuple[Object, list[Object], list[Object], str]] = {
    "no GPU anywhere": (
        GPU, [], [node()],
        "no node has a GPU, and it asks for 1 (nvidia.com/gpu); add nodes with GPUs and their device plug-in, or write worker.gpus: 0.",
    ),
    "too many GPUs": (
        pending("3 Insufficient nvidia.com/gpu", resources=asks(gpu="8")), [], [node(gpu="4")],
        "no node has 8 GPUs, the most is 4; write worker.gpus: 4.",
    ),
    "GPUs taken": (
        GPU, [], [node(gpu="1")], "all GPUs are taken, and it asks for 1; wait until something else ends, or add nodes."
    ),
    "driver not ready": (
        pending("1 Insufficient nvidia.com/gpu", resources=asks(gpu="1"), spec={"nodeSelector": L4}), [], [node("gke-l4-x", L4), node(gpu="1")],
        "node gke-l4-x is there, but its GPU driver is not ready; that takes up to five minutes after the node appears: wait, then look at the "
        "nvidia pods in the namespace kube-system.",
    ),
    "node too small": (
        pending("3 Insufficient cpu", resources=asks(cpu="64")), [], [node(cpu="4"), node(cpu="3920m")],
        "no node is large enough: it asks for 64 CPUs and the largest has 4 CPUs; write less for worker.cpu, or add larger nodes.",
    ),
    "memory too small": (
        pending("3 Insufficient memory", resources=asks(memory="64Gi")), [], [node()],
        "no node is large enough: it asks for 64 GiB of memory and the largest has 16 GiB of memory; write less for worker.memory, or add larger nodes.",
    ),
    "nodes full": (
        pending("1 Insufficient memory, 3 Insufficient cpu", resources=asks(cpu="2", memory="4Gi")), [], [node()],
        "the nodes have too little free, and it asks for 2 CPUs and 4 GiB of memory; wait until something else ends, write less for worker, or add nodes.",
    ),
    "selector": (
        pending("3 node(s) didn't match Pod's node affinity/selector", spec={"nodeSelector": {"disk": "fast"}}), [], [node()],
        "no node has the labels that it asks for (disk=fast); correct node_selector, or add a node with them.",
    ),
    "taint": (
        pending("3 node(s) had untolerated taint {dedicated: others}"), [], [node()],
        "every node that might fit keeps others away by a taint (dedicated); write tolerations: [{key: dedicated, operator: Exists}], or add other nodes.",
    ),
    "new wording of taints": (
        pending("3 node(s) had untolerated taint(s) {dedicated: others}"), [], [node()],
        "every node that might fit keeps others away by a taint (dedicated); write tolerations: [{key: dedicated, operator: Exists}], or add other nodes.",
    ),
    "nodes not ready": (
        pending("1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }"), [], [node()],
        "no node is ready (not-ready); wait until one is, or look at the cluster's nodes.",
    ),
    "no nodes": (
        pod(phase="Pending", conditions=unscheduled("no nodes available to schedule pods")), [], [],
        "the cluster has no node; add one, or wait until one is ready.",
    ),
    "another reason": (
        pending("3 node(s) had too much of something"), [], [node()],
        "no node fits: 0/3 nodes are available: 3 node(s) had too much of something; change what it asks for, or add a node that fits.",
    ),
    "pool at its maximum": (
        ELSEWHERE,
        [event("NotTriggerScaleUp", "pod didn't trigger scale-up: 2 node(s) didn't match Pod's node affinity/selector, 1 max node group size reached", ELSEWHERE)],
        [node()],
        "no node fits and the node pool is at its maximum; wait until something else ends, write fewer worker.replicas, or let the pool grow.",
    ),
    "a node comes": (
        ELSEWHERE,
        [
            event("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max node group size reached", ELSEWHERE, at="2026-11-17T04:20:00Z"),
            event("TriggeredScaleUp", "pod triggered scale-up: [{https://…/instanceGroups/gke-l4-grp 0->1 (max: 4)}]", ELSEWHERE),
        ],
        [node()],
        "a node is being added for it; that takes a minute or two, with GPUs two to five: wait.",
    ),
    "quota": (
        ELSEWHERE,
        [
            event("FailedScaleUp", "Node scale up in zones us-central1-a associated with this pod failed: GCE quota exceeded. Pod is at risk of not being scheduled.", ELSEWHERE, at="2026-11-17T04:20:00Z"),
            event("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 in backoff after failed scale-up, 2 node(s) didn't match Pod's node affinity/selector", ELSEWHERE),
        ],
        [node()],
        "a node was refused because a quota of the project is used up; ask for more (console, IAM & Admin, Quotas), or write fewer worker.replicas, another "
        "accelerator or another region.",
    ),
    "no spot machine": (
        SPOT,
        [event("FailedScaleUp", "Node scale up in zones us-central1-a associated with this pod failed: GCE out of resources. Pod is at risk of not being scheduled.", SPOT)],
        [node()],
        "Google has no such spot machine left in the zone; it is tried again by itself, so wait, or write spot: false, or more zones in cluster.node_locations.",
    ),
    "no machine": (
        ELSEWHERE,
        [event("FailedScaleUp", "Node scale up in zones us-central1-a associated with this pod failed: GCE out of resources. Pod is at risk of not being scheduled.", ELSEWHERE)],
        [node()],
        "Google has no such machine left in the zone; it is tried again by itself, so wait, or write another accelerator or machine, or more zones in "
        "cluster.node_locations.",
    ),
    "scale-up failed otherwise": (
        ELSEWHERE,
        [event("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 in backoff after failed scale-up", ELSEWHERE)],
        [node()],
        "a node could not be added; it is tried again by itself within minutes: wait, or look at the cluster's node pools.",
    ),
    "the autoscaler knows no more than the scheduler": (
        GPU, [event("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 Insufficient nvidia.com/gpu", GPU)], [node()],
        "no node has a GPU, and it asks for 1 (nvidia.com/gpu); add nodes with GPUs and their device plug-in, or write worker.gpus: 0.",
    ),
    "an event of an earlier pod of that name": (
        GPU, [event("TriggeredScaleUp", "…", {"metadata": {"name": GPU["metadata"]["name"], "uid": "earlier"}})], [node(gpu="1")],
        "all GPUs are taken, and it asks for 1; wait until something else ends, or add nodes.",
    ),
    "gated": (
        pod(phase="Pending", conditions=unscheduled("Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated")), [], [node()],
        "something else in the cluster holds it back (scheduling gates), such as a queue; ask whoever runs the cluster.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SCHEDULING)
def test_no_node(case: str) -> None:
    one, events, nodes, expected = SCHEDULING[case]
    assert explain(one, events, [], nodes) == expected


CLAIMS: dict[str, tuple[Object, list[Object], list[Object], str]] = {
    "no such class": (
        claim("ckpt", storage_class="fast"),
        [event("ProvisioningFailed", 'storageclass.storage.k8s.io "fast" not found', claim("ckpt"), "PersistentVolumeClaim")],
        [UNBOUND],
        "claim ckpt is not bound: there is no storage class 'fast'; write a class that `kubectl get storageclass` lists.",
    ),
    "no class at all": (
        claim("ckpt", storage_class=None),
        [event("FailedBinding", "no persistent volumes available for this claim and no storage class is set", claim("ckpt"), "PersistentVolumeClaim")],
        [UNBOUND],
        "claim ckpt is not bound: it names no class and the cluster has no default one; write class: NAME beside it.",
    ),
    "provisioning failed": (
        claim("ckpt"),
        [event("ProvisioningFailed", 'failed to provision volume with StorageClass "standard": specified accessModes are not supported', claim("ckpt"), "PersistentVolumeClaim")],
        [UNBOUND],
        'claim ckpt is not bound: failed to provision volume with StorageClass "standard": specified accessModes are not supported; correct its class, size or access.',
    ),
    "being made": (
        claim("ckpt"),
        [
            event("ExternalProvisioning", "Waiting for a volume to be created either by the external provisioner 'pd.csi.storage.gke.io'", claim("ckpt"), "PersistentVolumeClaim"),
            event("WaitForFirstConsumer", "waiting for first consumer to be created before binding", claim("ckpt"), "PersistentVolumeClaim", "2026-11-17T04:27:00Z"),
        ],
        [UNBOUND],
        "claim ckpt is not bound: its disk is being made; wait, and if it takes minutes, look at the storage class 'standard'.",
    ),
    "nothing said": (
        claim("ckpt"), [], [UNBOUND], "claim ckpt is not bound yet; wait, or look at what `kubectl describe pvc ckpt` says."
    ),
    "lost": (
        claim("ckpt", "Lost"), [], [UNBOUND], "the disk of claim ckpt is gone; delete the claim, and `pulumi up` makes a new one."
    ),
    "it waits for the pod, which waits for a node": (
        claim("ckpt"),
        [event("WaitForFirstConsumer", "waiting for first consumer to be created before binding", claim("ckpt"), "PersistentVolumeClaim")],
        [pending("3 Insufficient cpu", spec=VOLUME, resources=asks(cpu="64"))],
        "no node is large enough: it asks for 64 CPUs and the largest has 4 CPUs; write less for worker.cpu, or add larger nodes.",
    ),
    "disk in another zone": (
        claim("ckpt", "Bound"), [], [pending("3 node(s) had volume node affinity conflict", spec=VOLUME)],
        "the disk of claim ckpt is in a zone where no node fits; start a node in that zone, or use a claim with access: ReadWriteMany.",
    ),
    "on another node": (
        claim("ckpt", "Bound"),
        [event("FailedAttachVolume", 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) digits-chief-0-abcde', MOUNTING)],
        [MOUNTING],
        "claim ckpt is ReadWriteOnce and another node has it; use access: ReadWriteMany, or let its tasks run on one node.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CLAIMS)
def test_claims(case: str) -> None:
    one, events, pods, expected = CLAIMS[case]
    assert explain(pods[0], events, [one], [node()]) == expected


def test_a_claim_that_is_not_there() -> None:
    one = pod(phase="Pending", conditions=unscheduled('persistentvolumeclaim "ckpt" not found'), spec=VOLUME)
    assert explain(one, [], [], [node()]) == "there is no claim ckpt; write create: true and a size beside it, or make it."


STARTING: dict[str, tuple[Object, list[tuple[str, str]], str]] = {
    "image not found": (pulling(f"{IMAGE}: not found"), [], f"image {IMAGE} was not found; correct image, or push it."),
    "image unauthorized": (
        pulling("unexpected status from HEAD request to https://example.com/v2/trainer: 403 Forbidden"), [],
        f"image {IMAGE} may not be pulled (unauthorized); let the nodes read that registry, or correct image.",
    ),
    "registry not reached": (
        pulling('failed to do request: Head "https://example.com/v2/": dial tcp: lookup example.com: no such host'), [],
        f"image {IMAGE} cannot be pulled because the node does not reach its registry; check the network, or correct the name in image.",
    ),
    "image for other processors": (
        pulling("no match for platform in manifest: not found", "ErrImagePull"), [],
        f"image {IMAGE} is not made for the nodes' processors; build it for them, as for linux/amd64.",
    ),
    "image's name": (pod(phase="Pending", state=held("InvalidImageName", "…")), [], f"{IMAGE!r} is no name of an image; correct image."),
    "the event says more than the container": (
        pod(phase="Pending", state=held("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"')),
        [("Failed", f'Failed to pull image "{IMAGE}": {RESOLVE}{IMAGE}: not found')],
        f"image {IMAGE} was not found; correct image, or push it.",
    ),
    "pulling": (
        pod(phase="Pending", state=held("ContainerCreating")), [("Pulling", f'Pulling image "{IMAGE}"')],
        f"its image {IMAGE} is being pulled; the first time on a node that takes minutes: wait.",
    ),
    "secret in the environment": (
        pod(phase="Pending", state=held("CreateContainerConfigError", 'secret "credential" not found')), [],
        "its container cannot be set up: secret credential not found; make that, or correct env and credentials.",
    ),
    "secret mounted": (
        pod(phase="Pending", state=held("ContainerCreating")),
        [("FailedMount", 'MountVolume.SetUp failed for volume "credentials" : secret "credential" not found')],
        "secret credential, which it mounts, is not there; make it, or correct credentials.",
    ),
    "configmap mounted": (
        pod(phase="Pending", state=held("ContainerCreating")),
        [("FailedMount", 'MountVolume.SetUp failed for volume "launcher" : configmap "digits-launcher" not found')],
        "configmap digits-launcher, which it mounts, is not there; `pulumi up --refresh` makes it again.",
    ),
    "network of the node": (
        pod(phase="Pending", state=held("ContainerCreating")),
        [("FailedCreatePodSandBox", "Failed to create pod sandbox: plugin type=\"bridge\" failed: no IP addresses available")],
        'the node cannot set it up: Failed to create pod sandbox: plugin type="bridge" failed: no IP addresses available; wait, and if that stays, the '
        "node's network is broken: replace the node.",
    ),
    "nothing special": (pod(phase="Pending", state=held("ContainerCreating")), [], "its container is being made; wait a moment."),
    "just scheduled": (pod(phase="Pending"), [], "it has a node and is about to start; wait a moment."),
}  # fmt: skip


@pytest.mark.parametrize("case", STARTING)
def test_a_node_and_no_container(case: str) -> None:
    one, events, expected = STARTING[case]
    assert explain(one, [event(reason, message, one) for reason, message in events]) == expected


OUT = job("worker", failedIndexes="0")
LIMITED = asks(memory="4Gi")
LOG = ["loading", "Traceback (most recent call last):", '  File "x.py", line 1', "ValueError: no", "launcher: the task ended with 1"]
WORDS = 'Traceback (most recent call last): | File "x.py", line 1 | ValueError: no'
ENDED: dict[str, tuple[Object, Object | None, str | None]] = {
    "crash": (
        pod(phase="Failed", state=ended(1)), job("worker"),
        f'it ended with 1; its last words: "{WORDS}"; mend what its log says; `trainstack logs` shows all of it.',
    ),
    "out of restarts": (
        pod(phase="Failed", state=ended(139)), OUT,
        f'out of restarts (max_restarts: 3): it ended with 139 (a crash in native code); its last words: "{WORDS}"; mend what its log says; '
        "`trainstack logs` shows all of it.",
    ),
    "configuration": (
        pod(phase="Failed", state=ended(78)), job("worker", condition("Failed", "PodFailurePolicy")),
        f'it ended with 78 (a configuration error); its last words: "{WORDS}"; correct the settings, then `pulumi up` or `trainstack rerun`.',
    ),
    "gave up": (
        pod(phase="Failed", state=ended(69)), OUT,
        f'it ended with 69 (gave up: the lead or a peer was not there for peer_timeout); its last words: "{WORDS}"; see why the task that it '
        "waited for did not run, then `trainstack rerun`.",
    ),
    "out of memory": (
        pod(phase="Failed", state=ended(137, "OOMKilled"), resources=LIMITED), job("worker"),
        f'it ran out of memory (limit 4Gi); write more than worker.memory: 4Gi, or a smaller batch_size; its last words: "{WORDS}".',
    ),
    "no such command": (
        pod(phase="Failed", state=ended(128, "StartError", 'exec: "pyhton": executable file not found in $PATH')), job("worker"),
        'its command cannot be started: exec: "pyhton": executable file not found in $PATH; correct command or image.',
    ),
    "evicted": (
        pod(phase="Failed", reason="Evicted", message="The node was low on resource: ephemeral-storage."), job("worker"),
        "its node threw it out: The node was low on resource: ephemeral-storage; ask for that much in worker, so that it gets a node that has it.",
    ),
    "spot node gone": (
        pod(phase="Failed", reason="Terminated", conditions=(condition("DisruptionTarget", "TerminationByKubelet"),), state=ended(137)), job("worker"),
        "it lost its node (TerminationByKubelet), as on spot nodes happens; it starts again by itself and is not counted: wait.",
    ),
    "device not ready": (
        pod(phase="Failed", reason="UnexpectedAdmissionError", message="Allocate failed due to requested number of devices unavailable"), job("worker"),
        "its node had no GPU ready for it, because the driver or its plug-in was not; it starts again by itself: wait.",
    ),
    "the Job's deadline": (
        pod(phase="Failed", state=ended(143)), job("worker", condition("Failed", "DeadlineExceeded")),
        "it was not done after its deadline of 7200 s; write a longer deadline, then `pulumi up`.",
    ),
    "crash of what stays": (
        pod("serving", state=held("CrashLoopBackOff"), last=ended(1), ready=False), None,
        f'it ended with 1; its last words: "{WORDS}"; mend what its log says; `trainstack logs` shows all of it.',
    ),
    "done": (pod(phase="Succeeded", state=ended(0)), job("worker"), None),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDED)
def test_ended(case: str) -> None:
    one, owner, expected = ENDED[case]
    assert explain(one, log=LOG, job=owner) == expected


def test_running() -> None:
    assert explain(pod(), log=["step 3"]) is None
    assert explain(pod(ready=False), log=["step 3"]) is None, "a task that is not ready is loading TensorFlow"
    waits = explain(pod("chief"), log=["launcher: waiting for ps-0 (130 s)"])
    assert waits == "it waits for ps-0 since 130 s; see what is said of ps-0 here, and if nothing is, it is starting: wait."
    assert explain(pod("serving", ready=False)) == (
        "it runs but has no model to serve yet; one appears when a run succeeds: wait, or look at `trainstack models list`."
    )
    one = pod("tensorboard", ready=False)
    unhealthy = event("Unhealthy", "Readiness probe failed: connection refused", one)
    assert (
        explain(one, [unhealthy])
        == "it runs but does not answer yet (Readiness probe failed: connection refused); wait, or look at its log."
    )
    assert explain(pod(deleted=120)) == "it was told to stop and is saving; it is gone within 120 s: wait."


def test_only_the_last_word_of_a_launcher_counts() -> None:
    assert waiting_for(["launcher: waiting for worker-1 (20 s)", ""]) == ("worker-1", 20)
    assert waiting_for(["launcher: waiting for worker-1 (20 s)", "step 1"]) is None
    assert waiting_for([]) is None


JOBS: dict[str, tuple[Object, list[tuple[str, str]], str | None]] = {
    "cancelled": (
        job("worker", suspend=True), [], "the run was cancelled (its Jobs are suspended); start it again where it stopped with `trainstack rerun`."
    ),
    "an index is out of restarts": (
        job("worker", condition("Failed", "MaxFailedIndexesExceeded")), [],
        "its Job has failed because a task is out of restarts (max_restarts: 3); mend what its log says, then `trainstack rerun`.",
    ),
    "configuration": (
        job("worker", condition("Failed", "PodFailurePolicy")), [],
        "its Job has failed because of a configuration error; correct the settings, then `pulumi up` or `trainstack rerun`.",
    ),
    "deadline": (
        job("worker", condition("Failed", "DeadlineExceeded")), [],
        "it was not done after its deadline of 7200 s; write a longer deadline, then `pulumi up`.",
    ),
    "quota of the namespace": (
        job("worker"),
        [("FailedCreate", 'Error creating: pods "digits-worker-0-x" is forbidden: exceeded quota: team, requested: cpu=4, used: cpu=8, limited: cpu=10')],
        "the namespace's quota is used up (team, requested: cpu=4, used: cpu=8, limited: cpu=10); ask for less, or for more quota.",
    ),
    "Pod Security": (
        job("worker"),
        [("FailedCreate", 'Error creating: pods "x" is forbidden: violates PodSecurity "restricted:latest": restricted volume types (volume "h" uses hostPath)')],
        'the namespace\'s Pod Security refuses its pod ("restricted:latest": restricted volume types (volume "h" uses hostPath)); correct what the training asks for.',
    ),
    "about to": (job("worker"), [], "its pod is about to be made; wait a moment."),
    "complete": (job("worker", condition("Complete")), [], None),
}  # fmt: skip


@pytest.mark.parametrize("case", JOBS)
def test_no_pod(case: str) -> None:
    one, events, expected = JOBS[case]
    assert explain_job(one, [event(reason, message, one, "Job") for reason, message in events]) == expected


def test_every_sentence_is_one_with_a_next_step() -> None:
    tables: list[dict[str, Any]] = [SCHEDULING, CLAIMS, STARTING, ENDED, JOBS]
    for case, row in ((case, row) for table in tables for case, row in table.items()):
        sentence = row[-1]
        if sentence is not None:
            assert sentence.endswith("."), case
            assert "\n" not in sentence, case
            assert ";" in sentence, f"{case}: what is wrong, and then what to do"
