"""`python -m trainer.prepare PROGRAM --data-dir DIRECTORY`: brings a program's data to where its trainings read it. `--help` says more."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback

from trainer import arguments, cluster, programs
from trainer.rest import first_line


def main(argv: list[str]) -> int:
    try:
        args = parsed(argv)
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(cluster.TRY_AGAIN))  # by way of what tidies up
        programs.load(args.program).prepare(args)
    except (arguments.ArgumentError, cluster.ConfigurationError) as error:
        print(f"prepare: {error}", file=sys.stderr)
        return cluster.CONFIGURATION_ERROR
    except Exception as error:
        if not is_refusal(error):
            traceback.print_exc()
            return 1
        where = "see that `source` and `data_dir` are right, and that this account may read the one and write the other"
        print(f"prepare: {first_line(error)}; {where}", file=sys.stderr)
        return cluster.CONFIGURATION_ERROR
    return 0


def parsed(argv: list[str]) -> argparse.Namespace:
    """The program may stand anywhere, and its name may also be the value of something: `--data-dir digits mnist`."""
    mistakes = []
    for name in (word for word in argv if word in programs.names()):
        try:
            return arguments.preparation(name).parse_args(argv)
        except arguments.ArgumentError as error:
            mistakes.append(error)
    if mistakes:
        raise mistakes[0]
    general = arguments.Parser(
        prog="python -m trainer.prepare",
        description=arguments.PREPARATION,
        epilog="`python -m trainer.prepare PROGRAM --help` says what else the preparation of a program takes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    general.add_argument("program", choices=programs.names(), help="the program whose data it is")
    general.add_argument("--data-dir", required=True, help="where the data goes; a local path or gs://…")
    return general.parse_known_args(argv)[0]  # which shows help, or raises what is wrong, because there is no program


def is_refusal(error: Exception) -> bool:
    """Whether a file system said no, for which no code has to be read."""
    if "tensorflow" not in sys.modules:
        return isinstance(error, PermissionError)
    from tensorflow import errors

    refusals = (errors.PermissionDeniedError, errors.UnauthenticatedError, errors.UnimplementedError, errors.NotFoundError)
    return isinstance(error, (PermissionError, *refusals))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
