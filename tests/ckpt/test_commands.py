"""The installed command: what it prints, and what it says about bad input, in one sentence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hugging_face import llama
from mtl_common.checkpoint import resolve

COMMAND = Path(sys.executable).with_name("mtl-ckpt")
MODULES = "architectures cli dtypes exporting families gguf hf importing inspect outputs report reshard shape"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(COMMAND), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def succeeds(*arguments: object) -> str:
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fails(code: int, *arguments: object) -> str:
    """The one sentence on stderr."""
    done = run(*arguments)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    return last


@pytest.fixture(scope="module")
def hf(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("hf") / "llama"
    llama().save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def imported(hf, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("imported") / "ckpt"
    assert f"next: mtl-serve run {out}\n" in succeeds("import", hf, "--out", out)
    return out


def damaged(imported: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint's only tensor file's directory, to be damaged."""
    import shutil

    return Path(shutil.copytree(resolve(imported), tmp_path / "iter_0000000"))


def test_the_walk_from_import_to_export(imported, tmp_path) -> None:
    shown = succeeds("inspect", imported)
    assert "model/decoder.layers.*.mlp.linear_fc1.weight" in shown
    assert "96 x 32" in shown
    assert "next: mtl-ckpt verify" in shown
    assert "decoder.layers.2.mlp" in succeeds("inspect", "--all", imported)
    facts = json.loads(succeeds("inspect", "--json", imported))
    assert (facts["step"], facts["layout"], facts["config"]["model"]["kv_heads"]) == (0, "tp1", 2)
    assert facts["tensors"]["model/decoder.final_layernorm.weight"]["shape"] == [32]

    out = tmp_path / "tp2pp3"
    assert f"next: mtl-serve run {out} --tp 2" in succeeds(
        "reshard", imported, "--to", "tp2pp3", "--out", out
    )
    for options in ([], ["--quick"]):
        assert "is whole" in succeeds("verify", *options, out)
    succeeds("export", out, "--to", "hf", "--out", tmp_path / "hf", "--dtype", "bfloat16")
    assert json.loads((tmp_path / "hf/config.json").read_text())["torch_dtype"] == "bfloat16"
    assert (tmp_path / "hf/model.safetensors").stat().st_size > 0


def test_torch_is_not_imported() -> None:
    imports = "; ".join(f"import mtl_ckpt.{name}" for name in MODULES.split())
    check = f"import sys; {imports}; print('torch' in sys.modules, 'mtl_parallel' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_paths_that_are_no_checkpoints(tmp_path, hf) -> None:
    assert "nowhere does not exist; name a checkpoint" in fails(1, "inspect", tmp_path / "nowhere")
    assert "is not a checkpoint: it has no manifest.json" in fails(1, "verify", hf)
    assert "does not exist; name a directory saved by transformers" in fails(
        1, "import", tmp_path / "nowhere", "--out", tmp_path / "x"
    )
    assert "config.json is missing" in fails(1, "import", tmp_path, "--out", tmp_path / "x")
    (tmp_path / "model.gguf").write_bytes(b"GGUFnot really one")
    assert "model.gguf is not a GGUF file" in fails(
        1, "import", tmp_path / "model.gguf", "--out", tmp_path / "x"
    )
    assert not (tmp_path / "x").exists()


def test_usage_errors_end_with_2(imported, hf, tmp_path) -> None:
    out = tmp_path / "x"
    assert "heads 4 cannot be divided by tp 3; choose tp from 1, 2, 4" in fails(
        2, "reshard", imported, "--to", "tp3", "--out", out
    )
    assert "layers 3 cannot be divided by pp 2" in fails(2, "reshard", imported, "--to", "pp2", "--out", out)
    assert '"wide" is not a layout' in fails(2, "reshard", imported, "--to", "wide", "--out", out)
    assert "unknown axis cp" in fails(2, "reshard", imported, "--to", "cp2", "--out", out)
    assert f"{imported} exists already" in fails(2, "reshard", imported, "--to", "tp2", "--out", imported)
    assert f"{imported} exists already" in fails(2, "import", hf, "--out", imported)
    assert 'no format "hff" (did you mean "hf"?)' in fails(2, "export", imported, "--to", "hff", "--out", out)
    assert 'no dtype "bfloat61" (did you mean "bfloat16"?)' in fails(
        2, "export", imported, "--out", out, "--dtype", "bfloat61"
    )
    assert 'did you mean "reshard"' in fails(2, "reshart")
    assert not out.exists()


DAMAGE = {
    "missing": (lambda file: file.unlink(), "is missing"),
    "truncated": (lambda file: file.write_bytes(file.read_bytes()[:-4]), "is truncated"),
    "flipped": (
        lambda file: file.write_bytes((data := file.read_bytes())[:-9] + bytes([data[-9] ^ 1]) + data[-8:]),
        "is damaged",
    ),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_verify_names_a_damaged_file(imported, tmp_path, how) -> None:
    path = damaged(imported, tmp_path)
    damage, word = DAMAGE[how]
    damage(path / "model/part00000-0.safetensors")
    assert f"model/part00000-0.safetensors {word}" in fails(1, "verify", path)


def test_nothing_is_made_of_a_damaged_file(imported, tmp_path) -> None:
    path, out = damaged(imported, tmp_path), tmp_path / "x"
    DAMAGE["flipped"][0](path / "model/part00000-0.safetensors")
    for command in (["reshard", path, "--to", "tp2", "--out", out], ["export", path, "--out", out]):
        assert "model/part00000-0.safetensors is damaged" in fails(1, *command)
        assert not out.exists()


def test_several_problems_are_listed(imported, tmp_path) -> None:
    path = damaged(imported, tmp_path)
    (path / "model/part00000-0.safetensors").unlink()
    (path / "manifest.json").write_bytes(b"{}")
    assert "manifest.json is damaged or not a manifest" in fails(1, "verify", path)
