"""The commands on a cluster, over one that is plain data: what is read, what is changed, and in which order."""

from __future__ import annotations

import copy
import io
import json
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ops import cluster, podlogs, records, shell
from ops.cluster import KubernetesTarget
from ops.target import OpsError, Run
from tests.ops.objects import NAMESPACE, Object, claim, condition, ended, job, pod, service, unscheduled

TOPOLOGY = {"chief": 1, "worker": 2, "ps": 1}
ON_A_BUCKET = {kind: f"gs://bucket/{kind}/1" for kind in ("checkpoint_dir", "log_dir", "model_dir")}
COMPLETE = condition("Complete")
FAILED = condition("Failed", "MaxFailedIndexesExceeded")
MOUNTED = {"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "ckpt"}}]}}


class Frame(SimpleNamespace):
    data: bytes


class Connection:
    """A web socket on which a command has said all it has to say."""

    def __init__(self, *frames: tuple[int, bytes], code: int = 0) -> None:
        causes = {"details": {"causes": [{"reason": "ExitCode", "message": str(code)}]}}
        status = {"status": "Success"} if code == 0 else {"status": "Failure", "message": "command terminated", **causes}
        self.left = [*frames, (shell.END, json.dumps(status).encode())]
        self.sock = self
        self.closed = False

    def recv_data_frame(self, _: bool) -> tuple[int, Frame]:
        channel, data = self.left.pop(0)
        return 2, Frame(data=bytes([channel]) + data)

    def close(self, **_: Any) -> None:
        self.closed = True


class Fake:
    """A cluster that does at once what it is told. Deleting a Job deletes its pods; suspending it, too."""

    namespace = NAMESPACE

    def __init__(self, services: list[Object], jobs: list[Object], pods: list[Object]) -> None:
        self.services, self.jobs, self.pods = services, jobs, pods
        self.events: list[Object] = []
        self.claims: list[Object] = []
        self.printed: dict[str, str] = {}
        self.answers: dict[str, Connection] = {}
        self.did: list[str] = []
        self.asked: list[tuple[str, int | None]] = []

    def listed(self, kind: str, selector: str = "") -> list[Object]:
        wanted = dict(part.split("=") for part in selector.split(",") if part)
        found: list[Object] = getattr(self, kind)
        return copy.deepcopy([each for each in found if wanted.items() <= (each["metadata"].get("labels") or {}).items()])

    def nodes(self) -> list[Object]:
        return []

    def check(self) -> None:
        raise OpsError("the cluster has no namespace")

    def log(self, name: str, container: str, since: int | None = None, tail: int | None = None) -> str:
        self.asked.append((name, since))
        lines = self.printed.get(f"{name}/{container}", "").splitlines(keepends=True)
        return "".join(lines[-tail:] if tail else lines)

    def suspend(self, name: str, suspend: bool) -> None:
        self.did.append(f"{'suspend' if suspend else 'resume'} {name}")
        next(each for each in self.jobs if each["metadata"]["name"] == name)["spec"]["suspend"] = suspend
        self._end(name)

    def delete_job(self, name: str) -> None:
        self.did.append(f"delete {name}")
        self.jobs = [each for each in self.jobs if each["metadata"]["name"] != name]
        self._end(name)

    def _end(self, name: str) -> None:
        self.pods = [each for each in self.pods if each["metadata"]["labels"].get("batch.kubernetes.io/job-name") != name]

    def create_job(self, body: Object, manager: str, applied: bool) -> None:
        self.did.append(f"create {body['metadata']['name']} as {manager}{' by apply' if applied else ''}")
        self.jobs.append({**body, "status": {}})

    def delete_pod(self, name: str) -> None:
        self.did.append(f"kill {name}")

    def exec(self, name: str, container: str, command: list[str], **_: Any) -> Connection:
        self.did.append(f"{name}/{container}: {' '.join(command)}")
        return next(answer for words, answer in self.answers.items() if words in " ".join(command))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KubernetesTarget, "pause", 0.01)
    monkeypatch.setattr(cluster, "PATIENCE", 0.2)


