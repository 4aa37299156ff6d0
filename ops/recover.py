"""After an `up` that was killed: what it made and did not write down is taken into the stack's state, so that nothing is made twice or forgotten.

Before the engine makes a thing it notes a *pending creation*, without the thing's id. Most ids follow from the inputs, and the thing is adopted under that
id; the `pulumi refresh` that comes after drops what was never made. Keys and secret versions have ids that only Google knows: those that the
state does not know are removed, and the next `up` makes new ones. Members of roles and enabled services can be made again at no harm.
What is older than the interrupted `up` is somebody else's and left alone: a key that a person made, a bucket that an earlier stack kept.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from ops.target import OpsError

PLUGINS = r"pulumi-(language|resource)-|/language-host\b|-m pulumi\.dynamic\b"
CLOCKS = timedelta(minutes=5)  # by which the clocks of Google and of this machine may differ
ROOT = Path(__file__).resolve().parent.parent
Resource = dict[str, Any]

# From a type to the id of a thing, made of its inputs; `project` is the provider's where a thing names none.
IDS = {
    "gcp:compute/network:Network": "projects/{project}/global/networks/{name}",
    "gcp:compute/subnetwork:Subnetwork": "projects/{project}/regions/{region}/subnetworks/{name}",
    "gcp:compute/router:Router": "projects/{project}/regions/{region}/routers/{name}",
    "gcp:compute/routerNat:RouterNat": "{project}/{region}/{router}/{name}",
    "gcp:compute/securityPolicy:SecurityPolicy": "projects/{project}/global/securityPolicies/{name}",
    "gcp:dns/managedZone:ManagedZone": "projects/{project}/managedZones/{name}",
    "gcp:dns/recordSet:RecordSet": "projects/{project}/managedZones/{managedZone}/rrsets/{name}/{type}",
    "gcp:container/cluster:Cluster": "projects/{project}/locations/{location}/clusters/{name}",
    "gcp:container/nodePool:NodePool": "{cluster}/nodePools/{name}",
    "gcp:serviceaccount/account:Account": "projects/{project}/serviceAccounts/{accountId}@{project}.iam.gserviceaccount.com",
    "gcp:storage/bucket:Bucket": "{name}",
    "gcp:artifactregistry/repository:Repository": "projects/{project}/locations/{location}/repositories/{repositoryId}",
    "gcp:secretmanager/secret:Secret": "projects/{project}/secrets/{secretId}",
    "pulumi-python:dynamic/trainstack:LocalTraining": "{plan[folder]}",
}
# What a provider does when the thing is there, and cannot read again: not in the outputs of an adopted thing, so that the next `up` does it.
CLUSTER = "gcp:container/cluster:Cluster"
AFTERWARDS = {CLUSTER: ("removeDefaultNodePool",)}
POOL = "gcp:container/nodePool:NodePool"
BUCKET = "gcp:storage/bucket:Bucket"
KEY = "gcp:serviceaccount/key:Key"
VERSION = "gcp:secretmanager/secretVersion:SecretVersion"


def recover(stack: str) -> Iterator[str]:
    """Mends the state and says what it does, a line at a time. `pulumi refresh` must follow; on this machine `up` and `destroy` find out by themselves."""
    files = _files()
    if at_work := _at_work(files, stack):
        raise OpsError(f"another pulumi (process {at_work}) is at work on this stack; wait until it has ended, or end it with Ctrl-C.")
    yield from _end(orphans())
    yield from _mend(files)
    _pulumi("cancel", "--yes", "--stack", stack, check=False)  # the lock of a killed engine
    exported = json.loads(_pulumi("stack", "export", "--stack", stack))
    deployment: dict[str, Any] = exported["deployment"]
    pending = deployment.pop("pending_operations", None) or []
    if not pending:
        yield "nothing is pending"
        return
    resources: list[Resource] = deployment.setdefault("resources", [])
    since = datetime.fromisoformat(deployment["manifest"]["time"]) - CLOCKS
    for operation in pending:
        if operation["type"] == "creating":
            yield from _adopt_or_remove(operation["resource"], resources, since)
    _pulumi("stack", "import", "--stack", stack, stdin=json.dumps(exported))


def _end(processes: list[psutil.Process]) -> Iterator[str]:
    for process in processes:
        yield f"ended {process.pid}, which an interrupted pulumi left behind"
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=3)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=3)


def _files() -> Path | None:
    """The folder of a backend of files."""
    url = urlsplit(json.loads(_pulumi("whoami", "--json"))["url"])
    return Path(url.path) / ".pulumi" if url.scheme == "file" else None


def _at_work(files: Path | None, stack: str) -> int | None:
    """The engine that holds the stack's lock and is still there. One that was killed has left its lock; elsewhere nobody can tell."""
    for lock in files.glob(f"locks/**/{stack}/*.json") if files else ():
        with suppress(ValueError, KeyError, psutil.Error):
            holder = json.loads(lock.read_text())
            if holder["hostname"] == socket.gethostname() and psutil.Process(holder["pid"]).name() == "pulumi":
                return int(holder["pid"])
    return None


def _mend(files: Path | None) -> Iterator[str]:
    """A backend of files keeps attributes beside each state. They can be done without, but an empty file of them makes the state unreadable."""
    for attributes in files.glob("stacks/**/*.attrs") if files else ():
        if not attributes.read_text().strip():
            attributes.unlink()
            yield f"removed {attributes.name}, which was cut short"


