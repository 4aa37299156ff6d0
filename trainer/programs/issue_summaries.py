"""Titles for GitHub issues: recurrent networks read an issue's text in both directions, and another one writes its title, looking back at it.

On a laptop, with issues that are made here (they follow a few patterns, so that a minute is enough to learn them):

    python -m trainer.prepare issue_summaries --data-dir /tmp/issues/d --source generated --examples 4000 --body-length 40 --title-length 8
    python -m trainer --program issue_summaries --data-dir /tmp/issues/d --checkpoint-dir /tmp/issues/c --log-dir /tmp/issues/l --model-dir /tmp/issues/m

Without `--source`, `prepare` takes the issues that Kubeflow's example of the same kind was trained on; `--limit 100000` takes only the first of them.
"""

from __future__ import annotations

import argparse
import csv
import functools
import itertools
import json
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.cluster import ConfigurationError
from trainer.programs import GENERATED, Shard, add_fetch_arguments, data_directory, number, whole_number

if TYPE_CHECKING:
    import random

DEFAULTS = {"epochs": 10, "batch_size": 64}
SOURCE = "https://storage.googleapis.com/kubeflow-examples/github-issue-summarization-data/github-issues.zip"
TABLE = "github_issues.csv"  # as it is called in that archive
COLUMNS = ["issue_url", "issue_title", "body"]
LONGEST_FIELD = 1 << 20  # characters, of which GitHub takes 65,536; so a quotation mark that is never closed is soon noticed

MANIFEST = "manifest.json"
BODY_WORDS, TITLE_WORDS = "body_vocabulary.txt", "title_vocabulary.txt"  # a word's number is that of its line, from 0
RESERVED = ["[padding]", "[unknown]", "[start]", "[end]"]  # the first lines of both; no word has brackets
PADDING, UNKNOWN, START, END = range(len(RESERVED))
TRAIN_FILES, TEST_FILES = 8, 2
ROWS = 512  # that are cleaned at once


def arguments(parser: argparse._ArgumentGroup) -> None:
    even = whole_number(2, 10_000, multiple_of=2)  # half of it is for each direction of reading
    parser.add_argument("--units", type=even, default=64, help="numbers that stand for a word, and for what was read and written so far")
    parser.add_argument("--learning-rate", type=number(above=True), default=0.003, help="of the Adam optimizer; falls to 0 by a cosine")


# ----------------------------------------------------------------------------------------------------- the model

Layers = Callable[[str], Any]  # a layer by its name


