"""What the programs share: files from elsewhere, learning rates, each worker's part of the data, and being told to stop."""

from __future__ import annotations

import argparse
import hashlib
import http.server
import io
import signal
import tarfile
import threading
import types
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.test_trainer import Small
from trainer.cluster import ConfigurationError
from trainer.programs import whole_number

pytestmark = pytest.mark.tensorflow

CONTENT = bytes(range(256)) * 4000


@pytest.mark.parametrize(
    ("number", "taken", "refused", "said"),
    [
        (whole_number(), ["1", "10000"], ["0", "-1", "1.5", "", "many"], "a whole number above 0"),
        (whole_number(16), ["16", "17"], ["15"], "a whole number from 16"),
        (whole_number(0, 0), ["0"], ["1"], "a whole number from 0 to 0"),
        (whole_number(2, 10, multiple_of=2), ["2", "10"], ["0", "3", "12"], "a multiple of 2 from 2 to 10"),
    ],
)
def test_numbers_of_arguments(number: Callable[[str], int], taken: list[str], refused: list[str], said: str) -> None:
    assert [number(text) for text in taken] == list(map(int, taken))
    for text in refused:
        with pytest.raises(argparse.ArgumentTypeError, match=f"^'{text}' is not {said}$"):
            number(text)


# --------------------------------------------------------------------------------------------------------- fetching


