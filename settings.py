"""The typed settings of one stack, and the only reader of Pulumi's configuration.

`load()` reads the stack that Pulumi runs; `parse()` takes a plain mapping, for tests and tools. Both return frozen models or raise
`SettingsError`, whose text has one sentence per problem: the field, what is wrong, what would happen, what to write instead.
Nothing here needs a network or an engine, so a wrong topology is refused before anything is made.
"""

from __future__ import annotations

import difflib
import importlib.util
import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, WithJsonSchema

import costs
import naming
from infra import pools, quotas, services
from infra.accelerators import ACCELERATORS
from infra.pools import Pool
from trainer import arguments, programs
from workloads import reach
from workloads.topology import MIRRORED, MULTI_WORKER_MIRRORED, PARAMETER_SERVER, Topology

PROJECT = naming.PROJECT
ROOT = Path(__file__).resolve().parent
TENSORFLOW = {False: "tensorflow-cpu", True: "tensorflow[and-cuda]"}  # without and with GPUs
ACCELERATOR_LABELS = {each.label: name for name, each in ACCELERATORS.items()}  # from GKE's label to the name that is written here


class SettingsError(Exception):
    """What a person wrote wrong, one sentence per problem."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


# ------------------------------------------------------------------------------------------------ values


def _seconds(value: object) -> object:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        raise ValueError("a duration is a number with its unit, such as 90s, 30m or 2h")
    match = re.fullmatch(r"(\d+)(s|m|h)", str(value))
    if not match or int(match[1]) == 0:
        raise ValueError("a duration is a number above 0 with its unit, such as 90s, 30m or 2h")
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def _cpu(value: object) -> object:
    if isinstance(value, bool) or not re.fullmatch(r"\d+(\.\d+)?|\d+m", str(value)) or float(str(value).rstrip("m")) == 0:
        raise ValueError("CPUs are a number such as 2 or 0.5, or thousandths such as 500m")
    return str(value)


def _memory(value: object) -> object:
    if not re.fullmatch(r"[1-9]\d*(Ki|Mi|Gi|Ti|k|M|G|T)", str(value)):
        raise ValueError("memory is a whole number with its unit, such as 512Mi or 4Gi")
    return str(value)


def _scalar(value: object) -> object:
    if not isinstance(value, str | int | float):
        raise ValueError("an argument is text, a number, true or false")
    return value


def _range(value: object) -> object:
    try:
        ipaddress.IPv4Network(str(value))
    except ValueError:
        raise ValueError("an address range is written as 10.0.0.0/20, with no bits set behind the slash's number") from None
    return value


Duration = Annotated[
    int, BeforeValidator(_seconds), WithJsonSchema({"type": "string", "pattern": r"^[0-9]+(s|m|h)$", "examples": ["90s", "30m", "2h"]})
]
Cpu = Annotated[str, BeforeValidator(_cpu), WithJsonSchema({"type": ["number", "string"], "examples": [2, 0.5, "500m"]})]
Memory = Annotated[str, BeforeValidator(_memory), WithJsonSchema({"type": "string", "examples": ["512Mi", "4Gi"]})]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=40)]
RunName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$", max_length=40)]
Port = Annotated[int, Field(ge=1024, le=65534)]  # the launcher has the next one
Count = Annotated[int, Field(ge=0, le=4096)]
Scalar = Annotated[Any, BeforeValidator(_scalar), WithJsonSchema({"type": ["string", "number", "boolean"]})]
Cidr = Annotated[str, BeforeValidator(_range), WithJsonSchema({"type": "string", "examples": ["10.0.0.0/20"]})]
ResourceName = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
BucketName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][-_.a-z0-9]{1,61}[a-z0-9]$")]
Location = Annotated[str, StringConstraints(pattern=r"^[a-z]+-[a-z]+[0-9]+(-[a-z])?$")]
Zone = Annotated[str, StringConstraints(pattern=r"^[a-z]+-[a-z]+[0-9]+-[a-z]$")]
Day = Literal["MO", "TU", "WE", "TH", "FR", "SA", "SU"]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^:]+$")]
ImageReference = Annotated[str, StringConstraints(pattern=r"^[^@\s]+@sha256:[0-9a-f]{64}$")]


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


# -------------------------------------------------------------------------------------------- a training


class Role(Model):
    """The tasks of one role: how many, and what each of them gets."""

    replicas: Count = Field(1, description="How many tasks of this role; 0 is none.")
    cpu: Cpu | None = Field(None, description="CPUs of each task; 1 if not written.")
    memory: Memory | None = Field(None, description="Memory of each task; 2Gi if not written.")
    gpus: Annotated[int, Field(ge=0, le=16)] = Field(0, description="GPUs of each task; on local without GPUs, virtual devices.")
    accelerator: str | None = Field(None, description="The kind of GPU, such as l4 or a100-80.")
    spot: bool = Field(False, description="Run on spot nodes, which cost less and may vanish.")
    flex_start: bool = Field(False, description="Wait until GKE finds the nodes, and keep them for a week at the most.")
    reservation: ResourceName | None = Field(None, description="The reservation of Compute Engine to take the nodes from.")


class Evaluator(Model):
    """How the model is tried on data it was not trained on."""

    mode: Literal["sidecar", "inline", "none"] = Field(
        "inline", description="sidecar: a task of its own tries every checkpoint; inline: the tasks that train do; none: not at all."
    )
    cpu: Cpu | None = Field(None, description="CPUs of the task that evaluates, where it is one of its own.")
    memory: Memory | None = Field(None, description="Memory of that task.")


class Volume(Model):
    """A persistent volume claim, or a bucket, and where it is mounted."""

    claim: Name | None = Field(None, description="The name of the claim.")
    bucket: BucketName | None = Field(None, description="Instead of a claim: a bucket, mounted with Cloud Storage FUSE.")
    create: bool = Field(False, description="Make the claim; otherwise it must exist.")
    size: Memory | None = Field(None, description="How much a claim that is made asks for.")
    access: Literal["ReadWriteOnce", "ReadWriteMany"] = Field(
        "ReadWriteOnce", description="Whether the pods of one node can mount the claim, or those of many."
    )
    storage_class: str | None = Field(
        None, alias="class", description="The storage class of a claim that is made; the cluster's default if not written."
    )
    path: AbsolutePath = Field(description="Where it is mounted.")
    roles: tuple[Literal["chief", "worker", "ps", "evaluator"], ...] = Field(
        ("chief", "worker", "ps", "evaluator"), strict=False, description="The roles that mount it."
    )

    @property
    def name(self) -> str:
        return self.claim or self.bucket or ""

    def holds(self, path: str) -> bool:
        """Whether a path is on this volume."""
        return f"{path.rstrip('/')}/".startswith(f"{self.path.rstrip('/')}/")


class DataPrep(Model):
    """A program that prepares the data, before the training starts."""

    program: str | None = Field(None, description="NAME.prepare of a program here, a module, or path/to/file.py.")
    command: tuple[str, ...] | None = Field(None, strict=False, description="Instead of a program: any command.")
    args: dict[str, Scalar] = Field({}, description="Its arguments.")
    deadline: Duration = Field(7200, description="How long it may take.")
    cpu: Cpu | None = Field(None, description="CPUs; 2 if not written.")
    memory: Memory | None = Field(None, description="Memory; 4Gi if not written.")


class TensorBoard(Model):
    """TensorBoard beside the training."""

    expose: Literal["port_forward", "load_balancer", "ingress"] = Field(
        "port_forward", description="How a browser reaches it: through `trainstack tensorboard` alone, or by an address of its own."
    )
    allowed_cidrs: tuple[Cidr, ...] = Field((), strict=False, description="Who may see it where it is exposed; it has no login.")
    keep: Duration = Field(86400, description="How long it stays after the run has ended.")


class Serving(Model):
    """A server for the trained model, with the REST API of TensorFlow Serving."""

    replicas: Annotated[int, Field(ge=1, le=100)] = Field(1, description="How many servers.")
    cpu: Cpu | None = Field(None, description="CPUs of each; 1 if not written.")
    memory: Memory | None = Field(None, description="Memory of each; 2Gi if not written.")
    gpus: Annotated[int, Field(ge=0, le=16)] = Field(0, description="GPUs of each replica; then deploy must be false: train first.")
    accelerator: str | None = Field(None, description="The kind of GPU.")
    image: Annotated[str, StringConstraints(pattern=r"^[^\s]+$")] | None = Field(
        None, description="An image with tensorflow_model_server; TensorFlow's own if not written."
    )


class Credentials(Model):
    """How tasks prove who they are to Google Cloud."""

    mode: Literal["workload_identity", "key_secret"] = Field(
        "workload_identity", description="By the identity of their account, or by a key file."
    )
    secret: ResourceName | None = Field(None, description="The Secret with the key.")
    key: Annotated[str, StringConstraints(pattern=r"^[-._A-Za-z0-9]+$", max_length=253)] | None = Field(
        None, description="The name of the file in it, such as key.json."
    )


class Toleration(Model):
    """A taint of nodes that the tasks put up with, as Kubernetes has it."""

    key: str | None = Field(None, description="The taint's key; none with Exists: every taint.")
    operator: Literal["Exists", "Equal"] = Field("Equal", description="Whether the value counts.")
    value: str | None = Field(None, description="The taint's value.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="The taint's effect; none: every effect."
    )


class Training(Model):
    """One training: what to run, on which topology, and how it ends."""

    program: str | None = Field(None, description="A program of trainer/programs, a module such as package.module, or path/to/file.py.")
    command: tuple[str, ...] | None = Field(None, strict=False, description="Instead of a program: any command that reads TF_CONFIG.")
    image: ImageReference | None = Field(None, description="The image a command runs in, by digest.")
    args: dict[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")], Scalar] = Field(
        {}, description="Arguments: {epochs: 5} is --epochs 5."
    )
    env: dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(
        {}, description="Environment variables of every task."
    )
    strategy: Literal["parameter_server", "multi_worker_mirrored", "mirrored"] | None = Field(
        None, description="How gradients are combined; parameter_server if not written."
    )
    tier: Literal["custom", "basic", "standard_1", "premium_1"] = Field(
        "custom", description="A ready topology instead of the roles: one worker; 4 workers and 3 ps; 19 workers and 11 ps."
    )
    chief: Role | None = Field(None, description="The task that leads; one under parameter_server, none else, if not written.")
    worker: Role | None = Field(None, description="The tasks that compute; one under mirrored, none else, if not written.")
    ps: Role | None = Field(None, description="The tasks that keep the weights under parameter_server.")
    evaluator: Evaluator | None = Field(None, description="How the model is tried; a program does it inline if not written.")
    port: Port = Field(2222, description="Where a task listens on Kubernetes; its launcher has the next one.")
    data_dir: str | None = Field(None, description="Where the data is: a path or gs://…; on gke the stack's bucket if not written.")
    checkpoint_dir: str | None = Field(None, description="Where checkpoints go, with the run's name behind it; as above.")
    log_dir: str | None = Field(None, description="Where metrics and TensorBoard's files go, with the run's name behind it; as above.")
    model_dir: str | None = Field(None, description="Where the trained model goes, with the run's name behind it; as above.")
    volumes: tuple[Volume, ...] = Field((), strict=False, description="Claims and buckets that tasks mount; on local, folders of the run.")
    inspector: bool = Field(False, description="A pod with the volumes mounted, to look into them; deploy must be false.")
    deploy: bool = Field(True, description="false: claims and data only, no training.")
    data_prep: DataPrep | None = Field(None, description="What prepares the data, before the tasks start and once for the same inputs.")
    tensorboard: TensorBoard | None = Field(None, description="TensorBoard beside the training; {} is enough.")
    serving: Serving | None = Field(None, description="A server for the trained model; {} is enough.")
    mixed_precision: bool = Field(False, description="Compute in 16 bits where that is as good, and keep the weights in 32.")
    credentials: Credentials = Field(Credentials(), description="How tasks log in to Google Cloud.")
    egress: tuple[Cidr, ...] = Field((), strict=False, description="More address ranges the tasks may reach.")
    node_selector: dict[str, str] = Field({}, description="Labels of the nodes that the pods run on, besides what the roles ask for.")
    tolerations: tuple[Toleration, ...] = Field((), strict=False, description="Taints of nodes that the pods put up with.")
    peer_timeout: Duration = Field(900, description="Without the chief or a peer for so long, a task gives up.")
    stall_timeout: Duration = Field(1800, description="Without progress for so long, all tasks are started again.")
    max_restarts: Annotated[int, Field(ge=0, le=1000)] = Field(10, description="Counted restarts that each task has.")
    deadline: Duration | None = Field(None, description="The run fails after so long.")
    ttl_after_finished: Duration | None = Field(None, description="Remove finished Jobs after so long.")
    run: RunName = Field("1", description="A new value is a new run with directories of its own.")
    resume_from: RunName | None = Field(None, description="The run whose checkpoint this one starts from.")

    @property
    def chosen_strategy(self) -> str:
        """The strategy as written, or what the tier stands for."""
        return self.strategy or TIERS[self.tier][0]

    @property
    def topology(self) -> Topology:
        """How many tasks of each role, from the tier or from the roles as written."""
        evaluator = 1 if self.evaluation == "sidecar" else 0
        if self.tier != "custom":
            _, chief, worker, ps = TIERS[self.tier]
            return Topology(chief, worker, ps, evaluator)
        default_chief = 1 if self.chosen_strategy == PARAMETER_SERVER else 0
        default_worker = 1 if self.chosen_strategy == MIRRORED else 0
        return Topology(
            self.chief.replicas if self.chief else default_chief,
            self.worker.replicas if self.worker else default_worker,
            self.ps.replicas if self.ps else 0,
            evaluator,
        )

    @property
    def evaluation(self) -> str:
        """A command of the user's own evaluates itself as it likes; our programs do it inline unless told otherwise."""
        if self.evaluator is not None:
            return self.evaluator.mode
        return "none" if self.command else "inline"

    def needs(self, component: str) -> tuple[str, str]:
        """CPUs and memory of one pod of a role, or of what is beside the tasks."""
        written = getattr(self, component)
        cpu, memory = NEEDS.get(component, TASK_NEEDS)
        return getattr(written, "cpu", None) or cpu, getattr(written, "memory", None) or memory


