"""Titles for issues: the data's way from a table to numbers, and the model's way from a text to a title."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import re
import subprocess
import sys
import zipfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from trainer import arguments, cluster
from trainer.programs import Shard
from trainer.programs import issue_summaries as program

pytestmark = pytest.mark.tensorflow

SMALL = ["--source=generated", "--examples=2500", "--body-length=40", "--title-length=8"]


def prepared(directory: Path | str, *words: str) -> argparse.Namespace:
    """Prepares data, and returns what a training there would be given."""
    program.prepare(arguments.preparation("issue_summaries").parse_args(["issue_summaries", f"--data-dir={directory}", *words]))
    return training(directory)


def training(directory: Path | str | None) -> argparse.Namespace:
    program.described.cache_clear()
    words = ["--program=issue_summaries", "--checkpoint-dir=-", "--log-dir=-", "--model-dir=-"]
    return arguments.parser("issue_summaries").parse_args([*words, *([f"--data-dir={directory}"] if directory else [])])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generated data, for tests that only read it."""
    place = tmp_path_factory.mktemp("issues") / "data"
    prepared(place, *SMALL)
    return place


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table that the generated data was made from."""
    return program.generated(tmp_path_factory.mktemp("table") / "github_issues.csv", 2500, 1)


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """The data once more, for tests that break it."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    program.manifest(training(tmp_path))
    return tmp_path


def issues(table: Path) -> list[program.Issue]:
    with table.open(newline="") as file:
        return [program.Issue(*row) for row in list(csv.reader(file))[1:]]


def written(numbers: Any, file: Path) -> str:
    """Numbers as the words that the file has in those lines."""
    lines = file.read_text().splitlines()
    return " ".join(lines[number] for number in numbers if number not in (program.PADDING, program.END))


def of(data: Any) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    batches = data.batch(1000).as_numpy_iterator()  # singly it takes ten times as long
    return [
        (tuple(body), tuple(title))
        for inputs, titles in batches
        for body, title in zip(inputs["body"].tolist(), titles.tolist(), strict=True)
    ]


# -------------------------------------------------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Router: crash, when\n\tsaving!", ["router", ":", "crash", ",", "when", "saving", "!"]),
        ("jquery.min.js:2 of v1.2.3 (C++) isn't   #12", ["jquery.min.js:2", "of", "v1.2.3", "c++", "isn't", "#12"]),
        ("ÄRGER mit 日本語 …", ["ärger", "mit", "日本語"]),
        ('"[start]" [end]', ["start", "end"]),
        ("what?! ...", ["what", "?!", "..."]),
        (" \n", []),
        (b"broken \xff bytes", ["broken", "bytes"]),
    ],
)
def test_words(text: str | bytes, expected: list[str]) -> None:
    assert [word.decode() for word in program.words([text]).to_list()[0]] == expected


def test_titles_are_put_together_as_people_write_them() -> None:
    found = program.text_of(program.words(["Router: crash, really? (a.b)", ""]))
    assert found.numpy().tolist() == [b"router: crash, really? a.b", b""]


# ------------------------------------------------------------------------------------------- what was prepared


def test_generated_issues_are_read_back_exactly(folder: Path, table: Path) -> None:
    """Every title and every body, in numbers that the vocabularies turn into the words of the table again."""
    args = training(folder)
    train, test = program.datasets(args, Shard())
    titles = program.words([issue.title for issue in issues(table)]).to_list()
    bodies = program.words([issue.body for issue in issues(table)])[:, :40].to_list()
    expected = Counter((b" ".join(body).decode(), b" ".join(title).decode()) for body, title in zip(bodies, titles, strict=True))
    found = Counter(
        (written(body, folder / "body_vocabulary.txt"), written(title, folder / "title_vocabulary.txt"))
        for body, title in (*of(train), *of(test))
    )
    assert found == expected
    assert int(train.cardinality()) == len(of(train))
    assert int(test.cardinality()) == len(of(test)) == sum(issue.is_test(10) for issue in issues(table))


