"""`python -m trainer.prepare PROGRAM --data-dir DIRECTORY`: brings a program's data to where its trainings read it. `--help` says more."""

from __future__ import annotations

import os
import signal
import sys
import traceback

from trainer import arguments, cluster, programs


def main(argv: list[str]) -> int:
    name = next((word for word in argv if not word.startswith("-")), "")
    try:
        if name not in programs.names():
            raise arguments.ArgumentError(f"{name or 'nothing'} is not a program; write one of {', '.join(programs.names())}")
        args = arguments.preparation(name).parse_args(argv)
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(cluster.TRY_AGAIN))  # by way of what tidies up
        programs.load(name).prepare(args)
    except (arguments.ArgumentError, cluster.ConfigurationError) as error:
        print(f"prepare: {error}", file=sys.stderr)
        return cluster.CONFIGURATION_ERROR
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
