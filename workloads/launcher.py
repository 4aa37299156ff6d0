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
- when the lead (the chief, or worker 0 where there is none) has succeeded, it ends the command and reports success;
- when the lead cannot be reached for the peer timeout, it ends the command and reports failure.

Its exit code: 0 done; 75 try again, this was not the task's own fault (it was told to stop, or a peer was lost); 78 a configuration
error, trying again is useless; anything else is what the command returned, or 128 + the signal that ended it.
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
import threading
import time
import urllib.parse
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType
from typing import Any

DONE, RETRY, CONFIGURATION = 0, 75, 78
ASK_EVERY = 0.5  # seconds between two questions to the lead
GRACE = 5.0  # seconds between SIGTERM and SIGKILL once the run is over
DEFER = 4.0  # seconds a server that is told to stop waits for the chief to save
FAREWELL = 10.0  # seconds the lead stays to tell the others, at the most

# How long a task may go on after the lead's success before it is ended: the evaluator tries the last checkpoint, workers that trained beside
# the lead finish by themselves, parameter servers and their workers have nothing left to do.
DRAIN_EVALUATOR, DRAIN_WORKER, DRAIN_SERVER = 120.0, 20.0, 0.0


@dataclass(frozen=True)
class Place:
    """Where a task stands in its training, read from TF_CONFIG."""

    name: str
    address: tuple[str, int]
    peers: dict[str, tuple[str, int]]  # the other tasks of the cluster
    lead: str
    servers: bool  # whether there are parameter servers

    @property
    def waits_for(self) -> list[str]:
        return [] if self.servers and not self.name.startswith("chief") else sorted(self.peers)

    @property
    def drain(self) -> float:
        if self.name.startswith("evaluator"):
            return DRAIN_EVALUATOR
        return DRAIN_SERVER if self.servers else DRAIN_WORKER


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


@dataclass
class State:
    """What this launcher tells whoever asks."""

    task: str
    state: str = "waiting"  # waiting, running, succeeded, failed
    waiting_for: str = ""
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)
    failed_at: float = 0.0
    exit_code: int | None = None
    told: set[str] = field(default_factory=set)  # who has heard of the end
    asked: dict[str, float] = field(default_factory=dict)  # who asks, and when last

    def answer(self, asker: str) -> bytes:
        if asker:
            self.asked[asker] = time.monotonic()
            if self.exit_code is not None:
                self.told.add(asker)
        shown = ("task", "state", "waiting_for", "incarnation", "failed_at", "exit_code")
        return json.dumps({name: getattr(self, name) for name in shown}).encode()