def test_an_example_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths, unknown words, marks and what fills up; only the issues to train on make the vocabulary."""
    monkeypatch.setattr(program, "ROWS", 1)  # so that none is filled up only because a longer one is beside it
    url: dict[bool, list[str]] = {True: [], False: []}
    for number in range(100):
        url[program.Issue(f"u{number}", "", "").is_test(10)].append(f"u{number}")
    body = "a a b b c d"
    table = tmp_path / "few.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows(
            [
                program.COLUMNS,
                [url[False][0], "X x y", body],
                [url[False][1], "", "no title"],
                [url[False][2], "no body", "…"],
                [url[True][0], "y z y z y", 'd "quoted",\nb, e e e e'],
            ]
        )
    args = prepared(tmp_path / "data", f"--source={table}", "--body-length=7", "--title-length=4", "--body-vocabulary=4")
    assert (tmp_path / "data/body_vocabulary.txt").read_text().split() == [*program.RESERVED, "a", "b", "c", "d"]
    assert (tmp_path / "data/title_vocabulary.txt").read_text().split()[4:] == ["x", "body", "no", "y"]
    train, test = program.datasets(args, Shard())
    assert of(train) == [((4, 4, 5, 5, 6, 7, 0), (4, 4, 7, 3))]
    assert of(test) == [((7, 1, 1, 5, 1, 1, 1), (7, 1, 7, 3))]
    inputs, _ = next(test.as_numpy_iterator())
    assert inputs["title_in"].tolist() == [2, 7, 1, 7]
    assert list(program.test_texts(args).as_numpy_iterator()) == [(b'd "quoted",\nb, e e e e', b"y z y z y")]


def test_the_text_of_the_test_issues_is_kept(folder: Path, table: Path) -> None:
    found = Counter((body.decode(), title.decode()) for body, title in program.test_texts(training(folder)).as_numpy_iterator())
    assert found == Counter((issue.body, issue.title) for issue in issues(table) if issue.is_test(10))


@pytest.mark.parametrize("count", [3, 4, *(pytest.param(count, marks=pytest.mark.full) for count in (5, 11))])
def test_shards_are_disjoint_and_complete_and_apart_from_the_test_data(folder: Path, count: int) -> None:
    args = training(folder)
    whole, test = program.datasets(args, Shard())
    parts = [program.datasets(args, Shard(index, count))[0] for index in range(count)]
    found = [of(part) for part in parts]
    assert sum((Counter(part) for part in found), Counter()) == Counter(of(whole))
    assert [int(part.cardinality()) for part in parts] == [len(part) for part in found]
    assert max(map(len, found)) - min(map(len, found)) <= 8, "equally many, but for one of each file"
    assert not {body for body, _ in of(whole)} & {body for body, _ in of(test)}


def test_files_are_read_in_the_same_turns_on_every_machine(folder: Path) -> None:
    """One issue of each, however many cores there are: workers of a coordinator each keep every so many of what all of them read."""
    data = program.manifest(training(folder))
    files = [dataclasses.replace(data, files={name: data.files[name]}) for name in data.of("train")]
    singly = [of(program.examples(file, "train", Shard())) for file in files]
    together = of(program.examples(data, "train", Shard()))
    assert together[:24] == [file[turn] for turn in range(3) for file in singly]


def test_the_same_seed_makes_the_same_files_and_another_one_others(folder: Path, tmp_path: Path) -> None:
    prepared(tmp_path / "same", *SMALL)
    prepared(tmp_path / "other", *SMALL, "--seed=2")
    name = "train-00003-of-00008.tfrecord"
    assert (tmp_path / "same" / name).read_bytes() == (folder / name).read_bytes() != (tmp_path / "other" / name).read_bytes()


def test_the_data_may_be_in_a_bucket(tmp_path: Path) -> None:
    """As on gs://, here in TensorFlow's file system in memory."""
    import tensorflow as tf

    few = ["--source=generated", "--examples=60"]
    here, there = prepared(tmp_path, *few), prepared("ram://bucket/issues/", *few)
    assert Counter(of(program.datasets(there, Shard())[0])) == Counter(of(program.datasets(here, Shard())[0]))
    titles = program.number_words(program.manifest(there).path(program.TITLE_WORDS))
    assert titles.lookup(tf.constant([3, 10**6], tf.int64)).numpy().tolist() == [b"[end]", b"[unknown]"]


