"""Bootstrap: makes what is missing and nothing else, from wherever it was interrupted, and says in one sentence why it cannot."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ops import __main__ as main
from ops import bootstrap
from ops.answers import Answer
from ops.bootstrap import Place, steps
from ops.target import OpsError
from tests.cloud import google
from tests.cloud.cloud import Cloud, Fault
from tests.conftest import ROOT

pytestmark = pytest.mark.process

PROJECT = "some-project"
PLACE = Place(PROJECT, "us-central1", "some-project-trainstack-state")
KEY = f"projects/{PROJECT}/locations/us-central1/keyRings/trainstack/cryptoKeys/state"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    monkeypatch.setenv("TRAINSTACK_CLOUD", str(tmp_path / "cloud.json"))
    monkeypatch.setenv("PATH", f"{ROOT}/tests/cloud/bin:{Path(sys.executable).parent}:{os.environ['PATH']}")
    return Cloud(tmp_path / "cloud.json")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["trainstack", *arguments])
    return main.main()


def converged(cloud: Cloud) -> None:
    """All is there, once, and as it should be."""
    (bucket,) = cloud.resources(google.BUCKET)
    assert bucket.id == PLACE.bucket
    assert bucket.inputs["uniformBucketLevelAccess"] is True
    assert bucket.inputs["publicAccessPrevention"] == "enforced"
    assert bucket.inputs["versioning"] == {"enabled": True}
    assert bucket.inputs["softDeletePolicy"] == {"retentionDurationSeconds": 30 * 24 * 3600}
    assert bucket.inputs["lifecycleRules"] == bootstrap.LIFECYCLE["rule"]
    assert [one.id for one in cloud.resources("gcp:kms/*")] == [KEY.rpartition("/cryptoKeys")[0], KEY]
    (key,) = cloud.resources(google.CRYPTO_KEY)
    assert key.inputs["rotationPeriod"] == f"{90 * 24 * 3600}s"
    assert {"some-project/cloudkms.googleapis.com", "some-project/storage.googleapis.com"} <= set(cloud.enabled)


def test_a_second_time_finds_everything(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "bootstrap", "--project", PROJECT, "--yes") == 0
    converged(cloud)
    shown = capsys.readouterr().out
    assert "  pulumi login gs://some-project-trainstack-state\n" in shown
    assert f"  pulumi stack init dev --secrets-provider=gcpkms://{KEY}\n" in shown
    log = len(cloud.log)
    assert run(monkeypatch, "--json", "bootstrap", "--project", PROJECT) == 0  # nothing to do, so nobody is asked
    assert json.loads(capsys.readouterr().out) == {
        "bucket": f"gs://{PLACE.bucket}",
        "key": KEY,
        "done": [],
        "log_in_with": list(PLACE.lines),
    }
    assert len(cloud.log) == log


@pytest.mark.parametrize("what", ["fail", "lose"])  # lose: it is done, but nobody hears of it
def test_interrupted_at_every_step_it_goes_on(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: Any
) -> None:
    changes = [
        ("create", google.SERVICE),
        ("create", google.BUCKET),
        ("update", google.BUCKET),
        ("create", google.KEY_RING),
        ("create", google.CRYPTO_KEY),
    ]
    for call, type in changes:
        cloud.script([Fault(call, 1, type, what=what)])
        assert run(monkeypatch, "bootstrap", "--project", PROJECT, "--yes") == 1, type
        assert cloud.log[-1].type == type
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.startswith("trainstack: ")
        assert said.endswith("run this again, it goes on where it stopped.")
    assert run(monkeypatch, "bootstrap", "--project", PROJECT, "--yes") == 0
    converged(cloud)
    made = [(each.call, each.type) for each in cloud.log if not each.error and each.type != google.SERVICE]
    assert made == changes[1:]  # each once


def test_nothing_is_made_before_somebody_says_yes(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "bootstrap", "--project", PROJECT) == 1
    shown = capsys.readouterr()
    assert "make the bucket gs://some-project-trainstack-state" in shown.out
    assert "nobody is there to ask; `python -m ops bootstrap --project=… --yes`" in shown.err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: "no")
    assert run(monkeypatch, "bootstrap", "--project", PROJECT) == 1
    assert "nothing was done" in capsys.readouterr().err
    assert cloud.log == []
    monkeypatch.setattr("builtins.input", lambda _: "yes")
    assert run(monkeypatch, "bootstrap", "--project", PROJECT) == 0
    converged(cloud)


# ------------------------------------------------------------------------------------------------------- what answers mean


def said(output: Any = None, errors: str = "", **more: Any) -> Answer:
    return Answer(("gcloud",), 1 if errors else 0, json.dumps(output), errors, **more)


ABSENT = said(errors="ERROR: (gcloud.kms.keyrings.describe) NOT_FOUND: KeyRing x not found.")
WHOLE: dict[str, Any] = {
    "projectNumber": "1",
    "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"},
    "softDeletePolicy": {"retentionDurationSeconds": "2592000"},
    "versioning": {"enabled": True},
    "lifecycle": {"rule": [{}]},
}
TURNING: dict[str, Any] = {
    "purpose": "ENCRYPT_DECRYPT",
    "rotationPeriod": "7776000s",
    "primary": {"state": "ENABLED", "name": "x/cryptoKeyVersions/3"},
}
THERE = {
    "project": said({"projectNumber": "1"}),
    "services": said([{"config": {"name": name}} for name in bootstrap.SERVICES]),
    "bucket": said(WHOLE),
    "ring": said({"name": "x"}),
    "key": said(TURNING),
}
OF_SOMEBODY = (
    "ERROR: (gcloud.storage.buckets.describe) HTTPError 403: person@example.com does not have storage.buckets.get access to the Google Cloud Storage bucket. "
    "Permission 'storage.buckets.get' denied on resource (or it may not exist). This command is authenticated as person@example.com which is the active account"
)


def missing(**changed: Answer) -> list[str]:
    return [step.sentence for step in steps(PLACE, {**THERE, **changed}, "rules.json")]


def test_only_what_is_missing_is_done() -> None:
    assert missing() == []
    assert [sentence.split(" in ")[0] for sentence in missing(ring=ABSENT, key=ABSENT)] == [
        "make the key ring trainstack",
        "make the key state",
    ]
    assert missing(key=said({**TURNING, "rotationPeriod": None})) == ["give the key state a new version every 90 days"]
    assert missing(services=said([{"config": {"name": "storage.googleapis.com"}}])) == ["enable cloudkms.googleapis.com"]
    off = said(errors="ERROR: (gcloud.kms.keys.describe) API [cloudkms.googleapis.com] not enabled on project [p].")
    assert len(missing(ring=off, key=off)) == 2


@pytest.mark.parametrize(
    ("lacks", "flag"),
    [
        ({"versioning": {}}, "--versioning"),
        ({"lifecycle": {}}, "--lifecycle-file=rules.json"),
        ({"iamConfiguration": {**WHOLE["iamConfiguration"], "publicAccessPrevention": "inherited"}}, "--public-access-prevention"),
        (
            {"iamConfiguration": {**WHOLE["iamConfiguration"], "uniformBucketLevelAccess": {"enabled": False}}},
            "--uniform-bucket-level-access",
        ),
        ({"softDeletePolicy": {}}, "--soft-delete-duration=30d"),
    ],
)
def test_a_bucket_that_lacks_something_is_given_it_and_no_more(lacks: dict[str, Any], flag: str) -> None:
    (step,) = steps(PLACE, {**THERE, "bucket": said({**WHOLE, **lacks})}, "rules.json")
    assert step.command == ("gcloud", "storage", "buckets", "update", f"gs://{PLACE.bucket}", flag, "--quiet")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"project": Answer(("gcloud",), missing=True)}, "gcloud is not installed"),
        ({"project": said(errors="ERROR: (gcloud.x) You do not currently have an active account selected.")}, "run `gcloud auth login`"),
        ({"project": said(errors="ERROR: (gcloud.x) [me] does not have permission to access projects instance [p] (or it may not exist)")}, "does not exist, or your"),
        ({"project": Answer(("gcloud",), seconds=60)}, "had not answered after 60 s"),
        ({"services": said(errors="ERROR: (gcloud.services.list) PERMISSION_DENIED: no")}, "the services of some-project cannot be looked at"),
        ({"bucket": said(errors=OF_SOMEBODY)}, "belongs to somebody else, or your account may not see it"),
        ({"bucket": said({**WHOLE, "projectNumber": "2"})}, "belongs to another project than some-project"),
        ({"bucket": said(errors="ERROR: gcloud crashed (x): Max retries exceeded")}, "cannot be looked at"),
        ({"ring": said(errors="ERROR: (gcloud.x) PERMISSION_DENIED: Permission denied")}, "the key ring in us-central1 cannot be looked at"),
        ({"key": said({**TURNING, "purpose": "ASYMMETRIC_SIGN"})}, "cannot encrypt"),
        ({"key": said({**TURNING, "primary": {"state": "DISABLED", "name": "x/3"}})}, "run `gcloud kms keys versions enable 3 --key=state"),
        ({"key": said({**TURNING, "primary": {"state": "DESTROY_SCHEDULED", "name": "x/3"}})}, "run `gcloud kms keys versions restore 3"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_sentence(changed: dict[str, Answer], words: str) -> None:
    with pytest.raises(OpsError) as raised:
        missing(**changed)
    assert words in str(raised.value)
    assert str(raised.value).count("\n") == 0


def test_a_permission_that_is_missing_is_one_sentence(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud.script(
        [Fault("create", 1, google.BUCKET, message="HTTPError 403: person@example.com does not have storage.buckets.create access")]
    )
    assert run(monkeypatch, "--json", "bootstrap", "--project", PROJECT, "--yes") == 1
    assert "your account may not (HTTPError 403: person@example.com does not have storage.buckets.create access)" in capsys.readouterr().err
