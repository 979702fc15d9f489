"""mtl-prep as its users meet it: the installed command, its summaries, its one-line errors and exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from corpus import END, stdlib_texts
from mtl_common.bins import Bins
from mtl_common.errors import UsageError
from mtl_common.tokenizers import load
from mtl_prep.running.tally import parse_max_bad
from mtl_prep.vocabulary.train import Wish, parse_size, train
from preparing import json_lines, prep, texts_of


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "a.jsonl"
    path.write_bytes(json_lines([*stdlib_texts(6), "", b"nonsense", *stdlib_texts(12)[6:]]))
    return path


def test_from_source_code_to_bins(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    for i, text in enumerate(stdlib_texts(10)):
        (tmp_path / "code" / f"{i}.py").write_text(text, "utf-8")
    (tmp_path / "code" / "empty.py").write_text("")
    done = prep("train-tokenizer", "code", "--vocab-size", 600, "--out", "tok", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "vocabulary    600 entries\n" in done.stdout
    assert done.stdout.endswith("next: mtl-prep tokenize code --tokenizer tok --out bins\n")
    done = prep("tokenize", "code", "--tokenizer", "tok", "--out", "bins", "--workers", 2, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "records    11 = 10 documents + 1 bad (1 empty)\n" in done.stdout
    assert "next: mtl-train --data bins " in done.stdout
    bins = Bins(tmp_path / "bins")
    assert texts_of(bins) == list(stdlib_texts(10))
    assert f"tokens     {bins.tokens:,} uint16, 10 of them end a document\n" in done.stdout
    done = prep("inspect", "bins", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "records      11 = 10 documents + 1 bad (1 empty)\n" in done.stdout
    assert " tokens\n  | " in done.stdout


def test_the_next_command_reads_the_corpus_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines([{"data": {"body": text}} for text in stdlib_texts(6)]))
    learn = ("train-tokenizer", "a.jsonl", "--text-key", "data.body", "--vocab-size", 600, "--out", "tok")
    told = prep(*learn, cwd=tmp_path).stdout.splitlines()[-1]
    assert told.endswith(" --text-key data.body")
    command = told.removeprefix("next: mtl-prep ").split()
    done = prep(*command, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert texts_of(Bins(tmp_path / "bins")) == list(stdlib_texts(6))


def test_inspect_as_json(lines: Path, tokenizer: Path, tmp_path: Path) -> None:
    out = tmp_path / "bins"
    prep("tokenize", lines, "--tokenizer", tokenizer, "--out", out, "--max-bad", 1, "--shard-tokens", 50_000)
    found = json.loads(prep("inspect", out, "--json").stdout)
    bins = Bins(out)
    lengths = [len(bins.document(i)) for i in range(len(bins))]
    assert (found["documents"], found["tokens"]) == (12, sum(lengths))
    assert sum(shard["tokens"] for shard in found["shards"]) == sum(lengths)
    assert sum(found["lengths"]["from"].values()) == 12
    assert (found["lengths"]["shortest"], found["lengths"]["longest"]) == (min(lengths), max(lengths))
    assert found["sources"][0]["bad"] == {"empty": 1, "not JSON": 1}
    sample = found["samples"][0]
    assert stdlib_texts(12)[sample["number"]].startswith(sample["text"])
    assert (sample["source"], sample["record"]) == bins.origin(sample["number"])


def test_the_same_command_again_says_that_it_is_done(lines: Path, tokenizer: Path, tmp_path: Path) -> None:
    command = ("tokenize", lines, "--tokenizer", tokenizer, "--out", tmp_path / "bins", "--max-bad", "10%")
    assert prep(*command).returncode == 0
    done = prep(*command)
    assert (done.returncode, done.stderr) == (0, "")
    assert "finished before" in done.stdout


NO_DOCUMENTS = "error: no documents in the corpus, its records are: "
TOK, OUT = "--tokenizer TOKENIZER", "--out bins"
ERRORS = [
    (f"tokenize absent {TOK} {OUT}", 1, "error: no corpus at absent; check the path"),
    (f"tokenize empty.jsonl {TOK} {OUT}", 1, NO_DOCUMENTS + "none"),
    (f"tokenize empty.txt {TOK} {OUT}", 1, NO_DOCUMENTS + "1 empty"),
    (f"tokenize images/a.png {TOK} {OUT}", 1, NO_DOCUMENTS + "1 not UTF-8"),
    (
        f"tokenize images {TOK} {OUT}",
        1,
        "error: images holds no .jsonl, text or source files among 1 files (1 .png); name others one by one",
    ),
    (
        f"tokenize lines.jsonl {TOK} {OUT} --text-key txt",
        1,
        NO_DOCUMENTS + '1 no text, 1 not JSON; in lines.jsonl the keys are text (did you mean "text"?): '
        "name one with --text-key",
    ),
    (
        f"tokenize lines.jsonl {TOK} {OUT}",
        1,
        "error: 1 of 2 records are bad, more than --max-bad 5%: 1 not JSON; lines.jsonl line 2 is not JSON, "
        "all in bins/bad.jsonl; mend them, or leave them out with a larger --max-bad",
    ),
    (
        f"tokenize lines.jsonl ./lines.jsonl {TOK} {OUT}",
        1,
        "lines.jsonl is in the corpus twice; name it once",
    ),
    (
        f"tokenize lines.jsonl {TOK} {OUT} --max-bad x",
        2,
        "error: --max-bad x is neither a count nor a share such as",
    ),
    (f"tokenize lines.jsonl {TOK} {OUT} --eod <eos>", 2, "error: --eod <eos> is no token of "),
    (f"tokenize lines.jsonl {TOK} {OUT} --workers 0", 2, "'--workers'"),
    (
        f"tokenize lines.jsonl {TOK} {OUT} --worker 3",
        2,
        'no such option --worker (did you mean "--workers"?)',
    ),
    (f"tokenize lines.jsonl {TOK} --out images", 2, "error: images holds something else; "),
    (f"tokenize lines.jsonl --tokenizer absent {OUT}", 1, "error: no tokenizer at absent; "),
    (f"tokenize lines.jsonl --tokenizer lines.jsonl {OUT}", 1, "error: lines.jsonl is not JSON: "),
    (
        "tokenise lines.jsonl",
        2,
        "no such command 'tokenise' (did you mean \"tokenize\"?); see mtl-prep --help",
    ),
    ("inspect absent", 1, "error: no token bins at absent: there is no such directory"),
    ("inspect images", 1, "error: images holds no finished token bins; make them with mtl-prep tokenize"),
    (
        "train-tokenizer lines.jsonl --vocab-size 256 --out t",
        2,
        f"256 is too small: 256 bytes and {END} are 257 entries",
    ),
    (
        "train-tokenizer lines.jsonl --vocab-size 300 --out t --sample x",
        2,
        "error: --sample x is no size; write it like",
    ),
    ("train-tokenizer lines.jsonl --vocab-size 300 --out lines.json", 2, "error: lines.json exists; "),
    ("train-tokenizer empty.jsonl --vocab-size 300 --out t", 1, "error: no documents in the corpus"),
]


@pytest.mark.parametrize(("arguments", "code", "sentence"), ERRORS)
def test_bad_input_is_one_line_and_an_exit_code(
    arguments: str, code: int, sentence: str, tokenizer: Path, tmp_path: Path
) -> None:
    for name, content in [("empty.jsonl", b""), ("empty.txt", b""), ("lines.json", b"{}")]:
        (tmp_path / name).write_bytes(content)
    (tmp_path / "lines.jsonl").write_text('{"text": "a"}\nb\n')
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    done = prep(*arguments.replace("TOKENIZER", str(tokenizer)).split(), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    told = [line for line in done.stderr.splitlines() if not line.startswith("tokenize: ")]  # slow machines
    assert len(told) == 1
    assert sentence in told[0]


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from mtl_prep.cli import main
for command in sys.argv[1:]:
    sys.argv = ["mtl-prep", *command.split()]
    try:
        main()
    except SystemExit as end:
        assert end.code == 0
"""


