"""The rules of docker-build: an image is what it is built from. No file of the build context is looked at, and nobody logs in anywhere."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from tests.cloud import google
from tests.cloud.kinds import CloudError, Fields, Kind, Parent, Values

IMAGE = "docker-build:index:Image"


def digest(value: Any) -> str:
    return "sha256:" + hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def repository(tag: str) -> str:
    """The Artifact Registry repository that an image with this tag goes to; none for other registries."""
    if found := re.match(r"([a-z0-9-]+)-docker\.pkg\.dev/([^/]+)/([^/]+)/", tag):
        return f"projects/{found[2]}/locations/{found[1]}/repositories/{found[3]}"
    if found := re.match(r"(?:(us|eu|asia)\.)?gcr\.io/([^/]+)/", tag):
        location = {"us": "us", "eu": "europe", "asia": "asia", None: "us"}[found[1]]
        return f"projects/{found[2]}/locations/{location}/repositories/{found[0].partition('/')[0]}"
    return ""


def image_fields(inputs: Values) -> Mapping[str, Any]:
    tags = inputs.get("tags") or [""]
    # What opens the registry says nothing about the image: a new token must not make another one.
    contents = {key: value for key, value in inputs.items() if key not in ("registries", "secrets")}
    return {"digest": digest(contents), "repository": repository(tags[0]) if inputs.get("push") else "", "tag": tags[0]}


def image_outputs(_: Fields, inputs: Values) -> Values:
    fields = image_fields(inputs)
    return {
        "digest": fields["digest"],
        "ref": f"{fields['tag']}@{fields['digest']}",
        "contextHash": digest([inputs.get("context"), inputs.get("dockerfile")]).removeprefix("sha256:"),
    }


KINDS = {
    IMAGE: Kind(
        id="{digest}",
        fields=image_fields,
        parents=(Parent("repository", google.REPOSITORY, "remove"),),
        idempotent=True,
        outputs=image_outputs,
        volatile=("digest", "ref", "contextHash"),
        missing='failed to push: name unknown: Repository "{id}" not found',
    ),
}


def kind(type: str) -> Kind:
    if type not in KINDS:
        raise CloudError(f"the simulated cloud does not know {type}: it needs a row in KINDS of tests/cloud/docker.py")
    return KINDS[type]