class Server(http.server.BaseHTTPRequestHandler):
    """Sends `content`, and breaks off in the middle as often as `breaks` says, or says no with the codes of `refusals` first."""

    breaks = 0
    content = CONTENT
    version: dict[str, str]
    refusals: list[int]
    asked: list[str | None]

    def do_GET(self) -> None:
        server = type(self)
        wanted = self.headers.get("Range")
        server.asked.append(wanted)
        if self.path.partition("?")[0] != "/file":
            self.send_error(404, "nothing here")
            return
        if server.refusals:
            self.send_error(server.refusals.pop(0), "not now")
            return
        if self.headers.get("If-Range", "any") not in {"any", *server.version.values()}:
            wanted = None
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        self.send_response(206 if wanted else 200)
        for name, value in {"Content-Length": str(len(server.content) - start), **server.version}.items():
            self.send_header(name, value)
        self.end_headers()
        rest = server.content[start:]
        if server.breaks:
            server.breaks -= 1
            rest = rest[: len(rest) // 2]
        self.wfile.write(rest)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from trainer import fetch

    monkeypatch.setattr(fetch.time, "sleep", lambda _: None)
    Server.breaks, Server.content, Server.version, Server.refusals, Server.asked = 0, CONTENT, {}, [], []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def test_a_download_goes_on_where_it_was_interrupted(address: str, tmp_path: Path) -> None:
    from trainer.fetch import fetch

    Server.breaks = 2
    file = fetch(f"{address}/file", tmp_path / "file", hashlib.sha256(CONTENT).hexdigest())
    assert file.read_bytes() == CONTENT
    half = len(CONTENT) // 2
    assert Server.asked == [None, f"bytes={half}-", f"bytes={half + half // 2}-"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    fetch(f"{address}/file", tmp_path / "file", hashlib.sha256(CONTENT).hexdigest())
    assert len(Server.asked) == 3, "what is there is not fetched again"


@pytest.mark.parametrize("version", [{"ETag": '"1"'}, {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}])
def test_without_a_checksum_the_server_says_whether_it_is_still_the_same_file(
    address: str, tmp_path: Path, version: dict[str, str]
) -> None:
    """Also when another process goes on with it: this one is interrupted for good."""
    from trainer.fetch import TRIES, fetch

    Server.breaks, Server.version = TRIES, version
    with pytest.raises(ConfigurationError, match="cannot be downloaded"):
        fetch(f"{address}/file", tmp_path / "file")
    there = (tmp_path / "file.part").stat().st_size
    assert fetch(f"{address}/file", tmp_path / "file").read_bytes() == CONTENT
    assert Server.asked[-1] == f"bytes={there}-"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]

    Server.breaks = TRIES
    with pytest.raises(ConfigurationError, match="cannot be downloaded"):
        fetch(f"{address}/file", tmp_path / "changed")
    Server.content, Server.version = CONTENT[::-1], {name: value.replace("1", "2") for name, value in version.items()}
    assert fetch(f"{address}/file", tmp_path / "changed").read_bytes() == CONTENT[::-1], "nothing of the file that was there before"


@pytest.mark.parametrize("version", [{}, {"ETag": 'W/"1"'}])
def test_what_nobody_can_compare_is_fetched_from_the_beginning(address: str, tmp_path: Path, version: dict[str, str]) -> None:
    from trainer.fetch import fetch

    (tmp_path / "file.part").write_bytes(b"of something else")
    Server.breaks, Server.version = 1, version
    assert fetch(f"{address}/file", tmp_path / "file").read_bytes() == CONTENT
    assert Server.asked == [None, None]


@pytest.mark.parametrize("code", [408, 429, 500, 503])
def test_a_busy_server_is_asked_again(address: str, tmp_path: Path, code: int) -> None:
    from trainer.fetch import TRIES, fetch

    Server.refusals = [code] * (TRIES - 1)
    assert fetch(f"{address}/file", tmp_path / "file").read_bytes() == CONTENT
    Server.refusals = [code] * TRIES
    with pytest.raises(ConfigurationError, match=rf"cannot be downloaded \({code} not now\); see that this machine reaches it"):
        fetch(f"{address}/file", tmp_path / "other")


def test_progress_shows_a_short_name(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from trainer.fetch import fetch

    fetch(f"{address}/file?$select=a,b/c&$limit=3", tmp_path / "file")
    assert capsys.readouterr().out == "file: 1.0 MB, done\n"


def test_what_is_kept_is_of_the_same_source_and_not_of_one_with_its_name(address: str, tmp_path: Path) -> None:
    from trainer.fetch import kept_file

    right = hashlib.sha256(CONTENT).hexdigest()
    kept = {kept_file(f"{address}/file", tmp_path / "scratch", sha256) for sha256 in (None, right, None, right)}
    assert (len(kept), len(Server.asked)) == (2, 2)
    for text in ("one", "three"):  # the same path, written anew
        (tmp_path / "file").write_text(text)
        for _ in range(2):
            assert kept_file(str(tmp_path / "file"), tmp_path / "scratch").read_text() == text
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("four")
    assert kept_file(str(tmp_path / "other" / "file"), tmp_path / "scratch").read_text() == "four"


def test_another_file_than_the_one_that_was_meant_is_not_kept(address: str, tmp_path: Path) -> None:
    from trainer.fetch import fetch

    for source in (f"{address}/file", str(tmp_path / "copy")):
        (tmp_path / "copy").write_bytes(CONTENT)
        with pytest.raises(ConfigurationError, match=r"has the checksum .* and not 0000"):
            fetch(source, tmp_path / "target" / "file", "0" * 64)
        assert list((tmp_path / "target").iterdir()) == []


def test_what_cannot_be_had_is_one_sentence(address: str, tmp_path: Path) -> None:
    from trainer.fetch import TRIES, fetch

    with pytest.raises(ConfigurationError, match=r"cannot be downloaded \(404 nothing here\); correct the address"):
        fetch(f"{address}/other", tmp_path / "file")
    Server.breaks = TRIES
    with pytest.raises(ConfigurationError, match=r"cannot be downloaded .*; see that this machine reaches it"):
        fetch(f"{address}/file", tmp_path / "file")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        fetch(str(tmp_path / "nowhere"), tmp_path / "file")


def test_an_archive_is_a_whole_folder_or_none(tmp_path: Path) -> None:
    from trainer.fetch import unpack

    with zipfile.ZipFile(tmp_path / "good.zip", "w") as archive:
        archive.writestr("inside/a.txt", "a")
    assert (unpack(tmp_path / "good.zip", tmp_path / "zip") / "inside" / "a.txt").read_text() == "a"
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as archive_of_tar:
        member = tarfile.TarInfo("../outside.txt")
        member.size = 1
        archive_of_tar.addfile(member, io.BytesIO(b"x"))
    (tmp_path / "half.tar.gz").write_bytes((tmp_path / "evil.tar.gz").read_bytes()[:40])
    for name in ("evil", "half"):
        with pytest.raises(ConfigurationError, match="cannot be unpacked"):
            unpack(tmp_path / f"{name}.tar.gz", tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.tar.gz", "good.zip", "half.tar.gz", "zip"]


# ---------------------------------------------------------------------------------------------------- learning rates


def rates(steps: list[int], decay: Any = "none", **changes: Any) -> list[float]:
    from trainer.schedules import LearningRate

    values = {"replicas": 1, "epoch_steps": 10, "epochs": 5, "warmup_epochs": 1.0, "begun": 0, **changes}
    schedule = LearningRate(argparse.Namespace(**values), 0.1, decay)
    return [round(float(schedule(step)), 6) for step in steps]


def test_the_rate_grows_to_that_of_all_replicas_within_the_warm_up() -> None:
    assert rates([0, 5, 10, 40], replicas=4) == [0.1, 0.25, 0.4, 0.4]
    assert rates([0, 5, 10, 40]) == [0.1] * 4, "one replica's, as under parameter servers"
    assert rates([0, 1], replicas=4, warmup_epochs=0.0) == [0.4, 0.4]


def test_the_rate_falls_to_nothing_at_the_end_and_a_run_from_another_one_begins_anew() -> None:
    assert rates([0, 10, 30, 50, 60], "cosine") == [0.1, 0.1, 0.05, 0.0, 0.0]
    assert rates([1000, 1010, 1030, 1050], "cosine", begun=1000) == [0.1, 0.1, 0.05, 0.0]


# --------------------------------------------------------------------------------------------------------- the input


@pytest.mark.parametrize("cache", [True, False])
def test_workers_of_a_coordinator_have_parts_of_their_own(monkeypatch: pytest.MonkeyPatch, cache: bool) -> None:
    """There is one pipeline for all, in which each finds its own number."""
    import tensorflow as tf

    from trainer import data

    program: Any = types.ModuleType("program")
    program.datasets = lambda _, shard: (
        tf.data.Dataset.range(12).map(lambda n: (n, n), num_parallel_calls=4).shard(shard.count, shard.index),
        None,
    )
    program.augment = lambda _, inputs, labels: (inputs + 100, labels)
    args = argparse.Namespace(cache=cache, shuffle=20, seed=1, resumed_at=0, batch_size=4, deterministic=False)
    seen = []
    for worker in range(3):
        number = tf.constant(worker)
        monkeypatch.setattr(tf.distribute.coordinator, "experimental_get_current_worker_index", lambda number=number: number)
        batches = list(data.training(program, args, None, workers=3).take(2).as_numpy_iterator())
        assert sorted(batches[0][1]) == sorted(batches[1][1]), "each pass has all of its part"
        assert [list(inputs - 100) for inputs, _ in batches] == [list(labels) for _, labels in batches]
        seen.append(sorted(int(label) for label in batches[0][1]))
    assert seen == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


def test_a_run_that_goes_on_sees_its_data_in_another_order() -> None:
    """And the same run the same one."""
    import tensorflow as tf

    from trainer import data

    program: Any = types.ModuleType("program")
    program.datasets = lambda *_: (tf.data.Dataset.range(100).map(lambda n: (n, n)), None)

    def begins(resumed_at: int) -> list[int]:
        args = argparse.Namespace(cache=True, shuffle=100, seed=1, resumed_at=resumed_at, batch_size=50, deterministic=True)
        return next(data.training(program, args).as_numpy_iterator())[0].tolist()

    assert begins(0) == begins(0) != begins(7) == begins(7)


@pytest.mark.parametrize(("examples", "pieces"), [(40, 6), (5, 3), (1, 1)])
def test_an_evaluation_has_no_more_pieces_than_there_are_batches(examples: int, pieces: int) -> None:
    """A coordinator cannot deal out more, and the training would fail."""
    import tensorflow as tf

    from trainer import evaluation

    program: Any = types.ModuleType("program")
    program.datasets = lambda *_: (None, tf.data.Dataset.range(examples).map(lambda n: (n, n)))
    model = types.SimpleNamespace(evaluate=lambda *_, **__: {})
    evaluation.inline(model, program, argparse.Namespace(batch_size=2), workers=3)
    assert model._pss_evaluation_shards == pieces


def test_data_in_one_piece_is_drawn_whole_in_every_pass_and_in_another_order() -> None:
    import tensorflow as tf

    from trainer import data

    program: Any = types.ModuleType("program")
    program.datasets = lambda *_: (tf.data.Dataset.range(30).map(lambda n: ({"number": n}, -n)), None)
    args = argparse.Namespace(cache=True, shuffle=1, seed=1, resumed_at=0, batch_size=10, deterministic=False)
    assert data.in_one_piece(program, args) == 30
    batches = list(data.training(program, args).take(6).as_numpy_iterator())
    assert [list(inputs["number"]) for inputs, _ in batches] == [list(-labels) for _, labels in batches], "pairs stay together"
    first, second = ([int(n) for inputs, _ in some for n in inputs["number"]] for some in (batches[:3], batches[3:]))
    assert sorted(first) == sorted(second) == list(range(30))
    assert first != second
    args.cache = False
    assert data.in_one_piece(program, args) == 0


@pytest.mark.parametrize("shape", [(10_000_000,), (None,)], ids=["too large", "of any size"])
def test_data_that_is_large_or_uneven_is_no_piece(shape: tuple[int | None, ...]) -> None:
    import tensorflow as tf

    from trainer import data

    program: Any = types.ModuleType("program")
    examples = tf.data.Dataset.range(30).map(lambda n: tf.ensure_shape(tf.zeros([10_000_000 + 0 * n], tf.uint8), shape))
    program.datasets = lambda *_: (examples, None)
    assert data.in_one_piece(program, argparse.Namespace(cache=True)) == 0


# ------------------------------------------------------------------------------------------------- being told to stop


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    from trainer import preemption

    codes: list[int] = []
    monkeypatch.setattr(preemption, "leave", codes.append)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return codes


def test_a_signal_while_a_function_is_traced_saves_all_the_same(left: list[int], tmp_path: Path) -> None:
    import tensorflow as tf

    from trainer import checkpoints
    from trainer.preemption import Preemption

    told = Preemption(Small(tmp_path).at(10).checkpoints, None, together=False)

    @tf.function
    def traced() -> Any:
        told.handle(signal.SIGTERM, None)
        return tf.constant(1)

    traced()
    assert (left, checkpoints.steps(str(tmp_path))) == ([75], [10])


def test_a_signal_within_a_save_lets_it_end_first(left: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer import checkpoints, files
    from trainer.preemption import Preemption

    small = Small(tmp_path).at(10)
    told = Preemption(small.checkpoints, None, together=False)
    write = files.write_text
    monkeypatch.setattr(files, "write_text", lambda *words: (told.handle(signal.SIGTERM, None), write(*words)))
    small.checkpoints.save()
    assert (left, checkpoints.steps(str(tmp_path))) == ([], [10])
    told.check()
    assert left == [75]
