"""Free ports on this machine, so that two trainings never meet on one.

Each task gets two neighbouring ports: TensorFlow's and its launcher's. Between choosing a port and the moment a task listens on it, another
supervisor could choose the same; a small table of what is promised to whom, behind a lock, prevents that.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path

import psutil


def table() -> Path:
    return Path(tempfile.gettempdir()) / f"trainstack-ports-{os.getuid()}.json"


def reserve(names: Iterable[str], first: int, owner: int) -> dict[str, int]:
    """A port for each name, from `first` upwards and then from 1024, promised to the process `owner` for as long as it lives. The port after each is free too."""
    path = table()
    with path.open("a+") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        handle.seek(0)
        text = handle.read()
        promised = {int(port): pid for port, pid in (json.loads(text) if text else {}).items() if pid != owner and psutil.pid_exists(pid)}
        result, port = {}, first
        for name in names:
            while port > 65534 or port in promised or port + 1 in promised or not (is_free(port) and is_free(port + 1)):
                port = port + 1 if port < 65534 else 1024
            result[name] = port
            promised[port] = promised[port + 1] = owner
            port += 2
        handle.seek(0)
        handle.truncate()
        json.dump(promised, handle)
    return result


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
