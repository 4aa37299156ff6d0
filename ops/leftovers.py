"""`trainstack leftovers`: what of a stack is still there when it should be gone, what of it costs money, and how to delete it. It only looks.

A stack knows its things by their labels and their names, which are fixed. What GKE made for its cluster carries the cluster's name, or the namespace of what it
was made for in its description, or is in the stack's own network. Everything is listed and compared here: a filter that misses a thing would hide it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from naming import PROJECT, Names
from ops.answers import DISABLED, LOGIN, Answer, ask, counting
from ops.target import OpsError, settings_of

SECONDS = 90.0  # for all lists together
BUCKETS = ("data", "checkpoints", "logs")
ROLES = ("nodes", "trainer")
CLUSTER = "goog-k8s-cluster-name"  # GKE's label on what it makes for a cluster
Item = Mapping[str, Any]


@dataclass(frozen=True)
class Leftover:
    kind: str
    name: str
    location: str
    costs: str
    delete: str  # the command
    kept: str = ""  # why it is there on purpose


@dataclass(frozen=True)
class Kind:
    """Something that can be left: how it is listed and deleted, and what it costs."""

    name: str
    words: str  # of gcloud, before `list` and `delete`
    costs: str | Callable[[Item], str] = "free"
    everywhere: str = ""  # what its deletion needs where it is in no zone and no region


def _of_size(item: Item) -> str:
    return f"by its size: {item.get('sizeGb') or item.get('diskSizeGb') or '?'} GB {str(item.get('type', '')).rpartition('/')[2]}".rstrip()


def _filestore(item: Item) -> str:
    return f"by its size: {', '.join(str(share.get('capacityGb', '?')) for share in item.get('fileShares', []))} GB {item.get('tier', '')}".rstrip()


def _repository(item: Item) -> str:
    return f"by its size: {int(item.get('sizeBytes', 0)) / 2**30:.1f} GB"


def _address(item: Item) -> str:
    return "free" if item.get("addressType") == "INTERNAL" else "by the hour, the more if nobody uses it"


# In the order in which they can be deleted: what uses others goes first.
HOURLY, GLOBAL = "by the hour", "--global"
KINDS = (
    Kind("GKE cluster", "container clusters", "by the hour, with all its nodes"),
    Kind("forwarding rule", "compute forwarding-rules", HOURLY, GLOBAL),
    Kind("target proxy (HTTP)", "compute target-http-proxies", everywhere=GLOBAL),
    Kind("target proxy (HTTPS)", "compute target-https-proxies", everywhere=GLOBAL),
    Kind("URL map", "compute url-maps", everywhere=GLOBAL),
    Kind("certificate", "compute ssl-certificates", everywhere=GLOBAL),
    Kind("target pool", "compute target-pools"),
    Kind("backend service", "compute backend-services", everywhere=GLOBAL),
    Kind("health check", "compute health-checks", everywhere=GLOBAL),
    Kind("network endpoint group", "compute network-endpoint-groups", everywhere=GLOBAL),
    Kind("security policy", "compute security-policies", "by the month, with its rules", GLOBAL),
    Kind("managed instance group", "compute instance-groups managed", "free by itself, but it makes instances"),
    Kind("instance group", "compute instance-groups unmanaged"),
    Kind("instance template", "compute instance-templates"),
    Kind("instance", "compute instances", HOURLY),
    Kind("disk", "compute disks", _of_size),
    Kind("snapshot", "compute snapshots", _of_size),
    Kind("Filestore instance", "filestore instances", _filestore),
    Kind("address", "compute addresses", _address, GLOBAL),
    Kind("firewall rule", "compute firewall-rules"),
    Kind("router with its NAT", "compute routers", HOURLY),
    Kind("DNS zone", "dns managed-zones", "by the month"),
    Kind("subnetwork", "compute networks subnets"),
    Kind("network", "compute networks"),
    Kind("secret", "secrets", "by the month and version"),
    Kind("image repository", "artifacts repositories", _repository),
    Kind("image", "artifacts docker images", "by its size"),
    Kind("bucket", "storage buckets", "by what is in it"),
    Kind("service account", "iam service-accounts"),
)


@dataclass(frozen=True)
class Stack:
    """What is known of the stack from its settings file, which is read unchecked: it may be about to be deleted, too."""

    names: Names
    written: Mapping[str, Any]

    def part(self, key: str) -> Mapping[str, Any]:
        return self.written.get(f"{PROJECT}:{key}") or {}

    @property
    def location(self) -> str:
        return str(self.part("cluster").get("location") or self.written.get("gcp:zone") or self.written.get("gcp:region") or "")

    @property
    def images(self) -> str:
        """Where its images are in a repository that is not its own; empty where the repository goes with the stack."""
        registry = self.part("registry")
        if registry.get("create", True):
            return ""
        if registry.get("domain") == "gcr.io":
            return f"us-docker.pkg.dev/{self.names.project}/gcr.io/trainer"  # as gcloud wants it
        region = "-".join(self.location.split("-")[:2])
        return f"{region}-docker.pkg.dev/{self.names.project}/{registry.get('name')}/trainer"

    @property
    def fixed(self) -> set[str]:
        """The names that only this stack's things have."""
        names = self.names
        accounts = {f"{names.account(role)}@{names.project}.iam.gserviceaccount.com" for role in ROLES}
        return {names.base, f"{names.base}-nodes", f"{names.base}-googleapis", *map(names.bucket, BUCKETS), *accounts}

    def kept(self, kind: Kind, name: str) -> str:
        if kind.name == "bucket":
            for each in BUCKETS:
                wanted = self.part("storage").get(each) or {}
                if name == wanted.get("existing"):
                    return f"storage.{each} uses it: existing"
                if name == self.names.bucket(each) and not wanted.get("existing") and wanted.get("on_destroy", "keep") == "keep":
                    return f"storage.{each}: on_destroy: keep"
        return ""


