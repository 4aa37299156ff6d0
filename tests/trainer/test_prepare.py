"""`python -m trainer.prepare`: what it is told, what it says, and the digits, which have the smallest preparation."""

from __future__ import annotations

import functools
import gzip
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from trainer import arguments, prepare, programs
from trainer.cluster import CONFIGURATION_ERROR, ConfigurationError
from trainer.programs import digits

pytestmark = pytest.mark.tensorflow


def test_help_names_the_programs() -> None:
    done = subprocess.run([sys.executable, "-m", "trainer.prepare", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [name for name in programs.names() if name not in done.stdout] == []


@pytest.mark.parametrize(
    "words",
    ["mnist --data-dir=digits", "--data-dir digits mnist", "--examples 5 --data-dir digits mnist", "--data-dir digits --sha256 mnist"],
)
def test_the_program_may_stand_anywhere(words: str) -> None:
    args = prepare.parsed(words.split())
    assert (args.program, args.data_dir) == ("mnist", "digits")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "required: program, --data-dir"),
        ("--data-dir digit", "required: program"),
        ("nothing --data-dir x", "invalid choice: 'nothing' (choose from"),
        ("digits", "required: --data-dir"),
        ("digits --data-dir mnist --what", "unrecognized arguments: --what"),
    ],
)
def test_what_cannot_be_understood_is_one_line(capsys: pytest.CaptureFixture[str], words: str, said: str) -> None:
    assert prepare.main(words.split()) == CONFIGURATION_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_file_system_that_says_no_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorflow import errors

    refusals = [
        kind(None, None, "no")
        for kind in (errors.PermissionDeniedError, errors.UnauthenticatedError, errors.UnimplementedError, errors.NotFoundError)
    ]
    for refusal in (*refusals, PermissionError("no")):

        def refused(_: Any, refusal: Exception = refusal) -> None:
            raise refusal

        monkeypatch.setattr(digits, "prepare", refused)
        assert prepare.main(["digits", "--data-dir=x"]) == CONFIGURATION_ERROR
        assert capsys.readouterr().err == (
            "prepare: no; see that `source` and `data_dir` are right, and that this account may read the one and write the other\n"
        )


@pytest.mark.parametrize(
    ("program", "name", "taken", "refused"),
    [
        *((name, "learning_rate", ["0.5", "1e-5"], ["0", "-1", "nan", "inf", "much"]) for name in programs.names()),
        ("resnet_cifar10", "weight_decay", ["0", "0.1"], ["-0.1", "nan"]),
        ("cats_vs_dogs", "dropout", ["0", "0.99"], ["1", "-0.1", "nan"]),
        ("mnist", "warmup_epochs", ["0", "1.5"], ["-1", "inf"]),
    ],
)
def test_numbers_are_finite_and_within_their_limits(program: str, name: str, taken: list[str], refused: list[str]) -> None:
    assert [list(arguments.problems(program, {name: value})) for value in taken] == [[]] * len(taken)
    for value in refused:
        (problem,) = arguments.problems(program, {name: value})
        assert f"'{value}' is not a number " in problem


# ------------------------------------------------------------------------------------------------------- the digits


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    (tmp_path / "served").mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path / "served")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_digits_from_an_address_and_from_a_path(address: str, tmp_path: Path) -> None:
    packed = gzip.compress(digits.generated(20, 1).encode())
    (tmp_path / "served" / "mine.gz").write_bytes(packed)
    for number, source in enumerate((f"{address}/mine.gz", f"{tmp_path}/served/mine.gz")):
        assert prepare.main(["digits", f"--data-dir={tmp_path / str(number)}", f"--source={source}"]) == 0
        assert (tmp_path / str(number) / digits.FILE).read_bytes() == packed


def test_digits_that_are_not_there_or_no_digits_are_one_line(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page").write_bytes(b"\xff<html>")
    for source, said in (
        (f"{address}/nowhere", "correct the address in `source`"),
        (f"{tmp_path}/nowhere", "cannot be read"),
        (f"{tmp_path}/page", f"{tmp_path}/page: line 1 (at byte 0 "),
    ):
        assert prepare.main(["digits", f"--data-dir={tmp_path}/data", f"--source={source}"]) == CONFIGURATION_ERROR
        line = capsys.readouterr().err.splitlines()[-1]
        assert said in line
        assert "data_dir" not in line
    assert prepare.main(["digits", "--data-dir=nothing://bucket"]) == CONFIGURATION_ERROR
    assert "'nothing' not implemented" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_damaged_digits_are_named_with_the_byte(tmp_path: Path) -> None:
    packed = gzip.compress(digits.generated(200, 1).encode())
    path = tmp_path / digits.FILE
    for data, said in (
        (packed[:-100], f"{path} is no whole gzip file: it cannot be unpacked up to byte {len(packed) - 100} of {len(packed) - 100} "),
        (gzip.compress(b""), f"{path} has no digits"),
    ):
        path.write_bytes(data)
        with pytest.raises(ConfigurationError) as error:
            digits.read(str(path))
        assert str(error.value).startswith(said)
