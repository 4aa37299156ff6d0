"""Starts one task of a training and ends it in time: one file, standard library only, so that it runs in any image.

    TF_CONFIG=… python launcher.py [options] -- COMMAND [ARGUMENT…]

TensorFlow's own processes do not know when to begin and when to end: a coordinator gives up on peers that are minutes late, and
parameter servers and workers stay for ever after the chief has gone. So every task is started by this file. It answers on the port
after the task's TensorFlow port (http://HOST:PORT+1/, a few words of JSON), and that is all it needs to know of the others:

- it waits until every peer accepts a connection, and says which one it waits for (with --wait-for-servers until its TensorFlow server does,
  for a command that does not wait itself). Under parameter servers only the chief waits: a server
  can stand alone, and one that comes back must not wait for another that never will;
- it runs the command and passes signals on; a parameter server that is told to stop stays a few seconds longer than the chief, which
  still needs it to save what it holds;
- when the lead (the chief, or worker 0 where there is none) has succeeded, it ends the command and reports success. A worker whose command is done
  before that waits for the lead's word: a lead that has to begin again cannot do so without it;
- when the lead cannot be reached for the peer timeout, it ends the command and gives up; so does a chief whose workers are all
  gone for so long, or one of its parameter servers;
- a lead that is done, or has failed for good, stays until everybody has heard of it, so that a task that comes late ends as well;
- a command that hangs is killed, because a parameter server that is stopped and not dead holds up everybody for ever. That a process of it is
  stopped is seen on Linux for any command. A command may also give signs of life: it finds the number of an open file in TRAINSTACK_HEARTBEAT and
  writes a `.` there now and then, and a `+` when the training has come further. Who has begun with it must go on;
- a chief whose command does not notice that a parameter server has begun again is killed and begins again, too;
- a lead whose command gives such signs, and comes no further for the stall timeout, is ended, and with it everybody: all begin again.

Tasks of another revision of the training (--revision) do not count as anybody: old and new ones may be there at once under the same names.

Its exit code: 0 done; 75 try again, this was not the task's own fault (it was told to stop, or a peer was lost); 78 a configuration
error, trying again is useless; 69 the lead or a peer was away for the peer timeout, or the lead said so: gave up; 70 the lead came no further for
the stall timeout; anything else is what the command returned, or 128 + the signal that ended it.

One environment variable holds 128 KiB. A TF_CONFIG that is longer is written out here from a file with the cluster in a few words (--cluster), and
handed to the command's Python in a file instead.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

DONE, GAVE_UP, STALLED, RETRY, CONFIGURATION = 0, 69, 70, 75, 78
LONGEST = 128 * 1024  # bytes of one environment variable with its name and a zero behind it
ASK_EVERY = 0.5  # seconds between two questions to the lead
QUESTIONS = 200.0  # that a lead should have to answer in a second; with more tasks each asks less often
GRACE = 5.0  # seconds between SIGTERM and SIGKILL once the run is over
FAREWELL = 10.0  # seconds a lead that gives up stays to tell those that are there
DEFER, DEFER_WORKER = 4.0, 1.0  # seconds a parameter server, or its worker, that is told to stop waits for the chief to be told, too
HEARTBEAT = "TRAINSTACK_HEARTBEAT"
LOOK_EVERY = 1.0  # seconds between two looks at whether the command hangs
STOPPED = 5.0  # seconds after which a command that is stopped is killed
SILENT = 120.0  # and one that gave signs of life and gives none; loading a large library may hold up a whole interpreter
REPLACED = 6.0  # and a chief that has not noticed that a server began again; TensorFlow tries again and again, for up to a minute
ASLEEP = 3.0  # seconds between two looks after which it was this process, or the whole machine, that was stopped

# How long a task may go on after the lead's success before it is ended: the evaluator tries the last checkpoint, workers that trained beside
# the lead finish by themselves, parameter servers and their workers have nothing left to do.
DRAIN_EVALUATOR, DRAIN_WORKER, DRAIN_SERVER = 120.0, 20.0, 0.0


@dataclass(frozen=True)
class Place:
    """Where a task stands in its training, read from TF_CONFIG."""

    name: str
    address: tuple[str, int] | None  # None for what nobody has to reach
    peers: dict[str, tuple[str, int]]  # the other tasks of the cluster
    lead: str
    servers: bool  # whether there are parameter servers

    @property
    def waits_for(self) -> list[str]:
        return [] if self.servers and not self.name.startswith("chief") else sorted(self.peers)

    @property
    def defers(self) -> float:
        """How long it waits, when it is told to stop, for the lead to be told, too: long where the weights are that the lead saves."""
        if not self.servers or self.name == self.lead:
            return 0.0
        return DEFER if self.name.startswith("ps") else DEFER_WORKER

    @property
    def drain(self) -> float:
        if self.name.startswith("evaluator"):
            return DRAIN_EVALUATOR
        return DRAIN_SERVER if self.servers else DRAIN_WORKER

    @property
    def ask_every(self) -> float:
        return max(ASK_EVERY, len(self.peers) / QUESTIONS)


def place_of(config: dict[str, Any]) -> Place:
    """The addresses are those of the launchers: one port after TensorFlow's."""
    everyone = {}
    for role, addresses in config["cluster"].items():
        for index, address in enumerate(addresses):
            host, port = address.rsplit(":", 1)
            everyone[f"{role}-{index}"] = (host, int(port) + 1)
    name = f"{config['task']['type']}-{config['task']['index']}"
    peers = {peer: address for peer, address in everyone.items() if peer != name}
    lead = "chief-0" if "chief-0" in everyone else "worker-0"
    return Place(name, everyone[name], peers, lead, "ps" in config["cluster"])