def report(stack: str, config_file: Path | None, as_json: Callable[[object], None] | None) -> int:
    """Looks, and says what is left. 0: nothing but what was kept on purpose."""
    written = settings_of(stack, config_file)
    target, project = written.get(f"{PROJECT}:target", "local"), written.get("gcp:project")
    if target != "gke":
        return _elsewhere(stack, str(target), as_json)
    if not project:
        raise OpsError(
            f"stack {stack} has no gcp:project, so nobody knows where to look; write it as it was, or name the file with --config-file."
        )
    subject = Stack(Names(str(project), stack), written)
    answers = ask(questions(subject), SECONDS, counting(f"looking through {project}", bool(as_json)))
    found, unseen = sweep(subject, answers)
    if as_json:
        as_json({"left": [asdict(each) for each in found], "not_looked_at": unseen})
    else:
        for line in lines(subject, found, unseen):
            print(line)
    return 1 if unseen or any(not each.kept for each in found) else 0


def _elsewhere(stack: str, target: str, as_json: Callable[[object], None] | None) -> int:
    if as_json:
        as_json({"left": [], "not_looked_at": {}})
    elif target == "kubernetes":
        print(
            f"Stack {stack} makes nothing outside of its cluster; `kubectl get all,pvc --namespace={Names('', stack).base}` shows what is left there."
        )
    else:
        print(f"Stack {stack} has target {target}, and nothing on Google Cloud.")
    return 0


def questions(subject: Stack) -> dict[str, list[str]]:
    """A list of each kind of thing in the project."""
    asked = {}
    for kind in KINDS:
        where = [f"--project={subject.names.project}", "--format=json"]
        more = {"bucket": ["--raw"], "image": [subject.images, "--include-tags"]}.get(kind.name, [])
        if kind.name != "image" or subject.images:
            asked[kind.name] = ["gcloud", *kind.words.split(), "list", *more, *where]
    return asked


def sweep(subject: Stack, answers: Mapping[str, Answer]) -> tuple[list[Leftover], dict[str, str]]:
    """What of the stack is in the lists, and which lists there are not, with the reason."""
    if any(answer.missing for answer in answers.values()):
        raise OpsError(
            "gcloud is not installed, and it is what looks; install it (https://cloud.google.com/sdk/docs/install) and run this again."
        )
    if any(answer.trouble == LOGIN for answer in answers.values()):
        raise OpsError("nobody is logged in to gcloud, so nothing can be looked at; run `gcloud auth login` and this again.")
    found, unseen = [], {}
    for kind in KINDS:
        answer = answers.get(kind.name)
        if answer is None:
            continue
        if answer.data is None:
            if answer.trouble != DISABLED:  # a service that is off has nothing that is on
                unseen[kind.name] = answer.why
            continue
        found += [_leftover(subject, kind, item) for item in answer.data if belongs(subject, kind, item)]
    return found, unseen


# ------------------------------------------------------------------------------------------------------------- whose


def belongs(subject: Stack, kind: Kind, item: Item) -> bool:
    """Whether a thing is this stack's, or was made for its cluster."""
    names, base = subject.names, subject.names.base
    if kind.name == "image":
        tags = item.get("tags") or []
        return names.short in (tags.split(",") if isinstance(tags, str) else tags)
    labels = item.get("labels") or item.get("resourceLabels") or (item.get("properties") or {}).get("labels") or {}
    if names.labels().items() <= labels.items() or labels.get(CLUSTER) == base:
        return True
    if _name(item) in subject.fixed:
        return True
    if any(str(network).endswith(f"/networks/{base}") for network in _networks(item)):
        return True
    return _described(item, names) or _called(_name(item), subject)