# CPUs and memory of what names neither.
TASK_NEEDS = ("1", "2Gi")
NEEDS = {"tensorboard": ("500m", "2Gi"), "serving": ("1", "2Gi"), "data_prep": ("2", "4Gi")}

# tier: strategy, chief, workers, parameter servers
TIERS: dict[str, tuple[str, int, int, int]] = {
    "custom": (PARAMETER_SERVER, 0, 0, 0),
    "basic": (MIRRORED, 0, 1, 0),
    "standard_1": (PARAMETER_SERVER, 1, 4, 3),
    "premium_1": (PARAMETER_SERVER, 1, 19, 11),
}


# ----------------------------------------------------------------------------------------------- a stack


class Image(Model):
    """The image the tasks run in: built from this project, or a ready one by digest."""

    build: bool = Field(True, description="Build trainer/Dockerfile and push it to the registry.")
    reference: ImageReference | None = Field(None, description="Instead: a ready image by digest.")
    base: str | None = Field(None, description="The image to build upon, in place of the Dockerfile's own.")


class Kubernetes(Model):
    """The cluster of target kubernetes: a context of the kubeconfig, or the cluster of another stack."""

    context: str | None = Field(None, description="A context of your kubeconfig; `kubectl config get-contexts` lists them.")
    stack: str | None = Field(None, description="Instead: the stack whose cluster it is, as organization/project/stack.")


