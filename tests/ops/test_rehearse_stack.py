"""A rehearsal on a cluster that is plain data and trains a little whenever somebody reads its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ops import rehearsal, rehearse_stack, shell
from ops.__main__ import main
from ops.cluster import KubernetesTarget
from ops.rehearse_stack import ClusterStage, LocalStackStage, check, is_connected, listens
from ops.target import OpsError, Run
from tests.ops.objects import Object, job, pod, service
from tests.ops.test_cluster import Connection, Fake, lines
from workloads.faults import KILL, STOP, TENSORBOARD, TERMINATE, Fault
from workloads.local import runs
from workloads.topology import PARAMETER_SERVER

TOPOLOGY = {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}
EVERY, STEPS = 2, 10
# As a worker of parameter servers has it: its own port 2222 listens, the chief is connected to it, and it to a parameter server.
SERVES = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:08AE 00000000:0000 0A 00000000:00000000 00:00000000 00000000 10001        0 111 1 0 100 0 0 10 0
   1: 0A00F40A:08AE 0B00F40A:D431 01 00000000:00000000 00:00000000 00000000 10001        0 112 1 0 20 4 30 10 -1
"""
WORKS = SERVES + "   2: 0A00F40A:A1B2 0C00F40A:08AE 01 00000000:00000000 00:00000000 00000000 10001        0 113 1 0 20 4 30 10 -1\n"


def with_port(made: Object) -> Object:
    made["spec"]["containers"][0]["ports"] = [{"name": "tensorflow", "containerPort": 2222}, {"name": "launcher", "containerPort": 2223}]
    return made


class Training(Fake):
    """A training that goes on: an epoch is done for each look at it, and who is lost comes back as another pod."""

    def __init__(self, **record: Any) -> None:
        about = {"topology": TOPOLOGY, "settings": {"args": {"checkpoint_every": EVERY}}, **record}
        made = [with_port(pod(role, index)) for role, count in TOPOLOGY.items() for index in range(count)]
        super().__init__([service(**about)], [job(role) for role in TOPOLOGY], made)
        self.epoch, self.starts = 0, 0
        self.loses = EVERY  # epochs at the most, when the lead begins again
        self.begin("digits-chief-0-abcde")

    def begin(self, chief: str) -> None:
        self.epoch = max(0, self.epoch - self.epoch % EVERY - (EVERY if self.loses > EVERY else 0))
        total, done = 100_000, self.epoch * STEPS
        self.printed[f"{chief}/task"] = lines(
            (0, f"training digits under parameter_server, replicas 1: {total - done} of {total} steps to go")
        )

    def log(self, name: str, container: str, since: int | None = None, tail: int | None = None) -> str:
        if "chief" in name:
            self.epoch += 1
            self.printed[f"{name}/{container}"] += lines((0, f"epoch {self.epoch}/9999, step {self.epoch * STEPS}: loss 0.5, accuracy 0.9"))
        return super().log(name, container, since, tail)

    def evict(self, name: str, grace: int | None = None) -> None:
        self.did.append(f"evict {name}" + ("" if grace is None else f" with {grace} s"))
        self.lose(name)

    def lose(self, name: str) -> None:
        self.starts += 1
        lost = next(each for each in self.pods if each["metadata"]["name"] == name)
        role, index = (
            lost["metadata"]["labels"]["app.kubernetes.io/component"],
            lost["metadata"]["labels"].get(rehearse_stack.states.INDEX, "0"),
        )
        self.pods.remove(lost)
        self.pods.append(
            with_port(
                pod(role, int(index), suffix=f"{self.starts:05}", created=f"2026-11-17T05:{self.starts // 60:02}:{self.starts % 60:02}Z")
            )
        )
        if role == "ps":  # the chief notices
            self.lose(next(each["metadata"]["name"] for each in self.pods if "chief" in each["metadata"]["name"]))
        elif role == "chief":
            self.begin(self.pods[-1]["metadata"]["name"])

    def exec(self, name: str, container: str, command: list[str], **_: Any) -> Connection:
        assert container == "task"
        if command == rehearse_stack.CONNECTIONS:
            return Connection((shell.STDOUT, (WORKS if "worker" in name else SERVES).encode()))
        assert command == ["python3", "-c", rehearse_stack.STOPPING]
        self.did.append(f"stop {name}")
        self.lose(name)
        return Connection()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ClusterStage, "pause", 0.001)
    monkeypatch.setattr(rehearsal, "A_WHILE", (0.0, 0.01))
    monkeypatch.setattr(rehearse_stack, "RUNS", tmp_path)