def model(args: argparse.Namespace) -> Any:
    import tf_keras as keras

    from trainer.schedules import LearningRate

    data, units = manifest(args), args.units
    layers = {
        layer.name: layer
        for layer in (
            keras.layers.Embedding(data.body_words, units, name="body_words"),
            keras.layers.Embedding(data.title_words, units, name="title_words"),
            keras.layers.Bidirectional(keras.layers.GRU(units // 2, return_sequences=True, return_state=True), name="encoder"),
            keras.layers.Concatenate(name="read"),
            keras.layers.GRU(units, return_sequences=True, return_state=True, name="decoder"),
            keras.layers.Attention(name="attention"),
            keras.layers.Concatenate(name="both"),
            keras.layers.Dense(units, activation="tanh", name="combined"),
            keras.layers.Dense(data.title_words, dtype="float32", name="logits"),
        )
    }
    body = keras.layers.Input((data.body_length,), dtype="int32", name="body")
    title = keras.layers.Input((data.title_length,), dtype="int32", name="title_in")
    states, last, mask = encode(layers.__getitem__, body)
    decoded, _ = layers["decoder"](layers["title_words"](title), initial_state=last)
    network = keras.Model({"body": body, "title_in": title}, guesses(layers.__getitem__, decoded, states, mask))
    loss, accuracy = over_words()
    network.compile(keras.optimizers.Adam(LearningRate(args, args.learning_rate, "cosine"), global_clipnorm=1.0), loss(), [accuracy()])
    return network


def encode(layer: Layers, body: Any) -> tuple[Any, Any, Any]:
    """What each word means among the others, what was read in all, and which are words and not padding."""
    import tensorflow as tf

    mask = tf.not_equal(body, PADDING)
    states, forwards, backwards = layer("encoder")(layer("body_words")(body), mask=mask)
    return states, layer("read")([forwards, backwards]), mask


def guesses(layer: Layers, decoded: Any, states: Any, mask: Any) -> Any:
    """The next word at each place of a title, from what was written before it and from the words of the body that this looks at."""
    context = layer("attention")([decoded, states], mask=[None, mask])
    return layer("logits")(layer("combined")(layer("both")([context, decoded])))


def right_words(labels: Any, logits: Any) -> tuple[Any, Any]:
    """Where a title has words (or its end), and where the guess is the right one: ones and zeros.

    An unknown word counts and is never right, because the served model does not write it.
    """
    import tensorflow as tf

    labels = tf.cast(labels, tf.int32)
    return tf.cast(tf.not_equal(labels, PADDING), tf.float32), tf.cast(tf.equal(labels, likeliest(logits)), tf.float32)


def likeliest(logits: Any) -> Any:
    """The word to write, or the end: the marks before it are neither, however likely one is."""
    import tensorflow as tf

    return END + tf.argmax(logits[..., END:], -1, tf.int32)


@functools.cache
def over_words() -> tuple[Any, Any]:
    """The classes of the loss and of the figure: both are of words, and not of what fills a title up.

    Registered, because under parameter servers Keras evaluates with copies of them, which it finds by their names.
    """
    import tensorflow as tf
    import tf_keras as keras

    @keras.saving.register_keras_serializable(__name__)
    class WordLoss(keras.losses.Loss):  # type: ignore[misc]
        """For each title the mean over its words."""

        def call(self, labels: Any, logits: Any) -> Any:
            words = tf.cast(tf.not_equal(labels, PADDING), logits.dtype)
            each = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            return tf.reduce_sum(each * words, -1) / tf.reduce_sum(words, -1)  # every title has an end

    @keras.saving.register_keras_serializable(__name__)
    class TokenAccuracy(keras.metrics.Mean):  # type: ignore[misc]
        """The share of right words, each of them guessed from the right ones before it."""

        def __init__(self, name: str = "token_accuracy", dtype: Any = None) -> None:
            super().__init__(name, dtype)

        def update_state(self, labels: Any, logits: Any, sample_weight: Any = None) -> Any:  # noqa: ARG002 - Keras' signature
            words, right = right_words(labels, logits)
            return super().update_state(right, sample_weight=words)

    return WordLoss, TokenAccuracy


# ------------------------------------------------------------------------------------------------------ the text


def words(texts: Any) -> Any:
    """Texts [n] as their words, a ragged [n, …]: in lower case; punctuation at the end of a word is a word of its own.

    The one way from text to words: `prepare` goes it, and so does the served model.
    """
    import tensorflow as tf

    texts = tf.strings.lower(tf.convert_to_tensor(texts, tf.string), encoding="utf-8")
    texts = tf.strings.regex_replace(texts, r"[^\pL\pN_.:,!?'+#/-]+", " ")
    return tf.strings.split(tf.strings.regex_replace(texts, r"([.:,!?]+)( |$)", r" \1 "))


def text_of(found: Any) -> Any:
    """Words, ragged [n, …], as texts [n]: punctuation goes to the end of the word before it again."""
    import tensorflow as tf

    return tf.strings.regex_replace(tf.strings.reduce_join(found, axis=1, separator=" "), r" ([.:,!?])", r"\1")


def word_numbers(path: str) -> Any:
    """A table from words to their numbers: the lines of a file."""
    import tensorflow as tf

    whole_line, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    return tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer(path, tf.string, whole_line, tf.int64, number), UNKNOWN)


def number_words(path: str) -> Any:
    """A table from numbers to the words that they stand for."""
    import tensorflow as tf

    whole_line, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    return tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer(path, tf.int64, number, tf.string, whole_line), RESERVED[UNKNOWN])


def body_numbers(table: Any, texts: Any, length: int) -> Any:
    """The first words of each text as numbers [n, length]."""
    import tensorflow as tf

    return tf.cast(table.lookup(words(texts)[:, :length]).to_tensor(PADDING, shape=[None, length]), tf.int32)


def title_numbers(table: Any, texts: Any, length: int) -> Any:
    """The first words of each text and its end as numbers [n, length]."""
    import tensorflow as tf

    found = table.lookup(words(texts)[:, : length - 1])
    ends = tf.fill([found.nrows(), 1], tf.constant(END, tf.int64))
    return tf.cast(tf.concat([found, ends], axis=1).to_tensor(PADDING, shape=[None, length]), tf.int32)


