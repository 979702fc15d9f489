"""What is wrong with a recipe is told in one sentence, before any work."""

from pathlib import Path

import pytest

from curating import make_words
from mtl_common.errors import ConfigError, DataError, MtlError, UsageError
from mtl_prep.curate.recipe import read_recipe
from mtl_prep.curate.request import Request
from mtl_prep.curate.run import curate
from preparing import json_lines, prep

TEXT = " ".join(make_words(1, 20))
FAULTY = [
    (
        "[exact_dups]",
        r'unknown step exact_dups in .*r\.toml \(did you mean "exact_duplicates"\?\); there are',
    ),
    ("[exact_duplicates]\nany_spaces = true", r'unknown key exact_duplicates\.any_spaces .*"any_space"'),
    ("[x]\nkind = 3", r"unknown step 3 in"),
    ('[length]\nmin_words = "many"', r'length\.min_words is "many" in .*; it should be an integer or false$'),
    ("[length]\nmin_words = -4", r"length\.min_words is -4 in .*greater than or equal to 0"),
    ("[length]\nmin_words = 9\nmax_words = 5", r"min_words is larger than max_words, so no document could"),
    ('[length]\nonly = "en"', r'length\.only is "en" in .*; it should be a table$'),
    ('[language]\nkeep = "en"', r'language\.keep is "en" in .*; it should be a list$'),
    (
        '[pii]\nkinds = ["mail"]',
        r"pii\.kinds\.0 is \"mail\" in .*; it should be 'email', 'ip', 'phone' or 'card'$",
    ),
    ("[near_duplicates]\nthreshold = 1.5", r"near_duplicates\.threshold is 1\.5 in .*less than 1$"),
    ("[gopher_repetition]\nmax_top_n_grams = 3", r"max_top_n_grams is 3 in .*; it should be a table$"),
    ('[gopher_repetition]\nmax_top_n_grams = { 2 = "a" }', r'max_top_n_grams\.2 is "a" in .*a number'),
    ("[gopher_quality]\nmax_symbols = true", r"max_symbols is true in .*; it should be a number or false$"),
    ("min_words = 3\n[length]", r"min_words in .* stands outside of a table; put it below the \[step\]"),
    ("[length", r"cannot be read as TOML: "),
    ("", r"has no steps; add tables such as \[exact_duplicates\]"),
    ("large = 'keep'", r"has no steps; add tables"),
]


@pytest.mark.parametrize(("content", "told"), FAULTY)
def test_a_fault_is_told_with_its_place(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "r.toml").write_text(content, "utf-8")
    with pytest.raises(ConfigError, match=told):
        read_recipe(tmp_path / "r.toml")


def test_false_switches_rules_off_also_where_there_are_several(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[gopher_repetition]\nmax_top_n_grams = false\n", "utf-8")
    ((_, step),) = read_recipe(tmp_path / "r.toml").steps
    assert step.model_dump()["max_top_n_grams"] == {}


def test_what_a_step_lacks_is_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_bytes(json_lines([TEXT]))
    request = Request(tmp_path / "r.toml", [tmp_path / "c.jsonl"], tmp_path / "clean", 1)
    with pytest.raises(ConfigError, match=r"no recipe .*r\.toml; check the path"):
        curate(request)
    (tmp_path / "r.toml").mkdir()
    with pytest.raises(ConfigError, match="is a directory; name the recipe, a TOML file, before the corpus"):
        curate(request)
    (tmp_path / "r.toml").rmdir()
    wrong: list[tuple[str, type[MtlError], str]] = [
        ('[contamination]\nsets = { a = "none.jsonl" }', DataError, "which step contamination of the recipe"),
    ]
    if __import__("importlib.util").util.find_spec("fasttext"):
        wrong.append(('[language]\nkeep = ["german"]', UsageError, "the step language knows no german"))
    for content, kind, told in wrong:
        (tmp_path / "r.toml").write_text(content, "utf-8")
        with pytest.raises(kind, match=told):
            curate(request)
    assert not (tmp_path / "clean").exists()


def test_a_recipe_that_leaves_nothing_is_said_to(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "c.jsonl").write_bytes(json_lines([TEXT]))
    (tmp_path / "tree" / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "r.toml").write_text("[length]\nmin_words = 1_000\n", "utf-8")
    done = prep("curate", "r.toml", "tree", "--out", "clean", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "passed   over 1 .png" in done.stdout
    assert "next: nothing is left; mend the recipe, see clean/removed" in done.stdout
