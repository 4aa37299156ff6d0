"""Numbers read from logs are the records that the trainer writes into its files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

from ops.numbers import Numbers

BEGINNING = "training digits under parameter_server, replicas 1: 880 of 880 steps to go"


def fed(*lines: str, numbers: Numbers | None = None) -> Numbers:
    numbers = numbers or Numbers()
    for time, line in zip(times(), lines, strict=False):
        numbers.feed_lead(time, line)
    return numbers


def times() -> Iterator[float]:
    return (float(each) for each in count(100))


def test_an_epoch_is_a_record_with_the_steps_of_the_run() -> None:
    numbers = fed(BEGINNING, "epoch 3/20, step 66: loss 0.03, accuracy 0.99, examples_per_second 1.832e+03")
    assert numbers.metrics == [
        {"step": 66, "time": 101.0, "loss": 0.03, "accuracy": 0.99, "examples_per_second": 1832.0, "epoch": 3, "steps": 880}
    ]
    assert numbers.evaluation == []


def test_tests_of_the_lead_and_of_the_evaluator() -> None:
    numbers = fed("step 66: test loss 0.1520, test accuracy 0.9583")
    numbers.feed_evaluator(200.0, "step 88: test loss 0.1000, test accuracy 0.9600")
    assert numbers.evaluation == [
        {"step": 66, "time": 100.0, "loss": 0.152, "accuracy": 0.9583},
        {"step": 88, "time": 200.0, "loss": 0.1, "accuracy": 0.96},
    ]


def test_a_run_that_goes_on_drops_what_it_repeats() -> None:
    lines = [BEGINNING, *(f"epoch {epoch}/20, step {44 * epoch}: loss 0.5" for epoch in (1, 2, 3)), "step 132: test loss 0.1"]
    again = "training digits under parameter_server, replicas 1: 792 of 880 steps to go"
    numbers = fed(*lines, again, "epoch 3/20, step 132: loss 0.4")
    assert [(record["step"], record["loss"]) for record in numbers.metrics] == [(44, 0.5), (88, 0.5), (132, 0.4)]
    assert numbers.evaluation == [], "step 132 was not reached yet"


def test_a_log_that_is_read_twice_changes_nothing() -> None:
    lines = (BEGINNING, "epoch 1/20, step 44: loss 0.5", "step 44: test loss 0.3")
    once, twice = fed(*lines), fed(*lines[1:], numbers=fed(*lines))
    assert [record["step"] for record in twice.metrics] == [record["step"] for record in once.metrics] == [44]
    assert len(twice.evaluation) == 1


def test_other_lines_say_nothing() -> None:
    noise = (
        "",
        "launcher: waiting for ps-0 (10 s)",
        "step 3: its checkpoint was removed before it could be evaluated",
        "epoch of men",
        "Epoch 1/3",
    )
    numbers = fed(*noise)
    assert (numbers.metrics, numbers.evaluation, numbers.steps) == ([], [], None)


def test_a_loss_that_is_no_number_is_told() -> None:
    assert str(fed("epoch 1/2, step 4: loss nan").metrics[0]["loss"]) == "nan"


def test_the_lines_are_those_that_the_trainer_prints() -> None:
    """Whoever changes a line there has to change it here."""
    trainer = Path(__file__).resolve().parent.parent.parent / "trainer"
    assert 'replicas {replicas}: {left} of {self.total_steps} steps to go"' in (trainer / "training.py").read_text()
    assert 'f"epoch {epoch}/{self.args.epochs}, step {step}: {shown}"' in (trainer / "training.py").read_text()
    assert 'f"step {step}: " + ", ".join(f"test {name} {value:.4f}"' in (trainer / "evaluation.py").read_text()
    launcher = (trainer.parent / "workloads" / "launcher.py").read_text()
    assert 'f"waiting for {name} ({waited:.0f} s)"' in launcher
    assert 'print(f"launcher: {text}"' in launcher
