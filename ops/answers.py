"""Questions to the command-line tools of others, all at once and with a limit of time. Nothing but the standard library: `doctor` runs before anything is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

AT_ONCE = 12
# Nobody is there to answer a question of theirs, and a look must not change anything: gcloud offers to enable a service that it finds disabled.
QUIET = {
    "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
    "CLOUDSDK_CORE_SHOULD_PROMPT_TO_ENABLE_API": "false",
    "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
    "PULUMI_SKIP_UPDATE_CHECK": "1",
}
# What is wrong, from what gcloud prints. The first that matches says it.
LOGIN, DISABLED, DENIED, ABSENT, NETWORK = "login", "disabled", "denied", "absent", "network"
SIGNS = (
    (
        LOGIN,
        r"not currently have an active account|Reauthentication|invalid_grant|refreshing .*tokens|credentials were not found|UNAUTHENTICATED",
    ),
    (DISABLED, r"SERVICE_DISABLED|has not been used in project|it is disabled|API \[[^]]+\] not enabled"),
    (
        NETWORK,
        r"Max retries exceeded|Failed to establish|Network is unreachable|name resolution|NameResolution|Unable to find the server|ProxyError|timed out",
    ),
    (ABSENT, r"NOT_FOUND|not found|\b404\b|does not exist"),
    (DENIED, r"PERMISSION_DENIED|\b403\b|does not have .*(permission|access)|Required '[^']+' permission|may not exist"),
)


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    command: tuple[str, ...]
    code: int | None = None  # None: it has not come to its end
    output: str = ""
    errors: str = ""
    missing: bool = False  # there is no such command on this machine
    seconds: float = 0

    @property
    def fine(self) -> bool:
        return self.code == 0

    @property
    def data(self) -> Any:
        """What it answered in JSON; nothing where it did not."""
        try:
            return json.loads(self.output) if self.fine else None
        except ValueError:
            return None

    @property
    def trouble(self) -> str:
        """Which of the known troubles it is; empty for others."""
        return next((trouble for trouble, sign in SIGNS if re.search(sign, self.errors)), "") if self.code else ""

    @property
    def why(self) -> str:
        """Why there is no answer, in the words of the tool where it had any."""
        if self.missing:
            return f"{self.command[0]} is not installed"
        if self.code is None:
            return f"{self.command[0]} had not answered after {self.seconds:.0f} s"
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        said = next((line for line in lines if line.lower().startswith("error:")), lines[0] if lines else f"exit code {self.code}")
        return re.sub(r"^(?i:error):\s*(\(gcloud[^)]*\)\s*)?", "", said).rstrip(".:")


def ask(
    questions: Mapping[str, Sequence[str]], seconds: float, told: Callable[[int, int], None] = lambda _done, _of: None
) -> dict[str, Answer]:
    """The answer to each question. After so many seconds, whatever has not answered is ended."""
    until = time.monotonic() + seconds
    running: set[subprocess.Popen[str]] = set()
    lock = threading.Lock()
    answers: dict[str, Answer] = {}
    told(0, len(questions))
    with ThreadPoolExecutor(max_workers=AT_ONCE) as threads:
        futures = {threads.submit(_run, tuple(command), until, seconds, running, lock): name for name, command in questions.items()}
        try:
            for future in as_completed(futures):
                answers[futures[future]] = future.result()
                told(len(answers), len(questions))
        except BaseException:  # Ctrl-C: nobody waits for the others
            threads.shutdown(wait=False, cancel_futures=True)
            with lock:
                for process in running:
                    _kill(process)
            raise
    return {name: answers[name] for name in questions}


def _run(command: tuple[str, ...], until: float, seconds: float, running: set[subprocess.Popen[str]], lock: threading.Lock) -> Answer:
    if shutil.which(command[0]) is None:
        return Answer(command, missing=True)
    if time.monotonic() >= until:
        return Answer(command, seconds=seconds)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **QUIET},
            start_new_session=True,  # so that what it starts ends with it
        )
    except OSError as error:
        return Answer(command, 126, errors=str(error))
    with lock:
        running.add(process)
    try:
        output, errors = process.communicate(timeout=max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        _kill(process)
        process.communicate()
        return Answer(command, seconds=seconds)
    finally:
        with lock:
            running.discard(process)
    return Answer(command, process.returncode, output, errors)


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def counting(what: str, quiet: bool = False) -> Callable[[int, int], None]:
    """Shows on a terminal how many answers have come; elsewhere says once what is going on. Quiet for programs, which read errors as JSON."""

    def told(done: int, of: int) -> None:
        if quiet:
            return
        if sys.stderr.isatty():
            print(f"\r{what}: {done} of {of} answers" if done < of else "\r\033[K", end="", file=sys.stderr, flush=True)
        elif not done:
            print(f"{what} …", file=sys.stderr, flush=True)

    return told
