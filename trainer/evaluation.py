"""Trying the model on data it was not trained on: beside the training (sidecar) or in it (inline)."""

from __future__ import annotations

import argparse
import json
import time
from types import ModuleType
from typing import Any

import tensorflow as tf

from trainer import checkpoints, data, files
from trainer.metrics import EVALUATION, MetricsWriter

LOOK_EVERY = 0.5  # seconds between two looks for a new checkpoint


def sidecar(args: argparse.Namespace, program: ModuleType, started: float) -> None:
    """Evaluates every checkpoint, oldest first, and always the last one; ends when the training has.

    `started`: when this task was. A run that goes on may have been over before; only an end after that counts.
    """
    model = program.model(args)
    reader = tf.train.Checkpoint(model=model)
    test = data.test(program, args)
    done = {record["step"] for record in files.read_lines(f"{args.log_dir}/{EVALUATION}")}
    writer = MetricsWriter(args.log_dir, EVALUATION, max(done, default=-1))
    print("waiting for the first checkpoint", flush=True)
    while True:
        over = checkpoints.finished_at(args.checkpoint_dir) > started  # asked first: what is listed afterwards holds the last checkpoint
        pending = [step for step in checkpoints.steps(args.checkpoint_dir) if step not in done]
        for step in pending:
            done.add(step)
            try:
                checkpoints.read(reader, checkpoints.folder(args.checkpoint_dir, step)).expect_partial()
            except checkpoints.DamagedError as error:
                print(f"step {step}: its checkpoint was removed before it could be evaluated, or is damaged ({error})", flush=True)
                continue
            record(writer, step, model.evaluate(test, verbose=0, return_dict=True))
            try:
                files.write_text(f"{args.checkpoint_dir}/{checkpoints.EVALUATED}", json.dumps({"step": step}))
            except files.UNWRITABLE as error:
                files.warn(f"it cannot be noted that step {step} was evaluated ({files.reason(error)}); its checkpoint is kept for longer")
        if over and not pending:
            return
        time.sleep(LOOK_EVERY)


def record(writer: MetricsWriter, step: int, values: dict[str, float]) -> None:
    writer.write(step, values)
    print(f"step {step}: " + ", ".join(f"test {name} {value:.4f}" for name, value in values.items()), flush=True)


def inline(model: Any, program: ModuleType, args: argparse.Namespace, workers: int) -> dict[str, float]:
    """Evaluates with the tasks that train; every one of them must call it. Each test example counts once.

    `workers`: how many work for a coordinator, which deals the data out to them in pieces; 0 where there is none.
    """
    test = data.test(program, args)
    batches = int(test.cardinality())  # more pieces than these cannot be dealt out
    model._pss_evaluation_shards = (
        min(2 * workers, batches) if batches > 0 else 2 * workers
    )  # compile() would take it, but the program compiles
    values: dict[str, float] = model.evaluate(test, verbose=0, return_dict=True)
    return values