def serve(state: State, address: tuple[str, int]) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
            body = state.answer(query.get("from", [""])[0])
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Questions come twice a second from every task; nobody wants to read that."""

    host = "127.0.0.1" if address[0] == "127.0.0.1" else "0.0.0.0"  # a pod's own name may not resolve yet
    server = ThreadingHTTPServer((host, address[1]), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()


def ask(address: tuple[str, int], asker: str = "", timeout: float = 2.0) -> dict[str, Any] | None:
    """What the launcher at an address says, or None when nobody answers."""
    connection = http.client.HTTPConnection(*address, timeout=timeout)
    try:
        connection.request("GET", f"/?from={asker}")
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
    if lead_succeeded:
        return DONE
    if code in (DONE, RETRY, CONFIGURATION):
        return code
    return RETRY if stopped or peer_lost else code


class CommandError(Exception):
    """The command cannot be started at all."""


class Launcher:
    def __init__(self, place: Place, lead: tuple[str, int] | None, peer_timeout: float, watch_parent: bool, wait_for_servers: bool) -> None:
        self.place, self.peer_timeout = place, peer_timeout
        self.wait_for_servers = wait_for_servers and place.servers
        self.lead = lead or place.peers.get(place.lead)  # None: this task is the lead
        self.state = State(place.name)
        self.parent = os.getppid() if watch_parent else 0
        self.child: subprocess.Popen[bytes] | None = None
        self.incarnations: dict[str, str] = {}
        self.stopped = self.told = self.lead_succeeded = False
        self.ending = ""  # why the command is being ended: succeeded, failed or lost

    def run(self, command: list[str]) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self.pass_on)
        serve(self.state, self.place.address)
        try:
            if not self.wait_for_peers():
                return RETRY if self.stopped else 1
            return self.supervise(command)
        except CommandError as error:
            say(f"{command[0]!r} cannot be started ({error}); correct the training's command")
            return CONFIGURATION

    def pass_on(self, number: int, _: FrameType | None) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self.stopped = True
            if self.place.servers and self.lead is not None:
                return  # see wait_for_the_lead_to_save
            self.told = True
        if self.child is not None:
            send(self.child, number)

    def wait_for_peers(self) -> bool:
        started, said = time.monotonic(), 0.0
        for name in self.place.waits_for:
            while (answer := self.ready(name)) is None:
                waited = time.monotonic() - started
                if self.stopped or self.orphaned():
                    return False
                if waited > self.peer_timeout:
                    say(f"gave up after waiting {waited:.0f} s for {name}; see that task's log for why it did not start")
                    return False
                if waited - said >= 10 or not self.state.waiting_for:
                    say(f"waiting for {name} ({waited:.0f} s)")
                    said = waited
                self.state.waiting_for = name
                time.sleep(0.2)
            self.incarnations[name] = answer["incarnation"]
        self.state.waiting_for = ""
        return not self.stopped

    def ready(self, name: str) -> dict[str, Any] | None:
        """What a peer's launcher says, once it is there and, where that is asked for, its TensorFlow server too."""
        host, port = self.place.peers[name]
        answer = ask((host, port))
        return answer if not self.wait_for_servers or accepts((host, port - 1)) else None

    def supervise(self, command: list[str]) -> int:
        try:
            self.child = child = subprocess.Popen(command, start_new_session=True)
        except OSError as error:
            raise CommandError(error.strerror) from None
        self.state.state = "running"
        if self.stopped:  # a signal that came while the command was being started
            self.told = False
        if self.lead is not None:
            threading.Thread(target=self.watch_lead, daemon=True).start()
        killed_at = 0.0
        while child.poll() is None:
            time.sleep(0.1)
            if self.stopped and not self.told:
                self.wait_for_the_lead_to_save()
                self.tell(child)
            if self.orphaned() and not self.ending:
                say("the supervisor is gone; ending")
                self.stopped, self.ending = True, "lost"
            if self.ending and not killed_at:
                self.tell(child)
                killed_at = time.monotonic() + GRACE
            if killed_at and time.monotonic() > killed_at:
                send(child, signal.SIGKILL)
        send(child, signal.SIGKILL)  # what the command may have left behind
        return self.finish(child.returncode)

    def wait_for_the_lead_to_save(self) -> None:
        """Everybody may have been told to stop at once, and what the chief saves is on the servers."""
        deadline = time.monotonic() + DEFER
        while self.place.servers and self.lead is not None and time.monotonic() < deadline and ask(self.lead) is not None:
            time.sleep(0.1)

    def tell(self, child: subprocess.Popen[bytes]) -> None:
        """SIGTERM once: a command that is saving must not be interrupted in it."""
        if not self.told:
            self.told = True
            send(child, signal.SIGTERM)

    def finish(self, returned: int) -> int:
        if returned and not self.state.failed_at:
            self.state.failed_at = time.time()
        succeeded = self.lead_succeeded or self.lead_state() == "succeeded"
        if self.ending == "lost" and not self.stopped:
            code = 1
        elif self.ending == "failed":
            code = CONFIGURATION
        else:
            suspicious = returned not in (DONE, RETRY, CONFIGURATION) and not (succeeded or self.stopped)
            code = exit_code(returned, stopped=self.stopped, lead_succeeded=succeeded, peer_lost=suspicious and self.peer_lost())
        self.state.state, self.state.exit_code = ("succeeded" if code == DONE else "failed"), code
        if self.lead is None and code in (DONE, CONFIGURATION):
            self.tell_the_others()
        say(f"the task ended with {returned}, reported as {code}" if code != returned else f"the task ended with {code}")
        return code

    def watch_lead(self) -> None:
        """Ends the command when the lead says that the run is over, or says nothing for too long."""
        assert self.lead is not None
        heard = time.monotonic()
        while not self.ending:
            time.sleep(ASK_EVERY)
            answer = ask(self.lead, self.place.name)
            if answer is not None:
                heard = time.monotonic()
                if answer["state"] == "succeeded":
                    say(f"{answer['task']} is done")
                    self.lead_succeeded = True
                    self.wait_for_end(self.place.drain)
                    self.ending = "succeeded"
                elif answer["exit_code"] == CONFIGURATION:
                    self.ending = "failed"
            elif time.monotonic() - heard > self.peer_timeout:
                say(f"{self.place.lead} has not answered for {self.peer_timeout:.0f} s; giving up")
                self.ending = "lost"

    def wait_for_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.child is not None and self.child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)

    def lead_state(self) -> str:
        answer = ask(self.lead, self.place.name) if self.lead is not None else None
        return str(answer["state"]) if answer else ""

    def peer_lost(self) -> bool:
        """Whether a peer went before this task did: then this failure is a consequence and not a cause."""
        for name, incarnation in self.incarnations.items():
            answer = ask(self.place.peers[name])
            if answer is None or answer["incarnation"] != incarnation:
                return True
            # Two that fail together agree on which was first, so that one of them counts.
            if answer["failed_at"] and (answer["failed_at"], name) < (self.state.failed_at, self.place.name):
                return True
        return False

    def tell_the_others(self) -> None:
        """Stays until everybody has heard how the run ended: the peers that are there, and whoever else has been asking."""
        deadline = time.monotonic() + FAREWELL
        while (now := time.monotonic()) < deadline:
            peers = {name for name, address in self.place.peers.items() if name not in self.state.told and ask(address) is not None}
            others = {name for name, last in list(self.state.asked.items()) if name not in self.place.peers and now - last < 5 * ASK_EVERY}
            if not peers and others <= self.state.told:
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


def host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lead", type=host_and_port, metavar="HOST:PORT", help="the lead's launcher, for a task outside of the cluster")
    parser.add_argument(
        "--peer-timeout", type=float, default=900, metavar="SECONDS", help="without the lead or a peer for so long, give up"
    )
    parser.add_argument("--watch-parent", action="store_true", help="end when the process that started this one is gone")
    parser.add_argument(
        "--wait-for-servers",
        action="store_true",
        help="the chief waits for its peers' TensorFlow servers, too, not only for their launchers",
    )
    parser.add_argument("--run-folder", help="not used; whoever lists processes sees which run this one belongs to")
    parser.add_argument("command", nargs="+", help="what to run, after --")
    options = parser.parse_args()
    try:
        place = place_of(json.loads(os.environ["TF_CONFIG"]))
    except (KeyError, ValueError, TypeError) as error:
        say(f"TF_CONFIG is missing or malformed ({error!r}); it is set where a training's tasks are declared")
        return CONFIGURATION
    return Launcher(place, options.lead, options.peer_timeout, options.watch_parent, options.wait_for_servers).run(options.command)


if __name__ == "__main__":
    sys.exit(main())
