"""Trainings on a cluster: everything is read from their Jobs, pods and logs, and from what the training's Service says of its run."""

from __future__ import annotations

import heapq
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops import shell, states, storage
from ops.connection import Cluster, Refused
from ops.explain import explain, explain_job, waiting_for
from ops.forward import Forward
from ops.numbers import Numbers
from ops.podlogs import Logs
from ops.records import BESIDE, address_of, anew, chosen, is_ready, kept_records, kept_run, mounts, on_a_bucket, record_of, statuses_beside
from ops.spending import standing
from ops.states import Object
from ops.target import Finding, OpsError, Run, Site, TaskStatus, choose, only
from workloads.kubernetes.names import COMPONENT, NAME, of_stack
from workloads.topology import PARAMETER_SERVER, ROLES, Topology

if TYPE_CHECKING:
    from ops.rehearse_stack import ClusterStage

TENSORBOARD_PORT, REST_PORT = 6006, 8501
PATIENCE = 180.0  # seconds for pods to save and go; they have 120
FRESH = 15.0  # seconds within which a launcher that still waits says so again, and clocks may differ
FEW, MANY = 8, 64  # tasks that are asked whom they wait for, while following and when asked why; the others wait for the same


@dataclass
class Look:
    """What the cluster had at one moment."""

    services: list[Object]
    jobs: list[Object]
    pods: list[Object]

    def of(self, training: str) -> tuple[list[Object], list[Object]]:
        """The Jobs and the pods of a training."""
        jobs = [job for job in self.jobs if states.labels(job).get(NAME) == training]
        pods = [pod for pod in self.pods if states.labels(pod).get(NAME) == training]
        return jobs, sorted(pods, key=states.created)


