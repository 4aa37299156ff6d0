"""The connection, with the real client against a small server: what is asked, and what a person reads when the answer is no."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from ops import connection
from ops.connection import OVERRIDE, Cluster, Refused, connect
from ops.target import OpsError

WRITTEN = {"trainstack:target": "kubernetes", "trainstack:kubernetes": {"context": "here"}}


class Server:
    """Answers every path as it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.asked: list[SimpleNamespace] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                url = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                query = {key: values[0] for key, values in parse_qs(url.query).items()}
                kind = self.headers.get("Content-Type", "")
                server.asked.append(
                    SimpleNamespace(method=self.command, path=url.path, query=query, body=body, kind=kind, headers=self.headers)
                )
                status, said = server.answers.get((self.command, url.path), (404, {"message": f"{url.path} not found"}))
                data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json" if not isinstance(said, str) else "text/plain")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PATCH = do_POST = do_DELETE = answer

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def kubeconfig(folder: Path, url: str, user: dict[str, Any] | None = None, current: str | None = "here") -> str:
    path = folder / "kubeconfig"
    content = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user or {"token": "secret"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        **({"current-context": current} if current else {}),
    }
    path.write_text(yaml.safe_dump(content))
    return str(path)


@pytest.fixture
def cluster(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv(OVERRIDE, kubeconfig(tmp_path, server.url))
    return connect("dev", WRITTEN)


PODS, JOBS = "/api/v1/namespaces/trainstack-dev/pods", "/apis/batch/v1/namespaces/trainstack-dev/jobs"


def test_lists_are_plain_and_of_the_stacks_namespace(server: Server, cluster: Cluster) -> None:
    server.answers["GET", PODS] = 200, {"items": [{"metadata": {"name": "a"}, "x-unknown": 1}]}
    assert cluster.listed("pods", "a=b,c=d") == [{"metadata": {"name": "a"}, "x-unknown": 1}]
    assert server.asked[0].query == {"labelSelector": "a=b,c=d"}
    assert server.asked[0].headers["Authorization"] == "Bearer secret"


def test_a_log_is_asked_for_with_times_and_only_as_far_back_as_needed(server: Server, cluster: Cluster) -> None:
    server.answers["GET", f"{PODS}/p/log"] = 200, "2026-11-17T04:00:00Z grüße\n"
    assert cluster.log("p", "task", since=7) == "2026-11-17T04:00:00Z grüße\n"
    assert server.asked[0].query == {"container": "task", "timestamps": "true", "sinceSeconds": "7"}
    server.answers["GET", f"{PODS}/p/log"] = 400, {"message": 'container "task" in pod "p" is waiting to start: ContainerCreating'}
    assert cluster.log("p", "task", tail=3) == ""
    assert server.asked[1].query["tailLines"] == "3"
    assert cluster.log("gone", "task") == ""


def test_suspending_changes_one_field(server: Server, cluster: Cluster) -> None:
    server.answers["PATCH", f"{JOBS}/j"] = 200, {}
    cluster.suspend("j", True)
    asked = server.asked[0]
    assert json.loads(asked.body) == {"spec": {"suspend": True}}
    assert asked.kind == "application/strategic-merge-patch+json"


def test_a_job_is_made_again_in_the_name_of_its_owner(server: Server, cluster: Cluster) -> None:
    server.answers |= {("PATCH", f"{JOBS}/j"): (201, {}), ("POST", JOBS): (201, {})}
    body = {"metadata": {"name": "j"}}
    cluster.create_job(body, "pulumi", applied=True)
    cluster.create_job(body, "kubectl", applied=False)
    applied, created = server.asked
    assert (applied.kind, applied.query) == ("application/apply-patch+yaml", {"fieldManager": "pulumi"})
    assert (created.method, created.query) == ("POST", {"fieldManager": "kubectl"})
    assert json.loads(applied.body) == json.loads(created.body) == body


def test_deleting(server: Server, cluster: Cluster) -> None:
    cluster.delete_job("gone already")
    server.answers |= {("DELETE", f"{JOBS}/j"): (200, {}), ("DELETE", f"{PODS}/p"): (200, {})}
    cluster.delete_job("j")
    cluster.delete_pod("p")
    assert server.asked[1].query == {"propagationPolicy": "Foreground"}
    assert server.asked[2].query == {"gracePeriodSeconds": "0"}


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (401, "does not know you, so listing pods failed; log in again"),
        (403, "you may not do this in the cluster: User x cannot list pods; ask its owner for the role `edit` in namespace trainstack-dev"),
        (500, "answered 500 to listing pods: User x cannot list pods; try again in a moment"),
    ],
)
def test_an_answer_of_no_is_one_sentence(server: Server, cluster: Cluster, status: int, sentence: str) -> None:
    server.answers["GET", PODS] = status, {"message": "User x cannot list pods"}
    with pytest.raises(Refused) as caught:
        cluster.listed("pods")
    assert sentence in str(caught.value)
    assert caught.value.status == status


def test_nobody_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERRIDE, kubeconfig(tmp_path, "http://127.0.0.1:1"))
    with pytest.raises(OpsError, match=r"no connection to the cluster at http://127.0.0.1:1 \(connection refused\); check that it is up"):
        connect("dev", WRITTEN).listed("pods")


