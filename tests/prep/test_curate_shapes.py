"""Curation of records that are more than a text: all texts are judged together and kept in their places."""

import json
from pathlib import Path
from typing import Any

import pytest

from curating import kept_records, make_words
from mtl_common.bins import Bins
from mtl_common.errors import UsageError
from mtl_prep.curate.manifest import read_manifest
from mtl_prep.curate.request import Request
from mtl_prep.curate.run import curate
from mtl_prep.encoding.shapes import Shape
from preparing import json_lines, prep, texts_of

RECIPE = """
[length]
min_words = 8
[exact_duplicates]
any_space = true
[pii]
"""
LONG = " ".join(make_words(1, 20))


def said(*contents: str, key: str = "messages", **more: Any) -> dict[str, Any]:
    """A dialogue that begins with the user."""
    names = ("role", "content") if key == "messages" else ("from", "value")
    roles = ("user", "assistant") if key == "messages" else ("human", "gpt")
    return {
        key: [{names[0]: roles[i % 2], names[1]: text, "n": i} for i, text in enumerate(contents)],
        **more,
    }


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "r.toml").write_text(RECIPE, "utf-8")
    return tmp_path / "r.toml"


def cleaned(recipe: Path, records: list[Any], shape: str, **options: Any) -> list[dict[str, Any]]:
    """What stays of some records, without where it comes from."""
    base = recipe.parent
    (base / "c.jsonl").write_bytes(json_lines(records))
    known = {"workers": 1, "max_bad": "100%", "shape": shape, **options}
    curate(Request(recipe=recipe, corpus=[base / "c.jsonl"], out=base / "clean", **known))
    found = kept_records(base / "clean")
    for record in found:
        assert record.pop("curated_from")["source"].endswith("c.jsonl")
    return found


def test_texts_of_a_dialogue_are_judged_together_and_edited_each(recipe: Path) -> None:
    records = [
        said("My address is\na@b.org, yours?", f"c@d.org\n\n{LONG}", id=1),
        said("too few", "words"),
        said("four words of mine", "four words of yours", id=2),  # 8 together
        said("four words of mine", "four words of yours", id=3),
        said("four words of mine\nfour", "words of yours", id=4),  # the same words in other texts
        said(f"{LONG} e@f.org", "Yes", key="conversations", id=5),
        said("no answer of anybody to all of these words"),
        b"{",
    ]
    found = cleaned(recipe, records, "chat")
    assert [record["id"] for record in found] == [1, 2, 5]
    assert found[0] == said("My address is\n<EMAIL>, yours?", f"<EMAIL>\n\n{LONG}", id=1)
    assert found[1] == records[2]
    assert found[2] == said(f"{LONG} <EMAIL>", "Yes", key="conversations", id=5)
    manifest = read_manifest(recipe.parent / "clean")
    assert {step.name: step.documents for step in manifest.steps} == {
        "length": 1,
        "exact_duplicates": 2,
        "pii": 0,
    }
    assert manifest.steps[2].edits == {"email": 3}
    assert manifest.sources[0].bad == {"no answer": 1, "not JSON": 1}
    shown = (recipe.parent / "clean/removed/length.jsonl").read_text("utf-8")
    assert json.loads(shown)["text"] == "too few\nwords"


