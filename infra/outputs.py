"""What a stack says of itself: links into the console and a page for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping

CONSOLE = "https://console.cloud.google.com"


def console_links(project: str, location: str, cluster: str, buckets: Mapping[str, str]) -> dict[str, str]:
    return {
        "cluster": f"{CONSOLE}/kubernetes/clusters/details/{location}/{cluster}?project={project}",
        "workloads": f"{CONSOLE}/kubernetes/workload/overview?project={project}",
        "logs": f"{CONSOLE}/logs/query;query=resource.labels.cluster_name%3D%22{cluster}%22?project={project}",
        "billing": f"{CONSOLE}/billing/linkedaccount?project={project}",
        **{f"bucket_{kind}": f"{CONSOLE}/storage/browser/{bucket}?project={project}" for kind, bucket in buckets.items()},
    }


def readme(
    stack: str,
    project: str,
    location: str,
    cluster: str,
    image: str,
    by_dns: bool,
    links: Mapping[str, str],
    buckets: Mapping[str, str],
    trainings: Mapping[str, Mapping[str, str]],
) -> str:
    """The page that Pulumi shows beside the stack."""
    kept = "\n".join(f"- {kind}: [gs://{bucket}]({links[f'bucket_{kind}']})" for kind, bucket in buckets.items())
    running = "\n".join(f"- **{name}**: checkpoints in `{places['checkpoint_dir']}`" for name, places in trainings.items())
    return f"""# Trainstack: {stack}

Cluster [{cluster}]({links["cluster"]}) in {location}, project {project}. [Workloads]({links["workloads"]}) · [logs]({links["logs"]}) · [billing]({links["billing"]})

Connect with kubectl:

    gcloud container clusters get-credentials {cluster} --location={location} --project={project}{" --dns-endpoint" if by_dns else ""}

## Trainings
{running or "none"}

Image: `{image}`

## Buckets
{kept}

## The end
`pulumi destroy` takes everything down. The output `on_destroy` says what stays.
"""