def test_it_runs_where_torch_is_not(lines: Path, tmp_path: Path) -> None:
    commands = [
        f"train-tokenizer {lines} --vocab-size 300 --out {tmp_path}/tok",
        f"tokenize {lines} --tokenizer {tmp_path}/tok --out {tmp_path}/bins --max-bad 9 --workers 1",
        f"inspect {tmp_path}/bins",
    ]
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *commands], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "next: mtl-train" in done.stdout


@pytest.mark.parametrize(
    ("text", "value"), [("0", (0, False)), ("25", (25, False)), ("5%", (0.05, True)), ("0.5%", (0.005, True))]
)
def test_limits_of_bad_records(text: str, value: tuple[float, bool]) -> None:
    assert parse_max_bad(text) == value


@pytest.mark.parametrize("text", ["", "%", "-1", "101%", "1%%", "nan%", "inf", "1.5", "a"])
def test_what_is_no_limit(text: str) -> None:
    with pytest.raises(UsageError, match="neither a count nor a share"):
        parse_max_bad(text)


@pytest.mark.parametrize(
    ("text", "size"), [("10", 10), ("1.5MB", 1_500_000), ("2g", 2 * 10**9), ("3KB", 3000)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_training_is_repeatable(lines: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        train(Wish(corpus=[lines], vocab_size=700, out=tmp_path / name))
    first, second = (tmp_path / name / "tokenizer.json" for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    tokenizer = load(tmp_path / "a")
    assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.facts.lost_bytes) == (700, 0, b"")
    assert tokenizer.decode(tokenizer.encode("anything \U0001f600\x00")) == "anything \U0001f600\x00"


def test_transformers_opens_a_trained_directory(lines: Path, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    train(Wish(corpus=[lines], vocab_size=700, out=tmp_path / "t"))
    library = PreTrainedTokenizerFast.from_pretrained(str(tmp_path / "t"))
    assert library.eos_token_id == 0
    assert library("def f(x):")["input_ids"] == load(tmp_path / "t").encode("def f(x):")


def test_a_sample_is_spread_over_the_corpus_and_repeatable(tmp_path: Path) -> None:
    texts = [f"{word} " * 400 for word in ("early", "middle", "late") for _ in range(200)]
    (tmp_path / "a.jsonl").write_bytes(json_lines(texts))
    wish = {"corpus": [tmp_path / "a.jsonl"], "vocab_size": 400, "sample": "300KB"}
    found = [train(Wish(**wish, out=tmp_path / f"{i}.json")) for i in range(2)]
    assert 200_000 < found[0].characters < 400_000
    assert (tmp_path / "0.json").read_bytes() == (tmp_path / "1.json").read_bytes()
    tokenizer = load(tmp_path / "0.json")
    assert all(len(tokenizer.encode(f" {word}")) == 1 for word in ("early", "middle", "late"))


def test_a_corpus_too_small_for_the_vocabulary_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be")
    done = prep("train-tokenizer", "a.txt", "--vocab-size", 5000, "--out", "t.json", cwd=tmp_path)
    assert done.returncode == 0
    assert " entries of 5,000 asked for: the sample has no more to learn" in done.stdout
    assert load(tmp_path / "t.json").vocab_size < 300