class Maintenance(Model):
    """When GKE may upgrade the cluster: six hours from a time (UTC) on some days of the week."""

    start: Annotated[str, StringConstraints(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")] = Field(
        "03:00", description="When it begins, UTC, with its quotes."
    )
    days: tuple[Day, ...] = Field(("MO", "TU", "WE", "TH", "FR", "SA", "SU"), strict=False, description="On which days; two at the least.")


class Cluster(Model):
    """The GKE cluster of target gke."""

    location: Location | None = Field(
        None, description="A zone for a zonal cluster, a region for a regional one; gcp:zone or gcp:region if not written."
    )
    node_locations: tuple[Zone, ...] = Field((), strict=False, description="The zones of the nodes, where the accelerator can be had.")
    deletion_protection: bool = Field(True, description="Refuse to destroy the cluster and the kept buckets.")
    release_channel: Literal["rapid", "regular", "stable"] = Field("regular", description="How soon GKE brings new versions.")
    authorized_networks: tuple[Cidr, ...] = Field(
        (),
        strict=False,
        description="Networks that may reach the control plane by its address; none: by its DNS endpoint, with Google's login.",
    )
    maintenance: Maintenance = Field(Maintenance(), description="When GKE may upgrade it.")
    min_nodes: Annotated[int, Field(ge=0, le=1000)] = Field(1, description="CPU nodes that stay when nothing runs.")
    image_streaming: bool = Field(True, description="Start containers before their image has arrived whole.")
    gpu_driver: Literal["default", "latest"] = Field("default", description="Which driver GKE installs for GPUs.")


class Network(Model):
    """The network of target gke: one of the stack's own, or an existing one."""

    existing: str | None = Field(None, description="Use this network instead of making one.")
    subnetwork: str | None = Field(None, description="The subnetwork of an existing network.")
    pods_range: str | None = Field(None, description="The name of its secondary range for pods.")
    services_range: str | None = Field(None, description="The name of its secondary range for services.")
    nodes_cidr: Cidr = Field("10.10.0.0/20", description="Addresses of the nodes of a network that is made.")
    pods_cidr: Cidr = Field("10.20.0.0/14", description="Addresses of its pods.")
    services_cidr: Cidr = Field("10.24.0.0/20", description="Addresses of its services.")
    flow_logs: bool = Field(False, description="Keep a sample of who talked to whom; it costs by volume.")


class Bucket(Model):
    """One bucket of target gke."""

    on_destroy: Literal["keep", "delete"] = Field("keep", description="Whether the bucket stays, or goes with all that is in it.")
    existing: BucketName | None = Field(None, description="Use this bucket instead of making one.")
    versioning: bool = Field(False, description="Keep what is overwritten or deleted for a while.")
    delete_after_days: Annotated[int, Field(ge=1)] | None = Field(None, description="Delete objects that are so old.")
    delete_versions_after_days: Annotated[int, Field(ge=1)] = Field(30, description="With versioning: how long old versions stay.")


class Storage(Model):
    """The buckets of target gke, one for each purpose."""

    data: Bucket = Field(Bucket(), description="What trainings read.")
    checkpoints: Bucket = Field(Bucket(), description="Checkpoints and models.")
    logs: Bucket = Field(Bucket(), description="Metrics and TensorBoard's files.")


class Registry(Model):
    """Where the image is pushed to on target gke."""

    domain: Literal["pkg.dev", "gcr.io"] = Field("pkg.dev", description="A repository of the stack's own, or the project's gcr.io.")
    create: bool = Field(True, description="Make the repository; otherwise it must exist.")
    name: ResourceName | None = Field(None, description="The repository's name on pkg.dev; after the stack if not written.")
    keep_images: Annotated[int, Field(ge=1, le=1000)] = Field(10, description="So many of the newest images stay; others go after a month.")


class Budget(Model):
    """What the stack may cost, in USD. It is checked with list prices, and stops nothing that runs."""

    per_hour: Annotated[float, Field(gt=0, strict=False)] | None = Field(
        None, description="Preview refuses a stack that costs more while all its trainings run."
    )
    prices: Annotated[str, StringConstraints(min_length=1)] | None = Field(
        None, description="A file of yours with prices that differ from prices.yaml, with its keys."
    )


class Google(Model):
    """What Pulumi's own keys say: gcp:project, gcp:region and gcp:zone."""

    project: Annotated[str, StringConstraints(min_length=1)] | None = Field(None, description="The Google Cloud project of target gke.")
    region: Location | None = Field(None, description="Where the cluster is if cluster.location does not say; a regional one.")
    zone: Zone | None = Field(None, description="The same for a zonal one.")


class Settings(Model):
    """Everything one stack is told."""

    target: Literal["local", "kubernetes", "gke"] = Field("local", description="Where the trainings run.")
    image: Image = Field(Image(), description="The image of the programs on a cluster.")
    kubernetes: Kubernetes = Field(Kubernetes(), description="The cluster of target kubernetes.")
    cluster: Cluster = Field(Cluster(), description="The cluster of target gke.")
    network: Network = Field(Network(), description="The network of target gke.")
    storage: Storage = Field(Storage(), description="The buckets of target gke.")
    registry: Registry = Field(Registry(), description="The registry of target gke.")
    secrets: dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(
        {}, repr=False, description="Environment variables of every task that are kept encrypted; `pulumi config set --secret` writes them."
    )
    budget: Budget = Field(Budget(), description="What the stack may cost.")
    trainings: dict[Name, Training] = Field({}, description="The trainings of this stack, by name.")
    gcp: Google = Google()

    @property
    def location(self) -> str:
        """Where the cluster is: a zone or a region."""
        return self.cluster.location or self.gcp.zone or self.gcp.region or ""

    @property
    def region(self) -> str:
        return "-".join(self.location.split("-")[:2])

    @property
    def builds_image(self) -> bool:
        """An image is built where some training runs a program of this project in it."""
        needed = any(
            (training.deploy or training.data_prep or training.inspector) and not training.image for training in self.trainings.values()
        )
        return needed and self.image.reference is None

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The node pools of target gke."""
        return pools.pools(pools.demands(self.trainings), self.cluster.min_nodes)

    @property
    def services(self) -> tuple[str, ...]:
        """The services of Google Cloud that target gke uses."""
        return services.services(self)

    @property
    def quotas(self) -> tuple[dict[str, int], dict[str, int]]:
        """What its nodes need of the quotas of the region, and of those over all regions."""
        return quotas.regional(self.pools), quotas.everywhere(self.pools)

    @property
    def accelerators(self) -> dict[str, str]:
        """Its GPUs, by the name that is written here, with Google's."""
        return {pool.accelerator: ACCELERATORS[pool.accelerator].label for pool in self.pools if pool.accelerator}

    @property
    def tensorflow(self) -> str:
        """The package of TensorFlow that the built image needs."""
        return TENSORFLOW[any(demand.gpus for demand in pools.demands(self.trainings))]


def keys(settings: Settings) -> Iterator[tuple[str, str]]:
    """The Kubernetes secrets with a service account's key that trainings ask for, each with the name of the file in it."""
    for training in settings.trainings.values():
        if training.credentials.mode == "key_secret":
            yield training.credentials.secret or "", training.credentials.key or ""


def load() -> Settings:
    """The settings of the stack that Pulumi runs."""
    return parse(*split(_configuration()))


def told() -> dict[str, Any] | None:
    """What the stack was told, as it was written but without what is secret: an output, with which the next change is compared. None where the
    trainings themselves have a secret in them."""
    from pulumi.runtime import config

    everything = _configuration()
    hidden = {key for key in everything if config.is_config_secret(key)}
    if f"{PROJECT}:trainings" in hidden:
        return None
    values, google = split({key: value for key, value in everything.items() if key not in hidden})
    trainings = values.get("trainings") or {}
    plain = {name: {key: value for key, value in training.items() if key != "env"} for name, training in trainings.items()}
    return {"gcp": google, **{key: value for key, value in values.items() if key != "secrets"}, "trainings": plain}


def _configuration() -> dict[str, str]:
    from pulumi.runtime import config

    return {**config.get_config_env(), **config.CONFIG.get()}


def split(everything: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Pulumi's configuration as the keys after `trainstack:` and those after `gcp:`."""
    google = {key: value for key in Google.model_fields if (value := everything.get(f"gcp:{key}"))}
    prefix = f"{PROJECT}:"
    return {key.removeprefix(prefix): _decoded(value) for key, value in everything.items() if key.startswith(prefix)}, google


def _decoded(text: str) -> Any:
    """Pulumi hands mappings over as JSON and simple values as they are."""
    return json.loads(text) if text.startswith(("{", "[")) else text


def read(values: Mapping[str, Any], google: Mapping[str, Any] | None = None) -> Settings:
    """Settings from a mapping of the keys after `trainstack:`, and one of the keys after `gcp:`; whether they make sense is not asked."""
    if "gcp" in values:
        raise SettingsError(["gcp: unknown key; the project, region and zone are written as gcp:project, gcp:region and gcp:zone."])
    try:
        return Settings.model_validate({**values, "gcp": dict(google or {})})
    except ValidationError as error:
        raise SettingsError([_sentence(problem) for problem in error.errors()]) from None


def parse(values: Mapping[str, Any], google: Mapping[str, Any] | None = None) -> Settings:
    """Settings that make sense, from the same."""
    settings = read(values, google)
    problems = [f"trainings.{name}.{problem}" for name, training in settings.trainings.items() for problem in _problems(training)]
    problems += _problems_of_places(settings)
    if settings.target == "local":
        problems += [
            f"trainings.{name}.{problem}" for name, training in settings.trainings.items() for problem in _problems_on_local(training)
        ]
    if settings.target == "kubernetes":
        problems += _problems_on_kubernetes(settings)
    if settings.target == "gke":
        problems += [*_problems_on_gke(settings), *pools.problems(settings)]
    if settings.target in ("kubernetes", "gke"):
        problems += _problems_of_pods(settings)
    if settings.target == "gke" and not problems and (problem := costs.over_budget(settings)):
        problems.append(problem)
    if problems:
        raise SettingsError(problems)
    return settings


# ----------------------------------------------------------------------------------------------- checks


def _problems(training: Training) -> Iterator[str]:
    """The rules that hold on every target. Each names the field first; the caller puts the training's name before it."""
    yield from _problems_of_program(training)
    yield from _problems_of_topology(training)
    for name in training.env:
        if name in ("TF_CONFIG", "TF_USE_LEGACY_KERAS"):
            yield f"env.{name}: Trainstack computes it from the topology, and a value written here would be lost; remove it."
        elif name.startswith("TRAINSTACK_"):
            yield f"env.{name}: such names are Trainstack's own, and tasks would not be found; write another name."
    if training.resume_from == training.run:
        yield f"resume_from: it is this run ({training.run}) itself, which resumes without it; name another run, or remove it."
    if training.inspector and training.deploy:
        yield "inspector: it mounts the volumes that the training holds, so the two cannot run together; write deploy: false beside it."
    if training.tensorboard and training.tensorboard.expose != "port_forward" and not training.tensorboard.allowed_cidrs:
        yield (
            f"tensorboard.expose: {training.tensorboard.expose} needs allowed_cidrs, because TensorBoard has no login and everybody could read "
            "it; write allowed_cidrs: [your.network/24], or expose: port_forward."
        )
    if training.credentials.mode == "key_secret" and not (training.credentials.secret and training.credentials.key):
        yield "credentials: key_secret needs the secret and the key in it, or no task could log in; write secret: NAME and key: key.json."
    if training.credentials.secret == "secrets":
        yield "credentials.secret: secrets is the name of the one with the stack's own secrets; write another name."
    yield from _problems_of_tolerations(training)
    yield from _problems_of_volumes(training)
    if training.serving and training.serving.gpus and training.deploy:
        yield (
            "serving.gpus: it would hold a GPU while the training that makes the model is still going on; train first with serving on CPU or without it, "
            "then write deploy: false beside it."
        )


def _problems_of_volumes(training: Training) -> Iterator[str]:
    for index, volume in enumerate(training.volumes):
        if bool(volume.claim) == bool(volume.bucket):
            yield f"volumes.{index}: it needs a claim or a bucket, one of the two; write claim: NAME."
        elif volume.bucket and {"create", "size", "access", "storage_class"} & volume.model_fields_set:
            yield f"volumes.{index}.bucket: a bucket is mounted as it is, so create, size, access and class would do nothing; remove them."
        if volume.create and volume.size is None:
            yield f"volumes.{index}.size: a claim that is created needs a size, or none is made; write size: 10Gi."
        path = volume.path.rstrip("/")
        if path in RESERVED_PATHS or f"{path}/".startswith(tuple(f"{mount}/" for mount in READ_ONLY_PATHS)):
            yield f"volumes.{index}.path: {volume.path} is used by every task itself; write another path, as in /ckpt."
    for kind, values in (("path", [volume.path.rstrip("/") for volume in training.volumes]), ("claim", [v.name for v in training.volumes])):
        for value in sorted({value for value in values if values.count(value) > 1}):
            yield f"volumes: {value} is the {kind} of two volumes, and Kubernetes refuses that; give each its own {kind}."


RESERVED_PATHS = ("/tmp", "/dev/shm", "/home/trainer", "/app", "")
READ_ONLY_PATHS = ("/trainstack", "/var/run/secrets/trainstack")  # nothing can be mounted below them either


def _problems_of_tolerations(training: Training) -> Iterator[str]:
    """As Kubernetes wants them."""
    for index, toleration in enumerate(training.tolerations):
        if toleration.operator == "Exists" and toleration.value is not None:
            yield f"tolerations.{index}.value: Exists asks for no value, and Kubernetes refuses one; remove it, or write operator: Equal."
        if toleration.operator == "Equal" and not toleration.key:
            yield f"tolerations.{index}.key: without a key Kubernetes takes operator: Exists only; write key: NAME, or operator: Exists."


def _problems_of_program(training: Training) -> Iterator[str]:
    if training.program and training.command:
        yield "command: program and command are both written, and only one can run; remove one of them."
    if not training.program and not training.command:
        known = ", ".join(programs.names())
        yield f"program: neither program nor command is written, so nothing would run; write program: NAME (one of {known}) or command: […]."
    if training.command is not None and not training.command:
        yield "command: it is empty, so nothing would run; write command: [python, my_script.py]."
    if training.image and not training.command:
        yield "image: an image of its own goes with command; remove it, or set trainstack:image for the whole stack."
    if training.program and not training.command:
        yield from _problems_of_reference("program", training.program)
        if training.program in programs.names():
            yield from (f"args.{problem}" for problem in arguments.problems(training.program, training.args))
    if training.data_prep:
        if bool(training.data_prep.program) == bool(training.data_prep.command):
            yield "data_prep: it needs a program or a command, one of the two; write program: package.module."
        elif training.data_prep.program:
            yield from _problems_of_preparation(training.data_prep)


def _problems_of_preparation(preparation: DataPrep) -> Iterator[str]:
    assert preparation.program is not None
    if name := programs.prepared_by(preparation.program):
        yield from (f"data_prep.args.{problem}" for problem in arguments.problems_of_preparation(name, preparation.args))
    elif preparation.program.split(".")[0] in programs.names():
        ours = f"{preparation.program.split('.')[0]}.prepare"
        yield f"data_prep.program: {preparation.program} trains and prepares nothing; write program: {ours}."
    else:
        yield from _problems_of_reference("data_prep.program", preparation.program)


def _problems_of_reference(field: str, reference: str) -> Iterator[str]:
    """A program is one of ours, a file, or a module that can be found."""
    known = programs.names()
    if reference in known:
        return
    if reference.endswith(".py"):
        if not (ROOT / reference).is_file():
            yield f"{field}: there is no file {reference} below the project's folder, so every task would fail; correct the path."
        return
    top = reference.split(".")[0]
    if "." in reference and (top in known or _can_be_imported(top)):
        return
    yield f"{field}: {reference!r} is not a program{_closest(reference, known)}; write one of {', '.join(known)}, package.module, or path/to/file.py."


NOT_IN_IMAGE = (
    "is not in the image that is built, which has the programs of trainer/ alone; move it to trainer/programs, or write image: {reference: …} "
    "with an image that has it."
)


def in_image(program: str) -> bool:
    """Whether trainer/Dockerfile puts a program into the image."""
    return program.split(".")[0] in programs.names() or program.startswith(("trainer/", "trainer."))


def _can_be_imported(package: str) -> bool:
    return package.isidentifier() and package != "__main__" and importlib.util.find_spec(package) is not None


def _problems_of_topology(training: Training) -> Iterator[str]:
    explicit = [role for role in ("chief", "worker", "ps") if getattr(training, role) is not None]
    if training.tier != "custom":
        if explicit:
            yield (
                f"tier: {training.tier} fills in the roles, but {', '.join(explicit)} is written too and one of the two would be ignored; "
                "remove the roles, or write tier: custom."
            )
        if training.strategy not in (None, TIERS[training.tier][0]):
            yield f"strategy: tier {training.tier} is {TIERS[training.tier][0]}, not {training.strategy}; remove strategy, or write tier: custom."
        return
    if training.chief and training.chief.replicas > 1:
        yield f"chief.replicas: {training.chief.replicas} chiefs, but TensorFlow refuses to start with more than one; write replicas: 1."
        return
    topology = training.topology
    check = {PARAMETER_SERVER: _parameter_server, MULTI_WORKER_MIRRORED: _multi_worker_mirrored, MIRRORED: _mirrored}
    yield from check[training.chosen_strategy](training, topology)
    for role_name in explicit:
        role: Role = getattr(training, role_name)
        if role.accelerator and not role.gpus:
            yield f"{role_name}.accelerator: {role.accelerator} is named but gpus is 0, so no GPU would be used; write gpus: 1, or remove it."


def _parameter_server(training: Training, topology: Topology) -> Iterator[str]:
    if topology.ps < 1:
        yield "ps.replicas: parameter_server keeps the weights on parameter servers and would wait for one for ever; write ps: {replicas: 1}."
    if topology.worker < 1:
        yield "worker.replicas: parameter_server without a worker has nothing that computes gradients; write worker: {replicas: 2}."
    if topology.chief == 0 and training.program:
        yield (
            "chief.replicas: the chief of a program hands out the work, without it workers and servers would idle; write chief: {replicas: 1}, "
            "or use command for a training that is coordinated from outside."
        )
    elif topology.chief == 0 and training.deadline is None:
        yield (
            "deadline: parameter_server without a chief has nobody who knows when training is over, and the tasks would run on and bill; "
            "write deadline: 6h, or chief: {replicas: 1}."
        )


def _multi_worker_mirrored(training: Training, topology: Topology) -> Iterator[str]:
    if topology.ps:
        yield "ps.replicas: multi_worker_mirrored has no parameter servers, they would idle and bill; remove ps, or write strategy: parameter_server."
    if topology.chief + topology.worker < 1:
        yield "worker.replicas: multi_worker_mirrored without a worker has nothing to run; write worker: {replicas: 2}."
    chief, worker = training.chief, training.worker
    if chief and worker and chief.replicas and worker.replicas and (chief.gpus, chief.accelerator) != (worker.gpus, worker.accelerator):
        yield (
            f"chief.gpus: the chief trains like a worker and has {chief.gpus} × {chief.accelerator or 'GPU'}, the workers {worker.gpus} × "
            f"{worker.accelerator or 'GPU'}; every step would wait for the slower one; give both the same gpus and accelerator."
        )


def _mirrored(_: Training, topology: Topology) -> Iterator[str]:
    if topology.worker != 1:
        yield f"worker.replicas: mirrored runs in one task, {topology.worker} are written; write replicas: 1, or strategy: multi_worker_mirrored."
    if topology.chief:
        yield "chief.replicas: mirrored has one worker and no chief, which would wait for ever; remove chief, or write strategy: multi_worker_mirrored."
    if topology.ps:
        yield "ps.replicas: mirrored has no parameter servers, they would idle and bill; remove ps, or write strategy: parameter_server."


def _problems_of_places(settings: Settings) -> Iterator[str]:
    """Checkpoints, logs and models must not lie in each other: exporting a model replaces its folder."""
    places: dict[str, str] = {}
    for name, training in settings.trainings.items():
        for kind in ("checkpoint_dir", "log_dir", "model_dir"):
            written: str | None = getattr(training, kind)
            if written is None:
                continue
            field, place = f"trainings.{name}.{kind}", f"{written.rstrip('/')}/{training.run}/"
            clashes = [other for other, taken in places.items() if place.startswith(taken) or taken.startswith(place)]
            if training.data_dir and f"{training.data_dir.rstrip('/')}/".startswith(place):
                clashes.append(f"trainings.{name}.data_dir")
            for other in clashes:
                yield f"{field}: with the run's name it is {place}, and {other} would be overwritten; give each a directory of its own."
            places[field] = place


def _problems_on_local(training: Training) -> Iterator[str]:
    """What cannot be had on this machine and would change the result."""
    if training.tensorboard and training.tensorboard.expose != "port_forward":
        yield f"tensorboard.expose: {training.tensorboard.expose} does not exist on target local; write expose: port_forward."
    if training.inspector:
        yield "inspector: target local has no pods; look into the run's folder instead, and remove it."
    if training.image:
        yield "image: target local runs the command on this machine, not in an image; remove image, or use another target."


def _problems_on_gke(settings: Settings) -> Iterator[str]:
    """What the environment on Google Cloud needs to know, and what it cannot be."""
    if settings.gcp.project is None:
        yield "gcp:project: target gke needs your Google Cloud project; run `pulumi config set gcp:project MY-PROJECT`."
    if not settings.location:
        yield "cluster.location: the cluster needs a place; write location: us-central1-a (a zone) or location: us-central1 (a region)."
    for zone in settings.cluster.node_locations:
        if settings.location and not zone.startswith(f"{settings.region}-"):
            yield f"cluster.node_locations: {zone} is not in {settings.region}, where the cluster is; write zones of {settings.region}."
    if len(settings.cluster.maintenance.days) < 2:
        yield "cluster.maintenance.days: GKE wants at least 48 hours of maintenance in 32 days; write two days or more, as in [SA, SU]."
    yield from _problems_of_network(settings.network)
    for kind in ("data", "checkpoints", "logs"):
        bucket: Bucket = getattr(settings.storage, kind)
        if bucket.existing and bucket.model_fields_set - {"existing"}:
            more = ", ".join(sorted(bucket.model_fields_set - {"existing"}))
            yield f"storage.{kind}.existing: a bucket that exists is used as it is and never deleted, so {more} would do nothing; remove it."
    if settings.image.reference and {"build", "base"} & settings.image.model_fields_set:
        yield "image.reference: a ready image is not built, so build and base would do nothing; remove them."
    if not settings.image.build and settings.image.reference is None and settings.builds_image:
        yield "image.build: nothing is built and no image is named, so no task could start; write reference: NAME@sha256:… or build: true."
    if settings.builds_image:
        for name, training in settings.trainings.items():
            for field, program in (("program", training.program), ("data_prep.program", training.data_prep and training.data_prep.program)):
                if program and not in_image(program):
                    yield f"trainings.{name}.{field}: {program} {NOT_IN_IMAGE}"
    if settings.registry.domain == "gcr.io" and settings.registry.name:
        yield "registry.name: the gcr.io repository of a project has the name gcr.io; remove name, or write domain: pkg.dev."
    if settings.registry.domain == "pkg.dev" and not settings.registry.create and settings.registry.name is None:
        yield "registry.name: a repository that is used must be named; write name: my-repository, or create: true."


def _problems_on_kubernetes(settings: Settings) -> Iterator[str]:
    """What a cluster that is there already needs to be told, because this stack makes nothing around it."""
    cluster = settings.kubernetes
    if bool(cluster.context) == bool(cluster.stack):
        yield (
            "kubernetes: target kubernetes needs one cluster; write kubernetes: {context: NAME} (`kubectl config get-contexts` lists yours), "
            "or kubernetes: {stack: organization/project/stack}."
        )
    if settings.builds_image:
        yield (
            "image.reference: target kubernetes builds no image, so no task could start; build and push trainer/Dockerfile, and write "
            "image: {reference: NAME@sha256:…}."
        )
    for name, training in settings.trainings.items():
        if training.tensorboard and training.tensorboard.expose == "ingress" and cluster.stack:
            yield (
                f"trainings.{name}.tensorboard.expose: an ingress on the cluster of another stack would be open to everybody, because the list of who may see it is "
                "that stack's; write expose: port_forward, or load_balancer."
            )


def _problems_of_pods(settings: Settings) -> Iterator[str]:
    """What holds where tasks run on several machines and see only what they mount, and where trainings share a namespace."""
    makers: dict[str, str] = {}
    for name, training in settings.trainings.items():
        for index, volume in enumerate(training.volumes):
            if volume.claim and volume.create and makers.setdefault(volume.claim, name) != name:
                yield (
                    f"trainings.{name}.volumes.{index}.create: the training {makers[volume.claim]} creates {volume.claim} too, and there is one of a name; "
                    "write create: false here, or another claim."
                )
        for component in ("tensorboard", "serving"):
            if getattr(training, component) and f"{name}-{component}" in settings.trainings:
                yield f"trainings.{name}-{component}: {name} has a Service of this name for its {component}; give the training another name."
    roots = dict.fromkeys(("data", "checkpoints", "logs"), "gs://of-the-stack") if settings.target == "gke" else None
    for name, training in settings.trainings.items():
        yield from (f"trainings.{name}.{problem}" for problem in reach.problems(name, training, roots))


def _problems_of_network(network: Network) -> Iterator[str]:
    ranges = {key: getattr(network, key) for key in ("nodes_cidr", "pods_cidr", "services_cidr")}
    of_existing = ("subnetwork", "pods_range", "services_range")
    if network.existing:
        for key in of_existing:
            if getattr(network, key) is None:
                yield f"network.{key}: the existing network {network.existing} needs it, or the cluster has no addresses; write {key}: NAME."
        for key in (*ranges, "flow_logs"):
            if key in network.model_fields_set:
                yield f"network.{key}: the existing network {network.existing} is used as it is, so this would do nothing; remove it."
        return
    for key in of_existing:
        if getattr(network, key):
            yield f"network.{key}: it goes with an existing network; write existing: NAME beside it, or remove it."
    for one, other in (("nodes_cidr", "pods_cidr"), ("nodes_cidr", "services_cidr"), ("pods_cidr", "services_cidr")):
        if ipaddress.IPv4Network(ranges[one]).overlaps(ipaddress.IPv4Network(ranges[other])):
            yield f"network.{other}: {ranges[other]} overlaps {one} {ranges[one]}, which Google refuses; write a range of its own."


def not_applied(settings: Settings) -> list[str]:
    """What is written but does nothing on this target; one line of the preview names it."""
    stack, role, training = NOT_APPLIED[settings.target]
    if settings.target == "kubernetes" and settings.kubernetes.context:
        role = ("accelerator", "spot", *role)  # another stack's cluster is GKE, whose labels are known
    found = [f"trainstack:{key}" for key in stack if key in settings.model_fields_set]
    for name, each in settings.trainings.items():
        for role_name in ("chief", "worker", "ps", "evaluator", "data_prep", "serving"):
            part = getattr(each, role_name)
            written = part.model_fields_set if part else set()
            translated = {"gpus"} if each.chosen_strategy == MIRRORED else set()  # becomes virtual devices
            found += [f"{name}.{role_name}.{key}" for key in role if key in written - translated]
        found += [f"{name}.{key}" for key in training if key in each.model_fields_set]
    return found


# For each target: keys of the stack, of a role, and of a training.
NOT_APPLIED: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "local": (
        ("image", "cluster", "network", "storage", "registry", "kubernetes", "budget"),
        ("cpu", "memory", "gpus", "accelerator", "spot", "flex_start", "reservation"),
        ("credentials", "egress", "node_selector", "tolerations", "ttl_after_finished"),
    ),
    "kubernetes": (("cluster", "network", "storage", "registry", "budget"), ("flex_start", "reservation"), ()),
    "gke": (("kubernetes",), (), ()),
}


# ---------------------------------------------------------------------------------------------- messages


def _closest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _sentence(problem: Any) -> str:
    """One of pydantic's findings, as a person would say it."""
    location = [str(part) for part in problem["loc"] if part != "[key]"]
    field, kind, value = ".".join(location).replace("gcp.", "gcp:", 1), problem["type"], problem["input"]
    shown = "a secret" if location[:1] == ["secrets"] else repr(value)
    if kind == "extra_forbidden":
        known = sorted(_keys_at(location[:-1]))
        return f"{field}: unknown key{_closest(location[-1], known)}; the valid ones here are {', '.join(known)}."
    if kind == "literal_error":
        known = [part.strip("' ") for part in re.split(r",| or ", problem["ctx"]["expected"])]
        return f"{field}: {shown} is not one of its values{_closest(str(value), known)}; write one of {', '.join(known)}."
    if kind == "value_error":
        return f"{field}: {shown} is not usable; {problem['ctx']['error']}."
    if kind in ("greater_than_equal", "less_than_equal", "greater_than"):
        return f"{field}: {shown} is out of range; {problem['msg'].lower().replace('input should be', 'it must be')}."
    if kind in ("string_pattern_mismatch", "string_too_long"):
        return f"{field}: {shown} is not a valid {_noun(location)}."
    expected = {
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_type": "a number",
        "string_type": 'text; numbers need quotes here, as in "1"',
        "bool_type": "true or false",
        "tuple_type": "a list, as in [a, b]",
        "dict_type": "a mapping of keys to values",
        "model_type": "a mapping of keys to values",
        "model_attributes_type": "a mapping of keys to values",
        "missing": "written: it is required",
    }
    return f"{field}: it must be {expected.get(kind, problem['msg'])}" + ("." if kind == "missing" else f", but is {shown}.")


def _noun(location: list[str]) -> str:
    if location[-1] in ("run", "resume_from"):
        return "run name: letters, digits, '-', '.' and '_', at most 40"
    if location[-1] in ("image", "reference"):
        return "image: an image is named by its digest, as in NAME@sha256:…, so that every task runs the same one"
    if location[-2:] == ["credentials", "key"]:
        return "key: it is the name of a file, as in key.json"
    if location[-1] in ("location", "region"):
        return "location: a region such as us-central1, or a zone such as us-central1-a"
    if location[-1] == "zone" or "node_locations" in location:
        return "zone: a zone is a region and a letter, as in us-central1-a"
    if location[-1] == "start":
        return 'time: a time of day is written with its quotes, as in "03:00"'
    if location[-1] == "existing":
        return "bucket name: small letters, digits, '-', '_' and '.', without gs://"
    if location[-1] == "path":
        return "path: it must be absolute and have no colon, as in /ckpt"
    if "args" in location:
        return "argument name: small letters, digits and '_', as in batch_size"
    if "env" in location or "secrets" in location:
        return "environment variable name: letters, digits and '_'"
    return "name: it becomes part of host names, so it must be small letters, digits and '-', begin with a letter, and have at most 40 characters"


def _keys_at(location: list[str]) -> list[str]:
    """The keys that are valid at a place in the settings."""
    model: type[BaseModel] = Settings
    parts = iter(location)
    for part in parts:
        annotation = next(field.annotation for name, field in model.model_fields.items() if part == (field.alias or name))
        model = next(inner for inner in _flatten(annotation) if isinstance(inner, type) and issubclass(inner, BaseModel))
        if get_origin(annotation) in (dict, tuple):
            next(parts, None)  # the name of a training, or a number in a list
    return [field.alias or name for name, field in model.model_fields.items() if name != "gcp"]


def _flatten(annotation: Any) -> Iterator[Any]:
    """The types within X | None, dict[str, X] or tuple[X, ...]."""
    inner = getattr(annotation, "__args__", ())
    if not inner:
        yield annotation
    for part in inner:
        yield from _flatten(part)


# ------------------------------------------------------------------------------------------------ schema


def schema() -> dict[str, Any]:
    """The JSON schema of a Pulumi.<stack>.yaml, for editors."""
    body = Settings.model_json_schema(by_alias=True, ref_template="#/$defs/{model}")
    definitions = body.pop("$defs")
    google = definitions.pop(body["properties"].pop("gcp")["$ref"].rpartition("/")[2])["properties"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The settings of a Trainstack stack",
        "type": "object",
        "properties": {
            "config": {
                "type": "object",
                "properties": {
                    **{f"gcp:{key}": value for key, value in google.items()},
                    **{f"{PROJECT}:{key}": value for key, value in body["properties"].items()},
                },
            },
        },
        "$defs": definitions,
    }


if __name__ == "__main__":  # python settings.py: print the schema; `make schema` keeps the file current
    print(json.dumps(schema(), indent=2, ensure_ascii=False))
