"""Settings that must be refused, each with words that its explanation must contain."""

from __future__ import annotations

from typing import Any

DIGITS: dict[str, Any] = {"program": "digits", "worker": {"replicas": 2}, "ps": {"replicas": 1}}


def one(**changes: Any) -> dict[str, Any]:
    return {"trainings": {"a": {**DIGITS, **changes}}}


def gke(**changes: Any) -> dict[str, Any]:
    return {"target": "gke", "cluster": {"location": "us-central1-a"}, **changes}


BAD: dict[str, tuple[Any, ...]] = {
    "unknown key": (one(wroker={}), "trainings.a.wroker", "did you mean worker?", "peer_timeout"),
    "unknown key of a role": (one(worker={"replica": 2}), "trainings.a.worker.replica", "did you mean replicas?", "accelerator"),
    "unknown key of the stack": ({"trainigs": {}}, "trainigs", "did you mean trainings?"),
    "unknown target": ({"target": "gce"}, "target", "local, kubernetes, gke"),
    "unknown strategy": (one(strategy="paramter_server"), "trainings.a.strategy", "parameter_server, multi_worker_mirrored, mirrored"),
    "unknown program": (one(program="digit"), "trainings.a.program", "did you mean digits?", "digits, ", "package.module"),
    "a training as preparation": (one(data_prep={"program": "mnist"}), "trainings.a.data_prep.program", "write program: mnist.prepare"),
    "unknown argument of a preparation": (
        one(data_prep={"program": "mnist.prepare", "args": {"sorce": "generated"}}),
        "trainings.a.data_prep.args.sorce",
        "did you mean source?",
    ),
    "argument of a preparation of the wrong type": (
        one(data_prep={"program": "mnist.prepare", "args": {"examples": 0}}),
        "trainings.a.data_prep.args.examples",
        "'0' is not a whole number above 0",
    ),
    "unknown argument": (one(args={"epoch": 5}), "trainings.a.args.epoch", "did you mean epochs?", "batch_size"),
    "argument of the wrong type": (one(args={"epochs": "many"}), "trainings.a.args.epochs", "'many' is not a whole number above 0"),
    "reserved argument": (one(args={"log_dir": "x"}), "trainings.a.args.log_dir", "write log_dir beside args"),
    "no time to stall": (one(stall_timeout="0s"), "trainings.a.stall_timeout"),
    "a time without a unit": (one(stall_timeout="soon"), "trainings.a.stall_timeout", "30m"),
    "missing file": (one(program="no/such/file.py"), "trainings.a.program", "no file no/such/file.py"),
    "two chiefs": (one(chief={"replicas": 2}), "trainings.a.chief.replicas", "more than one", "write replicas: 1"),
    "no parameter server": (one(ps={"replicas": 0}), "trainings.a.ps.replicas", "wait for one for ever", "write ps: {replicas: 1}"),
    "no worker": (one(worker={"replicas": 0}), "trainings.a.worker.replicas", "computes gradients", "write worker: {replicas: 2}"),
    "a program without a chief": (
        one(chief={"replicas": 0}, deadline="1h"),
        "trainings.a.chief.replicas",
        "would idle",
        "write chief: {replicas: 1}",
    ),
    "no chief and no deadline": (
        one(program=None, command=["x"], chief={"replicas": 0}),
        "trainings.a.deadline",
        "run on and bill",
        "write deadline: 6h",
    ),
    "mirrored on two workers": (
        one(strategy="mirrored", ps=None),
        "trainings.a.worker.replicas",
        "runs in one task",
        "multi_worker_mirrored",
    ),
    "mirrored with a chief": (one(strategy="mirrored", ps=None, worker=None, chief={}), "trainings.a.chief.replicas", "remove chief"),
    "mirrored with a server": (one(strategy="mirrored", worker=None), "trainings.a.ps.replicas", "remove ps"),
    "multi_worker_mirrored with a server": (one(strategy="multi_worker_mirrored"), "trainings.a.ps.replicas", "idle and bill", "remove ps"),
    "unequal GPUs": (
        one(strategy="multi_worker_mirrored", ps=None, chief={"gpus": 1}, worker={"replicas": 2, "gpus": 2}),
        "trainings.a.chief.gpus",
        "wait for the slower one",
        "the same gpus",
    ),
    "an accelerator without GPUs": (one(worker={"replicas": 2, "accelerator": "l4"}), "trainings.a.worker.accelerator", "write gpus: 1"),
    "tier and roles": (one(tier="standard_1"), "trainings.a.tier", "worker, ps", "write tier: custom"),
    "tier and strategy": (
        {"trainings": {"a": {"program": "digits", "tier": "basic", "strategy": "parameter_server"}}},
        "trainings.a.strategy",
        "tier basic is mirrored",
    ),
    "program and command": (one(command=["python", "x.py"]), "trainings.a.command", "only one can run"),
    "neither program nor command": (one(program=None), "trainings.a.program", "nothing would run", "digits"),
    "a name that is no DNS label": ({"trainings": {"My_Training": DIGITS}}, "trainings.My_Training", "small letters, digits and '-'"),
    "a name that is too long": ({"trainings": {"a" * 41: DIGITS}}, "at most 40"),
    "a port below 1024": (one(port=80), "trainings.a.port", "greater than or equal to 1024"),
    "a port without a next one": (one(port=65535), "trainings.a.port", "less than or equal to 65534"),
    "a number as text": (one(worker={"replicas": "two"}), "trainings.a.worker.replicas", "a whole number"),
    "negative replicas": (one(worker={"replicas": -1}), "trainings.a.worker.replicas", "greater than or equal to 0"),
    "a duration without unit": (one(deadline=90), "trainings.a.deadline", "90s, 30m or 2h"),
    "a run that is a number": (one(run=2), "trainings.a.run", "numbers need quotes"),
    "an image without digest": (one(command=["x"], program=None, image="gcr.io/p/i:latest"), "trainings.a.image", "NAME@sha256:"),
    "TF_CONFIG by hand": (one(env={"TF_CONFIG": "{}"}), "trainings.a.env.TF_CONFIG", "remove it"),
    "a variable of ours": (one(env={"TRAINSTACK_RUN": "x"}), "trainings.a.env.TRAINSTACK_RUN", "write another name"),
    "open TensorBoard": (one(tensorboard={"expose": "ingress"}), "trainings.a.tensorboard.expose", "no login", "allowed_cidrs"),
    "a load balancer on local": (
        one(tensorboard={"expose": "load_balancer", "allowed_cidrs": ["10.0.0.0/8"]}),
        "trainings.a.tensorboard.expose",
        "does not exist on target local",
    ),
    "an inspector beside a training": (one(inspector=True), "trainings.a.inspector", "deploy: false"),
    "an image on local": (one(command=["x"], program=None, image="i@sha256:" + "0" * 64), "trainings.a.image", "use another target"),
    "resuming from itself": (one(resume_from="1"), "trainings.a.resume_from", "name another run"),
    "a claim without size": (one(volumes=[{"claim": "c", "create": True, "path": "/c"}]), "trainings.a.volumes.0.size", "write size: 10Gi"),
    "model and checkpoints in one place": (
        one(checkpoint_dir="out", model_dir="out/"),
        "trainings.a.model_dir",
        "trainings.a.checkpoint_dir would be overwritten",
    ),
    "a model around the checkpoints": (one(checkpoint_dir="out/1", model_dir="out"), "trainings.a.model_dir", "a directory of its own"),
    "two trainings in one place": (
        {"trainings": {"a": {**DIGITS, "log_dir": "gs://b/l"}, "b": {**DIGITS, "log_dir": "gs://b/l"}}},
        "trainings.b.log_dir",
        "trainings.a.log_dir would be overwritten",
    ),
    "an argument without value": (one(args={"epochs": None}), "trainings.a.args.epochs", "text, a number, true or false"),
    "a module that is none": (one(program="__main__.x"), "trainings.a.program", "is not a program"),
    "not a mapping": ({"trainings": {"a": 5}}, "trainings.a", "a mapping of keys to values"),
    "no project on gke": (gke(), "gcp:project: target gke needs your Google Cloud project", "pulumi config set gcp:project"),
    "no location on gke": ({"target": "gke"}, "cluster.location: the cluster needs a place", "write location: us-central1-a"),
    "a location that is none": (gke(cluster={"location": "iowa"}), "cluster.location", "a region such as us-central1"),
    "zones elsewhere": (gke(cluster={"location": "us-central1", "node_locations": ["us-east1-b"]}), "us-east1-b is not in us-central1"),
    "too little maintenance": (gke(cluster={"location": "us-central1", "maintenance": {"days": ["SU"]}}), "write two days or more"),
    "a time without quotes": (
        gke(cluster={"location": "us-central1", "maintenance": {"start": "3am"}}),
        "cluster.maintenance.start",
        '"03:00"',
    ),
    "a range with host bits": (gke(network={"nodes_cidr": "10.0.0.1/20"}), "network.nodes_cidr", "written as 10.0.0.0/20"),
    "overlapping ranges": (gke(network={"nodes_cidr": "10.20.0.0/20"}), "network.pods_cidr", "overlaps nodes_cidr"),
    "an existing network without its ranges": (gke(network={"existing": "shared"}), "network.subnetwork", "write subnetwork: NAME"),
    "ranges of an existing network": (
        gke(network={"existing": "a", "subnetwork": "b", "pods_range": "c", "services_range": "d", "pods_cidr": "10.0.0.0/14"}),
        "network.pods_cidr",
        "is used as it is",
    ),
    "a subnetwork without a network": (gke(network={"subnetwork": "b"}), "network.subnetwork", "write existing: NAME"),
    "an existing bucket to delete": (
        gke(storage={"data": {"existing": "abc", "on_destroy": "delete"}}),
        "storage.data.existing",
        "remove it",
    ),
    "a bucket with its scheme": (gke(storage={"data": {"existing": "gs://abc"}}), "storage.data.existing", "without gs://"),
    "an image built and named": (gke(image={"build": True, "reference": "i@sha256:" + "0" * 64}), "image.reference", "remove them"),
    "no image at all": (gke(image={"build": False}, trainings={"a": DIGITS}), "image.build", "no task could start"),
    "a program that is not in the image": (
        gke(trainings={"a": {**DIGITS, "program": "tests/programs/plain_parameter_server.py"}}),
        "trainings.a.program: tests/programs/plain_parameter_server.py is not in the image",
        "move it to trainer/programs",
    ),
    "a name for gcr.io": (gke(registry={"domain": "gcr.io", "name": "x"}), "registry.name", "remove name"),
    "a repository without name": (gke(registry={"create": False}), "registry.name", "write name: my-repository"),
    "three GPUs of a kind that has none": (gke(**one(worker={"gpus": 3, "accelerator": "l4"})), "trainings.a.worker.gpus", "1, 2, 4, 8"),
    "spot and flex-start": (
        gke(**one(worker={"gpus": 1, "accelerator": "l4", "spot": True, "flex_start": True})),
        "trainings.a.worker.flex_start",
        "remove one of the two",
    ),
    "gcp as a key of ours": ({"gcp": {"project": "p"}}, "gcp: unknown key", "gcp:project"),
}