def command(monkeypatch: pytest.MonkeyPatch, fake: Fake, *words: str) -> int:
    made = KubernetesTarget("test", fake, {})  # type: ignore[arg-type]
    monkeypatch.setattr("ops.__main__.target_of", lambda *_: made)
    monkeypatch.setattr("sys.argv", ["trainstack", "--stack", "test", *words])
    return main()


def test_a_rehearsal_on_a_cluster(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fake = Training()
    assert command(monkeypatch, fake, "rehearse", "--faults", "14") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "training digits: 14 faults; spared: the supervisor, TensorBoard, which it does not have"
    assert said[-1].startswith("14 of 14 survived, at most ")
    # Each of the four roles is killed, told and stopped once, and two are killed at once twice.
    assert sum("with 0 s" in done for done in fake.did) == 4 + 2 * 2
    assert sum(done.startswith("evict") and "with" not in done for done in fake.did) == 4
    assert sum(done.startswith("stop") for done in fake.did) == 4
    report = json.loads((tmp_path / "rehearsal-test-digits" / "report.json").read_text())
    assert report["intervals"] == {PARAMETER_SERVER: EVERY * STEPS}
    assert max(each["lost"] for each in report["faults"]) > 0
    assert (tmp_path / "rehearsal-test-digits" / "timeline.png").stat().st_size > 10_000


def test_more_lost_steps_than_between_two_checkpoints_are_no_survival(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Training()
    fake.loses = 2 * EVERY
    assert command(monkeypatch, fake, "rehearse", "--faults", "14") == 3
    assert not capsys.readouterr().out.splitlines()[-1].startswith("14 of 14")


def test_a_worker_is_back_when_it_is_connected_to_a_server() -> None:
    assert listens(SERVES, 2222)
    assert not listens(SERVES, 2223)
    assert not is_connected(SERVES, 2222), "that the chief has connected to it is not enough"
    assert is_connected(WORKS, 2222)
    assert not listens("", 2222)


def test_one_that_is_being_deleted_or_waits_for_a_node_is_not_back() -> None:
    fake = Training()
    made = KubernetesTarget("test", fake, {})  # type: ignore[arg-type]
    stage = made.stage(made.runs()[0])
    assert stage.is_back("ps-0")
    fake.pods[3]["status"]["phase"] = "Pending"
    stage._listed_at = 0.0
    assert stage.incarnation("ps-0") is not None
    assert not stage.is_back("ps-0")
    fake.pods[3]["metadata"]["deletionTimestamp"] = "2026-11-17T05:00:00Z"
    stage._listed_at = 0.0
    assert stage.incarnation("ps-0") is None


def test_what_can_not_be_rehearsed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, Training(settings={"command": ["python", "mine.py"]}), "rehearse") == 1
    assert "runs a command of its own" in capsys.readouterr().err
    over = Training()
    for each in over.jobs:
        each["spec"]["suspend"] = True
    assert command(monkeypatch, over, "rehearse") == 1
    assert "is cancelled; a rehearsal needs one that is running" in capsys.readouterr().err


def test_a_training_that_ends_meanwhile(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake = Training()
    ended = {"type": "Complete", "status": "True", "lastTransitionTime": "2026-11-17T05:00:00Z"}
    evicted = fake.evict
    monkeypatch.setattr(fake, "evict", lambda *words: (evicted(*words), fake.jobs[0]["status"]["conditions"].append(ended)))
    assert command(monkeypatch, fake, "rehearse") == 1
    assert "came to its end before the rehearsal did" in capsys.readouterr().err


def test_on_this_machine_kills_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = LocalStackStage(tmp_path)
    stage.plan = {"max_restarts": 3, "topology": TOPOLOGY, "strategy": PARAMETER_SERVER, "settings": {}}
    monkeypatch.setattr(
        runs, "read_status", lambda _: {"tasks": [{"name": "ps-0", "restarts": 2}, {"name": "tensorboard", "restarts": 0}], "pid": 1}
    )
    kill, tell = Fault(PARAMETER_SERVER, KILL, ("ps-0",)), Fault(PARAMETER_SERVER, TERMINATE, ("ps-0",))
    run = Run("digits", "1", "running", "", str(tmp_path), "")
    check(stage, run, [kill, tell, tell, Fault(PARAMETER_SERVER, STOP, ("ps-0",))])
    with pytest.raises(OpsError, match="ps-0 of digits would be killed 2 times"):
        check(stage, run, [kill, kill])
    check(stage, run, [Fault(PARAMETER_SERVER, KILL, (TENSORBOARD,))] * 3)
    with pytest.raises(OpsError, match="tensorboard of digits would be killed 4 times"):
        check(stage, run, [Fault(PARAMETER_SERVER, KILL, (TENSORBOARD,))] * 4)