@pytest.mark.parametrize(
    ("shape", "keys", "record", "changed"),
    [
        ("pair", None, {"source": f"a@b.org {LONG}", "target": "c\nd@e.org"}, ("source", "target")),
        (
            "qa",
            None,
            {"question": "who?", "answer": f"{LONG}\na@b.org", "context": "x@y.org\n"},
            ("answer", "context"),
        ),
        ("qa", None, {"question": "who is a@b.org?", "answer": LONG, "n": 1}, ("question",)),
        ("pair", "t.en,t.de", {"t": {"en": LONG, "de": "a@b.org"}, "x": [1]}, ()),
        ("chat", "data.0", {"data": [said(LONG, "a@b.org")["messages"]]}, ()),
    ],
)
def test_edited_texts_go_back_to_their_places(
    recipe: Path, shape: str, keys: str | None, record: dict[str, Any], changed: tuple[str, ...]
) -> None:
    (found,) = cleaned(recipe, [record], shape, keys=keys)
    written = json.dumps(record)
    for address in ("a@b.org", "d@e.org", "x@y.org"):
        written = written.replace(address, "<EMAIL>")
    assert found == json.loads(written)
    assert [key for key in record if found[key] != record[key]] == [
        key for key in record if key in changed or (not changed and key in ("t", "data"))
    ]


def test_lone_surrogates_are_mended_in_the_text_they_stand_in(recipe: Path) -> None:
    record = b'{"source": "half \\ud800 of ' + LONG.encode() + b'", "target": "whole", "other": "\\udc00"}'
    (found,) = cleaned(recipe, [record], "pair")
    assert found == {"source": f"half \ufffd of {LONG}", "target": "whole", "other": "\udc00"}


def test_what_does_not_go_with_a_shape_is_refused(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text(LONG, "utf-8")
    request = {"recipe": recipe, "out": tmp_path / "clean", "workers": 1, "shape": "pair"}
    with pytest.raises(UsageError, match=r"t\.txt is text without records; --shape pair takes JSON"):
        curate(Request(corpus=[tmp_path / "t.txt"], **request))
    (tmp_path / "c.jsonl").write_bytes(json_lines([{"source": LONG, "target": LONG}]))
    recipe.write_text("[lines]\nkind = 'c4'\n", "utf-8")
    with pytest.raises(UsageError, match="the step lines takes lines out of texts"):
        curate(Request(corpus=[tmp_path / "c.jsonl"], **request))
    assert not (tmp_path / "clean").exists()


def test_inline_curation_gives_the_bins_of_the_kept_records(
    recipe: Path, tokenizer: Path, tmp_path: Path
) -> None:
    pairs = [{"source": f"q{i % 7} {LONG}", "target": f"to a{i % 7}@b.org"} for i in range(20)]
    (tmp_path / "c.jsonl").write_bytes(json_lines(pairs))
    shape = ("--shape", "pair", "--workers", 1, "--tokenizer", tokenizer)
    done = prep("tokenize", "c.jsonl", "--out", "bins", "--curate", recipe, *shape, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "13 repeated" in done.stdout
    bins = Bins(tmp_path / "bins")
    assert texts_of(bins) == [f"q{i} {LONG}\nto <EMAIL>" for i in range(7)]
    assert bins.manifest.options["shape"] == "pair"
    again = prep("curate", recipe, "c.jsonl", "--out", "clean", "--shape", "pair", cwd=tmp_path)
    assert again.stdout.rstrip().endswith("tokenize clean --tokenizer TOKENIZER --out bins --shape pair")


def test_a_missing_chat_template_is_told_before_the_long_work(
    recipe: Path, tokenizer: Path, tmp_path: Path
) -> None:
    (tmp_path / "c.jsonl").write_bytes(json_lines([said(LONG, LONG)]))
    options = ("--tokenizer", tokenizer, "--out", tmp_path / "bins", "--curate", recipe, "--shape", "chat")
    done = prep("tokenize", tmp_path / "c.jsonl", *options)
    assert done.returncode != 0
    assert "chat template" in done.stderr
    assert not (tmp_path / "bins").exists()


def test_texts_stand_where_they_were_also_under_keys_that_look_like_paths() -> None:
    shape = Shape("chat", ("a.b",))
    record = {"a.b": said("x", "y")["messages"], "a": {"b": "other"}}
    assert shape.texts(record) == ["x", "y"]
    assert shape.with_texts(record, ["X", "Y"]) == {"a.b": said("X", "Y")["messages"], "a": {"b": "other"}}
