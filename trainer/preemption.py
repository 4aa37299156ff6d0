"""What to do on SIGTERM: save, then leave with 75, which means "start me again"."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

import tensorflow as tf

from trainer.checkpoints import Checkpoints
from trainer.cluster import TRY_AGAIN


def leave(code: int) -> None:
    """Ends the process at once: TensorFlow's own tidying waits for peers that may be gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Preemption:
    """Made after the strategy: the strategy of several workers replaces handlers that were installed before it.

    Where one task holds everything it saves inside the handler, wherever that interrupts it; but not a save, which is left to end first. Workers that
    train together save together: the handler only raises a hand, and after a few steps all of them compare, so that they stop after the same one.
    """

    def __init__(self, checkpoints: Checkpoints, strategy: Any, together: bool) -> None:
        self.checkpoints, self.strategy, self.together = checkpoints, strategy, together
        self.asked = False
        signal.signal(signal.SIGTERM, self.handle)

    def handle(self, _: int, __: FrameType | None) -> None:
        self.asked = True
        if not self.together and not self.checkpoints.saving:
            with tf.init_scope():  # it may have come while a function is being traced, where nothing is computed
                self.save_and_leave()

    def save_and_leave(self) -> None:
        saved = self.checkpoints.save()
        print(f"told to stop: {'saved' if saved else 'NOT saved'} at step {self.checkpoints.step}", flush=True)
        leave(TRY_AGAIN)

    def check(self) -> None:
        """Called after every few steps and after every checkpoint, by all workers after the same one."""
        if self.anybody(self.asked) if self.together else self.asked:
            self.save_and_leave()

    def anybody(self, asked: bool) -> bool:
        return bool(_sum(self.strategy, tf.constant(int(asked))))

    def meet(self) -> None:
        """Waits until every worker has come this far."""
        if self.together:
            self.anybody(False)


@tf.function
def _sum(strategy: Any, value: Any) -> Any:
    def replica(mine: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(mine))

    return strategy.experimental_local_results(strategy.run(replica, args=(value,)))[0]