def _networks(item: Item) -> Iterable[str]:
    if isinstance(item.get("network"), str):
        yield item["network"]
    for interface in item.get("networkInterfaces") or []:
        yield interface.get("network", "")


def _described(item: Item, names: Names) -> bool:
    """By its description: Kubernetes says there for what of which namespace it made a thing, and so does the stack."""
    text = str(item.get("description") or "")
    if text.endswith(f", stack {names.stack}"):
        return True
    try:
        said = json.loads(text)
    except ValueError:
        return False
    values = {key: str(value) for key, value in said.items()} if isinstance(said, dict) else {}
    in_namespace = any(value.startswith(f"{names.base}/") for key, value in values.items() if key.startswith("kubernetes.io/"))
    return in_namespace or names.base in (values.get("namespace"), values.get("kubernetes.io/created-for/pvc/namespace"))


def _called(name: str, subject: Stack) -> bool:
    """By a name that GKE gave it. Behind the cluster's name comes a hash or a pool; behind the namespace, what it was made for."""
    base = re.escape(subject.names.base)
    trainings = "|".join(map(re.escape, subject.part("trainings"))) or "(?!)"
    return bool(
        re.match(rf"gke-{base}-([0-9a-f]{{8}}-|(cpu|worker|default-pool|gpu)-)", name)
        or re.match(rf"k8s\d?-([a-z]{{2}}-)?[0-9a-z]{{8}}-{base}-({trainings})", name)
    )


# ------------------------------------------------------------------------------------------------------------- telling


def _name(item: Item) -> str:
    return str(item.get("email") or item.get("version") or item.get("name") or "").rpartition("/")[2]


def _place(kind: Kind, item: Item) -> tuple[str, str]:
    """The flag that says where a thing is, and the place; empty for what is everywhere."""
    if kind.name == "GKE cluster":  # its `zone` may be a region
        return "--location", str(item.get("location", ""))
    for flag in ("zone", "region"):
        if item.get(flag):
            return f"--{flag}", str(item[flag]).rpartition("/")[2]
    inside = re.search(r"/locations/([^/]+)/", str(item.get("name", "")))
    return ("--location", inside[1]) if inside else ("", "")


def _leftover(subject: Stack, kind: Kind, item: Item) -> Leftover:
    name, (flag, place) = _name(item), _place(kind, item)
    costs = kind.costs if isinstance(kind.costs, str) else kind.costs(item)
    return Leftover(kind.name, name, place, costs, _delete(subject, kind, item, name, flag, place), subject.kept(kind, name))


def _delete(subject: Stack, kind: Kind, item: Item, name: str, flag: str, place: str) -> str:
    project = f"--project={subject.names.project}"
    if kind.name == "bucket":
        return shlex.join(["gcloud", "storage", "rm", "--recursive", f"gs://{name}"])
    if kind.name == "image":
        return shlex.join(["gcloud", *kind.words.split(), "delete", f"{item.get('package')}@{name}", "--delete-tags", project])
    where = [f"{flag}={place}"] if place else [kind.everywhere] if kind.everywhere else []
    command = shlex.join(["gcloud", *kind.words.split(), "delete", name, *where, project])
    if kind.name == "DNS zone":  # which must be empty
        return f"{shlex.join(['gcloud', 'dns', 'record-sets', 'import', '/dev/null', '--delete-all-existing', f'--zone={name}', project])} && {command}"
    return command


def lines(subject: Stack, found: list[Leftover], unseen: Mapping[str, str]) -> Iterable[str]:
    names = subject.names
    left, kept = [each for each in found if not each.kept], [each for each in found if each.kept]
    if any(each.kind == "GKE cluster" for each in left):
        yield f"The cluster {names.base} is there, so the stack seems to be up; take it down with `make down STACK={names.stack}` before you delete anything by hand.\n"
    if left:
        yield f"Left of stack {names.stack} in {names.project}; the commands delete it, from top to bottom:"
        for each in left:
            yield f"  {each.kind} {each.name}{f' in {each.location}' if each.location else ''}: {_paid(each.costs)}"
            yield f"    {each.delete}"
    elif not unseen:
        yield f"Nothing{' else' if kept else ''} is left of stack {names.stack} in {names.project}."
    if kept:
        yield "Kept on purpose:"
        for each in kept:
            yield f"  {each.kind} {each.name} ({each.kept}): {_paid(each.costs)}; to delete it: {each.delete}"
    if unseen:
        yield "Not looked at, so there may be more:"
        reasons: dict[str, list[str]] = {}
        for kind, why in unseen.items():
            reasons.setdefault(why, []).append(kind)
        for why, kinds in reasons.items():
            yield f"  {', '.join(kinds)}: {why}"


def _paid(costs: str) -> str:
    return costs if costs.startswith("free") else f"paid {costs}"