def written_out(condensed: dict[str, Any], role: str, index: int) -> dict[str, Any]:
    """TF_CONFIG from a cluster that says for each role how many there are and what their addresses look like."""
    spec = {name: [tasks["address"].format(index=number) for number in range(tasks["count"])] for name, tasks in condensed.items()}
    return {"cluster": spec, "task": {"type": role, "index": index}}


def handed_over(config: str) -> dict[str, str]:
    """The environment in which the command finds its TF_CONFIG: the variable, or, where that cannot be so long, a file that its Python reads first."""
    if len(f"TF_CONFIG={config}".encode()) < LONGEST:
        return {"TF_CONFIG": config}
    folder = Path(tempfile.mkdtemp(prefix="trainstack-"))
    (folder / "tf_config.json").write_text(config)
    (folder / "sitecustomize.py").write_text(
        f"import os, pathlib\nos.environ['TF_CONFIG'] = pathlib.Path({str(folder / 'tf_config.json')!r}).read_text()\n"
    )
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))}


class Patience:
    """Says when something has been wrong for too long, in time that this process was awake: after a laptop's sleep counting begins anew."""

    def __init__(self, limit: float) -> None:
        self.limit, self.since, self.last = limit, time.monotonic(), time.monotonic()

    def is_over(self, fine: bool) -> bool:
        now = time.monotonic()
        if fine or now - self.last > max(ASLEEP, self.limit / 10):
            self.since = now
        self.last = now
        return now - self.since > self.limit


def stop_of(pid: int) -> str:
    """By which stop a process does not run, as after SIGSTOP; empty while it runs. One that is looked at by a debugger is not meant. Only Linux can say."""
    try:
        said = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return said["voluntary_ctxt_switches"].strip() if said["State"].strip().startswith("T") else ""  # whoever wakes has another number
    except (OSError, ValueError, KeyError):
        return ""