# ---------------------------------------------------------------------------------------------- what is refused


def refused(directory: Path | None, *sentences: str) -> None:
    for use in (program.model, lambda args: program.datasets(args, Shard())):
        with pytest.raises(cluster.ConfigurationError) as error:
            use(training(directory))
        assert all(sentence in str(error.value) for sentence in sentences), str(error.value)
        assert "\n" not in str(error.value)


def test_without_data_it_is_said_how_to_get_some(tmp_path: Path) -> None:
    refused(None, "issue_summaries needs its data; write data_prep: {program: issue_summaries.prepare, args: {source: generated}}")
    refused(tmp_path, f"there is no {tmp_path}/manifest.json")


@pytest.mark.parametrize("name", ["train-00007-of-00008.tfrecord", "test-00001-of-00002.tfrecord", "title_vocabulary.txt"])
def test_a_file_that_is_cut_short_or_missing_is_named(copy: Path, name: str) -> None:
    whole = (copy / name).read_bytes()
    (copy / name).write_bytes(whole[:-5])
    refused(copy, f"{copy}/{name} ends at byte {len(whole) - 5} and was prepared to end at byte {len(whole)}")
    (copy / name).unlink()
    refused(copy, f"there is no {copy}/{name}")


def test_files_are_looked_at_once_per_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each evaluation asks for the data sets again, and each look at a file of a bucket is a request."""
    import tensorflow as tf

    args, stat, asked = training(folder), tf.io.gfile.stat, []
    monkeypatch.setattr(tf.io.gfile, "stat", lambda path: (asked.append(path), stat(path))[1])
    for _ in range(3):
        program.datasets(args, Shard())
    assert len(asked) == 12


def test_a_foreign_file_is_named(copy: Path) -> None:
    path = copy / "train-00002-of-00008.tfrecord"
    path.write_bytes(b"x" * path.stat().st_size)
    refused(copy, f"{path} is no TFRecord file: at byte 0")


@pytest.mark.parametrize(("text", "where"), [('{"body_length": ', "at byte 16"), ('{"images": 3}', "images"), ("[]", "manifest")])
def test_a_foreign_manifest_is_named(copy: Path, text: str, where: str) -> None:
    (copy / "manifest.json").write_text(text)
    refused(copy, f"{copy}/manifest.json is no manifest of issue_summaries", where)


HEAD = b"issue_url,issue_title,body\r\n"
TWO = b'u1,t,"over\r\ntwo ""lines"""\r\n'


@pytest.mark.parametrize(
    ("data", "line", "offset"),
    [
        (b"url,title,body\n", 1, 0),
        (b"PK\x03\x04\xff\xfe", 1, 0),
        (HEAD + TWO + b"u2,t\r\n", 4, len(HEAD + TWO)),
        (HEAD + TWO + b"u2,t,b,c\r\n" + TWO, 4, len(HEAD + TWO)),
        (HEAD + b"\r\n" + TWO + b'u2,t,"never closed\r\n' + b"a line\r\n" * 9, 5, len(HEAD + TWO) + 2),
        (HEAD + TWO + TWO + b'u2,"t" x,b\r\n' + TWO, 6, len(HEAD + TWO + TWO)),
        (HEAD + TWO + b"u2,t\xff,b\r\n" + TWO, 4, len(HEAD + TWO)),
    ],
)
def test_a_broken_row_is_named_by_its_line_and_its_offset(tmp_path: Path, data: bytes, line: int, offset: int) -> None:
    (tmp_path / "mine.csv").write_bytes(data)
    with pytest.raises(cluster.ConfigurationError, match=re.escape(f"mine.csv: line {line} (at byte {offset}) ")) as error:
        prepared(tmp_path / "data", f"--source={tmp_path}/mine.csv")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "data").exists()