IMAGE = {"reference": "i@sha256:" + "0" * 64}
CLAIM: dict[str, Any] = {"claim": "ckpt", "path": "/ckpt", "roles": ["chief"]}
PLACES = {f"{kind}_dir": f"gs://bucket/{kind}" for kind in ("checkpoint", "log", "model")}


def kubernetes(training: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A stack on a cluster that is there, with one training whose directories are in a bucket."""
    trainings = {"a": {**DIGITS, **PLACES, **(training or {})}}
    return {"target": "kubernetes", "kubernetes": {"context": "kind"}, "image": IMAGE, "trainings": trainings, **changes}


def volumes(*written: dict[str, Any]) -> dict[str, Any]:
    return kubernetes({"volumes": list(written)})


# On a cluster; what a directory needs is a table of its own, in tests/kubernetes/test_reach.py.
BAD_ON_KUBERNETES: dict[str, tuple[Any, ...]] = {
    "no cluster": (kubernetes(kubernetes={}), "kubernetes: target kubernetes needs one cluster", "{context: NAME}", "get-contexts"),
    "two clusters": (kubernetes(kubernetes={"context": "kind", "stack": "a/b/c"}), "kubernetes: target kubernetes needs one cluster"),
    "an unknown way to a cluster": (kubernetes(kubernetes={"contxt": "kind"}), "kubernetes.contxt", "did you mean context?"),
    "no image": (kubernetes(image={}), "image.reference: target kubernetes builds no image", "write image: {reference: NAME@sha256:…}"),
    "an image by its tag": (kubernetes(image={"reference": "trainer:latest"}), "image.reference", "named by its digest"),
    "an ingress on another stack's cluster": (
        kubernetes({"tensorboard": {"expose": "ingress", "allowed_cidrs": ["10.0.0.0/8"]}}, kubernetes={"stack": "a/b/c"}),
        "trainings.a.tensorboard.expose",
        "open to everybody",
        "write expose: port_forward, or load_balancer",
    ),
    "an open load balancer": (kubernetes({"tensorboard": {"expose": "load_balancer"}}), "needs allowed_cidrs", "has no login"),
    "a range that is none": (
        kubernetes({"tensorboard": {"expose": "load_balancer", "allowed_cidrs": ["everybody"]}}),
        "trainings.a.tensorboard.allowed_cidrs.0",
        "written as 10.0.0.0/20",
    ),
    "an address as egress": (kubernetes({"egress": ["10.0.0.1/8"]}), "trainings.a.egress.0", "no bits set behind"),
    "serving on GPUs while it trains": (
        kubernetes({"serving": {"gpus": 1}}),
        "trainings.a.serving.gpus",
        "hold a GPU",
        "write deploy: false",
    ),
    "no server": (kubernetes({"serving": {"replicas": 0}}), "trainings.a.serving.replicas", "greater than or equal to 1"),
    "a claim and a bucket": (volumes({**CLAIM, "bucket": "b-1"}), "trainings.a.volumes.0: it needs a claim or a bucket, one of the two"),
    "neither a claim nor a bucket": (volumes({"path": "/ckpt"}), "trainings.a.volumes.0: it needs a claim or a bucket"),
    "a bucket with a size": (volumes({"bucket": "b-1", "path": "/b", "size": "1Gi"}), "trainings.a.volumes.0.bucket", "would do nothing"),
    "a bucket with its scheme": (volumes({"bucket": "gs://b", "path": "/b"}), "trainings.a.volumes.0.bucket"),
    "two volumes at one path": (
        volumes(CLAIM, {**CLAIM, "claim": "more", "path": "/ckpt/"}),
        "trainings.a.volumes: /ckpt is the path of two volumes",
        "give each its own path",
    ),
    "a claim twice": (volumes(CLAIM, {**CLAIM, "path": "/again"}), "trainings.a.volumes: ckpt is the claim of two volumes"),
    "a path that is taken": (volumes({**CLAIM, "path": "/tmp/"}), "trainings.a.volumes.0.path: /tmp/ is used by every task itself"),
    "the path of the launcher": (volumes({**CLAIM, "path": "/trainstack/data"}), "trainings.a.volumes.0.path", "write another path"),
    "the path of the key": (volumes({**CLAIM, "path": "/var/run/secrets/trainstack"}), "trainings.a.volumes.0.path", "write another path"),
    "the root as a path": (volumes({**CLAIM, "path": "//"}), "trainings.a.volumes.0.path"),
    "a relative path": (volumes({**CLAIM, "path": "ckpt"}), "trainings.a.volumes.0.path", "it must be absolute"),
    "a path with a colon": (volumes({**CLAIM, "path": "/a:b"}), "trainings.a.volumes.0.path", "have no colon"),
    "a claim of two trainings": (
        kubernetes(trainings={name: {**DIGITS, "volumes": [{**CLAIM, "create": True, "size": "1Gi"}]} for name in ("a", "b")}),
        "trainings.b.volumes.0.create: the training a creates ckpt too",
        "write create: false here",
    ),
    "a claim that several nodes mount": (volumes({"claim": "c", "path": "/c"}), "trainings.a.volumes.0.access", "ReadWriteMany"),
    "a training called like another's TensorBoard": (
        kubernetes(trainings={"a": {**DIGITS, **PLACES, "tensorboard": {}}, "a-tensorboard": {**DIGITS, "volumes": [CLAIM]}}),
        "trainings.a-tensorboard: a has a Service of this name",
        "another name",
    ),
    "a key without its secret": (kubernetes({"credentials": {"mode": "key_secret"}}), "trainings.a.credentials", "write secret: NAME"),
    "a secret that is no name": (
        kubernetes({"credentials": {"mode": "key_secret", "secret": "My Secret", "key": "key.json"}}),
        "trainings.a.credentials.secret",
    ),
    "a key that is no file": (
        kubernetes({"credentials": {"mode": "key_secret", "secret": "s", "key": "a/key.json"}}),
        "trainings.a.credentials.key",
        "as in key.json",
    ),
    "the stack's own secret": (
        kubernetes({"credentials": {"mode": "key_secret", "secret": "secrets", "key": "key.json"}}),
        "trainings.a.credentials.secret",
        "write another name",
    ),
    "a toleration with too much": (
        kubernetes({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}),
        "trainings.a.tolerations.0.value",
        "write operator: Equal",
    ),
    "a toleration of nothing": (kubernetes({"tolerations": [{"value": "b"}]}), "trainings.a.tolerations.0.key", "operator: Exists"),
    "no directory": (kubernetes(trainings={"a": DIGITS}), "trainings.a.checkpoint_dir: target kubernetes has no bucket of its own"),
    "a directory on a pod's disk": (kubernetes({"log_dir": "/logs"}), "trainings.a.log_dir: /logs/1 is on the disk of one pod"),
}