def _adopt_or_remove(lost: Resource, resources: list[Resource], since: datetime) -> Iterator[str]:
    name, kind = lost["urn"].rpartition("::")[2], lost["type"]
    if kind in (KEY, VERSION):
        for unknown, remove in _unknown(lost, resources, since):
            yield f"removed {unknown}, of which the state knew nothing"
            _run(remove)
        return
    identity = id_of(lost, resources)
    if identity is None:
        yield f"{name} will be made again, which does no harm"
        return
    if kind == BUCKET and not _is_new(identity, since):
        yield f"{name}: left {identity} alone, which was not made by the interrupted `up`"
        return
    if kind in (CLUSTER, POOL):
        yield from _wait_for_gke(identity)
    yield f"adopted {name} as {identity}, if it is there"
    for other in resources:
        if other["urn"] == lost["urn"]:
            other["delete"] = True  # a replacement was under way: the old one goes when the next `up` is done
    outputs = {key: value for key, value in lost.get("inputs", {}).items() if key not in AFTERWARDS.get(kind, ())}
    resources.append({**lost, "id": identity, "custom": True, "outputs": outputs})


def _is_new(bucket: str, since: datetime) -> bool:
    described = _run(["gcloud", "storage", "buckets", "describe", f"gs://{bucket}", "--format=json"], check=False)
    return bool(described) and datetime.fromisoformat(json.loads(described)["creation_time"]) > since


def _wait_for_gke(identity: str) -> Iterator[str]:
    """A cluster takes ten minutes to make; one that is half made must not be read."""
    project, location, cluster = re.match(r"projects/([^/]+)/locations/([^/]+)/clusters/([^/]+)", identity).groups()  # type: ignore[union-attr]
    place = [f"--location={location}", f"--project={project}"]
    for operation in _listed(["gcloud", "container", "operations", "list", *place, "--filter=status!=DONE", "--format=json"]):
        if f"/clusters/{cluster}" in operation["targetLink"]:
            yield f"waiting until GKE has done {operation['operationType']} (minutes)"
            _run(["gcloud", "container", "operations", "wait", operation["name"], *place])


def id_of(resource: Resource, resources: list[Resource]) -> str | None:
    """The id that a thing has if it was made, or None where making it twice does no harm."""
    inputs = resource.get("inputs", {})
    if resource["type"].startswith("kubernetes:"):
        metadata = inputs.get("metadata", {})
        return "/".join(part for part in (metadata.get("namespace"), metadata.get("name")) if part)
    template = IDS.get(resource["type"])
    if template is None:
        return None
    try:
        return template.format(**{"project": _project(resource, resources), **inputs})
    except KeyError as missing:
        raise OpsError(
            f"{resource['urn'].rpartition('::')[2]}: its id needs {missing}, which its inputs do not have; look in the console whether it is there, delete it, and run this again."
        ) from None


def _project(resource: Resource, resources: list[Resource]) -> str:
    provider = resource.get("provider", "").rpartition("::")[0]
    found = next((each for each in resources if each["urn"] == provider), {})
    return str(found.get("inputs", {}).get("project", ""))


def _unknown(lost: Resource, resources: list[Resource], since: datetime) -> Iterator[tuple[str, list[str]]]:
    """What a parent has and the state does not know, with the command that removes it."""
    known = {each["id"].rpartition("/")[2] for each in resources if each["type"] == lost["type"] and each.get("id")}
    if lost["type"] == KEY:
        account = lost["inputs"]["serviceAccountId"]
        project, email = re.fullmatch(r"projects/([^/]+)/serviceAccounts/(.+)", account).groups()  # type: ignore[union-attr]
        of = [f"--iam-account={email}", f"--project={project}"]
        for key in _listed(["gcloud", "iam", "service-accounts", "keys", "list", *of, "--managed-by=user", "--format=json"]):
            number = key["name"].rpartition("/")[2]
            if number not in known and datetime.fromisoformat(key["validAfterTime"]) > since:
                yield key["name"], ["gcloud", "iam", "service-accounts", "keys", "delete", number, *of, "--quiet"]
    else:
        project, secret = re.fullmatch(r"projects/([^/]+)/secrets/(.+)", lost["inputs"]["secret"]).groups()  # type: ignore[union-attr]
        mine = {
            each["id"].rpartition("/")[2] for each in resources if each["type"] == VERSION and f"/secrets/{secret}/" in each.get("id", "")
        }
        newest = max((int(number) for number in mine), default=0)
        for version in _listed(["gcloud", "secrets", "versions", "list", secret, f"--project={project}", "--format=json"]):
            number = version["name"].rpartition("/")[2]
            if int(number) > newest and version["state"] != "DESTROYED" and datetime.fromisoformat(version["createTime"]) > since:
                remove = ["gcloud", "secrets", "versions", "destroy", number, f"--secret={secret}", f"--project={project}", "--quiet"]
                yield version["name"], remove


def orphans() -> list[psutil.Process]:
    """Language hosts and plugins of this checkout whose engine is gone."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.cwd() == str(ROOT) and re.search(PLUGINS, " ".join(process.cmdline()))
            if ours and not any(parent.name() == "pulumi" for parent in process.parents()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _listed(command: list[str]) -> list[Mapping[str, Any]]:
    answer: list[Mapping[str, Any]] = json.loads(_run(command) or "[]")
    return answer


def _pulumi(*arguments: str, stdin: str | None = None, check: bool = True) -> str:
    return _run(["pulumi", *arguments], stdin, check)


def _run(command: list[str], stdin: str | None = None, check: bool = True) -> str:
    try:
        done = subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, text=True)
    except FileNotFoundError:
        raise OpsError(f"{command[0]} is not on PATH, and it is needed to look at what is there; install it and run this again.") from None
    if check and done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise OpsError(
            f"`{' '.join(command)}` failed: {said[-1] if said else f'exit code {done.returncode}'}; mend that and run this again."
        )
    return done.stdout