class KubernetesTarget:
    pause = 2.0

    def __init__(self, stack: str, cluster: Cluster, written: Mapping[str, Any]) -> None:
        self.stack, self.cluster, self.written = stack, cluster, written
        self.logs_of = Logs(cluster)
        self._numbers: dict[tuple[str, str], Numbers] = {}
        self._words: dict[str, str] = {}  # from a pod that failed to its last words
        self._waits: dict[str, tuple[str, float]] = {}  # from a pod to the peer that it said it waits for, and when

    # ------------------------------------------------------------------------------------------------- looking

    def _look(self, training: str | None) -> Look:
        labels = {**of_stack(self.cluster.namespace), **({NAME: training} if training else {})}
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        found = Look(*(self.cluster.listed(kind, selector) for kind in ("services", "jobs", "pods")))
        if not any((found.services, found.jobs, found.pods)):
            self.cluster.check()
        return found

    def runs(self, training: str | None = None) -> list[Run]:
        return self._runs(self._look(training))

    def _runs(self, look: Look, numbers: bool = True) -> list[Run]:
        records = [record for service in sorted(look.services, key=states.created) if (record := record_of(service))]
        kept = [kept_run(record, self.cluster.namespace) for record in self._kept.values() if look.of(record["training"])[1]]
        return [*kept, *(self._run(record, look, numbers) for record in records)]

    @cached_property
    def _kept(self) -> dict[str, dict[str, Any]]:
        return kept_records(self.stack, self.written)

    def _run(self, record: dict[str, Any], look: Look, numbers: bool) -> Run:
        training = record["training"]
        jobs, pods = look.of(training)
        verdict = states.verdict(record, jobs, pods)
        reason = verdict.reason
        known = Numbers()
        waiting: dict[str, str] = {}
        if numbers:
            known = self._read_numbers(record, pods)
            waiting = self._read_waiting(record, pods, known) if verdict.state == "running" else {}
            if verdict.culprit and (words := self._last_words(next(pod for pod in pods if pod["metadata"]["name"] == verdict.culprit))):
                reason = f"{reason}: {words}"
        return Run(
            training=training,
            run=record["run"],
            state=verdict.state,
            reason=reason,
            place=f"namespace {self.cluster.namespace}",
            model=record.get("model_dir", ""),
            started=verdict.started,
            ended=verdict.ended,
            tensorboard=address_of(look.services, f"{training}-tensorboard"),
            tasks=states.tasks(record, jobs, pods, waiting),
            metrics=list(known.metrics),
            evaluation=list(known.evaluation),
        )

    def _read_numbers(self, record: dict[str, Any], pods: Sequence[Object]) -> Numbers:
        known = self._numbers.setdefault((record["training"], record["run"]), Numbers())
        lead = Topology(**record["topology"]).lead.name
        for pod in pods:
            task = states.task_of(pod)
            if task not in (lead, "evaluator-0"):
                continue
            for when, line in self.logs_of.new(pod):
                if task == lead:
                    known.feed_lead(when, line)
                    self._note_waiting(pod, when, line)
                else:
                    known.feed_evaluator(when, line)
        return known

    def _note_waiting(self, pod: Object, when: float, line: str) -> None:
        name = pod["metadata"]["name"]
        peer = waiting_for([line])
        if peer:
            self._waits[name] = peer[0], when
        elif line.strip():
            self._waits.pop(name, None)

    def _read_waiting(self, record: dict[str, Any], pods: Sequence[Object], known: Numbers) -> dict[str, str]:
        """Whom the tasks wait for. A launcher that waits says so every ten seconds; one that is silent has gone on."""
        if known.steps is not None:
            return {}
        found, topology = {}, Topology(**record["topology"])
        alone = record["strategy"] == PARAMETER_SERVER and topology.ps > 0  # then only the lead waits
        running = [
            pod for pod in pods if pod["status"].get("phase") == "Running" and states.task_of(pod).split("-")[0] in ("chief", "worker")
        ]
        for pod in running[:FEW]:
            if states.task_of(pod) != topology.lead.name:
                if alone:
                    continue
                for when, line in self.logs_of.tail(pod, 1):
                    self._note_waiting(pod, when, line)
            peer, said = self._waits.get(pod["metadata"]["name"], ("", 0.0))
            if peer and is_fresh(said):
                found[states.task_of(pod)] = peer
        return found

    def _last_words(self, pod: Object) -> str:
        uid = pod["metadata"]["uid"]
        if uid not in self._words:
            self._words[uid] = states.last_words([line for _, line in self.logs_of.tail(pod)])
        return self._words[uid]

    # ---------------------------------------------------------------------------------------------------- logs

    def logs(self, run: Run, task: str | None, follow: bool) -> Iterator[tuple[str, str]]:
        """The pods of a task one after another, tasks in the order of time. Following goes on until the run is over."""
        reader, starts, announced = Logs(self.cluster), Counter[str](), set[str]()
        with ThreadPoolExecutor(8) as together:
            while True:
                look = self._look(run.training)
                now = next((each for each in self._runs(look, numbers=False) if each.run == run.run), None)
                over = now is None or now.is_over
                pods = chosen(look.of(run.training)[1], task, now.tasks if now else ())
                printed = list(together.map(reader.new, pods))
                lines = []
                for pod, said in zip(pods, printed, strict=True):
                    name, uid = states.task_of(pod), pod["metadata"]["uid"]
                    head = [_start(said[0][0], starts[name])] if said and uid not in announced else []
                    if head:
                        announced.add(uid)
                        starts[name] += 1
                    lines.append([(when, name, line) for when, line in (*head, *said)])
                for _, name, line in heapq.merge(*lines, key=lambda each: each[0]):
                    yield name, line
                if not follow or (over and not any(printed)):
                    return
                time.sleep(self.pause / 2)

    # ------------------------------------------------------------------------------------------------- changing

    def cancel(self, run: Run) -> None:
        if run.is_over:
            raise OpsError(f"run {run.run} of {run.training} is {run.state} already; there is nothing to cancel.")
        for job in self._task_jobs(run.training):
            if not states.is_finished(job):
                self.cluster.suspend(job["metadata"]["name"], True)
        self._wait_until(
            lambda: not self._active(run.training), f"the tasks of {run.training} are still saving; `trainstack status` shows them."
        )

    def rerun(self, run: Run, fresh: bool) -> None:
        if not run.is_over:
            raise OpsError(f"run {run.run} of {run.training} is going on; end it first with `trainstack cancel`.")
        if not run.in_stack:
            raise OpsError(
                f"run {run.run} of {run.training} is not deployed; write deploy: true, and `pulumi up` starts it where it stopped."
            )
        if run.state == "vanished":
            raise OpsError(
                f"the Jobs of {run.training} are gone, and with them what to start; `pulumi up --refresh` makes them again, where the run stopped."
            )
        places = self._places_to_clear(run) if fresh else []
        jobs = self._task_jobs(run.training)
        again = [job for job in jobs if run.state != "cancelled" or states.is_finished(job)]
        again += [job for job in self._jobs(run.training, ("tensorboard",)) if states.is_finished(job)]
        for job in again:
            self.cluster.delete_job(job["metadata"]["name"])
        names = {job["metadata"]["name"] for job in again}
        self._wait_until(
            lambda: not names & {job["metadata"]["name"] for job in self._look(run.training).jobs} and not self._active(run.training),
            f"the tasks of {run.training} have not ended yet; wait until `trainstack status` shows none, then `pulumi up --refresh`.",
        )
        for place in places:
            place.delete()
        self._numbers.pop((run.training, run.run), None)
        for job in again:
            self.cluster.create_job(*anew(job))
        for job in jobs:
            if job not in again:
                self.cluster.suspend(job["metadata"]["name"], False)

    def _places_to_clear(self, run: Run) -> list[storage.Bucket]:
        record = self._record(run.training)
        written = [record[key] for key in ("checkpoint_dir", "log_dir", "model_dir") if key in record]
        urls = [on_a_bucket(record, place) for place in written]
        if kept := [place for place, url in zip(written, urls, strict=True) if url is None]:
            raise OpsError(
                f"{', '.join(kept)}: that is on a volume, which cannot be cleared from here, and nothing was deleted; start from nothing with another `run:` instead."
            )
        return [storage.Bucket(url) for url in urls if url]

    def kill(self, run: Run, task: str) -> None:
        pods = [pod for pod in self._look(run.training).of(run.training)[1] if states.task_of(pod) == task]
        alive = [pod for pod in pods if pod["status"].get("phase") in ("Pending", "Running")]
        if not alive:
            raise OpsError(f"{task} of {run.training} has no pod that runs; `trainstack status` shows which do.")
        self.cluster.delete_pod(alive[-1]["metadata"]["name"])

    def stage(self, run: Run) -> ClusterStage:
        from ops.rehearse_stack import ClusterStage

        return ClusterStage(self.cluster, self._record(run.training), lambda: self._look(run.training).of(run.training))

    def _jobs(self, training: str, components: Sequence[str]) -> list[Object]:
        names = [f"{training}-{component}" for component in components]
        return [job for job in self._look(training).jobs if job["metadata"]["name"] in names]

    def _task_jobs(self, training: str) -> list[Object]:
        return self._jobs(training, ROLES)

    def _active(self, training: str) -> list[Object]:
        return [
            pod
            for pod in self._look(training).of(training)[1]
            if states.labels(pod).get(COMPONENT) in ROLES and pod["status"].get("phase") in ("Pending", "Running")
        ]

    def _wait_until(self, condition: Callable[[], bool], otherwise: str) -> None:
        until = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > until:
                raise OpsError(otherwise)
            time.sleep(self.pause / 2)

    # --------------------------------------------------------------------------------------------------- models

    def model(self, run: Run) -> str:
        record = self._record(run.training)
        version = storage.newest(self._place(record).names()) if "model_dir" in record else ""
        return f"{record['model_dir']}/{version}" if version else ""

    def fetch_model(self, run: Run, destination: Path) -> None:
        if destination.exists():
            raise OpsError(f"{destination} exists already; name a folder that does not.")
        place = self._place(self._record(run.training))
        version = storage.newest(place.names())
        if not version:
            raise OpsError(f"run {run.run} of {run.training} ({run.state}) has no model; one appears when a run succeeds.")
        place.fetch(version, destination)

    def delete_model(self, run: Run) -> None:
        self._place(self._record(run.training), writes=True).delete()

    def _record(self, training: str) -> dict[str, Any]:
        records = [record for service in self._look(training).services if (record := record_of(service))]
        if not records and training in self._kept:
            return self._kept[training]
        if not records:
            raise OpsError(f"training {training} is no longer in the cluster; `pulumi up` brings it back.")
        return records[0]

    def _place(self, record: dict[str, Any], writes: bool = False) -> storage.Place:
        """Where the models of a run are. On a volume they are reached through a pod that has it."""
        directory = record.get("model_dir")
        if not directory:
            raise OpsError(f"training {record['training']} names no model_dir, so no model is kept; write one, then `pulumi up`.")
        url = on_a_bucket(record, directory)
        if url:
            return storage.Bucket(url)
        for pod in self._look(record["training"]).of(record["training"])[1]:
            if pod["status"].get("phase") == "Running" and mounts(pod, directory, writes):
                return storage.Volume(self.cluster, pod["metadata"]["name"], states.container_name(pod), directory)
        raise OpsError(
            f"{directory} is on a volume, and no pod that runs has it{' to write' if writes else ''}; write inspector: true and deploy: false, then `pulumi up`, "
            "and try again."
        )

    def predict(self, training: str | None, run: str | None, file: Path) -> list[dict[str, Any]]:
        """By the server where there is one that is ready; otherwise by the model itself, on this machine."""
        from ops.predict import ask_server, predict

        served = [pod for pod in self._look(training).pods if states.labels(pod).get(COMPONENT) == "serving" and is_ready(pod)]
        if served and run is None:
            name = training or only([states.labels(pod)[NAME] for pod in served], "serving")
            pod = next(pod for pod in served if states.labels(pod)[NAME] == name)
            with Forward(lambda: self.cluster.dial(pod["metadata"]["name"], REST_PORT)) as forward:
                return ask_server(f"{forward.url}v1/models/{name}", file)
        with tempfile.TemporaryDirectory() as folder:
            self.fetch_model(choose(self.runs(training), run), Path(folder, "model"))
            return predict(str(Path(folder, "model")), file)

    # --------------------------------------------------------------------------------- TensorBoard and the inspector

    @contextmanager
    def tensorboard(self, training: str | None, run: str | None, port: int) -> Iterator[Site]:
        if run is not None and run not in {each.run for each in self._runs(self._look(training), numbers=False)}:
            raise OpsError(f"TensorBoard shows the run that the stack has now, which is not {run!r}; leave --run out.")
        pod = self._beside("tensorboard", training, "write tensorboard: {}, then `pulumi up`")
        names = [pod["metadata"]["name"]]

        def dial() -> Any:
            try:
                return self.cluster.dial(names[-1], TENSORBOARD_PORT)
            except Refused:  # it may have been started again as another pod
                names.append(self._beside("tensorboard", training or states.labels(pod)[NAME], "")["metadata"]["name"])
                return self.cluster.dial(names[-1], TENSORBOARD_PORT)

        with Forward(dial, port) as forward:
            yield Site(forward.url, forwarded=True)

    def inspect(self, training: str | None, command: Sequence[str], captured: bool) -> tuple[int, str, str]:
        pod = self._beside("inspector", training, "write inspector: true and deploy: false, then `pulumi up`")
        name, container = pod["metadata"]["name"], states.container_name(pod)
        if captured:
            return shell.run(self.cluster.exec(name, container, command))
        terminal = shell.has_terminal()
        words = list(command) or [*shell.SHELL, shell.terminal_name()]
        return shell.attach(self.cluster.exec(name, container, words, stdin=True, terminal=terminal), terminal), "", ""

    def _beside(self, component: str, training: str | None, fix: str) -> Object:
        """The pod of something beside the topology, running."""
        found = [pod for pod in self._look(training).pods if states.labels(pod).get(COMPONENT) == component]
        whose = training or only([states.labels(pod)[NAME] for pod in found], component)
        mine = sorted((pod for pod in found if states.labels(pod).get(NAME) == whose), key=states.created)
        if not mine:
            raise OpsError(f"there is no {component} in namespace {self.cluster.namespace}; {fix or '`pulumi up` brings it back'}.")
        running = [pod for pod in mine if states.state_of(pod)[0] == "running"]
        if running:
            return running[-1]
        events, claims = self.cluster.listed("events"), self.cluster.listed("claims")
        why = explain(mine[-1], events, claims, self.cluster.nodes(), self._tail(mine[-1]))
        if why:
            raise OpsError(f"{component} of {whose} does not run: {why}")
        raise OpsError(f"{component} of {whose} has ended; `trainstack rerun` starts it again with the run.")

    # ------------------------------------------------------------------------------------------------- explaining

    def explain(self, training: str | None) -> list[Finding]:
        look = self._look(training)
        events, claims, nodes = self.cluster.listed("events"), self.cluster.listed("claims"), self.cluster.nodes()
        found: list[Finding] = []
        records = {record["training"]: record for service in look.services if (record := record_of(service))}
        names = sorted({states.labels(each).get(NAME, "") for each in (*look.jobs, *look.pods)} | set(records))
        for name in filter(None, names):
            jobs, pods = look.of(name)
            statuses = states.tasks(records[name], jobs, pods, {}) if name in records else ()
            for status in (*(status for status in statuses if status.name not in BESIDE), *statuses_beside(name, jobs, pods)):
                sentence = self._explain(name, status, jobs, pods, events, claims, nodes)
                if sentence:
                    found.append(Finding(name, status.name, status.state, sentence))
        return found

    def _explain(
        self,
        training: str,
        status: TaskStatus,
        jobs: Sequence[Object],
        pods: Sequence[Object],
        events: Sequence[Object],
        claims: Sequence[Object],
        nodes: Sequence[Object],
    ) -> str | None:
        role = status.name if status.name in BESIDE else status.name.rpartition("-")[0]
        job = next((job for job in jobs if job["metadata"]["name"] == f"{training}-{role}"), None)
        mine = [pod for pod in (states.of_job(job, pods) if job else pods) if states.task_of(pod) == status.name]
        if status.state == "succeeded":
            return None
        if status.state == "stopped" or not mine:
            return (
                explain_job(job, events)
                if job
                else "its Job is gone; `pulumi up --refresh` makes it again, and the run goes on where it stopped."
            )
        return explain(mine[-1], events, claims, nodes, self._tail(mine[-1]), job)

    def _tail(self, pod: Object) -> list[str]:
        """The last lines of a log. Of a task that runs, only a launcher that still waits is of interest."""
        if pod["status"].get("phase") != "Running" or (states.container_status(pod).get("state") or {}).get("waiting"):
            return [line for _, line in self.logs_of.tail(pod)]
        if int(states.labels(pod).get(states.INDEX, "0")) >= MANY:
            return []
        return [line for when, line in self.logs_of.tail(pod, 1) if is_fresh(when)]

    def after(self, run: Run) -> list[tuple[str, str]]:
        ours = f"trainstack --stack {self.stack} --training {run.training}"
        if run.state == "succeeded":
            kept = [("model", run.model)] if run.model else []
            return [*kept, ("TensorBoard", run.tensorboard or f"{ours} tensorboard")]
        if run.state == "vanished":
            return [("go on", f"pulumi up --refresh --stack {self.stack}")]
        if run.state == "cancelled":
            return [("go on", f"{ours} rerun")]
        return [("why", f"{ours} explain"), ("logs", f"{ours} logs"), ("go on", f"{ours} rerun")]

    def standing(self) -> str:
        return standing(self.stack, self.written)


def _start(when: float, number: int) -> tuple[float, str]:
    """The line before the first one of a pod, as on local: what follows is another process."""
    return when, f"--- {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(when))} start {number}"


def is_fresh(when: float) -> bool:
    return time.time() - when < FRESH