def family(pid: int) -> list[int]:
    """A process and what it has started, and so on."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *(each for child in children for each in family(int(child)))]


class Stopped:
    """Says when one of some processes has been stopped for too long. One that is stopped again and again is slow, and left alone."""

    def __init__(self) -> None:
        self.patience, self.stops = Patience(STOPPED), dict[int, str]()

    def is_over(self, pids: Iterable[int]) -> bool:
        stops = {pid: stop for pid in pids if (stop := stop_of(pid))}
        held = [pid for pid, stop in stops.items() if self.stops.get(pid, stop) == stop]
        self.stops = stops
        return self.patience.is_over(not held)


class Life:
    """What is known of a command's life, from outside and by the signs that it gives."""

    def __init__(self, pid: int, signs: int, stall_timeout: float | None) -> None:
        self.pid, self.signs, self.gives_signs, self.progress = pid, signs, False, 0
        self.stopped, self.silent = Stopped(), Patience(SILENT)
        self.stalled = Patience(stall_timeout) if stall_timeout else None
        os.set_blocking(signs, False)

    def look(self) -> str:
        """How the command hangs: stopped, silent or stalled; empty when it does not."""
        heard = b""
        with contextlib.suppress(BlockingIOError):
            heard = os.read(self.signs, 65536)
        self.gives_signs |= bool(heard)
        further = heard.count(b"+")
        self.progress += further
        if self.stopped.is_over(family(self.pid)):
            return "stopped"
        if self.silent.is_over(bool(heard) or not self.gives_signs):
            return "silent"
        return "stalled" if self.stalled and self.stalled.is_over(bool(further) or not self.gives_signs) else ""


@dataclass
class State:
    """What this launcher tells whoever asks."""

    task: str
    revision: str = ""
    state: str = "waiting"  # waiting, running, succeeded, failed
    waiting_for: str = ""
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)
    done_with: str = ""  # the incarnation of the lead before which this task was done
    failed_at: float = 0.0
    exit_code: int | None = None
    stopping: bool = False  # told to stop, and perhaps saving
    progress: int = 0  # how often the command has said that it has come further
    stalled: bool = False  # it came no further for too long, and all have to begin again
    told: set[str] = field(default_factory=set)  # who has heard of the end, or has ended by itself
    asked: dict[str, float] = field(default_factory=dict)  # who asks, and when last

    def answer(self) -> bytes:
        shown = (
            "task",
            "revision",
            "state",
            "waiting_for",
            "incarnation",
            "done_with",
            "failed_at",
            "exit_code",
            "stopping",
            "progress",
            "stalled",
        )
        return json.dumps({name: getattr(self, name) for name in shown}).encode()

    def note(self, asker: str, revision: str, over: bool) -> None:
        """Who has had an answer, and whether that one said that this task is over, or the asker's last question that the asker is."""
        if asker and revision == self.revision:
            self.asked[asker] = time.monotonic()
            if over:
                self.told.add(asker)


