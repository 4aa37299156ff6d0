"""What the Kubernetes objects of a stack are called and how they are labelled. Pure."""

from __future__ import annotations

from naming import Names

SERVICE_ACCOUNT = "trainer"
NAME, COMPONENT, PART_OF = "app.kubernetes.io/name", "app.kubernetes.io/component", "app.kubernetes.io/part-of"
RUN, TASKS = "trainstack/run", "trainstack/tasks"
SECRETS = "secrets"  # the Secret with the stack's secrets

# Pulumi goes on as soon as an object is there, and still waits for it to be gone when it is deleted.
AT_ONCE = {"pulumi.com/waitFor": "jsonpath={.metadata.uid}"}


def namespace_of(stack: str) -> str:
    return Names("", stack).base


def of_stack(namespace: str) -> dict[str, str]:
    """The labels of everything."""
    return {"app.kubernetes.io/managed-by": "trainstack", PART_OF: namespace}


def of_training(namespace: str, training: str) -> dict[str, str]:
    """What everything of a training has, and is found by."""
    return {**of_stack(namespace), NAME: training}