def test_a_table_without_issues_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_bytes(HEAD + TWO)
    with pytest.raises(cluster.ConfigurationError, match=r"has no issues for the (train|test) data"):
        prepared(tmp_path / "data", f"--source={tmp_path}/mine.csv")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("name", "value"), [("title_length", 1), ("body_length", 0), ("test_percent", 51), ("body_vocabulary", "many"), ("titel_length", 9)]
)
def test_wrong_arguments_are_found_before_anything_starts(name: str, value: Any) -> None:
    flags = arguments.flags({name: value})
    with pytest.raises(arguments.ArgumentError):
        arguments.preparation("issue_summaries").parse_args(["issue_summaries", "--data-dir=-", *flags])


# ------------------------------------------------------------------------------------------------ the real path


@pytest.fixture
def published(table: Path, tmp_path: Path) -> Path:
    """The archive as it is published, and what some programs add to one."""
    archive = tmp_path / "github-issues.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.write(table, "github_issues.csv")
        zipped.writestr("__MACOSX/._github_issues.csv", b"\x00\x05\x16\x07")
    return archive


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_published_archive_becomes_the_same_data(folder: Path, published: Path, tmp_path: Path) -> None:
    prepared(tmp_path / "data", f"--source={published}", "--body-length=40", "--title-length=8", f"--scratch={tmp_path}/scratch")
    assert content(tmp_path / "data") == content(folder)
    (kept,) = (tmp_path / "scratch").iterdir()
    assert (kept / "github_issues.csv").exists()


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_kept_is_not_taken_for_another_source_of_the_same_name(tmp_path: Path, packed: bool) -> None:
    for count in (50, 60):
        folder = tmp_path / str(count)
        folder.mkdir()
        source = program.generated(folder / "issues.csv", count, 1)
        if packed:
            with zipfile.ZipFile(folder / "issues.zip", "w") as zipped:
                zipped.write(source, "issues.csv")
            source = folder / "issues.zip"
        args = prepared(folder / "data", f"--source={source}", f"--scratch={tmp_path}/scratch")
        assert sum(int(part.cardinality()) for part in program.datasets(args, Shard())) == count


