"""Runs a command in a simulated cloud: python -m tests.cloud --state FILE [--real] -- COMMAND ARGUMENT…

The cloud lives on in FILE; the command's exit code is this one's.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.cloud.cloud import Cloud
from tests.cloud.provider import serve


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cloud", description="Runs a command in a simulated cloud.")
    parser.add_argument("--state", type=Path, required=True, help="the file that holds the cloud; made if it is missing")
    parser.add_argument("--real", action="store_true", help="work on real clusters where a kubeconfig leads to one")
    parser.add_argument("command", nargs="+", help="after --")
    arguments = parser.parse_args()
    arguments.state.parent.mkdir(parents=True, exist_ok=True)
    with serve(Cloud(arguments.state), arguments.real) as environment:
        process = subprocess.Popen(arguments.command, env={**os.environ, **environment})
        # Ctrl-C reaches the command by itself, from the terminal. A handler, since an ignored signal would stay ignored in the command.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