def test_a_cluster_that_has_answered_may_be_away_for_a_while(
    server: Server, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers["GET", PODS] = 200, {"items": []}
    cluster.listed("pods")
    server.answers["GET", PODS] = 503, {"message": "upgrading"}

    def come_back(_: float) -> None:
        server.answers["GET", PODS] = 200, {"items": [{"back": True}]}

    monkeypatch.setattr(connection.time, "sleep", come_back)
    assert cluster.listed("pods") == [{"back": True}]
    assert "answered 503" in capsys.readouterr().err


def test_the_namespace_and_the_nodes(server: Server, cluster: Cluster) -> None:
    with pytest.raises(OpsError, match="the cluster has no namespace trainstack-dev, so this stack has nothing there; bring it up"):
        cluster.check()
    server.answers["GET", "/api/v1/namespaces/trainstack-dev"] = 403, {"message": "no"}
    cluster.check()
    server.answers["GET", "/api/v1/nodes"] = 403, {"message": "no"}
    assert cluster.nodes() == [], "whoever may not see the nodes is told less"


def test_the_version_and_what_somebody_may_do(server: Server, cluster: Cluster) -> None:
    server.answers["GET", "/version/"] = 200, {"gitVersion": "v1.36.3"}
    assert cluster.version() == "v1.36.3"
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    for allowed in (True, False):
        server.answers["POST", reviews] = 201, {"status": {"allowed": allowed}}
        assert cluster.allows("create", "batch", "jobs", namespaced=True) == allowed
    wanted = {"verb": "create", "group": "batch", "resource": "jobs", "namespace": "trainstack-dev"}
    assert json.loads(server.asked[-1].body)["spec"] == {"resourceAttributes": wanted}
    cluster.allows("create", "", "namespaces", namespaced=False)
    assert "namespace" not in json.loads(server.asked[-1].body)["spec"]["resourceAttributes"]


def test_a_command_in_a_pod_that_is_gone(cluster: Cluster) -> None:
    with pytest.raises(Refused, match="running ls in p failed") as caught:
        cluster.exec("p", "task", ["ls"])
    assert caught.value.status == 404


# ---------------------------------------------------------------------------------------------------- which cluster


def test_a_context_of_the_kubeconfig(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.config import kube_config

    monkeypatch.delenv(OVERRIDE, raising=False)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", kubeconfig(tmp_path, server.url, current=None))
    assert connect("dev", WRITTEN).configuration.host == server.url
    with pytest.raises(OpsError, match="the kubeconfig has no context 'there'; write one that `kubectl config get-contexts` lists"):
        connect("dev", {**WRITTEN, "trainstack:kubernetes": {"context": "there"}})
    with pytest.raises(OpsError, match="the kubeconfig has no current context"):
        connect("dev", {"trainstack:target": "kubernetes"})
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "nowhere"))
    with pytest.raises(OpsError, match="there is no kubeconfig; set KUBECONFIG"):
        connect("dev", WRITTEN)


def test_the_override_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERRIDE, kubeconfig(tmp_path, "http://tunnel"))
    assert connect("prod", {"trainstack:target": "gke"}).configuration.host == "http://tunnel"
    monkeypatch.setenv(OVERRIDE, str(tmp_path / "nowhere"))
    with pytest.raises(OpsError, match="which is no file; correct it, or unset it"):
        connect("prod", {"trainstack:target": "gke"})


@pytest.mark.parametrize(
    ("written", "stack"),
    [
        ({"trainstack:target": "gke"}, "prod"),
        ({"trainstack:target": "kubernetes", "trainstack:kubernetes": {"stack": "team/shared/prod"}}, "team/shared/prod"),
    ],
)
def test_the_output_of_a_stack(written: dict[str, Any], stack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OVERRIDE, raising=False)
    commands: list[list[str]] = []
    answers = [SimpleNamespace(returncode=0, stdout=Path(kubeconfig(tmp_path, "http://of-the-stack")).read_text(), stderr="")]

    def run(command: list[str], **_: Any) -> Any:
        commands.append(command)
        return answers[0]

    monkeypatch.setattr(connection.subprocess, "run", run)
    assert connect("prod", written).configuration.host == "http://of-the-stack"
    assert commands[0][1:] == ["stack", "output", "kubeconfig", "--show-secrets", "--stack", stack]
    answers[0] = SimpleNamespace(returncode=1, stdout="", stderr="error: current stack does not have output property 'kubeconfig'\n")
    with pytest.raises(OpsError, match=f"there is no cluster yet; bring it up with `pulumi up --stack {stack}`"):
        connect("prod", written)
    answers[0] = SimpleNamespace(returncode=1, stdout="", stderr="error: no stack named 'x' found\n")
    with pytest.raises(OpsError, match=r"cannot be read \(no stack named 'x' found\); log in to its backend"):
        connect("prod", written)


def test_programs_that_log_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def logging_in(command: str, *arguments: str) -> None:
        user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": command, "args": list(arguments)}}
        monkeypatch.setenv(OVERRIDE, kubeconfig(tmp_path, "http://here", user))
        connect("dev", WRITTEN)

    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(OpsError, match="install it with `gcloud components install gke-gcloud-auth-plugin`"):
        logging_in(f"{tmp_path}/gke-gcloud-auth-plugin")
    with pytest.raises(OpsError, match="other-plugin is missing, which the kubeconfig uses to log in; install it"):
        logging_in("other-plugin")
    with pytest.raises(
        OpsError, match=r"logging in to the cluster failed \(.*no account.*\); log in again, for GKE with `gcloud auth login`"
    ):
        logging_in("sh", "-c", "echo no account >&2; exit 1")
    assert capsys.readouterr().err == "", "what the library logs is in the sentence"