def moved(title: Any) -> Any:
    """A title as the decoder sees it when it is to guess the next word: from the start mark on, and without its last place."""
    import tensorflow as tf

    start = tf.fill(tf.concat([tf.shape(title)[:-1], [1]], 0), START)
    return tf.concat([start, title[..., :-1]], -1)


# --------------------------------------------------------------------------------------------------- the served model


def serving(args: argparse.Namespace, model: Any) -> Any:
    """Texts in, titles out. Beside the signature the saved model has a function `score`, which counts the right words of given titles."""
    import tensorflow as tf
    import tf_keras as keras

    data = manifest(args)

    class Titles(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            super().__init__(name=name)
            self.trained = (
                model.weights
            )  # and not the model, of which Keras would save every layer as something to call: three times as slow
            self.of_body = word_numbers(data.path(BODY_WORDS))
            self.of_title, self.to_title = word_numbers(data.path(TITLE_WORDS)), number_words(data.path(TITLE_WORDS))

        def call(self, texts: Any) -> Any:
            """Word by word, each time the likeliest one."""
            layer: Layers = model.get_layer
            states, state, mask = encode(layer, body_numbers(self.of_body, texts, data.body_length))
            word, written = tf.fill(tf.shape(texts), START), []
            for _ in range(data.title_length):
                decoded, state = layer("decoder").cell(layer("title_words")(word), state)
                logits = guesses(layer, decoded[:, None], states, mask)[:, 0]
                word = likeliest(logits)
                written.append(word)
            numbers = tf.cast(tf.stack(written, axis=1), tf.int64)
            before_end = tf.math.cumprod(tf.cast(tf.not_equal(numbers, END), tf.int32), axis=1) > 0
            return text_of(tf.ragged.boolean_mask(self.to_title.lookup(numbers), before_end))

        def score(self, body: Any, title: Any) -> dict[str, Any]:
            labels = title_numbers(self.of_title, title, data.title_length)
            logits = model({"body": body_numbers(self.of_body, body, data.body_length), "title_in": moved(labels)}, training=False)
            tokens, right = right_words(labels, logits)
            return {"right": tf.reduce_sum(right), "tokens": tf.reduce_sum(tokens)}

    titles = Titles("title")
    body = keras.layers.Input((), dtype=tf.string, name="body")
    served = keras.Model(body, titles(body))
    served.score = tf.function(titles.score, input_signature=[tf.TensorSpec([None], tf.string)] * 2)
    return served


# ------------------------------------------------------------------------------------------------- the prepared data


@dataclass(frozen=True)
class Manifest:
    """What `prepare` wrote last: how the data is laid out, and each file with its bytes and, where it has some, its examples."""

    directory: str
    body_length: int
    title_length: int
    body_words: int
    title_words: int
    files: dict[str, dict[str, int]]

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def of(self, part: str) -> list[str]:
        return sorted(name for name in self.files if name.startswith(f"{part}-"))


def manifest(args: argparse.Namespace) -> Manifest:
    return described(data_directory(args, "issue_summaries"))


@functools.cache  # once per process: the data does not change while it is trained on, and asking a bucket takes time
def described(directory: str) -> Manifest:
    """Read and held against the files that are there: their sizes and how they begin."""
    from trainer import files

    path = f"{directory}/{MANIFEST}"
    try:
        found = Manifest(directory=directory, **json.loads(files.read_bytes(path)))
    except (ValueError, TypeError) as error:
        offset = getattr(error, "pos", 0)
        raise ConfigurationError(f"{path} is no manifest of issue_summaries (at byte {offset}: {error}); prepare the data again") from None
    for name, of_it in found.files.items():
        check(found.path(name), of_it["bytes"])
    return found


def check(path: str, size: int) -> None:
    """A TFRecord file begins with a length and its checksum; one without records is empty."""
    from trainer import files

    head, _ = files.beginning(path, 12, size)
    if path.endswith(".tfrecord") and head and (len(head) < 12 or struct.unpack("<I", head[8:])[0] != masked_checksum(head[:8])):
        raise ConfigurationError(f"{path} is no TFRecord file: at byte 0 there is no length of a record; prepare the data again")


def masked_checksum(data: bytes) -> int:
    """CRC-32C, turned and moved as the TFRecord format has it."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def datasets(args: argparse.Namespace, shard: Shard) -> tuple[Any, Any]:
    data = manifest(args)
    return examples(data, "train", shard), examples(data, "test", Shard())


def examples(data: Manifest, part: str, shard: Shard) -> Any:
    """The examples of a shard."""
    import tensorflow as tf

    names, records = shard.of(data.of(part))
    count = sum(len(range(records.index, data.files[name]["examples"], records.count)) for name in names)

    def opened(path: Any) -> Any:
        return tf.data.TFRecordDataset(path).shard(records.count, records.index)

    def parsed(record: Any) -> tuple[Any, Any]:
        lengths = {"body": data.body_length, "title": data.title_length}
        found = tf.io.parse_single_example(record, {name: tf.io.FixedLenFeature([n], tf.int64) for name, n in lengths.items()})
        title = tf.cast(found["title"], tf.int32)
        return {"body": tf.cast(found["body"], tf.int32), "title_in": moved(title)}, title

    paths = tf.data.Dataset.from_tensor_slices([data.path(name) for name in names])
    # As many at once on every machine: workers of a coordinator deal out among themselves what all of them read in the same order.
    opened_all = paths.interleave(opened, cycle_length=min(len(names), 16), num_parallel_calls=tf.data.AUTOTUNE)
    return opened_all.map(parsed, num_parallel_calls=tf.data.AUTOTUNE).apply(tf.data.experimental.assert_cardinality(count))


def test_texts(args: argparse.Namespace) -> Any:
    """Body and title of each test issue as they were written."""
    import tensorflow as tf

    data = manifest(args)
    features = {name: tf.io.FixedLenFeature([], tf.string) for name in ("body_text", "title_text")}
    records = tf.data.TFRecordDataset([data.path(name) for name in data.of("test")])
    return records.map(lambda record: tuple(tf.io.parse_single_example(record, features).values()))


# ---------------------------------------------------------------------------------------------------- preparing it


def prepare_arguments(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--body-vocabulary", type=whole_number(1, 10**7), default=8000, help="how many words of bodies are known, the most frequent"
    )
    parser.add_argument("--title-vocabulary", type=whole_number(1, 10**7), default=4500, help="how many words of titles can be written")
    parser.add_argument("--body-length", type=whole_number(1, 10_000), default=70, help="words of a body that are read")
    parser.add_argument("--title-length", type=whole_number(2, 1000), default=12, help="places of a title: its words and one for its end")
    parser.add_argument(
        "--test-percent", type=whole_number(1, 50), default=10, help="how much is kept for testing; which issues, their address says"
    )
    parser.add_argument("--limit", type=whole_number(2, 10**12), help="take only so many issues, the first ones; default: all")
    add_fetch_arguments(parser)


def prepare(args: argparse.Namespace) -> None:
    from trainer.fetch import publish

    if args.scratch:
        Path(args.scratch).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.scratch) as temporary:
        table = fetched(args, Path(args.scratch or temporary), Path(temporary))
        folder = Path(temporary) / "prepared"
        folder.mkdir()
        sizes = write_vocabularies(args, table, folder)
        written = write_examples(args, table, folder)
        write_manifest(args, folder, sizes, written)
        publish(folder.iterdir(), args.data_dir, last=MANIFEST)
    described.cache_clear()
    manifest(args)  # what arrived is what was sent
    print(f"{sum(written.values()):,} issues are in {args.data_dir}", flush=True)


def fetched(args: argparse.Namespace, scratch: Path, temporary: Path) -> Path:
    """The source as a CSV file on this disk."""
    from trainer.fetch import kept_file, kept_folder, name_of

    if args.source == GENERATED:
        return generated(temporary / TABLE, args.examples, args.seed)
    if name_of(args.source).endswith(".csv"):
        return kept_file(args.source, scratch, args.sha256)
    found = [path for path in kept_folder(args.source, scratch, args.sha256).rglob("*.csv") if not path.name.startswith(".")]
    if len(found) != 1:
        raise ConfigurationError(
            f"{args.source} holds {len(found)} CSV files and not one; write a CSV file, or an archive with one, as `source`"
        )
    return found[0]


@dataclass(frozen=True)
class Issue:
    url: str
    title: str
    body: str

    def is_test(self, percent: int) -> bool:
        """Always the same for the same issue, whatever is around it."""
        return zlib.crc32(self.url.encode()) % 100 < percent


class Lines:
    """The lines of a file as text, and how many bytes of it were read."""

    def __init__(self, file: Any) -> None:
        self.file, self.offset = file, 0

    def __iter__(self) -> Iterator[str]:
        for line in self.file:
            self.offset += len(line)
            yield line.decode()


def rows(path: Path, what: str) -> Iterator[list[str]]:
    """The rows of the table, the names of its columns first. One may go over several lines; of a broken one it is said where it begins."""
    from trainer.fetch import progress

    csv.field_size_limit(LONGEST_FIELD)
    with path.open("rb") as file, progress(what, path.stat().st_size) as step:
        lines = Lines(file)
        reader = csv.reader(lines, strict=True)
        while True:
            line, offset = reader.line_num + 1, lines.offset
            try:
                row = next(reader)
                wrong = f"it has {len(row)} fields" if row and len(row) != len(COLUMNS) else ""
            except StopIteration:
                return
            except (csv.Error, UnicodeDecodeError) as error:
                wrong = str(error)
            if not offset and not wrong and row != COLUMNS:
                wrong = "the columns have other names"
            if wrong:
                raise ConfigurationError(
                    f"{path.name}: line {line} (at byte {offset}) is not {', '.join(COLUMNS)} as CSV ({wrong}); mend it, or correct `source`"
                )
            step(lines.offset - offset)
            if row:
                yield row


def batches(args: argparse.Namespace, table: Path, what: str) -> Iterator[list[Issue]]:
    found = itertools.islice(rows(table, what), 1, args.limit + 1 if args.limit else None)
    while batch := [Issue(*row) for row in itertools.islice(found, ROWS)]:
        yield batch


def write_vocabularies(args: argparse.Namespace, table: Path, folder: Path) -> dict[str, int]:
    """The most frequent words of the issues to train on, as files. Returns how many numbers there are for each kind of text."""
    bodies: Counter[bytes] = Counter()
    titles: Counter[bytes] = Counter()
    for batch in batches(args, table, "counting words"):
        train = [issue for issue in batch if not issue.is_test(args.test_percent)]
        bodies.update(words([issue.body for issue in train])[:, : args.body_length].flat_values.numpy().tolist())
        titles.update(words([issue.title for issue in train])[:, : args.title_length - 1].flat_values.numpy().tolist())
    sizes = {}
    for kind, file, counted, most in (
        ("body_words", BODY_WORDS, bodies, args.body_vocabulary),
        ("title_words", TITLE_WORDS, titles, args.title_vocabulary),
    ):
        chosen = sorted(counted, key=lambda word: (-counted[word], word))[:most]
        lines = [*(mark.encode() for mark in RESERVED), *chosen]
        (folder / file).write_bytes(b"".join(line + b"\n" for line in lines))
        sizes[kind] = len(lines)
    return sizes


def write_examples(args: argparse.Namespace, table: Path, folder: Path) -> dict[str, int]:
    """Files of examples. Returns how many are in each."""
    import tensorflow as tf

    names = {
        part: [f"{part}-{number:05d}-of-{count:05d}.tfrecord" for number in range(count)]
        for part, count in (("train", TRAIN_FILES), ("test", TEST_FILES))
    }
    writers = {name: tf.io.TFRecordWriter(str(folder / name)) for part in names.values() for name in part}
    written = dict.fromkeys(writers, 0)
    of_body, of_title = word_numbers(str(folder / BODY_WORDS)), word_numbers(str(folder / TITLE_WORDS))
    total = {"train": 0, "test": 0}
    for batch in batches(args, table, "writing issues"):
        bodies = body_numbers(of_body, [issue.body for issue in batch], args.body_length).numpy()
        titles = title_numbers(of_title, [issue.title for issue in batch], args.title_length).numpy()
        for issue, body, title in zip(batch, bodies, titles, strict=True):
            if body[0] == PADDING or title[0] == END:
                continue  # there is nothing to read, or nothing to write
            part = "test" if issue.is_test(args.test_percent) else "train"
            name = names[part][total[part] % len(names[part])]
            writers[name].write(example(body, title, issue if part == "test" else None))
            written[name] += 1
            total[part] += 1
    for writer in writers.values():
        writer.close()
    for part, count in total.items():
        if not count:
            raise ConfigurationError(f"{args.source} has no issues for the {part} data; take another, or more of it")
    return written


def example(body: Any, title: Any, issue: Issue | None) -> bytes:
    """A record; with its text where somebody may want to see it."""
    import tensorflow as tf

    features = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=value)) for name, value in (("body", body), ("title", title))}
    if issue:
        for name, text in (("body_text", issue.body), ("title_text", issue.title)):
            features[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
    record: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    return record


def write_manifest(args: argparse.Namespace, folder: Path, sizes: dict[str, int], written: dict[str, int]) -> None:
    found = {
        path.name: {"bytes": path.stat().st_size, **({"examples": written[path.name]} if path.name in written else {})}
        for path in sorted(folder.iterdir())
    }
    lengths = {"body_length": args.body_length, "title_length": args.title_length}
    (folder / MANIFEST).write_text(json.dumps({**lengths, **sizes, "files": found}, indent=2) + "\n")


# ------------------------------------------------------------------------------------------------------ made here

COMPONENTS = ["router", "parser", "scheduler", "cache", "editor", "dashboard", "installer", "uploader", "compiler", "debugger", "toolbar"]
COMPONENTS += ["sidebar", "renderer", "indexer", "notifier", "importer", "exporter", "validator", "terminal", "calendar", "profiler"]
COMPONENTS += ["launcher", "formatter", "gallery", "linker", "player", "proxy", "tokenizer", "viewer", "wizard", "mailer", "monitor"]
ACTIONS = {"save": "saving", "open": "opening", "close": "closing", "resize": "resizing", "update": "updating", "delete": "deleting"}
ACTIONS |= {"restart": "restarting", "rename": "renaming", "move": "moving", "copy": "copying", "share": "sharing", "print": "printing"}
FAILURES = {
    "stops with an exception": "crash",
    "never comes back": "endless loop",
    "shows an empty page": "blank page",
    "takes minutes to answer": "slow response",
    "uses more and more memory": "memory leak",
    "forgets all settings": "settings lost",
    "says that access is denied": "permission error",
    "prints the wrong date": "wrong date",
    "loses the last line": "missing line",
    "writes everything twice": "duplicate output",
}
WISHES = {
    "work without a network": "offline mode",
    "speak other languages": "translations",
    "have dark colours": "dark theme",
    "undo the last step": "undo",
    "read several files at once": "batch mode",
    "be used without a mouse": "keyboard shortcuts",
}
TIMES = ["when", "when", "when", "while", "after"]  # no body says which, so that nobody guesses every word
GREETINGS = ["Hi,", "Hello!", "Thanks for this project.", "First of all: great work!", ""]
ASIDES = [
    "The {other} is not affected.",
    "The {other} works as it should.",
    'The log of the {other} says "nothing to do".',
    "I have used the {other} for years.",
    "My colleague looked at the {other}, too.",
]
VERSIONS = ["I am on version {version}.", "Version {version}, 64 bit.", "This is {version} on Linux.", ""]
ENDS = ["Any ideas?", "Thanks!", "Please help.", "I can send a patch.", ""]


def generated(path: Path, count: int, seed: int) -> Path:
    """A table as the real one. Each title follows from its body, in which another component is named as well; no two bodies are the same."""
    import random

    chance = random.Random(seed)
    seen: set[str] = set()
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        while len(seen) < count:
            title, body = made(chance)
            if (key := body.replace("\n", " ")) not in seen:
                seen.add(key)
                url = f'"https://github.com/example/project/issues/{len(seen)}"'  # the real ones have the quotation marks too
                table.writerow([url, title, body])
    return path


def made(chance: random.Random) -> tuple[str, str]:
    """A title and its body."""
    component, other = chance.sample(COMPONENTS, 2)
    if chance.random() < 0.7:
        action, failure = chance.choice(list(ACTIONS)), chance.choice(list(FAILURES))
        title = f"{component.capitalize()}: {FAILURES[failure]} {chance.choice(TIMES)} {ACTIONS[action]}"
        says = chance.choice(["When I {action} the {component} it {failure}.", "The {component} {failure} as soon as I {action} it."])
        sentence = says.format(action=action, component=component, failure=failure)
    else:
        wish = chance.choice(list(WISHES))
        title = f"Add {WISHES[wish]} to the {component}"
        says = chance.choice(["It would be nice if the {component} could {wish}.", "Could you make the {component} {wish}?"])
        sentence = says.format(component=component, wish=wish)
    aside = chance.choice(ASIDES).format(other=other)
    version = chance.choice(VERSIONS).format(version=f"{chance.randrange(4)}.{chance.randrange(10)}")
    middle = chance.sample([sentence, aside, version], 3)
    return title, chance.choice([" ", "\n"]).join(part for part in (chance.choice(GREETINGS), *middle, chance.choice(ENDS)) if part)