def serve(state: State, address: tuple[str, int]) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
            over, body = state.exit_code is not None or "ended" in query, state.answer()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            state.note(query.get("from", ""), query.get("revision", ""), over)  # only now: who has been told may be left alone

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # somebody was killed while asking
                super().handle()

        def log_message(self, *_: object) -> None:
            """Questions come twice a second from every task; nobody wants to read that."""

    host = "127.0.0.1" if address[0] == "127.0.0.1" else "0.0.0.0"  # a pod's own name may not resolve yet
    server = ThreadingHTTPServer((host, address[1]), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()


def ask(address: tuple[str, int], about_me: dict[str, str] | None = None, timeout: float = 2.0) -> dict[str, Any] | None:
    """What the launcher at an address says, or None when nobody answers."""
    connection = http.client.HTTPConnection(*address, timeout=timeout)
    try:
        connection.request("GET", f"/?{urllib.parse.urlencode(about_me or {})}")
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def accepts(address: tuple[str, int]) -> bool:
    """Whether somebody listens at an address."""
    try:
        with socket.create_connection(address, timeout=2):
            return True
    except OSError:
        return False


def exit_code(returned: int, *, stopped: bool, lead_succeeded: bool, peer_lost: bool) -> int:
    """From what the command returned to what the task reports."""
    code = returned if returned >= 0 else 128 - returned
    code = 1 if code in (GAVE_UP, STALLED) else code  # which only a launcher can say
    if lead_succeeded:
        return DONE
    if code in (DONE, RETRY, CONFIGURATION):
        return code
    return RETRY if stopped or peer_lost else code


class CommandError(Exception):
    """The command cannot be started at all."""


class Launcher:
    def __init__(self, place: Place, options: argparse.Namespace) -> None:
        self.place, self.options, self.peer_timeout = place, options, options.peer_timeout
        self.wait_for_servers = options.wait_for_servers and place.servers
        self.lead_name: str
        self.lead: tuple[str, int] | None  # no address: this task is the lead
        self.lead_name, self.lead = options.lead or (place.lead, place.peers.get(place.lead))
        self.state = State(place.name, options.revision)
        self.parent = os.getppid() if options.watch_parent else 0
        self.child: subprocess.Popen[bytes] | None = None
        self.incarnations: dict[str, str] = {}  # of the peers that were waited for
        self.lead_incarnation = ""  # the one that was heard first
        self.stopped = self.told = self.lead_succeeded = self.lead_begins_again = False
        self.ending = ""  # why the command is being ended: succeeded, failed, lost or stalled
        self.blameless = False  # the command was killed for what was done to it, or to a server that it needs
        self.verdict = CONFIGURATION  # what the lead failed with

    def run(self, command: list[str], environment: dict[str, str]) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self.pass_on)
        if self.place.address:
            serve(self.state, self.place.address)
        try:
            ended = self.wait_for_peers()
            return self.supervise(command, environment) if ended is None else self.conclude(ended)
        except CommandError as error:
            say(f"{command[0]!r} cannot be started ({error}); correct the training's command")
            return self.conclude(CONFIGURATION)

    def hear(self, name: str, address: tuple[str, int], **about_me: str) -> dict[str, Any] | None:
        """What a task of this revision says. An address may lead to somebody else: to an old task, or to one that got a lost one's address."""
        answer = ask(address, {"revision": self.state.revision, **about_me})
        return answer if answer and (answer["task"], answer["revision"]) == (name, self.state.revision) else None

    def hear_lead(self, **about_me: str) -> dict[str, Any] | None:
        return self.hear(self.lead_name, self.lead, **{"from": self.place.name}, **about_me) if self.lead else None

    def pass_on(self, number: int, _: FrameType | None) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self.stopped = self.state.stopping = True
            if self.place.defers:
                return  # see wait_for_the_lead_to_save
            self.told = True
        if self.child is not None:
            send(self.child, number)

    def wait_for_peers(self) -> int | None:
        """None once everybody is there; an exit code when there is nothing left to wait for."""
        started, said = time.monotonic(), 0.0
        for name in self.place.waits_for:
            while (answer := self.ready(name)) is None:
                waited = time.monotonic() - started
                if self.stopped or self.orphaned():
                    return RETRY
                lead = self.hear_lead()
                if lead and lead["exit_code"] in (DONE, GAVE_UP, CONFIGURATION):
                    say(f"{lead['task']} has ended already")
                    return int(lead["exit_code"])
                if waited > self.peer_timeout:
                    say(f"gave up after waiting {waited:.0f} s for {name}; see that task's log for why it did not start")
                    return GAVE_UP
                if waited - said >= 10 or not self.state.waiting_for:
                    say(f"waiting for {name} ({waited:.0f} s)")
                    said = waited
                self.state.waiting_for = name
                time.sleep(0.2)
            self.incarnations[name] = answer["incarnation"]
            if name == self.lead_name:
                self.lead_incarnation = answer["incarnation"]
        self.state.waiting_for = ""
        return RETRY if self.stopped else None

    def ready(self, name: str) -> dict[str, Any] | None:
        """What a peer's launcher says, once it is there and, where that is asked for, its TensorFlow server too."""
        host, port = self.place.peers[name]
        answer = self.hear(name, (host, port))
        lead = self.lead_incarnation if self.lead else self.state.incarnation
        there = answer and answer["done_with"] in ("", lead)  # who was done with another lead begins again as well
        return answer if there and (not self.wait_for_servers or accepts((host, port - 1))) else None

    def supervise(self, command: list[str], environment: dict[str, str]) -> int:
        signs, written = os.pipe()
        try:
            environment = {**os.environ, **environment, HEARTBEAT: str(written)}
            self.child = child = subprocess.Popen(command, env=environment, start_new_session=True, pass_fds=[written])
        except OSError as error:
            raise CommandError(error.strerror) from None
        os.close(written)
        life = Life(child.pid, signs, self.options.stall_timeout if self.lead is None else None)
        self.state.state = "running"
        if self.stopped:  # a signal that came while the command was being started
            self.told = False
        if self.lead is not None:
            threading.Thread(target=self.watch_lead, daemon=True).start()
        elif not self.wait_for_servers:  # a command of somebody else's may know what to do about a lost server
            threading.Thread(target=self.watch_servers, args=[child], daemon=True).start()
        killed_at, looked_at, started = 0.0, 0.0, time.monotonic()
        while child.poll() is None:
            time.sleep(0.1)
            if self.stopped and not self.told:
                self.wait_for_the_lead_to_save()
                self.tell(child)
            if self.orphaned() and not self.ending:
                say("the supervisor is gone; ending")
                self.stopped, self.ending = True, "lost"
            if not self.ending and (missed := self.abandoned(started)):
                say(f"nothing has been heard of {missed} for {self.peer_timeout:.0f} s; giving up")
                self.ending = "lost"
            if not self.ending and time.monotonic() - looked_at > LOOK_EVERY:
                self.look_after(child, life)
                looked_at = time.monotonic()
            if self.ending and not killed_at:
                self.tell(child)
                killed_at = time.monotonic() + GRACE
            if killed_at and time.monotonic() > killed_at:
                send(child, signal.SIGKILL)
        send(child, signal.SIGKILL)  # what the command may have left behind
        return self.finish(child.returncode)

    def look_after(self, child: subprocess.Popen[bytes], life: Life) -> None:
        """Ends a command that hangs."""
        hangs = life.look()
        self.state.progress = life.progress
        if hangs == "stalled":
            say(f"the training has come no further for {self.options.stall_timeout:.0f} s (stall_timeout); all tasks begin again")
            self.ending, self.state.stalled = hangs, True
        elif hangs:
            how = f"been stopped for {STOPPED:.0f} s" if hangs == "stopped" else f"given no sign of life for {SILENT:.0f} s"
            say(f"the command has {how}; it is killed and begins again")
            self.blameless = hangs == "stopped"
            send(child, signal.SIGKILL)

    def watch_servers(self, child: subprocess.Popen[bytes]) -> None:
        """Ends a chief's command when a parameter server has begun again: what it held is gone, so there is nothing to save either."""
        while child.poll() is None:
            time.sleep(2 * LOOK_EVERY)
            for name, incarnation in self.incarnations.items():
                answer = self.hear(name, self.place.peers[name]) if name.startswith("ps") else None
                if answer and answer["incarnation"] != incarnation:
                    self.wait_for_end(REPLACED)
                    if child.poll() is None and not self.ending:
                        say(f"{name} has begun again, without what it held; so does this task")
                        self.blameless = True
                        send(child, signal.SIGKILL)
                    return

    def wait_for_the_lead_to_save(self) -> None:
        """Everybody may have been told to stop at once, and what the chief saves is on the servers: they stay for as long as it saves."""
        started = time.monotonic()
        while self.place.defers and (answer := self.hear_lead()):
            patience = max(self.place.defers, self.options.grace - 2) if answer["stopping"] else self.place.defers
            if time.monotonic() - started > min(patience, self.options.grace - 2):
                return
            time.sleep(0.1)

    def tell(self, child: subprocess.Popen[bytes]) -> None:
        """SIGTERM once: a command that is saving must not be interrupted in it."""
        if not self.told:
            self.told = True
            send(child, signal.SIGTERM)

    def finish(self, returned: int) -> int:
        if returned and not self.state.failed_at:
            self.state.failed_at = time.time()
        if returned == DONE and self.lead_name in self.place.peers:
            returned = self.wait_for_the_lead_to_end()
        succeeded = self.lead_succeeded or (self.hear_lead() or {}).get("state") == "succeeded"
        if self.ending == "lost" and not self.stopped:
            code = GAVE_UP if self.options.linger is None else DONE
        elif self.ending == "failed":
            code = self.verdict if self.options.linger is None else DONE
        elif self.ending == "stalled" and not self.stopped:
            code = STALLED if self.lead is None else RETRY
        else:
            stopped = self.stopped or self.blameless
            suspicious = returned not in (DONE, RETRY, CONFIGURATION) and not (succeeded or stopped)
            code = exit_code(returned, stopped=stopped, lead_succeeded=succeeded, peer_lost=suspicious and self.peer_lost())
        say(f"the task ended with {returned}, reported as {code}" if code != returned else f"the task ended with {code}")
        return self.conclude(code)

    def wait_for_the_lead_to_end(self) -> int:
        """What a command that is done before the lead's returns in the end. Whatever interrupts the waiting, it is not lost: it is done over."""
        self.state.done_with = self.lead_incarnation
        while not self.ending:
            if self.stopped or self.orphaned():
                return RETRY
            if self.lead_begins_again:
                say(f"{self.lead_name} has to begin again, and so does this task")
                return RETRY
            time.sleep(0.1)
        return DONE

    def conclude(self, code: int) -> int:
        """Tells whoever has to know that this task has ended, and will not come back."""
        self.state.state, self.state.exit_code = ("succeeded" if code == DONE else "failed"), code
        if code in (DONE, GAVE_UP, STALLED, CONFIGURATION):
            if self.lead is None:
                self.tell_the_others()
            else:
                self.hear_lead(ended="yes")
        return code

    def watch_lead(self) -> None:
        """Ends the command when the lead says that the run is over, or says nothing for too long."""
        heard, ending = time.monotonic(), ""
        while not ending:
            time.sleep(self.place.ask_every)
            answer = self.hear_lead()
            if answer is not None:
                heard = time.monotonic()
                self.lead_incarnation = self.lead_incarnation or answer["incarnation"]
                if answer["state"] == "succeeded":
                    say(f"{answer['task']} is done")
                    self.lead_succeeded, ending = True, "succeeded"
                elif answer["exit_code"] in (CONFIGURATION, GAVE_UP):
                    self.verdict, ending = answer["exit_code"], "failed"
                elif answer["stalled"] and self.options.linger is None:
                    say(f"{answer['task']} makes no progress; all tasks begin again")
                    ending = "stalled"
                elif answer["exit_code"] is not None or answer["incarnation"] != self.lead_incarnation:
                    self.lead_begins_again = True
            elif time.monotonic() - heard > self.peer_timeout:
                say(f"{self.lead_name} has not answered for {self.peer_timeout:.0f} s; giving up")
                ending = "lost"
        stays = self.options.linger
        if stays is None:
            stays = self.place.drain if ending == "succeeded" else 0.0
        self.wait_for_end(stays)
        self.ending = ending

    def wait_for_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.child is not None and self.child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)

    def abandoned(self, started: float) -> str:
        """Whom a chief has missed for the peer timeout: all of its workers, or a parameter server. Those who are there ask again and again."""
        if self.lead is not None or not self.place.servers:
            return ""
        now, asked = time.monotonic(), self.state.asked
        away = {name for name in self.place.peers if now - max(asked.get(name, started), started) > self.peer_timeout}
        workers = {name for name in self.place.peers if name.startswith("worker")}
        servers = sorted(name for name in away if name.startswith("ps"))
        return servers[0] if servers else "any worker" if workers and workers <= away else ""

    def peer_lost(self) -> bool:
        """Whether a peer went before this task did: then this failure is a consequence and not a cause."""
        for name, incarnation in self.incarnations.items():
            answer = self.hear(name, self.place.peers[name])
            if answer is None or answer["incarnation"] != incarnation:
                return True
            # Two that fail together agree on which was first, so that one of them counts.
            if answer["failed_at"] and (answer["failed_at"], name) < (self.state.failed_at, self.place.name):
                return True
        return False

    def tell_the_others(self) -> None:
        """Stays until everybody has heard how the run ended: every peer, and whoever else has been asking. Who is away just now has some time to come back."""
        # Who is away now would give up, too, or begins again anyway.
        stays = FAREWELL if self.state.exit_code in (GAVE_UP, STALLED) else self.options.farewell
        deadline = time.monotonic() + max(stays, 3 * self.place.ask_every)
        everybody = set(self.place.peers) | set(self.options.tell)
        while (now := time.monotonic()) < deadline and not self.stopped and not self.orphaned():
            others = {name for name, last in list(self.state.asked.items()) if now - last < 5 * self.place.ask_every}
            if everybody | others <= self.state.told:
                return
            time.sleep(0.05)

    def orphaned(self) -> bool:
        return bool(self.parent) and os.getppid() != self.parent


