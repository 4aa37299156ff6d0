"""The connection to a cluster, and the few things that are asked of it, in plain dicts. The only file of ops that knows the client's library.

Which cluster: a context of the kubeconfig (`kubernetes: {context: …}`, or the current one), or the output `kubeconfig` of a stack (`kubernetes: {stack: …}`,
and target gke: the stack itself). The file named by TRAINSTACK_KUBECONFIG goes before both: a tunnel, a proxy, a test.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from naming import PROJECT
from ops.states import Object
from ops.target import ROOT, OpsError
from workloads.kubernetes.names import namespace_of

OVERRIDE = "TRAINSTACK_KUBECONFIG"
MANAGER = "trainstack"  # whose changes these are, in the eyes of the API
TIMEOUT = (10, 60)  # seconds to connect, and to hear something
AWAY = 600.0  # seconds that a cluster may be away while somebody follows a run
LISTS = {
    "services": ("CoreV1Api", "list_namespaced_service"),
    "pods": ("CoreV1Api", "list_namespaced_pod"),
    "events": ("CoreV1Api", "list_namespaced_event"),
    "claims": ("CoreV1Api", "list_namespaced_persistent_volume_claim"),
    "jobs": ("BatchV1Api", "list_namespaced_job"),
}


class Refused(OpsError):
    """The cluster said no. `status` is what it said, as in HTTP."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


# ---------------------------------------------------------------------------------------------------- which cluster


def connect(stack: str, written: Mapping[str, Any]) -> Cluster:
    """The cluster of a stack, from what its settings file says."""
    from kubernetes import client, config

    chosen = written.get(f"{PROJECT}:kubernetes") or {}
    configuration = client.Configuration()
    with _said_by_the_library() as said:
        try:
            if override := os.environ.get(OVERRIDE):
                if not Path(override).is_file():
                    raise OpsError(f"{OVERRIDE} names {override}, which is no file; correct it, or unset it.")
                config.load_kube_config(override, client_configuration=configuration, persist_config=False)
            elif written.get(f"{PROJECT}:target") == "gke" or chosen.get("stack"):
                text = _output(chosen.get("stack") or stack)
                config.load_kube_config_from_dict(yaml.safe_load(text), client_configuration=configuration, persist_config=False)
            else:
                config.load_kube_config(context=chosen.get("context"), client_configuration=configuration, persist_config=False)
        except config.ConfigException as error:
            raise OpsError(_no_context(chosen.get("context"), str(error))) from None
    if said:
        raise OpsError(_no_login(said[0]))
    configuration.retries = 1
    configuration.connection_pool_maxsize = 16
    return Cluster(configuration, namespace_of(stack))


@contextmanager
def _said_by_the_library() -> Iterator[list[str]]:
    """The library only logs that a log-in program failed, and goes on without a token."""
    said: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler, root = Handler(logging.ERROR), logging.getLogger()
    root.addHandler(handler)
    try:
        yield said
    finally:
        root.removeHandler(handler)


def _output(stack: str) -> str:
    command = [str(Path(sys.executable).with_name("pulumi")), "stack", "output", "kubeconfig", "--show-secrets", "--stack", stack]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        raise OpsError("pulumi is not installed beside this program; run `make preview` once, which installs it.") from None
    if done.returncode == 0:
        return done.stdout
    if "does not have output property" in done.stderr:
        raise OpsError(f"stack {stack} has no output kubeconfig, so there is no cluster yet; bring it up with `pulumi up --stack {stack}`.")
    why = next(
        (line for line in done.stderr.strip().splitlines() if line.startswith("error:")), done.stderr.strip() or "pulumi said nothing"
    )
    raise OpsError(
        f"the kubeconfig of stack {stack} cannot be read ({why.removeprefix('error: ')}); log in to its backend with `pulumi login`."
    )


def _no_context(context: str | None, error: str) -> str:
    if "No configuration found" in error:
        return "there is no kubeconfig; set KUBECONFIG to its path, or let your cluster's tool write ~/.kube/config."
    if context and "Expected object with name" in error:
        return f"the kubeconfig has no context {context!r}; write one that `kubectl config get-contexts` lists in {PROJECT}:kubernetes."
    if context is None and "current-context" in error:
        return f"the kubeconfig has no current context; write {PROJECT}:kubernetes: {{context: NAME}}, or choose one with `kubectl config use-context`."
    return f"the kubeconfig cannot be used ({' '.join(error.split())}); mend it, or set KUBECONFIG to another."


def _no_login(said: str) -> str:
    missing = re.search(r"No such file or directory: '([^']+)'", said)
    if missing and "gke-gcloud-auth-plugin" in missing[1]:
        return (
            "gke-gcloud-auth-plugin is missing, which logs in to GKE; install it with `gcloud components install gke-gcloud-auth-plugin`."
        )
    if missing:
        return f"{missing[1]} is missing, which the kubeconfig uses to log in; install it."
    return f"logging in to the cluster failed ({' '.join(said.split())[:300]}); log in again, for GKE with `gcloud auth login`."


