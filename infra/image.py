"""The trainer's image: built from this project and pushed with the credentials Pulumi has already, or a ready one. Used by its digest, always."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pulumi
import pulumi_docker_build as docker_build
from pulumi_gcp import organizations

from infra.component import Component
from infra.registry import Registry

if TYPE_CHECKING:
    import settings


class Image(Component):
    reference: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        tag: str,
        wanted: settings.Image,
        registry: Registry,
        tensorflow: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(name, registry.made, opts)
        # Asked for only once the registry is there and may be read, so that the first preview needs no account.
        token = organizations.get_client_config_output(opts=pulumi.InvokeOutputOptions(parent=self, depends_on=registry.made)).access_token
        built = docker_build.Image(
            f"{name}-build",
            context=docker_build.BuildContextArgs(location="."),
            dockerfile=docker_build.DockerfileArgs(location="trainer/Dockerfile"),
            build_args={
                "TENSORFLOW": tensorflow,
                **({"BASE": wanted.base} if wanted.base else {}),
            },
            platforms=[docker_build.Platform.LINUX_AMD64],
            tags=[f"{registry.url}/trainer:{tag}"],
            push=True,
            build_on_preview=False,
            registries=[
                docker_build.RegistryArgs(address=registry.host, username="oauth2accesstoken", password=pulumi.Output.secret(token))
            ],
            opts=self.child(),
        )
        self.reference = pulumi.Output.unsecret(built.ref)  # the token is a secret, the image's name is not
        self.register_outputs({"reference": self.reference})
