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
    """Sends CONTENT, and breaks off in the middle as often as `breaks` says."""

    breaks = 0
    asked: list[str | None]

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        type(self).asked.append(wanted)
        if self.path != "/file":
            self.send_error(404, "nothing here")
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        rest = CONTENT[start:]
        if type(self).breaks:
            type(self).breaks -= 1
            rest = rest[: len(rest) // 2]
        self.wfile.write(rest)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from trainer import fetch

    monkeypatch.setattr(fetch.time, "sleep", lambda _: None)
    Server.breaks, Server.asked = 0, []
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
