"""Settings: where a value comes from, and what is said about one that is wrong."""

import tomllib
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field

from mtl_common.config import Settings, changed, nearest, resolve, to_toml
from mtl_common.errors import ConfigError


class Optimizer(Settings):
    lr: float = Field(default=3e-4, gt=0, description="peak learning rate")
    betas: tuple[float, float] = (0.9, 0.95)
    name: Literal["adamw", "sgd"] = "adamw"
    fused: bool = True


class Model(Settings):
    hidden: int
    layers: int = 2
    seq: int | None = None


class Run(Settings):
    model: Model
    optimizer: Optimizer = Optimizer()
    out: Path = Path("runs/x")
    note: str = ""
    tags: dict[str, float] = Field(default={})


PRESET = {"model": {"hidden": 64, "layers": 4}}


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(b"\xef\xbb\xbf[model]\r\nlayers = 8\r\n[optimizer]\r\nlr = 1e-3\r\n")
    options: dict[str, Any] = {"optimizer": {"lr": 2e-3, "name": None}, "note": None}
    run = resolve(Run, preset=PRESET, file=file, options=options, sets=["optimizer.lr=4e-3", "note=a b"])
    assert (run.model.hidden, run.model.layers, run.optimizer.lr, run.note) == (64, 8, 4e-3, "a b")
    assert resolve(Run, preset=PRESET, file=file, options=options).optimizer.lr == 2e-3
    assert resolve(Run, preset=PRESET, file=file).optimizer.lr == 1e-3
    assert resolve(Run, preset=PRESET).optimizer.lr == 3e-4
    assert PRESET == {"model": {"hidden": 64, "layers": 4}}


@pytest.mark.parametrize("text", ["2e-5", "2.0e-5", '"2e-5"', "0.00002", "+2E-5", ".2e-4"])
def test_every_spelling_of_a_number_is_that_number(text: str) -> None:
    assert resolve(Run, preset=PRESET, sets=[f"optimizer.lr={text}"]).optimizer.lr == 2e-5


@pytest.mark.parametrize(("text", "value"), [("1_000", 1000), ("0x10", 16), ("8", 8), ('"8"', 8)])
def test_every_spelling_of_an_integer(text: str, value: int) -> None:
    assert resolve(Run, preset=PRESET, sets=[f"model.layers={text}"]).model.layers == value


@pytest.mark.parametrize(
    ("sets", "parts"),
    [
        (["optimizer.lrr=1"], ["optimizer.lrr", "--set", 'did you mean "lr"']),
        (["optimizer.LR=1"], ["optimizer.LR", 'did you mean "lr"']),
        (["optimiser.lr=1"], ["optimiser", 'did you mean "optimizer"']),
        (["model.xyzzy=1"], ["unknown key model.xyzzy"]),
        (["optimizer.lr=fast"], ["optimizer.lr", '"fast"', "--set", "number"]),
        (["optimizer.lr=-1"], ["optimizer.lr", "-1", "greater than 0"]),
        (["optimizer.lr=nan"], ["optimizer.lr", "finite"]),
        (["model.layers=true"], ["model.layers", "true", "number"]),
        (["model.layers=2.5"], ["model.layers", "2.5", "integer"]),
        (["model.layers=yes"], ["model.layers", '"yes"', "integer"]),
        (["optimizer.name=adam"], ["optimizer.name", '"adam"', "adamw"]),
        (["optimizer=3"], ["optimizer is a section", "--set"]),
        (["optimizer.lr"], ["section.key=value", "optimizer.lr"]),
        (["=3"], ["section.key=value"]),
        (["optimizer.lr=1", "optimizer.lr=2"], ["optimizer.lr twice"]),
    ],
)
def test_a_wrong_set_is_named(sets: list[str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(Run, preset=PRESET, sets=sets)
    assert all(part in str(caught.value) for part in parts), caught.value
    assert "\n" not in str(caught.value)


def test_a_missing_value_says_how_to_give_it() -> None:
    with pytest.raises(ConfigError, match=r"model\.hidden has no value; .*--set model\.hidden=VALUE"):
        resolve(Run, preset={"model": {"layers": 2}})


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[model\nhidden = 1", "line 1"),
        ("a = 1\na = 2\n", "line 2"),
        ("modl = 1", 'unknown key modl in .*"model"'),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, part: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=part) as caught:
        resolve(Run, preset=PRESET, file=file)
    assert str(file) in str(caught.value)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no settings file .*absent\.toml"):
        resolve(Run, preset=PRESET, file=tmp_path / "absent.toml")


def test_toml_reads_back_as_the_same_settings(tmp_path: Path) -> None:
    run = Run(
        model=Model(hidden=7),
        optimizer=Optimizer(lr=1e-16, betas=(0.5, 1e22), fused=False),
        note='quote " back \\ line\nbell \x07 delete \x7f snowman \u2603 \U0001f600',
        tags={"a b": 1.0, "c": 2.5},
    )
    file = tmp_path / "run.toml"
    file.write_text(to_toml(run), "utf-8")
    assert tomllib.loads(to_toml(run))["optimizer"]["fused"] is False
    assert resolve(Run, file=file) == run


def test_changed_lists_what_is_not_the_default() -> None:
    run = resolve(Run, preset=PRESET, sets=["optimizer.lr=1", "model.layers=2"])
    assert changed(run) == {"model.hidden": 64, "optimizer.lr": 1.0}


def test_nearest_names_only_close_names() -> None:
    assert nearest("tini", ["tiny", "gpt2-124m"]) == ' (did you mean "tiny"?)'
    assert nearest("zzz", ["tiny"]) == ""
    assert nearest("x", []) == ""
