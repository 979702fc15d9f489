"""A file that must be read from its start is read by one process, which hands its blocks to the others."""

import gzip
import io
import pickle
from pathlib import Path

import pytest
import zstandard

from mtl_prep.corpus.find import find
from mtl_prep.corpus.formats import Block, Part, Reading, format_of
from mtl_prep.corpus.units import Hash, Stripe
from mtl_prep.journal import Journal
from mtl_prep.running import pool
from mtl_prep.running.handing import Handing
from mtl_prep.running.left import left_of
from mtl_prep.running.shares import Share
from preparing import json_lines
from working import Noting, Odd, Ones, Together

TEXTS = [f"text {i} " + "and more of it " * (i % 40) for i in range(600)]


def reading_of(path: Path, content: bytes, part_bytes: int = 20_000, giant: int = 1 << 26) -> Reading:
    path.write_bytes(content)
    return Reading(find([path]).sources, "text", part_bytes, giant=giant)


def test_one_process_reads_and_others_do_the_blocks(tmp_path: Path) -> None:
    packed = zstandard.ZstdCompressor().compress(json_lines(TEXTS))
    reading = reading_of(tmp_path / "a.jsonl.zst", packed)
    tasks = left_of(Journal(tmp_path), reading, 1, Share()).tasks
    assert [type(task) for task in tasks].count(Stripe) == 1
    units = list(pool.run(Together(reading, tmp_path), tasks, 3, Noting(reading, tmp_path)))
    assert sum(texts for _, texts, _ in units) == len(TEXTS)
    assert len({name for name, _, _ in units}) == len(units) > 8
    assert len({process for _, _, process in units}) >= 2
    assert len(list(tmp_path.glob("read-*"))) == 1


@pytest.mark.parametrize("tasks", [[700], [0, 300, 1, 200], [2] * 200])
def test_no_part_is_lost(tasks: list[int]) -> None:
    assert list(pool.run(Odd(), tasks, 3, Ones())) == [0] * sum(tasks)


def test_what_was_done_before_is_not_handed_on(tmp_path: Path) -> None:
    reading = reading_of(tmp_path / "a.jsonl.gz", gzip.compress(json_lines(TEXTS)))
    handing, stripe = Handing(reading, tmp_path), Stripe(0, 0, 1)
    names = [part.name for part, _ in handing.of(stripe)]
    journal = Journal(tmp_path)
    for name in names[::2]:
        journal.write(name, {})
    assert [part.name for part, _ in Handing(reading, tmp_path).of(stripe)] == names[1::2]


def test_processes_are_as_many_as_blocks_at_most(tmp_path: Path) -> None:
    reading = reading_of(tmp_path / "a.jsonl.gz", gzip.compress(json_lines(TEXTS)))
    blocks = -(-4 * reading.sources[0].size // 20_000)
    assert Handing(reading, tmp_path).most([Stripe(0, 0, 1), Hash(0)]) == blocks + 1
    assert Handing(reading, tmp_path).most([Stripe(0, 2, 100)]) == 1


def blocks(reading: Reading, scratch: Path) -> list[Block]:
    return list(format_of(reading.sources[0].kind).blocks(Part(0, 0, lambda _: True, scratch), reading))


def arrow_stream() -> bytes:
    import pyarrow as pa

    table, out = pa.table({"text": TEXTS * 10}), io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def wet() -> bytes:
    head = "WARC/1.0\r\nWARC-Type: conversion\r\nContent-Type: text/plain\r\nContent-Length: "
    record = head + "{}\r\n\r\n{}\r\n\r\n"
    return "".join(record.format(len(text), text) for text in TEXTS).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl.gz", gzip.compress(json_lines(TEXTS))),
        ("a.json", b"[" + b",".join(json_lines(TEXTS).splitlines()) + b"]"),
        ("a.csv", b"text\n" + b"\n".join([*(text.encode() for text in TEXTS), b"not \xff UTF-8"])),
        ("a.arrow", arrow_stream()),
        ("a.wet", wet()),
    ],
)
def test_blocks_mean_the_same_in_another_process(tmp_path: Path, name: str, content: bytes) -> None:
    reading = reading_of(tmp_path / name, content)
    found = blocks(reading, tmp_path)
    sent = [pickle.dumps(block) for block in found]
    assert len(sent) > 5
    assert max(map(len, sent)) < sum(map(len, sent)) / 4
    assert [pickle.loads(block).read() for block in sent] == [block.read() for block in found]
    assert not any(block.stays for block in found)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.json.gz"])
def test_a_block_with_a_record_on_the_disk_stays(tmp_path: Path, name: str) -> None:
    lines = json_lines(["short", "long " * 20_000, "short again"])
    content = lines if "jsonl" in name else b"[" + b",".join(lines.splitlines()) + b"]"
    reading = reading_of(tmp_path / name, gzip.compress(content), giant=5_000, part_bytes=1_000)
    found = blocks(reading, tmp_path)
    assert [block.stays for block in found] == [True, False]
    assert [block.read().giant is not None for block in found] == [True, False]
