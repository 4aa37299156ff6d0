"""What has to be on this machine: Python and its packages, the Pulumi CLI with its login, Docker, and what the local target needs."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ops.answers import ABSENT, DENIED, Answer
from ops.doctor.finding import OK, PROBLEM, UNKNOWN, Finding, unanswered
from ops.doctor.stack import Subject
from ops.target import ROOT

MACHINE, PULUMI = "this machine", "Pulumi"
PYTHON = (3, 11)
DOCKER = (23, 0)  # builds with BuildKit
GCLOUD = (470, 0, 0)  # knows the soft deletion of buckets
TASK = 650 * 2**20  # bytes of memory that a TensorFlow process takes
ROOM = 2**30  # bytes on disk for runs
PACKAGES = 4 * 2**30  # bytes on disk for .venv
KMS = "gcpkms://"
INSTALL_GCLOUD = "install it (https://cloud.google.com/sdk/docs/install)"


def tool(command: Sequence[str]) -> str:
    return Path(command[0]).name


def questions(subject: Subject) -> dict[str, list[str]]:
    own = ROOT / ".venv" / "bin" / "pulumi"
    pulumi = str(own) if own.exists() else "pulumi"
    asked = {"pulumi": [pulumi, "version"]}
    if subject.name != "local":
        asked["login"] = [pulumi, "whoami", "--json", "--non-interactive"]
        asked["stacks"] = [pulumi, "--cwd", str(ROOT), "stack", "ls", "--json", "--non-interactive"]
        if subject.has_secrets:  # of the answer only its success is looked at
            of = ["--stack", subject.name, "--config-file", str(subject.file.resolve())]
            asked["secrets"] = [pulumi, "--cwd", str(ROOT), "config", "--show-secrets", "--json", "--non-interactive", *of]
        if subject.secrets_provider.startswith(KMS):
            asked["key"] = ["gcloud", "kms", "keys", "describe", subject.secrets_provider.removeprefix(KMS), "--format=json"]
    if subject.target == "gke":
        asked["gcloud"] = ["gcloud", "version", "--format=json"]
        asked["plugin"] = ["gke-gcloud-auth-plugin", "--version"]
        if subject.settings is None or subject.settings.builds_image:
            asked["docker"] = ["docker", "version", "--format={{json .}}"]
    if subject.target in ("gke", "kubernetes"):
        asked["kubectl"] = ["kubectl", "version", "--client", "--output=json"]
    return asked


def findings(subject: Subject, answers: Mapping[str, Answer]) -> list[Finding]:
    found = [_python(), _packages(subject), _settings(subject), _pulumi(answers["pulumi"])]
    if subject.target == "gke":
        found += [_gcloud(answers["gcloud"]), _plugin(answers["plugin"])]
        if "docker" in answers:
            found.append(_docker(answers["docker"]))
    if "kubectl" in answers:
        found.append(_kubectl(answers["kubectl"]))
    if subject.target == "local":
        found += _room(subject)
    return found + ([*_backend(subject, answers)] if "login" in answers else [])


# ------------------------------------------------------------------------------------------------------- versions


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < PYTHON:
        newer = ".".join(map(str, PYTHON))
        return Finding(
            MACHINE,
            "Python",
            PROBLEM,
            f"{version} is too old; install {newer} or newer, and name it as in `make ready PYTHON=python{newer}`.",
        )
    return Finding(MACHINE, "Python", OK, version)


def _packages(subject: Subject) -> Finding:
    if not subject.missing:
        return Finding(MACHINE, "packages", OK, "installed")
    fix = "run `make ready`, which installs everything into .venv"
    if (ROOT / ".venv" / ".ready").exists():
        fix = f"they are in .venv, so ask again with `make doctor STACK={subject.name}`"
    return Finding(MACHINE, "packages", PROBLEM, f"{', '.join(subject.missing)} cannot be imported by {sys.executable}; {fix}.")


def _settings(subject: Subject) -> Finding:
    if subject.problems:
        more = f" (and {len(subject.problems) - 1} more: `pulumi preview` shows them)" if len(subject.problems) > 1 else ""
        return Finding(MACHINE, "settings", PROBLEM, f"{subject.file.name}: {subject.problems[0]}{more}")
    if subject.settings is None:
        return Finding(MACHINE, "settings", UNKNOWN, f"{subject.unread}.")
    return Finding(MACHINE, "settings", OK, f"{subject.file.name} is valid, target {subject.target}")


def _pulumi(answer: Answer) -> Finding:
    locked = re.search(r"^pulumi==([\d.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    needed = numbers(locked[1]) if locked else ()
    if answer.code is None and not answer.missing:
        return unanswered(MACHINE, "pulumi", answer)
    if not answer.fine:
        return Finding(MACHINE, "pulumi", PROBLEM, f"{answer.why}; run `make ready`, which installs it.")
    there, version = numbers(answer.output), answer.output.strip().lstrip("v")
    if there[:1] != needed[:1] or there < needed:
        return Finding(
            MACHINE,
            "pulumi",
            PROBLEM,
            f"{version} does not go with the packages, which want {locked and locked[1]}; run `make ready`, which installs that.",
        )
    return Finding(MACHINE, "pulumi", OK, version)


def _gcloud(answer: Answer) -> Finding:
    if answer.code is None and not answer.missing:
        return unanswered(MACHINE, "gcloud", answer)
    if not answer.fine:
        return Finding(MACHINE, "gcloud", PROBLEM, f"{answer.why}; {INSTALL_GCLOUD}.")
    version = str((answer.data or {}).get("Google Cloud SDK", ""))
    if numbers(version) < GCLOUD:
        return Finding(MACHINE, "gcloud", PROBLEM, f"{version or 'this version'} is too old; run `gcloud components update`.")
    return Finding(MACHINE, "gcloud", OK, version)


def _plugin(answer: Answer) -> Finding:
    name = "gke-gcloud-auth-plugin"
    if answer.missing:
        sentence = (
            "it is not on PATH, and Pulumi cannot log in to the cluster without it; run `gcloud components install gke-gcloud-auth-plugin`, or install the package "
            "google-cloud-cli-gke-gcloud-auth-plugin where gcloud came as one."
        )
        return Finding(MACHINE, name, PROBLEM, sentence)
    if not answer.fine:
        return Finding(MACHINE, name, PROBLEM, f"it does not run ({answer.why}); install it again with `gcloud components reinstall`.")
    version = re.search(r"[\d.]*\d", answer.output)
    return Finding(MACHINE, name, OK, version[0] if version else "installed")


def _docker(answer: Answer) -> Finding:
    otherwise = "or let nothing be built: trainstack:image: {reference: NAME@sha256:…}"
    if answer.missing:
        return Finding(
            MACHINE,
            "docker",
            PROBLEM,
            f"it is not installed, and the image is built with it; install it (https://docs.docker.com/get-docker/), {otherwise}.",
        )
    server = (answer.data or {}).get("Server") or {}
    if not server:
        why = f" ({answer.why})" if answer.code or answer.code is None else ""
        return Finding(MACHINE, "docker", PROBLEM, f"its daemon does not answer{why}; start Docker, {otherwise}.")
    version = str(server.get("Version", ""))
    if numbers(version)[:2] < DOCKER:
        return Finding(
            MACHINE, "docker", PROBLEM, f"{version} is too old to build the image; update it to {DOCKER[0]} or newer, {otherwise}."
        )
    return Finding(MACHINE, "docker", OK, version)


def _kubectl(answer: Answer) -> Finding:
    version = ((answer.data or {}).get("clientVersion") or {}).get("gitVersion", "")
    return Finding(MACHINE, "kubectl", OK, version.lstrip("v") or "not installed, and nothing here needs it; it is good for looking around")


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers, so that 10 is more than 9."""
    found = re.search(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


# --------------------------------------------------------------------------------------------------------- Pulumi


def _backend(subject: Subject, answers: Mapping[str, Answer]) -> Iterator[Finding]:
    """Where the state is kept, whether the stack is there, and what encrypts its secrets."""
    login, stacks = answers["login"], answers["stacks"]
    if not login.fine:
        if login.missing or login.code is None:
            yield unanswered(PULUMI, "login", login)
        elif "PULUMI_ACCESS_TOKEN" not in login.errors:  # which it asks for where nobody has logged in to anything
            yield Finding(
                PULUMI, "login", PROBLEM, f"the backend cannot be used: {login.why}; mend that, or log in to another with `pulumi login`."
            )
        else:
            sentence = "nobody is logged in to a backend for the state; run `pulumi login` with yours (`make bootstrap PROJECT=…` makes a team's, on Google Cloud)."
            yield Finding(PULUMI, "login", PROBLEM, sentence)
        yield Finding(PULUMI, "stack", UNKNOWN, "its backend is not at hand.")
        return
    url = str((login.data or {}).get("url", ""))
    yield Finding(PULUMI, "login", OK, f"{(login.data or {}).get('user', 'somebody')} at {url}")
    own = url.split("://")[0] in ("file", "gs", "s3", "azblob")  # a backend that encrypts nothing by itself
    if stacks.data is None:
        yield unanswered(PULUMI, "stack", stacks)
    elif made(subject, answers) is None:
        key = " --secrets-provider=gcpkms://…" if url.startswith("gs://") else ""
        yield Finding(PULUMI, "stack", PROBLEM, f"there is no stack {subject.name} yet; run `pulumi stack init {subject.name}{key}`.")
    else:
        yield Finding(PULUMI, "stack", OK, f"{subject.name}, with {made(subject, answers)} resources")
    if own or subject.has_secrets or subject.secrets_provider:
        yield _secrets(subject, answers, own)


def _secrets(subject: Subject, answers: Mapping[str, Answer], own: bool) -> Finding:
    """Whether what encrypts the secrets can be used. Only a secret that is there can be tried."""
    tried = answers.get("secrets")
    if tried and tried.fine:
        return Finding(
            PULUMI, "secrets", OK, f"can be read, encrypted by {subject.secrets_provider or ('a passphrase' if own else 'the backend')}"
        )
    if tried and "incorrect passphrase" in tried.errors:
        return Finding(
            PULUMI,
            "secrets",
            PROBLEM,
            "the passphrase that is set is another than the one they were encrypted with; set PULUMI_CONFIG_PASSPHRASE to that.",
        )
    if subject.secrets_provider not in ("", "passphrase"):
        return _key(subject, answers.get("key"))
    if not own:
        return unanswered(PULUMI, "secrets", tried) if tried else Finding(PULUMI, "secrets", OK, "encrypted by the backend")
    file = os.environ.get("PULUMI_CONFIG_PASSPHRASE_FILE")
    if file and not Path(file).is_file():
        return Finding(PULUMI, "secrets", PROBLEM, f"PULUMI_CONFIG_PASSPHRASE_FILE names {file}, which is no file; correct it.")
    if file or "PULUMI_CONFIG_PASSPHRASE" in os.environ:
        return Finding(PULUMI, "secrets", OK, "encrypted by a passphrase, which is set")
    return Finding(
        PULUMI,
        "secrets",
        PROBLEM,
        "this backend encrypts by a passphrase, and none is set; export PULUMI_CONFIG_PASSPHRASE, or make the stack with --secrets-provider=gcpkms://… "
        "(`make bootstrap` prints it).",
    )


def _key(subject: Subject, answer: Answer | None) -> Finding:
    key = subject.secrets_provider
    if answer is None:
        return Finding(PULUMI, "secrets", OK, f"encrypted by {key}")
    if answer.data is None:
        if answer.trouble in (ABSENT, DENIED):
            sentence = f"{key}, which encrypts them, does not exist or your account may not see it ({answer.why}); ask its owner for the role cloudkms.cryptoKeyEncrypterDecrypter."
            return Finding(PULUMI, "secrets", PROBLEM, sentence)
        return unanswered(PULUMI, "secrets", answer)
    state = (answer.data.get("primary") or {}).get("state")
    if state != "ENABLED":
        return Finding(PULUMI, "secrets", PROBLEM, f"{key}, which encrypts them, is {state}; `make bootstrap` says how to bring it back.")
    return Finding(PULUMI, "secrets", OK, f"encrypted by {key}")


def made(subject: Subject, answers: Mapping[str, Answer]) -> int | None:
    """How many resources the stack has; none where there is no such stack."""
    for each in answers["stacks"].data or []:
        if str(each.get("name", "")).split("/")[-1] == subject.name:
            return int(each.get("resourceCount") or 0)
    return None


# ---------------------------------------------------------------------------------------------------------- local


def _room(subject: Subject) -> Iterator[Finding]:
    """Memory and disk for the trainings on this machine, and ports for its tasks."""
    if subject.settings is None:
        yield Finding(MACHINE, "memory", UNKNOWN, f"{subject.unread}.")
    else:
        import psutil

        tasks = sum(len(each.topology.tasks()) for each in subject.settings.trainings.values() if each.deploy)
        free, needed = psutil.virtual_memory().available, tasks * TASK
        if free < needed:
            sentence = f"{gigabytes(free)} are free, and {tasks} TensorFlow processes take about {gigabytes(needed)}; end other programs, or write fewer replicas."
            yield Finding(MACHINE, "memory", PROBLEM, sentence)
        else:
            yield Finding(MACHINE, "memory", OK, f"{gigabytes(free)} free, {tasks} tasks take about {gigabytes(needed)}")
    free, needed = shutil.disk_usage(ROOT).free, ROOM + (0 if (ROOT / ".venv" / ".ready").exists() else PACKAGES)
    if free < needed:
        yield Finding(
            MACHINE,
            "disk",
            PROBLEM,
            f"{gigabytes(free)} are free where this checkout is, and {gigabytes(needed)} are needed; make room, or move it.",
        )
    else:
        yield Finding(MACHINE, "disk", OK, f"{gigabytes(free)} free")
    try:
        with socket.create_server(("127.0.0.1", 0)):
            yield Finding(MACHINE, "ports", OK, "127.0.0.1 can be listened on")
    except OSError as error:
        yield Finding(
            MACHINE,
            "ports",
            PROBLEM,
            f"no port of 127.0.0.1 can be listened on ({error.strerror}); allow that, since tasks talk to each other there.",
        )


def gigabytes(amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB"