def sentence(doing: str, namespace: str, host: str, status: int, message: str) -> str:
    """What a person reads when the cluster says no."""
    message = " ".join(message.split()).rstrip(".")
    if status == 401:
        return f"the cluster at {host} does not know you, so {doing} failed; log in again, for GKE with `gcloud auth login`."
    if status == 403:
        return f"you may not do this in the cluster: {message}; ask its owner for the role `edit` in namespace {namespace}."
    if status in (404, 409, 410, 422, 400):
        return f"{doing} failed: {message}; look again with `trainstack status`."
    if status:
        return f"the cluster at {host} answered {status} to {doing}: {message}; try again in a moment."
    return f"no connection to the cluster at {host} ({message}); check that it is up and that this machine reaches it."


# ------------------------------------------------------------------------------------------------------ the cluster


class Cluster:
    """One namespace of a cluster."""

    def __init__(self, configuration: Any, namespace: str) -> None:
        import urllib3

        self.configuration, self.namespace = configuration, namespace
        if not configuration.verify_ssl:  # the kubeconfig says so, and a line at every request helps nobody
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        self._client = self._new_client()
        self._reached = False  # whether it has ever answered

    def _new_client(self) -> Any:
        from kubernetes import client

        return client.ApiClient(self.configuration)

    def _ask(self, doing: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Asks, and turns every way to fail into a sentence."""
        import urllib3
        from kubernetes.client.exceptions import ApiException

        host = self.configuration.host
        try:
            return call(*arguments, **options)
        except ApiException as error:
            status, message = _status_of(error)
            raise Refused(sentence(doing, self.namespace, host, status, message), status) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise Refused(sentence(doing, self.namespace, host, 0, _network(reason)), 0) from None

    def _read(self, doing: str, interface: str, method: str, *arguments: Any, **options: Any) -> bytes:
        """Asks for something that may be asked twice. A cluster that has answered before may be away for minutes, as while its control plane is upgraded."""
        until, told = time.monotonic() + AWAY, False
        while True:
            try:
                answer = self._raw(doing, interface, method, *arguments, **options)
            except Refused as refused:
                away = refused.status in (0, 429) or refused.status >= 500
                if not away or not self._reached or time.monotonic() > until:
                    raise
                if not told:
                    print(f"trainstack: {refused} Trying again.", file=sys.stderr, flush=True)
                told = True
                time.sleep(3)
                continue
            self._reached = True
            return answer

    def _raw(self, doing: str, interface: str, method: str, *arguments: Any, **options: Any) -> bytes:
        """The answer as it came: it may hold thousands of pods, and the library's classes for them take their time."""
        from kubernetes import client

        call = getattr(getattr(client, interface)(self._client), method)
        response = self._ask(doing, call, *arguments, _preload_content=False, _request_timeout=TIMEOUT, **options)
        try:
            data: bytes = response.data
        finally:
            response.release_conn()
        return data

    # -------------------------------------------------------------------------------------------------- reading

    def listed(self, kind: str, selector: str = "") -> list[Object]:
        """Everything of a kind in the namespace: services, pods, events, claims or jobs."""
        interface, method = LISTS[kind]
        options = {"label_selector": selector} if selector else {}
        found: list[Object] = json.loads(self._read(f"listing {kind}", interface, method, self.namespace, **options))["items"]
        return found

    def version(self) -> str:
        """The version of the cluster, as in v1.34.1."""
        return str(json.loads(self._raw("asking for the version", "VersionApi", "get_code"))["gitVersion"])

    def allows(self, verb: str, group: str, resource: str, namespaced: bool) -> bool:
        """Whether whoever is asking may do this in the namespace, which need not be there yet."""
        attributes = {"verb": verb, "group": group, "resource": resource, **({"namespace": self.namespace} if namespaced else {})}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
        answer = self._raw("asking what you may do", "AuthorizationV1Api", "create_self_subject_access_review", body)
        return bool(json.loads(answer)["status"].get("allowed"))

    def nodes(self) -> list[Object]:
        """The nodes, or none where a person may not see them."""
        try:
            found: list[Object] = json.loads(self._read("listing nodes", "CoreV1Api", "list_node"))["items"]
        except Refused as refused:
            if refused.status == 403:
                return []
            raise
        return found

    def check(self) -> None:
        """Says when the namespace is not there; a list in one that is not there is only empty."""
        try:
            self._raw("looking for the namespace", "CoreV1Api", "read_namespace", self.namespace)
        except Refused as refused:
            if refused.status == 404:
                raise OpsError(
                    f"the cluster has no namespace {self.namespace}, so this stack has nothing there; bring it up with `pulumi up`, "
                    "or check that the settings name the right cluster."
                ) from None
            if refused.status != 403:
                raise

    def log(self, pod: str, container: str, since: int | None = None, tail: int | None = None) -> str:
        """What a container printed, each line behind its time; nothing when it has not started or is gone."""
        options: dict[str, Any] = {"since_seconds": since} if since is not None else {}
        if tail is not None:
            options["tail_lines"] = tail
        try:
            data = self._read(
                f"reading the log of {pod}",
                *("CoreV1Api", "read_namespaced_pod_log", pod, self.namespace),
                container=container,
                timestamps=True,
                **options,
            )
        except Refused as refused:
            if refused.status in (400, 404):
                return ""
            raise
        return data.decode(errors="replace")

    # ------------------------------------------------------------------------------------------------- changing

    def suspend(self, job: str, suspend: bool) -> None:
        body = {"spec": {"suspend": suspend}}
        self._raw(
            f"{'suspending' if suspend else 'resuming'} {job}",
            *("BatchV1Api", "patch_namespaced_job", job, self.namespace, body),
            field_manager=MANAGER,
        )

    def delete_job(self, job: str) -> None:
        """Asks for its deletion; the Job is gone when its pods are."""
        try:
            options = {"propagation_policy": "Foreground"}
            self._raw(f"deleting {job}", "BatchV1Api", "delete_namespaced_job", job, self.namespace, **options)
        except Refused as refused:
            if refused.status != 404:
                raise

    def create_job(self, body: Object, manager: str, applied: bool) -> None:
        """Makes a Job in the name of whoever made it before: with its next change, Pulumi must find fields that are its own."""
        name = body["metadata"]["name"]
        if applied:
            self._raw(
                f"making {name} again",
                *("BatchV1Api", "patch_namespaced_job", name, self.namespace, body),
                field_manager=manager,
                _content_type="application/apply-patch+yaml",
            )
        else:
            self._raw(f"making {name} again", "BatchV1Api", "create_namespaced_job", self.namespace, body, field_manager=manager)

    def delete_pod(self, pod: str) -> None:
        self._raw(f"deleting {pod}", "CoreV1Api", "delete_namespaced_pod", pod, self.namespace, grace_period_seconds=0)

    def evict(self, pod: str, grace: int | None = None) -> None:
        """As a drain does it, or, with a grace of 0, a node that vanishes: Kubernetes holds neither against the pod."""
        options = {} if grace is None else {"deleteOptions": {"gracePeriodSeconds": grace}}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": self.namespace}, **options}
        self._raw(f"evicting {pod}", "CoreV1Api", "create_namespaced_pod_eviction", pod, self.namespace, body)

    # -------------------------------------------------------------------------------------------------- streams

    def exec(self, pod: str, container: str, command: Sequence[str], stdin: bool = False, terminal: bool = False) -> Any:
        """A command in a container: the library's web socket, for ops/shell.py."""
        from kubernetes import client
        from kubernetes.stream import stream

        interface = client.CoreV1Api(self._new_client())  # the library changes its client while it connects, so nobody else may use it
        return self._ask(
            f"running {command[0]} in {pod}",
            stream,
            interface.connect_get_namespaced_pod_exec,
            *(pod, self.namespace),
            container=container,
            command=list(command),
            stdin=stdin,
            stdout=True,
            stderr=not terminal,
            tty=terminal,
            binary=True,
            _preload_content=False,
        )

    def dial(self, pod: str, port: int) -> Any:
        """A new connection to a port of a pod, with the methods of a socket."""
        from kubernetes import client
        from kubernetes.stream import portforward

        interface = client.CoreV1Api(self._new_client())
        forwarded = self._ask(
            f"forwarding to {pod}", portforward, interface.connect_get_namespaced_pod_portforward, pod, self.namespace, ports=str(port)
        )
        return forwarded.socket(port)


def _status_of(error: Any) -> tuple[int, str]:
    """The status and what was said, also of a web socket that was refused, whose status is in a text."""
    handshake = re.match(r"Handshake status (\d+)", str(error.reason)) if not error.status else None
    if handshake:
        body = re.search(r"-\+-\+- b?['\"](.*)['\"]$", str(error.reason), re.DOTALL)
        text = body[1] if body else str(error.reason)
        return int(handshake[1]), _message(text.encode().decode("unicode_escape", errors="replace")) or str(error.reason).partition(
            " -+-+- "
        )[0]
    return error.status or 0, _message(error.body or "") or str(error.reason or "")


def _message(body: str) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return ""


def _network(reason: object) -> str:
    """Why there is no connection, without the library's inner life."""
    text = str(reason)
    for pattern, words in (
        (r"Connection refused", "connection refused"),
        (r"timed out|timeout", "no answer"),
        (r"Name or service not known|getaddrinfo|NameResolutionError|nodename nor servname", "its name is not known"),
        (r"CERTIFICATE_VERIFY_FAILED", "its certificate is not trusted"),
    ):
        if re.search(pattern, text, re.IGNORECASE):
            return words
    return text.rpartition(": ")[2] or text