def test_a_limit_takes_the_first_issues(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches of one, so that some of them have no issue to train on."""
    monkeypatch.setattr(program, "ROWS", 1)
    args = prepared(tmp_path / "data", f"--source={table}", "--limit=40", "--test-percent=20")
    first = issues(table)[:40]
    train, test = program.datasets(args, Shard())
    assert (int(train.cardinality()), int(test.cardinality())) == (
        sum(not issue.is_test(20) for issue in first),
        sum(issue.is_test(20) for issue in first),
    )


def test_what_has_another_checksum_leaves_what_was_there(copy: Path, published: Path) -> None:
    """`copy` and `published` are in one folder; the data is what it was."""
    before = content(copy)
    with pytest.raises(cluster.ConfigurationError, match="checksum"):
        prepared(copy, f"--source={published}", "--sha256=" + "0" * 64)
    assert content(copy) == before
    with pytest.raises(cluster.ConfigurationError, match="checksum"):
        prepared(copy / "new", f"--source={published}", "--sha256=" + "0" * 64)
    assert not (copy / "new").exists()


def test_an_archive_with_other_things_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as zipped:
        zipped.writestr("a.csv", HEAD)
        zipped.writestr("b.csv", HEAD)
    with pytest.raises(cluster.ConfigurationError, match=r"other\.zip holds 2 CSV files and not one"):
        prepared(tmp_path / "data", f"--source={tmp_path}/other.zip")


def test_the_manifest_is_gone_while_files_are_replaced(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer import fetch

    def broken(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(fetch, "put", broken)
    with pytest.raises(OSError, match="full"):
        prepared(copy, *SMALL)
    assert not (copy / "manifest.json").exists()


def test_the_help_names_every_argument() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainer.prepare", "issue_summaries", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    wanted = ["body-vocabulary", "title-vocabulary", "body-length", "title-length", "test-percent", "limit", "sha256", "scratch"]
    assert [name for name in wanted if f"--{name}" not in done.stdout] == []


# ---------------------------------------------------------------------------------------------------- the model


def test_only_words_count() -> None:
    """Two titles of two words and of one, in three places: loss and figure by hand."""
    import numpy as np

    loss, accuracy = program.over_words()
    labels = np.array([[4, 3, 0], [3, 0, 0]])
    shares = np.array(
        [[[0.1, 0.1, 0.1, 0.2, 0.5], [0.1, 0.1, 0.2, 0.1, 0.5], [0.96, 0.01, 0.01, 0.01, 0.01]], [[0.02, 0.03, 0.05, 0.8, 0.1]] * 3]
    )
    each = loss().call(labels, np.log(shares).astype(np.float32)).numpy()
    assert each == pytest.approx([-(np.log(0.5) + np.log(0.1)) / 2, -np.log(0.8)], rel=1e-5)
    figure = accuracy()
    figure.update_state(labels, np.log(shares))
    assert figure.name == "token_accuracy"
    assert float(figure.result()) == pytest.approx(2 / 3)


def test_an_unknown_word_is_never_right() -> None:
    """The served model does not write it: a title of one is a title that is not found."""
    import numpy as np

    labels = np.array([[program.UNKNOWN, program.END, program.PADDING]])
    logits = np.eye(5, dtype=np.float32)[labels]
    words, right = program.right_words(labels, logits)
    assert (words.numpy().tolist(), right.numpy().tolist()) == ([[1, 1, 0]], [[0, 1, 0]])


def test_the_guess_is_the_word_that_the_served_model_writes() -> None:
    """Not a mark, however likely it is."""
    import numpy as np

    logits = np.array([[[3, 9, 8, 1, 0, 2], [9, 8, 7, 6, 5, 4]]], np.float32)
    assert program.likeliest(logits).numpy().tolist() == [[5, program.END]]
    assert program.right_words(np.array([[5, program.END]]), logits)[1].numpy().tolist() == [[1, 1]]


def test_the_decoder_sees_nothing_of_what_it_is_to_guess(folder: Path) -> None:
    """Another word at a place changes only what comes after it."""
    import numpy as np

    network = program.model(training(folder))
    inputs, _ = next(program.datasets(training(folder), Shard())[0].batch(2).as_numpy_iterator())
    before = network(inputs).numpy()
    inputs["title_in"] = inputs["title_in"] + np.eye(8, dtype=np.int32)[3]
    after = network(inputs).numpy()
    assert np.allclose(before[:, :3], after[:, :3])
    assert np.abs(before[:, 3:] - after[:, 3:]).max(axis=(0, 2)).min() > 1e-6


def test_what_fills_a_body_up_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    args, of_data = training(folder), program.manifest(training(folder))
    network = program.model(args)
    inputs, _ = next(program.datasets(args, Shard())[0].batch(2).as_numpy_iterator())
    monkeypatch.setattr(program, "manifest", lambda _: dataclasses.replace(of_data, body_length=50))
    longer = program.model(args)
    longer.set_weights(network.get_weights())
    more = {**inputs, "body": np.pad(inputs["body"], [(0, 0), (0, 10)], constant_values=program.PADDING)}
    assert np.allclose(longer(more), network(inputs), atol=1e-6)


def constant_guess(args: argparse.Namespace) -> tuple[float, float]:
    """Test figures of guesses that never read a body: the most frequent word of each place, and the one that mostly follows the word before."""
    train, test = ([title for _, title in of(data)] for data in program.datasets(args, Shard()))
    at_place: dict[Any, Counter[int]] = defaultdict(Counter)
    after_word: dict[Any, Counter[int]] = defaultdict(Counter)
    for title in train:
        for place, word in enumerate(title):
            if word:
                at_place[place][word] += 1
                after_word[title[place - 1] if place else program.START][word] += 1
    pairs = [(place, title[place - 1] if place else program.START, word) for title in test for place, word in enumerate(title) if word]
    right = [
        (at_place[place].most_common(1)[0][0] == word, after_word[before].most_common(1)[0][0] == word)
        if word != program.UNKNOWN
        else (False, False)
        for place, before, word in pairs
    ]
    return sum(a for a, _ in right) / len(right), sum(b for _, b in right) / len(right)


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training in a process of its own, in the loop that parameter servers have."""
    place = tmp_path_factory.mktemp("trained")
    places = [f"--{kind}-dir={place / kind}" for kind in ("checkpoint", "log", "model")]
    words = ["--program=issue_summaries", f"--data-dir={folder}", "--loop=custom", "--epochs=6", "--checkpoint-every=6"]
    done = subprocess.run([sys.executable, "-m", "trainer", *words, *places], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


@pytest.fixture(scope="module")
def loaded(trained: Path) -> Any:
    import tensorflow as tf

    return tf.saved_model.load(str(next((trained / "model").iterdir())))


def last_evaluation(place: Path) -> dict[str, float]:
    return json.loads((place / "log" / "evaluation.jsonl").read_text().splitlines()[-1])


@pytest.mark.full
def test_it_learns_what_a_guess_without_the_body_does_not_know(folder: Path, trained: Path) -> None:
    args = training(folder)
    assert max(constant_guess(args)) < 0.6
    assert last_evaluation(trained)["token_accuracy"] > max(constant_guess(args)) + 0.1
    first, last = [json.loads(line) for line in (trained / "log" / "metrics.jsonl").read_text().splitlines()][::5]
    assert last["loss"] < first["loss"] / 2


@pytest.mark.full
def test_the_exported_model_on_raw_text(folder: Path, trained: Path, loaded: Any) -> None:
    """It has the figure of the last evaluation, and the titles that it writes are the ones that the trained network finds likeliest."""
    import tensorflow as tf

    args = training(folder)
    bodies, titles = (tf.constant(column) for column in zip(*program.test_texts(args).as_numpy_iterator(), strict=True))
    score = loaded.score(bodies, titles)
    assert float(score["right"] / score["tokens"]) == pytest.approx(last_evaluation(trained)["token_accuracy"], abs=1e-6)
    signature = loaded.signatures["serving_default"]
    assert {name: spec.shape.as_list() for name, spec in signature.structured_input_signature[1].items()} == {"body": [None]}
    served = signature(body=bodies)["title"]
    assert served.shape == bodies.shape
    assert len(set(served.numpy())) > 20
    again = loaded.score(bodies, served)
    assert float(again["right"]) == float(again["tokens"]), "word by word as at once"
    same = [a.split()[0] == b.lower().split()[0] for a, b in zip(served.numpy(), titles.numpy(), strict=True)]
    assert sum(same) / len(same) > 0.25, "guesses of the first word, of which there are 33"


@pytest.mark.full
def test_the_exported_model_does_not_mind_what_it_is_asked(loaded: Any) -> None:
    import tensorflow as tf

    signature = loaded.signatures["serving_default"]
    texts = [b"", b"\xff\xfe", "日本語 …".encode(), b"word " * 1000, b"The router never comes back as soon as I save it."]
    together = signature(body=tf.constant(texts))["title"].numpy().tolist()
    assert together == [signature(body=tf.constant([text]))["title"].numpy()[0] for text in texts]
    assert not any(b"[" in title for title in together), "no marks in a title"
