"""`python -m trainer`: one task of a training. See `python -m trainer --help`."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from types import ModuleType

from trainer import arguments, cluster, heartbeat, memory, programs

STARTED = time.time()

# TensorFlow reads both when it is imported. tf-keras is the Keras that trains in several processes; Keras 3 cannot.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def main(argv: list[str]) -> int:
    try:
        args = parse(argv)
        program = programs.load(args.program)
        me = cluster.from_environment()
    except (arguments.ArgumentError, cluster.ConfigurationError, ModuleNotFoundError) as error:
        print(f"trainer: {error}", file=sys.stderr)
        return cluster.CONFIGURATION_ERROR
    except Exception:  # a program that cannot be imported: its author wants to see where
        traceback.print_exc()
        return cluster.CONFIGURATION_ERROR
    memory.keep()
    name = args.strategy or me.strategy
    if me.role in ("ps", "worker") and name == "parameter_server":
        return serve()
    with temporary_files():
        try:
            run(args, program, me, name)
        except Exception as error:
            return code_of(error)
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """In two steps, because the program has arguments of its own."""
    first = arguments.Parser(add_help=False)
    first.add_argument("--program")
    return arguments.parser(first.parse_known_args(argv)[0].program).parse_args(argv)


@contextlib.contextmanager
def temporary_files() -> Iterator[None]:
    """In a folder that goes with the task: TensorFlow writes down what it makes of functions, and would leave it."""
    with tempfile.TemporaryDirectory(prefix="trainer-") as tempfile.tempdir:
        try:
            yield
        finally:
            tempfile.tempdir = None


def serve() -> int:
    """A server holds nothing that could be saved: it leaves when told to, and is started again."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(cluster.TRY_AGAIN))
    from trainer import server

    library = server.load()
    heartbeat.begin()
    # join() blocks the main thread outside of Python, where no handler would run.
    threading.Thread(target=server.serve, args=[library], daemon=True).start()
    while True:
        signal.pause()


def run(args: argparse.Namespace, program: ModuleType, me: cluster.Cluster, name: str) -> None:
    import tensorflow as tf
    import tf_keras as keras

    heartbeat.begin()
    tf.get_logger().setLevel("ERROR")  # its warnings about retracing a save are not for the reader of a training's log
    keras.utils.set_random_seed(args.seed)
    if args.deterministic:
        tf.config.experimental.enable_op_determinism()
    if me.role == "evaluator":
        from trainer.evaluation import sidecar

        sidecar(args, program, STARTED)
    else:
        from trainer.training import train

        train(args, program, me, name)


def code_of(error: Exception) -> int:
    """A lost peer is no fault of this task's: it is started again and resumes."""
    import tensorflow as tf

    from trainer import files
    from trainer.rest import first_line

    lost = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.DeadlineExceededError)
    if isinstance(error, lost) or (isinstance(error, tf.errors.InternalError) and "ollective" in str(error)):
        print(f"trainer: a peer was lost ({type(error).__name__}: {first_line(error)})", file=sys.stderr)
        return cluster.TRY_AGAIN
    if isinstance(error, tf.errors.DataLossError):
        print(f"trainer: the data is damaged ({first_line(error)}); prepare it again", file=sys.stderr)
        return cluster.CONFIGURATION_ERROR
    if isinstance(error, cluster.ConfigurationError | FileNotFoundError | tf.errors.NotFoundError):
        print(f"trainer: {error}", file=sys.stderr)
        return cluster.CONFIGURATION_ERROR
    if isinstance(error, files.UnwritableError):  # there may be room when it is tried again
        print(f"trainer: {error}", file=sys.stderr)
        return 1
    if isinstance(error, PermissionError | tf.errors.PermissionDeniedError | tf.errors.UnauthenticatedError | tf.errors.UnimplementedError):
        print(f"trainer: a directory cannot be used ({first_line(error)}); correct it, or who may read and write it", file=sys.stderr)
        return cluster.CONFIGURATION_ERROR
    traceback.print_exc()
    return 1


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # TensorFlow's own tidying waits for peers that may be gone