def send(child: subprocess.Popen[bytes], number: int) -> None:
    """To the command and everything it started: it leads a process group of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def say(text: str) -> None:
    print(f"launcher: {text}", file=sys.stderr, flush=True)


def name_and_address(text: str) -> tuple[str, tuple[str, int]]:
    name, _, address = text.rpartition("@")
    host, _, port = address.rpartition(":")
    return name, (host, int(port))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--lead", type=name_and_address, metavar="TASK@HOST:PORT", help="the lead's launcher, for a task outside of the cluster"
    )
    parser.add_argument(
        "--peer-timeout", type=float, default=900, metavar="SECONDS", help="without the lead or a peer for so long, give up"
    )
    parser.add_argument(
        "--farewell", type=float, default=FAREWELL, metavar="SECONDS", help="how long the lead waits at its end for tasks that are away"
    )
    parser.add_argument(
        "--stall-timeout", type=float, metavar="SECONDS", help="a lead that gives signs of life and comes no further for so long is ended"
    )
    parser.add_argument("--tell", action="append", default=[], metavar="TASK", help="who else has to hear of the lead's end")
    parser.add_argument("--grace", type=float, default=6, metavar="SECONDS", help="what there is between SIGTERM and SIGKILL")
    parser.add_argument("--revision", default="", help="tasks of another revision are not heard")
    parser.add_argument("--watch-parent", action="store_true", help="end when the process that started this one is gone")
    parser.add_argument(
        "--wait-for-servers",
        action="store_true",
        help="the chief waits for its peers' TensorFlow servers, too, not only for their launchers",
    )
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="a cluster in a few words, in place of TF_CONFIG; with --task")
    parser.add_argument("--task", metavar="ROLE-INDEX", help="which task of --cluster this is")
    parser.add_argument("--beside", metavar="NAME", help="not a task, but something beside them, which ends after them; with --lead")
    parser.add_argument("--linger", type=float, metavar="SECONDS", help="how long to go on after the lead's end, whatever it was")
    parser.add_argument("--run-folder", help="not used; whoever lists processes sees which run this one belongs to")
    parser.add_argument("command", nargs="+", help="what to run, after --")
    options = parser.parse_args()
    environment: dict[str, str] = {}
    try:
        if options.beside:
            place = Place(options.beside, None, {}, "", False)
        elif options.cluster:
            role, _, index = options.task.rpartition("-")
            config = written_out(json.loads(options.cluster.read_text()), role, int(index))
            environment, place = handed_over(json.dumps(config, separators=(",", ":"))), place_of(config)
        else:
            place = place_of(json.loads(os.environ["TF_CONFIG"]))
    except (KeyError, ValueError, TypeError, OSError) as error:
        say(f"TF_CONFIG is missing or malformed ({error!r}); it is set where a training's tasks are declared")
        return CONFIGURATION
    return Launcher(place, options).run(options.command, environment)


if __name__ == "__main__":
    sys.exit(main())
