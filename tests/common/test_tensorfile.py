"""Our tensor files against the safetensors library, both ways."""

import json

import numpy as np
import pytest
import safetensors.numpy

from mtl_common.errors import CheckpointError
from mtl_common.tensorfile import BLOCK, Entry, TensorFileWriter, digest, read_header


def write(path, arrays: dict[str, np.ndarray]) -> dict[str, list[str]]:
    hashes, entries = {}, {}
    with TensorFileWriter(path) as writer:
        for name, array in arrays.items():
            start = writer.position
            hashes[name] = writer.write(array)
            entries[name] = Entry(str(array.dtype), array.shape, start, writer.position)
        writer.finish(entries)
    return hashes


def test_the_safetensors_library_reads_what_we_write(tmp_path) -> None:
    random = np.random.default_rng(1)
    arrays = {
        "large": random.standard_normal((3000, 1001)),  # several buffers, and no multiple of a page
        "half": random.standard_normal((7, 3)).astype(np.float16),
        "scalar": np.array(3, np.int64),
        "one": np.array([1.5], np.float32),
    }
    hashes = write(tmp_path / "a.safetensors", arrays)
    found = safetensors.numpy.load_file(tmp_path / "a.safetensors")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
    data = arrays["large"].tobytes()
    assert hashes["large"] == [digest(data[i : i + BLOCK]) for i in range(0, len(data), BLOCK)]


def test_we_read_the_header_of_what_the_library_writes(tmp_path) -> None:
    path = tmp_path / "b.safetensors"
    arrays = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.arange(3, dtype=np.uint8)}
    safetensors.numpy.save_file(arrays, path, metadata={"format": "np"})
    entries = read_header(path)
    data = path.read_bytes()
    assert data[entries["x"].start : entries["x"].stop] == arrays["x"].tobytes()
    assert (entries["x"].dtype, entries["x"].shape) == ("float32", (2, 3))
    assert (entries["y"].dtype, entries["y"].shape) == ("U8", (3,))


def test_a_file_system_without_direct_writes_gives_the_same_file(tmp_path, monkeypatch) -> None:
    arrays = {"x": np.arange(5_000_001, dtype=np.float32)}
    write(tmp_path / "direct.safetensors", arrays)
    monkeypatch.delattr("os.O_DIRECT", raising=False)
    write(tmp_path / "buffered.safetensors", arrays)
    assert (tmp_path / "direct.safetensors").read_bytes() == (tmp_path / "buffered.safetensors").read_bytes()


def damaged_files(whole: bytes) -> dict[str, bytes]:
    return {
        "empty": b"",
        "truncated in its data": whole[:-1],
        "truncated in its header": whole[:20],
        "text": b"once upon a time there was no header at all",
        "header not JSON": (8).to_bytes(8, "little") + b"not JSON",
        "header not a table": (2).to_bytes(8, "little") + b"[]",
        "entry without offsets": (len(entry := json.dumps({"x": {}}).encode())).to_bytes(8, "little") + entry,
    }


@pytest.mark.parametrize("how", damaged_files(b" " * 100))
def test_damaged_files_are_named(tmp_path, how) -> None:
    path = tmp_path / "x.safetensors"
    write(path, {"x": np.arange(6)})
    path.write_bytes(damaged_files(path.read_bytes())[how])
    with pytest.raises(CheckpointError, match=r"x.safetensors is"):
        read_header(path)


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(CheckpointError, match=r"gone.safetensors is missing"):
        read_header(tmp_path / "gone.safetensors")
