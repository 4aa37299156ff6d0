"""`trainstack bootstrap`: once for a team, a bucket for Pulumi's state and a key for the secrets in it.

It looks first, shows what it will do, and does only what is missing; interrupted anywhere, it goes on when it is run again. It deletes nothing, and
never touches a bucket of another project. Who of the team may use the two is left to the project's owner.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from naming import slug
from ops.answers import ABSENT, DENIED, LOGIN, Answer, ask, counting
from ops.target import OpsError

SECONDS = 60.0  # for all looks together
PATIENCE = 300.0  # for one thing to be made; enabling a service takes a minute or two
SERVICES = ("cloudkms.googleapis.com", "storage.googleapis.com")
RING, KEY = "trainstack", "state"
ROTATION = 90  # days
SOFT_DELETE = 30  # days
# Each `up` writes the whole state again. Old versions stay for a year, and of those that are older the ten newest.
LIFECYCLE = {
    "rule": [{"action": {"type": "Delete"}, "condition": {"daysSinceNoncurrentTime": 365, "numNewerVersions": 10, "isLive": False}}]
}


@dataclass(frozen=True)
class Place:
    project: str
    region: str
    bucket: str

    @property
    def key(self) -> str:
        return f"projects/{self.project}/locations/{self.region}/keyRings/{RING}/cryptoKeys/{KEY}"

    @property
    def lines(self) -> tuple[str, str]:
        return f"pulumi login gs://{self.bucket}", f"pulumi stack init dev --secrets-provider=gcpkms://{self.key}"


@dataclass(frozen=True)
class Step:
    """One thing to do, as a person reads it, and the command that does it."""

    sentence: str
    command: tuple[str, ...]


def bootstrap(project: str, region: str, bucket: str | None, yes: bool, as_json: Callable[[object], None] | None) -> int:
    place = Place(project, region, bucket or f"{slug(project, 40)}-trainstack-state")
    say: Callable[[str], None] = (lambda _: None) if as_json else (lambda line: print(line, flush=True))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as rules:
        json.dump(LIFECYCLE, rules)
        rules.flush()
        done = [step.sentence for step in _converge(place, rules.name, yes, say, asks=as_json is None)]
    if as_json:
        as_json({"bucket": f"gs://{place.bucket}", "key": place.key, "done": done, "log_in_with": list(place.lines)})
        return 0
    say("Everything is there. Each of the team logs in, and each stack is made once, with:\n")
    for line in place.lines:
        say(f"  {line}")
    return 0


def _converge(place: Place, rules: str, yes: bool, say: Callable[[str], None], asks: bool) -> Iterator[Step]:
    """Looks, asks, and does what is missing, one step after the other."""
    answers = ask(questions(place), SECONDS, counting(f"looking at {place.project}", quiet=not asks))
    wanted = steps(place, answers, rules)
    if wanted and not yes:
        say("This is missing, and will be made:")
        for step in wanted:
            say(f"  {step.sentence}")
        _agree(asks)
    for step in wanted:
        say(f"{step.sentence} …")
        _do(step)
        yield step


def _agree(asks: bool) -> None:
    if not asks or not sys.stdin.isatty():
        raise OpsError("nobody is there to ask; `python -m ops bootstrap --project=… --yes` does it without asking.")
    if input("Do it? [yes/no] ").strip().lower() not in ("y", "yes"):
        raise OpsError("nothing was done, because the answer was not yes; run this again when it should be.")


def _do(step: Step) -> None:
    try:
        done = subprocess.run(step.command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OpsError(f"{step.sentence}: {error}; run this again, it goes on where it stopped.") from None
    if done.returncode:
        answer = Answer(step.command, done.returncode, done.stdout, done.stderr)
        if answer.trouble == DENIED:
            raise OpsError(f"{step.sentence}: your account may not ({answer.why}); ask an owner of the project, and run this again.")
        raise OpsError(f"{step.sentence}: {answer.why}; mend that and run this again, it goes on where it stopped.")


# ------------------------------------------------------------------------------------------------------------ looking


def questions(place: Place) -> dict[str, list[str]]:
    project, where = f"--project={place.project}", f"--location={place.region}"
    return {
        "project": ["gcloud", "projects", "describe", place.project, "--format=json"],
        "services": ["gcloud", "services", "list", "--enabled", project, "--format=json"],
        "bucket": ["gcloud", "storage", "buckets", "describe", f"gs://{place.bucket}", "--raw", "--format=json"],
        "ring": ["gcloud", "kms", "keyrings", "describe", RING, where, project, "--format=json"],
        "key": ["gcloud", "kms", "keys", "describe", KEY, f"--keyring={RING}", where, project, "--format=json"],
    }


def steps(place: Place, answers: Mapping[str, Answer], rules: str) -> list[Step]:
    """What is missing, in the order in which it has to be made; an error where it cannot be."""
    project = answers["project"]
    if project.data is None:
        raise OpsError(_no_project(place, project))
    return [
        *_services(place, answers["services"]),
        *_bucket(place, answers["bucket"], str(project.data.get("projectNumber", "")), rules),
        *_keys(place, answers),
    ]


def _no_project(place: Place, answer: Answer) -> str:
    if answer.missing:
        return (
            "gcloud is not installed, and it is what makes them; install it (https://cloud.google.com/sdk/docs/install) and run this again."
        )
    if answer.trouble == LOGIN:
        return "nobody is logged in to gcloud; run `gcloud auth login` and this again."
    if answer.trouble in (ABSENT, DENIED):
        return f"the project {place.project} does not exist, or your account may not see it; `gcloud projects list` shows yours."
    return f"the project {place.project} cannot be looked at: {answer.why}; mend that and run this again."


def _services(place: Place, answer: Answer) -> Iterator[Step]:
    if answer.data is None:
        raise OpsError(f"the services of {place.project} cannot be looked at: {answer.why}; mend that and run this again.")
    enabled = {each.get("config", {}).get("name") for each in answer.data}
    if missing := [service for service in SERVICES if service not in enabled]:
        yield Step(f"enable {' and '.join(missing)}", ("gcloud", "services", "enable", *missing, f"--project={place.project}", "--quiet"))


def _bucket(place: Place, answer: Answer, number: str, rules: str) -> Iterator[Step]:
    """A bucket is made first and gets its versions and its rules then, so that one without them was interrupted, and is given them now."""
    named = f"the bucket gs://{place.bucket}"
    there: Mapping[str, Any] = answer.data or {}
    if answer.data is None and answer.trouble == DENIED:
        raise OpsError(
            f"{named} belongs to somebody else, or your account may not see it: such names are shared by the whole world; write another with --bucket (BUCKET=…)."
        )
    if answer.data is None and answer.trouble != ABSENT:
        raise OpsError(f"{named} cannot be looked at: {answer.why}; mend that and run this again.")
    if there and str(there.get("projectNumber", number)) != number:
        raise OpsError(f"{named} belongs to another project than {place.project}; write another with --bucket (BUCKET=…).")
    if not there:
        yield Step(
            f"make {named} in {place.region}: uniform access, never public, what is deleted can be had back for {SOFT_DELETE} days",
            (
                *(
                    "gcloud",
                    "storage",
                    "buckets",
                    "create",
                    f"gs://{place.bucket}",
                    f"--project={place.project}",
                    f"--location={place.region}",
                ),
                *("--uniform-bucket-level-access", "--public-access-prevention", f"--soft-delete-duration={SOFT_DELETE}d", "--quiet"),
            ),
        )
    if flags := [*_to_change(there, rules)]:
        what = ", ".join(sentence for sentence, _ in flags)
        update = ("gcloud", "storage", "buckets", "update", f"gs://{place.bucket}", *(flag for _, flag in flags), "--quiet")
        yield Step(f"set on {named}: {what}", update)


def _to_change(there: Mapping[str, Any], rules: str) -> Iterator[tuple[str, str]]:
    """What a bucket lacks, each with the flag that gives it."""
    access = there.get("iamConfiguration", {})
    if there and not access.get("uniformBucketLevelAccess", {}).get("enabled"):
        yield "uniform access", "--uniform-bucket-level-access"
    if there and access.get("publicAccessPrevention") != "enforced":
        yield "never public", "--public-access-prevention"
    if there and int(there.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0)) < 7 * 24 * 3600:
        yield f"what is deleted can be had back for {SOFT_DELETE} days", f"--soft-delete-duration={SOFT_DELETE}d"
    if not there.get("versioning", {}).get("enabled"):
        yield "every version of the state is kept", "--versioning"
    if not there.get("lifecycle", {}).get("rule"):
        yield "but not for ever: a year, and the ten newest", f"--lifecycle-file={rules}"


def _keys(place: Place, answers: Mapping[str, Answer]) -> Iterator[Step]:
    where = (f"--location={place.region}", f"--project={place.project}")
    of = (f"--keyring={RING}", *where)
    turned = (
        f"--rotation-period={ROTATION}d",
        f"--next-rotation-time={(datetime.now(UTC) + timedelta(days=ROTATION)).isoformat(timespec='seconds')}",
    )
    ring, key = answers["ring"], answers["key"]
    for name, answer in (("ring", ring), ("key", key)):
        if answer.data is None and answer.trouble not in (ABSENT, "disabled"):  # a service that is off has no keys
            raise OpsError(f"the key {name} in {place.region} cannot be looked at: {answer.why}; mend that and run this again.")
    if ring.data is None:
        yield Step(
            f"make the key ring {RING} in {place.region}, which can never be deleted",
            ("gcloud", "kms", "keyrings", "create", RING, *where, "--quiet"),
        )
    if key.data is None:
        yield Step(
            f"make the key {KEY} in it, with a new version every {ROTATION} days",
            ("gcloud", "kms", "keys", "create", KEY, *of, "--purpose=encryption", *turned, "--quiet"),
        )
        return
    if key.data.get("purpose") != "ENCRYPT_DECRYPT":
        raise OpsError(f"the key {place.key} is there and cannot encrypt ({key.data.get('purpose')}); write another region (REGION=…).")
    state = key.data.get("primary", {}).get("state")
    if state != "ENABLED":
        number = str(key.data.get("primary", {}).get("name", "/1")).rpartition("/")[2]
        raise OpsError(
            f"the key {place.key} is there, but its version {number} is {state}; run `gcloud kms keys versions {'restore' if state == 'DESTROY_SCHEDULED' else 'enable'} "
            f"{number} --key={KEY} {' '.join(of)}` and this again."
        )
    if not key.data.get("rotationPeriod"):
        yield Step(
            f"give the key {KEY} a new version every {ROTATION} days", ("gcloud", "kms", "keys", "update", KEY, *of, *turned, "--quiet")
        )
