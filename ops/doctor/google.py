"""What the first `up` needs of Google Cloud: a login, a project that can pay, services, quota, and GPUs where the nodes should be."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from ops.answers import ABSENT, DENIED, DISABLED, LOGIN, Answer
from ops.doctor import machine
from ops.doctor.finding import OK, PROBLEM, UNKNOWN, Finding, unanswered
from ops.doctor.stack import Subject

GROUP = "Google Cloud"
# A login that Pulumi finds before it looks for application default credentials.
FROM_ENVIRONMENT = ("GOOGLE_CREDENTIALS", "GOOGLE_OAUTH_ACCESS_TOKEN")
QUOTAS = "https://console.cloud.google.com/iam-admin/quotas?project="


def questions(subject: Subject) -> dict[str, list[str]]:
    asked = {
        "account": ["gcloud", "auth", "list", "--filter=status:ACTIVE", "--format=json"],
        "credentials": ["gcloud", "auth", "application-default", "print-access-token", "--quiet"],
    }
    if not subject.project:
        return asked
    project = f"--project={subject.project}"
    asked |= {
        "project": ["gcloud", "projects", "describe", subject.project, "--format=json"],
        "billing": ["gcloud", "billing", "projects", "describe", subject.project, "--format=json"],
        "services": ["gcloud", "services", "list", "--enabled", project, "--format=json"],
    }
    if subject.settings:
        asked["region"] = ["gcloud", "compute", "regions", "describe", subject.settings.region, project, "--format=json"]
        asked["quotas"] = ["gcloud", "compute", "project-info", "describe", project, "--format=json"]
        if wanted := sorted(set(subject.settings.accelerators.values())):
            asked["gpus"] = [
                "gcloud",
                "compute",
                "accelerator-types",
                "list",
                project,
                f"--filter=name=({' '.join(wanted)})",
                "--format=json",
            ]
    return asked


def findings(subject: Subject, answers: Mapping[str, Answer]) -> list[Finding]:
    found = [_account(answers["account"]), _credentials(answers["credentials"])]
    if not subject.project:
        sentence = f"none is written; run `pulumi config set gcp:project MY-PROJECT --stack {subject.name}`."
        return [*found, Finding(GROUP, "project", PROBLEM, sentence)]
    found += [_project(subject, answers["project"]), _billing(subject, answers["billing"])]
    if subject.settings is None:
        return [*found, *(Finding(GROUP, each, UNKNOWN, f"{subject.unread}.") for each in ("services", "quota", "GPUs"))]
    found.append(_services(subject, answers["services"]))
    found += [*_place(subject, answers["region"]), *_quotas(subject, answers)]
    if "gpus" in answers:
        found += _gpus(subject, answers["gpus"], answers["region"])
    return found


def _account(answer: Answer) -> Finding:
    if answer.data is None:
        return unanswered(GROUP, "login", answer)
    if not answer.data:
        return Finding(GROUP, "login", PROBLEM, "nobody is logged in to gcloud; run `gcloud auth login`.")
    return Finding(GROUP, "login", OK, str(answer.data[0]["account"]))


def _credentials(answer: Answer) -> Finding:
    """Of the answer only its success is looked at: what it prints is a token."""
    name = "application default credentials"
    if here := next((each for each in FROM_ENVIRONMENT if os.environ.get(each)), None):
        return Finding(GROUP, name, OK, f"not needed: Pulumi uses {here}")
    if answer.fine:
        return Finding(GROUP, name, OK, "there, and accepted")
    if answer.trouble == LOGIN:
        return Finding(
            GROUP, name, PROBLEM, "there are none that work, and Pulumi logs in with them; run `gcloud auth application-default login`."
        )
    return unanswered(GROUP, name, answer)


def _project(subject: Subject, answer: Answer) -> Finding:
    if answer.data is not None:
        state = answer.data.get("lifecycleState")
        if state == "ACTIVE":
            return Finding(GROUP, "project", OK, subject.project)
        sentence = f"{subject.project} is being deleted; run `gcloud projects undelete {subject.project}`, or write another gcp:project."
        return Finding(GROUP, "project", PROBLEM, sentence)
    if answer.trouble in (ABSENT, DENIED):
        sentence = (
            f"{subject.project} does not exist, or your account may not see it; correct gcp:project (`gcloud projects list` shows yours), or make it with "
            f"`gcloud projects create {subject.project}`."
        )
        return Finding(GROUP, "project", PROBLEM, sentence)
    return unanswered(GROUP, "project", answer)


def _billing(subject: Subject, answer: Answer) -> Finding:
    if answer.data is None:
        return unanswered(GROUP, "billing", answer)
    if not answer.data.get("billingEnabled"):
        sentence = (
            f"{subject.project} has no billing account that is open, so nothing can be made in it; run `gcloud billing projects link {subject.project} "
            "--billing-account=ACCOUNT` (`gcloud billing accounts list` shows yours)."
        )
        return Finding(GROUP, "billing", PROBLEM, sentence)
    return Finding(GROUP, "billing", OK, str(answer.data.get("billingAccountName", "on")))


def _services(subject: Subject, answer: Answer) -> Finding:
    assert subject.settings
    if answer.data is None:
        if answer.trouble == DISABLED:
            sentence = f"the one that enables the others is off; run `gcloud services enable serviceusage.googleapis.com --project={subject.project}`."
            return Finding(GROUP, "services", PROBLEM, sentence)
        return unanswered(GROUP, "services", answer)
    enabled = {each.get("config", {}).get("name", each.get("name", "").rpartition("/")[2]) for each in answer.data}
    missing = [service for service in subject.settings.services if f"{service}.googleapis.com" not in enabled]
    sentence = f"the first `up` enables {', '.join(missing)}" if missing else f"all {len(subject.settings.services)} are enabled"
    return Finding(GROUP, "services", OK, sentence)


# ---------------------------------------------------------------------------------------------------- region and quota


def _place(subject: Subject, answer: Answer) -> Iterator[Finding]:
    assert subject.settings
    settings = subject.settings
    if answer.data is None:
        if answer.trouble == ABSENT:
            sentence = f"there is no region {settings.region}; write another cluster.location (`gcloud compute regions list` shows them)."
            yield Finding(GROUP, "location", PROBLEM, sentence)
        else:
            yield unanswered(GROUP, "location", answer)
        return
    zones = _zones(answer.data)
    written = [*settings.cluster.node_locations, *([settings.location] if settings.location != settings.region else [])]
    if unknown := sorted({zone for zone in written if zone not in zones}):
        sentence = (
            f"{settings.region} has no zone {', '.join(unknown)}; write zones of {', '.join(zones)} in cluster.location and node_locations."
        )
        yield Finding(GROUP, "location", PROBLEM, sentence)
    else:
        yield Finding(GROUP, "location", OK, settings.location)


def _zones(region: Mapping[str, Any]) -> list[str]:
    return sorted(str(zone).rpartition("/")[2] for zone in region.get("zones", []))


def _quotas(subject: Subject, answers: Mapping[str, Answer]) -> Iterator[Finding]:
    """For each quota: what the nodes need at their largest, and what is there. Where the stack is up, part of what is used is its own."""
    assert subject.settings
    regional, everywhere = subject.settings.quotas
    up = bool(machine.made(subject, answers)) if "stacks" in answers else False
    for needed, answer, place in ((regional, answers["region"], subject.settings.region), (everywhere, answers["quotas"], "all regions")):
        if answer.data is None:
            yield unanswered(GROUP, f"quota in {place}", answer)
            continue
        there = {str(each["metric"]): each for each in answer.data.get("quotas", [])}
        for name, amount in sorted(needed.items()):
            if finding := _quota(subject, name, amount, there, place, up):
                yield finding


def _quota(subject: Subject, name: str, amount: int, there: Mapping[str, Mapping[str, float]], place: str, up: bool) -> Finding | None:
    title = f"quota {name}"
    ask = f"ask for more at {QUOTAS}{subject.project}, or write fewer workers, another accelerator or another cluster.location"
    if name not in there:
        if "GPUS" not in name:
            return None  # not every region counts the processors of every family
        return Finding(GROUP, title, UNKNOWN, f"{place} does not list it; look for it at {QUOTAS}{subject.project}, {amount} are needed.")
    limit, used = int(there[name]["limit"]), int(there[name].get("usage", 0))
    free = limit if up else limit - used
    if free >= amount:
        return Finding(GROUP, title, OK, f"{amount} needed, {free} free in {place}" if not up else f"{amount} needed, {limit} in {place}")
    on_demand = name.removeprefix("PREEMPTIBLE_")
    if not limit and on_demand != name and on_demand in there:
        other = int(there[on_demand]["limit"]) - (0 if up else int(there[on_demand].get("usage", 0)))
        if other >= amount:  # a project that was given none for spot nodes uses the quota of the others
            return Finding(GROUP, title, OK, f"none, so spot nodes use {on_demand}: {amount} needed, {other} free in {place}")
    taken = f", of which {used} are in use" if used and not up else ""
    return Finding(GROUP, title, PROBLEM, f"{amount} are needed in {place} and the project has {limit}{taken}; {ask}.")


def _gpus(subject: Subject, answer: Answer, region: Answer) -> Iterator[Finding]:
    """Whether each kind of GPU can be had in the zones of the nodes. GKE refuses a pool of which one zone has none."""
    assert subject.settings
    settings = subject.settings
    chosen = {*settings.cluster.node_locations, *([settings.location] if settings.location != settings.region else [])}
    zones = sorted(chosen) or _zones(region.data or {})
    for name, label in sorted(settings.accelerators.items()):
        if answer.data is None or not zones:
            yield unanswered(GROUP, f"GPU {name}", answer if answer.data is None else region)
            continue
        having = sorted({str(each["zone"]).rpartition("/")[2] for each in answer.data if each.get("name") == label})
        yield Finding(GROUP, f"GPU {name}", *_had(settings.region, settings.location, zones, having))


def _had(region: str, location: str, zones: list[str], having: list[str]) -> tuple[str, str]:
    """How it is with a GPU that some zones have, where the nodes are in others."""
    here, without = [zone for zone in having if zone.startswith(f"{region}-")], [zone for zone in zones if zone not in having]
    if not without:
        return OK, f"in {', '.join(zones)}"
    if not here:
        regions = sorted({zone.rpartition("-")[0] for zone in having})
        instead = (
            f"a cluster.location in one of {', '.join(regions)}"
            if regions
            else "another accelerator: no zone that the project may use has it"
        )
        return PROBLEM, f"{region} has none; write {instead}."
    if location in without:
        return PROBLEM, f"{location} has none; write cluster.location: {here[0]}, which has."
    have = "has" if len(without) == 1 else "have"
    return PROBLEM, f"{', '.join(without)} {have} none; write cluster.node_locations: [{', '.join(here)}]."
