"""A port of this machine that leads to a port of a pod, for as long as this process lives. Many connections at once: browsers open several."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ops.target import OpsError

PIECE = 65536
LIBRARY = "Kubernetes port forward proxy"  # what its threads are called


class Forward:
    """Listens on loopback; every connection gets one of its own to the pod."""

    def __init__(self, dial: Callable[[], Any], port: int = 0) -> None:
        self._dial = dial
        self._failure = ""  # why the last connection did not come about
        try:
            self._listener = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise OpsError(f"port {port} of this machine cannot be used ({error.strerror}); name another with --port, or none.") from None
        self.port: int = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def __enter__(self) -> Forward:
        self._hook, threading.excepthook = threading.excepthook, _not_told
        threading.Thread(target=self._accept, name="forward", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes up accept(), which close() alone does not
        self._listener.close()
        threading.excepthook = self._hook

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        try:
            far = self._dial()
        except OpsError as error:
            if str(error) != self._failure:
                print(f"trainstack: {error}", file=sys.stderr, flush=True)
            self._failure = str(error)
            near.close()
            return
        back = threading.Thread(target=_answer, args=(far, near), daemon=True)
        back.start()
        with contextlib.suppress(OSError):
            while data := near.recv(PIECE):
                far.sendall(data)
        _no_more(far)
        back.join()
        near.close()
        far.close()


def _answer(far: Any, near: socket.socket) -> None:
    """Hands on what the pod says until it has no more to say. What nobody wants to hear any more is read all the same: the library's thread at the other
    end would otherwise fail over it."""
    wanted = True
    with contextlib.suppress(OSError):
        while data := far.recv(PIECE):
            try:
                if wanted:
                    near.sendall(data)
            except OSError:
                wanted = False
                _no_more(far)
    with contextlib.suppress(OSError):
        near.shutdown(socket.SHUT_RDWR)


def _no_more(far: Any) -> None:
    """Ends the way to the pod, in both directions: it cannot be ended for one only."""
    with contextlib.suppress(OSError):
        far.shutdown(socket.SHUT_WR)


def _not_told(arguments: threading.ExceptHookArgs) -> None:
    """A cluster that goes away while a browser is open is no reason to show what the library's threads think of it."""
    if not (arguments.thread and arguments.thread.name.startswith(LIBRARY) and issubclass(arguments.exc_type, OSError | RuntimeError)):
        threading.__excepthook__(arguments)