def at(seconds: float) -> str:
    """A time as the kubelet writes it before a line."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def lines(*said: tuple[float, str]) -> str:
    return "".join(f"{at(seconds)} {line}\n" for seconds, line in said)


def running(**record: Any) -> Fake:
    jobs = [job(role) for role in TOPOLOGY]
    pods = [pod("chief"), pod("worker", 0), pod("worker", 1), pod("ps")]
    return Fake([service(topology=TOPOLOGY, **record)], jobs, pods)


def target(fake: Fake, **written: Any) -> KubernetesTarget:
    return KubernetesTarget("test", fake, {f"trainstack:{key}": value for key, value in written.items()})  # type: ignore[arg-type]


def only(fake: Fake) -> tuple[KubernetesTarget, Run]:
    made = target(fake)
    (run,) = made.runs()
    return made, run


# ------------------------------------------------------------------------------------------------------- looking


def test_a_run_with_its_numbers() -> None:
    fake = running(model_dir="gs://bucket/model/1")
    fake.printed["digits-chief-0-abcde/task"] = lines(
        (0, "training digits under parameter_server, replicas 1: 88 of 88 steps to go"),
        (1, "epoch 1/2, step 44: loss 0.5, accuracy 0.9"),
        (2, "step 44: test loss 0.4, test accuracy 0.8"),
    )
    _, run = only(fake)
    assert (run.training, run.run, run.state, run.model) == ("digits", "1", "running", "gs://bucket/model/1")
    assert run.metrics[0]["steps"] == 88
    assert run.figure == "accuracy 0.8000"
    assert [task.name for task in run.tasks] == ["chief-0", "worker-0", "worker-1", "ps-0"]
    assert {name for name, _ in fake.asked} == {"digits-chief-0-abcde"}, "under parameter servers the others have nothing to tell"


def test_watching_reads_every_line_once_and_a_log_that_ended_not_again() -> None:
    fake = running()
    fake.printed["digits-chief-0-abcde/task"] = lines((0, "epoch 1/9, step 44: loss 0.5"))
    made = target(fake)
    made.runs()
    fake.printed["digits-chief-0-abcde/task"] += lines((1, "epoch 2/9, step 88: loss 0.4"))
    assert [record["step"] for record in made.runs()[0].metrics] == [44, 88]
    assert [since for _, since in fake.asked] == [None, podlogs.OVERLAP + 1]
    fake.pods[0]["status"]["phase"] = "Succeeded"
    made.runs()
    asked = len(fake.asked)
    made.runs()
    assert len(fake.asked) == asked


def test_lines_of_one_moment_are_neither_lost_nor_told_twice() -> None:
    mark = podlogs.Mark()
    first = "2026-11-17T04:00:00.000000001Z a\n2026-11-17T04:00:00.000000002Z b\n"
    assert [line for _, line in podlogs.unseen(mark, first)] == ["a", "b"]
    again = first + "2026-11-17T04:00:00.000000002Z c\n2026-11-17T04:00:00.000000003Z d\n"
    assert [line for _, line in podlogs.unseen(mark, again)] == ["c", "d"]
    assert podlogs.unseen(mark, again) == []


def test_progress_bars_and_empty_lines() -> None:
    text = "2026-11-17T04:00:00Z \n2026-11-17T04:00:01Z 10%\r50%\r\nno time\n"
    assert list(podlogs.timed(text)) == [("2026-11-17T04:00:00Z", ""), ("2026-11-17T04:00:01Z", "50%")]


def test_a_lead_that_waits_and_one_that_has_gone_on() -> None:
    fake = running()
    fake.printed["digits-chief-0-abcde/task"] = lines((-5, "launcher: waiting for ps-0 (10 s)"))
    made, run = only(fake)
    assert (run.tasks[0].state, run.tasks[0].detail) == ("waiting", "waiting for ps-0")
    assert [finding.task for finding in made.explain(None)] == ["chief-0"]
    fake.printed["digits-chief-0-abcde/task"] = lines((-60, "launcher: waiting for ps-0 (10 s)"))
    made, run = only(fake)
    assert run.tasks[0].state == "running", "a launcher that waits says so every ten seconds"
    assert made.explain(None) == []


def test_workers_that_train_together_wait_for_each_other() -> None:
    fake = Fake([service(topology={"worker": 2}, strategy="multi_worker_mirrored")], [job("worker")], [pod("worker", 0), pod("worker", 1)])
    fake.printed["digits-worker-1-abcde/task"] = lines((-1, "launcher: waiting for worker-0 (0 s)"))
    assert [task.state for task in only(fake)[1].tasks] == ["running", "waiting"]


def test_a_failed_run_has_the_last_words_of_who_failed() -> None:
    fake = running()
    fake.jobs[2] = job("ps", FAILED, failedIndexes="0")
    fake.pods[3] = pod("ps", phase="Failed", state=ended(1))
    fake.printed["digits-ps-0-abcde/task"] = lines((0, "ValueError: no"))
    assert only(fake)[1].reason == "ps-0 is out of restarts: it ended with 1: ValueError: no"


def test_nothing_there_says_that_the_namespace_is_missing() -> None:
    with pytest.raises(OpsError, match="no namespace"):
        target(Fake([], [], [])).runs()


def test_a_load_balancer_is_where_tensorboard_is() -> None:
    fake = running()
    board = service()
    board["metadata"] = {**board["metadata"], "name": "digits-tensorboard", "annotations": {}}
    board |= {"spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}, "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}}}
    fake.services.append(board)
    assert only(fake)[1].tensorboard == "http://203.0.113.9/"


# ---------------------------------------------------------------------------------------------------------- logs


def test_logs_of_a_task_are_those_of_all_its_pods_in_order() -> None:
    fake = running()
    fake.pods += [pod("worker", 1, "Failed", suffix="first", created="2026-11-17T03:00:00Z", state=ended(1))]
    fake.printed |= {"digits-worker-1-first/task": lines((-9, "one")), "digits-worker-1-abcde/task": lines((-3, "two"))}
    made, run = only(fake)
    said = [line for _, line in made.logs(run, "worker-1", follow=False)]
    assert [line for line in said if not line.startswith("---")] == ["one", "two"]
    assert [line.split()[-1] for line in said if line.startswith("---")] == ["0", "1"], "each start is announced, as on local"


def test_logs_of_a_role_are_interleaved_by_time() -> None:
    fake = running()
    fake.printed |= {
        "digits-worker-0-abcde/task": lines((-9, "a"), (-5, "c")),
        "digits-worker-1-abcde/task": lines((-7, "b"), (-3, "d")),
    }
    made, run = only(fake)
    said = [(task, line) for task, line in made.logs(run, "worker", follow=False) if not line.startswith("---")]
    assert said == [("worker-0", "a"), ("worker-1", "b"), ("worker-0", "c"), ("worker-1", "d")]


def test_following_ends_with_the_run_and_misses_nothing() -> None:
    fake = running()
    fake.printed["digits-chief-0-abcde/task"] = lines((-9, "a"))
    made, run = only(fake)
    following = made.logs(run, "chief-0", follow=True)
    assert [next(following)[1][:3], next(following)[1]] == ["---", "a"]
    fake.printed["digits-chief-0-abcde/task"] += lines((-1, "b"))
    fake.jobs[0] = job("chief", COMPLETE)
    assert [line for _, line in following] == ["b"]


def test_an_unknown_task_and_one_that_has_no_pod_yet() -> None:
    fake = running()
    fake.pods = fake.pods[:1]
    made, run = only(fake)
    assert list(made.logs(run, "worker-1", follow=False)) == []
    with pytest.raises(OpsError, match=r"no task 'worker-7'; the tasks are chief-0, ps-0, worker-0, worker-1\."):
        list(made.logs(run, "worker-7", follow=False))


# ------------------------------------------------------------------------------------------------------ changing


def test_cancel_suspends_what_is_not_finished_and_waits_for_the_pods() -> None:
    fake = running()
    fake.jobs.append(job("evaluator", COMPLETE))
    made, run = only(fake)
    made.cancel(run)
    assert fake.did == ["suspend digits-chief", "suspend digits-worker", "suspend digits-ps"]
    assert made.runs()[0].state == "cancelled"
    with pytest.raises(OpsError, match="is cancelled already; there is nothing to cancel"):
        made.cancel(made.runs()[0])


def test_cancel_says_when_tasks_do_not_end() -> None:
    fake = running()
    fake._end = lambda _: None  # type: ignore[method-assign]
    made, run = only(fake)
    with pytest.raises(OpsError, match="still saving"):
        made.cancel(run)


def test_rerun_of_a_cancelled_run_resumes_it_and_makes_again_what_was_finished() -> None:
    fake = running()
    fake.jobs = [job(role, suspend=True) for role in TOPOLOGY] + [job("evaluator", COMPLETE)]
    fake.pods = []
    made, run = only(fake)
    made.rerun(run, fresh=False)
    assert fake.did == [
        "delete digits-evaluator",
        "create digits-evaluator as trainstack",
        *(f"resume digits-{role}" for role in TOPOLOGY),
    ]
    assert made.runs()[0].state == "running"


def test_rerun_of_a_failed_run_makes_every_job_again_after_all_are_gone() -> None:
    """One that is still there would hear of the old failure, and end the new run with it."""
    fake = running()
    fake.jobs = [job("chief", FAILED), job("worker"), job("ps"), job("tensorboard", COMPLETE), job("data-prep", COMPLETE)]
    made, run = only(fake)
    made.rerun(run, fresh=False)
    names = [f"digits-{name}" for name in ("chief", "worker", "ps", "tensorboard")]
    assert fake.did == [*(f"delete {name}" for name in names), *(f"create {name} as trainstack" for name in names)]


def test_rerun_refuses_what_runs_and_what_is_gone() -> None:
    made, run = only(running())
    with pytest.raises(OpsError, match="is going on; end it first with `trainstack cancel`"):
        made.rerun(run, fresh=False)
    fake = running()
    fake.jobs = []
    made, run = only(fake)
    assert run.state == "vanished"
    with pytest.raises(OpsError, match="`pulumi up --refresh` makes them again"):
        made.rerun(run, fresh=False)


def test_fresh_deletes_what_is_on_buckets_while_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = running(**ON_A_BUCKET)
    fake.jobs = [job(role, FAILED) for role in TOPOLOGY]
    monkeypatch.setattr(cluster.storage.Bucket, "delete", lambda self: fake.did.append(f"clear {self.url}"))
    made, run = only(fake)
    made.rerun(run, fresh=True)
    assert [each.split()[0] for each in fake.did] == [*["delete"] * 3, *["clear"] * 3, *["create"] * 3]
    assert [each for each in fake.did if "clear" in each] == [f"clear {place}" for place in ON_A_BUCKET.values()]


def test_fresh_on_a_volume_is_refused_before_anything_happens() -> None:
    fake = running(**{**ON_A_BUCKET, "log_dir": "/logs/1"})
    fake.jobs = [job(role, FAILED) for role in TOPOLOGY]
    made, run = only(fake)
    with pytest.raises(OpsError, match=r"^/logs/1: that is on a volume.* another `run:` instead"):
        made.rerun(run, fresh=True)
    assert fake.did == []


def test_kill_takes_the_pod_that_runs() -> None:
    fake = running()
    fake.pods += [pod("worker", 1, "Failed", suffix="first", created="2026-11-17T03:00:00Z", state=ended(1))]
    made, run = only(fake)
    made.kill(run, "worker-1")
    assert fake.did == ["kill digits-worker-1-abcde"]
    with pytest.raises(OpsError, match="has no pod that runs"):
        made.kill(run, "evaluator-0")


def test_a_job_made_anew_has_nothing_of_the_server_and_the_owner_it_had() -> None:
    generated = {f"{prefix}{name}": "1" for prefix in ("", "batch.kubernetes.io/") for name in ("controller-uid", "job-name")}
    old = job("worker", FAILED, suspend=True)
    old["metadata"] |= {
        "resourceVersion": "7",
        "generation": 2,
        "annotations": {"pulumi.com/waitFor": "x", "batch.kubernetes.io/job-tracking": ""},
        "managedFields": [
            {"manager": "trainstack", "operation": "Update"},
            {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status"},
            {"manager": "pulumi-kubernetes-abc", "operation": "Apply"},
        ],
    }
    old["metadata"]["labels"] |= generated
    old["spec"] |= {"selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "1"}}, "completions": 2}
    old["spec"]["template"]["metadata"] = {"creationTimestamp": None, "labels": {**generated, "a": "b"}}
    body, manager, applied = records.anew(old)
    assert (manager, applied) == ("pulumi-kubernetes-abc", True)
    assert set(body) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(body["metadata"]) == {"name", "namespace", "labels", "annotations"}
    assert body["metadata"]["annotations"] == {"pulumi.com/waitFor": "x"}
    assert not generated.keys() & body["metadata"]["labels"].keys()
    assert body["spec"]["template"]["metadata"] == {"labels": {"a": "b"}}
    assert {"selector", "suspend"} & body["spec"].keys() == set()
    assert body["spec"]["completions"] == 2
    assert old["spec"]["suspend"] is True, "what was read is left as it was"


# -------------------------------------------------------------------------------------------------------- models


def archive(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def with_volume(role: str = "tensorboard", read_only: bool = False) -> Fake:
    mount = {"name": "v", "mountPath": "/ckpt/", "readOnly": read_only}
    fake = running(model_dir="/ckpt/models/1")
    fake.pods.append(pod(role, mounts=(mount,), **MOUNTED))
    return fake


def test_a_model_on_a_volume_comes_through_a_pod_that_mounts_it(tmp_path: Path) -> None:
    fake = with_volume()
    packed = archive(**{"saved_model.pb": b"model", "variables": b"x" * 100_000})
    pieces = [(shell.STDOUT, packed[start : start + 30_000]) for start in range(0, len(packed), 30_000)]
    fake.answers = {"ls -1": Connection((shell.STDOUT, b"9\n880\n.saving\n")), "tar cf": Connection(*pieces)}
    made, run = only(fake)
    made.fetch_model(run, tmp_path / "model")
    assert (tmp_path / "model" / "saved_model.pb").read_bytes() == b"model"
    assert len((tmp_path / "model" / "variables").read_bytes()) == 100_000
    assert fake.did[-1] == "digits-tensorboard-abcde/tensorboard: tar cf - -C /ckpt/models/1/880 ."
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_half_a_model_is_none(tmp_path: Path) -> None:
    fake = with_volume()
    fake.answers = {"ls -1": Connection((shell.STDOUT, b"880\n")), "tar cf": Connection((shell.STDERR, b"tar: No space left\n"), code=2)}
    made, run = only(fake)
    with pytest.raises(OpsError, match="cannot be copied from digits-tensorboard-abcde \\(tar: No space left\\)"):
        made.fetch_model(run, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_no_pod_has_the_volume() -> None:
    made, run = only(running(model_dir="/ckpt/models/1"))
    with pytest.raises(OpsError, match="write inspector: true and deploy: false"):
        made.model(run)


def test_deleting_needs_a_pod_that_may_write() -> None:
    made, run = only(with_volume(read_only=True))
    with pytest.raises(OpsError, match="no pod that runs has it to write"):
        made.delete_model(run)
    fake = with_volume("chief")
    fake.answers = {"rm -rf": Connection()}
    made, run = only(fake)
    made.delete_model(run)
    assert fake.did == ['digits-chief-0-abcde/task: sh -c rm -rf -- "$0" /ckpt/models/1']


def test_no_version_is_no_model(tmp_path: Path) -> None:
    fake = with_volume()
    fake.answers = {"ls -1": Connection()}
    made, run = only(fake)
    assert made.model(run) == ""
    fake.answers = {"ls -1": Connection()}
    with pytest.raises(OpsError, match="has no model; one appears when a run succeeds"):
        made.fetch_model(run, tmp_path / "model")


def test_a_mounted_bucket_is_a_bucket() -> None:
    record = {"settings": {"volumes": [{"bucket": "b", "path": "/data/"}, {"claim": "c", "path": "/ckpt"}]}}
    assert records.on_a_bucket(record, "/data/model/1") == "gs://b/model/1"
    assert records.on_a_bucket(record, "gs://x/1") == "gs://x/1"
    assert records.on_a_bucket(record, "/ckpt/1") is None
    assert records.on_a_bucket(record, "/database/1") is None


# ------------------------------------------------------------------------------------------------- deploy: false

KEPT = {
    "target": "kubernetes",
    "kubernetes": {"context": "kind"},
    "image": {"reference": "example.com/trainer@sha256:" + "0" * 64},
    "trainings": {
        "digits": {
            "program": "digits",
            "strategy": "mirrored",
            "worker": {"replicas": 1},
            "deploy": False,
            "inspector": True,
            "volumes": [{"claim": "ckpt", "path": "/ckpt"}],
        }
    },
}


def test_the_model_of_a_training_that_is_not_deployed_comes_through_its_inspector() -> None:
    mount = {"name": "v", "mountPath": "/ckpt"}
    fake = Fake([], [], [pod("inspector", mounts=(mount,), **MOUNTED)])
    fake.answers = {"ls -1": Connection((shell.STDOUT, b"880\n"))}
    made = target(fake, **KEPT)
    (run,) = made.runs()
    assert (run.state, run.in_stack) == ("kept", False)
    assert made.model(run) == "/ckpt/digits/models/1/880"
    with pytest.raises(OpsError, match="write deploy: true"):
        made.rerun(run, fresh=False)


def test_settings_that_are_wrong_are_not_the_business_of_these_commands() -> None:
    assert records.kept_records("test", {"trainstack:trainings": {"digits": {"no": "such"}}}) == {}


# ---------------------------------------------------------------------------------- beside the topology, and explain


def test_inspect_without_an_inspector() -> None:
    with pytest.raises(OpsError, match="write inspector: true and deploy: false, then `pulumi up`"):
        target(running()).inspect(None, ["ls"], captured=True)


def test_inspect_one_command() -> None:
    fake = Fake([], [], [pod("inspector")])
    fake.answers = {"ls": Connection((shell.STDOUT, b"a\n"), (shell.STDERR, b"oh\n"), code=7)}
    assert target(fake).inspect(None, ["ls", "/ckpt"], captured=True) == (7, "a\n", "oh\n")
    assert fake.did == ["digits-inspector-abcde/inspector: ls /ckpt"]


def test_inspect_asks_which() -> None:
    fake = Fake([], [], [pod("inspector"), pod("inspector", training="mnist")])
    with pytest.raises(OpsError, match="several trainings with inspector; say which with --training: digits, mnist"):
        target(fake).inspect(None, ["ls"], captured=True)


def test_a_tensorboard_that_does_not_run_says_why() -> None:
    fake = running()
    fake.pods.append(pod("tensorboard", phase="Pending", conditions=unscheduled("no nodes available to schedule pods")))
    with (
        pytest.raises(OpsError, match="tensorboard of digits does not run: the cluster has no node"),
        target(fake).tensorboard(None, None, 0),
    ):
        pass
    with pytest.raises(OpsError, match=r"write tensorboard: \{\}, then `pulumi up`"), target(running()).tensorboard(None, None, 0):
        pass


def test_explain_is_about_everything_that_does_not_run() -> None:
    fake = running()
    fake.claims = [claim("ckpt", "Bound")]
    fake.jobs[1] = job("worker", failedIndexes="1")
    fake.pods[1] = pod("worker", 0, "Pending", conditions=unscheduled("no nodes available to schedule pods"))
    fake.pods[2] = pod("worker", 1, "Failed", state=ended(1))
    fake.pods[3] = pod("ps", phase="Failed", state=ended(1), owner="a Job that was there before")
    fake.pods += [pod("data-prep", phase="Succeeded"), pod("serving", ready=False), pod("inspector", training="other")]
    fake.printed["digits-worker-1-abcde/task"] = lines((0, "ValueError: no"))
    found = {finding.task: finding for finding in target(fake).explain(None)}
    assert set(found) == {"worker-0", "worker-1", "ps-0", "serving"}
    assert "no node" in found["worker-0"].sentence
    assert 'out of restarts (max_restarts: 3): it ended with 1; its last words: "ValueError: no"' in found["worker-1"].sentence
    assert found["worker-1"].state == "failed"
    assert "about to be made" in found["ps-0"].sentence


def test_explain_a_cancelled_run_and_jobs_that_are_gone() -> None:
    fake = running()
    fake.jobs, fake.pods = [job("chief", suspend=True), job("worker", suspend=True)], []
    found = {finding.task: finding.sentence for finding in target(fake).explain("digits")}
    assert "the run was cancelled" in found["chief-0"]
    assert "its Job is gone; `pulumi up --refresh`" in found["ps-0"]
