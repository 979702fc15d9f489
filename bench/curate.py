"""What curation costs, beside datatrove, and what it finds: python bench/curate.py CORPUS.jsonl

Claims: all filters together take a fiftieth of the CPU time of datatrove's; verdicts of the Gopher and
FineWeb rules are datatrove's on the same words; C4's rules leave the lines that datatrove's leave, but for
white space around a citation that is taken out, and their verdicts differ where sentences are counted
otherwise, in one document of several hundred; of planted near duplicates with Jaccard similarity 0.8 at
least 95 % are found, of those with 0.6 few.

Both sides take turns (A B A B) over a sample of documents, so that a busy machine slows both alike; the time
is that of each process's CPU. `--peer PYTHON` has datatrove and spaCy; without it only ours is measured. How
fast `str.split` is tells how busy the machine was.
"""

import argparse
import json
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import zstandard

from mtl_prep.curate.batch import Batch
from mtl_prep.curate.c4 import C4
from mtl_prep.curate.chunk import CHARACTERS, Chunk
from mtl_prep.curate.examine import begun_steps
from mtl_prep.curate.fineweb import FineWeb
from mtl_prep.curate.gopher_quality import GopherQuality
from mtl_prep.curate.gopher_repetition import GopherRepetition
from mtl_prep.curate.near import NearDuplicates
from mtl_prep.curate.pii import Pii
from mtl_prep.curate.recipe import Recipe, read_recipe
from mtl_prep.curate.request import Request
from mtl_prep.curate.run import curate
from mtl_prep.curate.step import GlobalStep, LocalStep

HERE = Path(__file__).resolve().parent
RECIPE = HERE.parent / "examples" / "recipe.toml"
PEER = HERE / "peers" / "curate_datatrove.py"
COMPARED: dict[str, LocalStep] = {
    "gopher_quality": GopherQuality(),
    "gopher_repetition": GopherRepetition(),
    "fineweb": FineWeb(),
    "c4": C4(),
}
ODD = frozenset("\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")  # where datatrove breaks lines, and we do not
LONGEST = 900_000  # characters that spaCy takes
SIMILARITIES = (0.5, 0.6, 0.7, 0.8, 0.9)
SHINGLE = 5


def chunks(records: list[dict[str, Any]]) -> Iterator[Chunk]:
    """The records in pieces of the usual size."""
    first = size = 0
    for i, record in enumerate(records, 1):
        size += len(record["text"])
        if size >= CHARACTERS or i == len(records):
            part = [dict(one) for one in records[first:i]]
            yield Chunk(first, [one["text"] for one in part], part, [""] * len(part))
            first, size = i, 0


def take_steps(recipe: Recipe, records: list[dict[str, Any]]) -> dict[str, float]:
    """CPU seconds of each step."""
    judges = begun_steps(recipe)
    spent = dict.fromkeys((name for name, _ in recipe.steps), 0.0)
    for chunk in chunks(records):
        for number, (name, step) in enumerate(recipe.steps, 1):
            began = time.process_time()
            chunk.sign(step) if isinstance(step, GlobalStep) else chunk.judge(number, step, judges[number])
            spent[name] += time.process_time() - began
    return spent


def alone(step: LocalStep | NearDuplicates, records: list[dict[str, Any]]) -> tuple[float, list[str]]:
    """CPU seconds of one step that shares nothing with others, and its reasons."""
    judge = step.begin(Path()) if isinstance(step, LocalStep) else None
    began, reasons = time.process_time(), list[str]()
    for chunk in chunks(records):
        batch = Batch(chunk.texts)
        if judge is None:
            step.sign(batch)  # type: ignore[union-attr]
        else:
            verdict = judge.judge(batch, np.ones(len(batch), bool))
            reasons += [verdict.why(i) for i in range(len(batch))]
    return time.process_time() - began, reasons


def left(step: LocalStep, records: list[dict[str, Any]]) -> list[str]:
    """Why each document goes, or what is left of it after a `:`."""
    judge, found = step.begin(Path()), list[str]()
    for chunk in chunks(records):
        batch = Batch(chunk.texts)
        verdict = judge.judge(batch, np.ones(len(batch), bool))
        found += [verdict.why(i) or f":{verdict.texts.get(i, text)}" for i, text in enumerate(chunk.texts)]
    return found


def equal_lines(ours: list[str], others: list[str]) -> int:
    """Of how many documents the same is said, or left."""
    pairs = zip(ours, others, strict=True)
    return sum(mine.replace("_", " ") == other.replace("_", " ") for mine, other in pairs)


def theirs(peer: str, path: Path, words: str) -> dict[str, Any]:
    """What datatrove spent and said."""
    done = subprocess.run([peer, PEER, path, words], capture_output=True, text=True, check=True, timeout=3000)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(peer: str, records: list[dict[str, Any]], rounds: int, say: Callable[[str], None]) -> None:
    """Speed and verdicts beside datatrove's."""
    size = sum(len(record["text"].encode()) for record in records) / 1e6
    say(f"beside datatrove, {len(records):,} documents, {size:.1f} MB, each step alone:")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "sample.jsonl"
        path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
        verdicts = theirs(peer, path, "space")
        for name, step in COMPARED.items():
            ours = [bool(reason) for reason in alone(step, records)[1]]
            both = sum(mine == bool(other) for mine, other in zip(ours, verdicts[name][1], strict=True))
            say(f"  {name}: {both:,} of {len(ours):,} verdicts equal, {sum(ours):,} go")
        both = equal_lines(left(C4(min_sentences=False), records), verdicts["c4_lines"][1])
        say(f"  c4, without its rule on sentences: {both:,} of {len(records):,} texts equal")
        steps: dict[str, LocalStep | NearDuplicates] = {
            **COMPARED,
            "pii": Pii(),
            "near_duplicates": NearDuplicates(),
        }
        ratios: dict[str, list[float]] = {}
        for _ in range(rounds):
            found = theirs(peer, path, "own")
            mine = {name: alone(step, records)[0] for name, step in steps.items()}
            for name, seconds in mine.items():
                ratios.setdefault(name, []).append(found[name][0] / seconds)
            ratios.setdefault("all", []).append(sum(f[0] for f in found.values()) / sum(mine.values()))
        for name, several in ratios.items():
            say(f"  {name}: {np.median(several):.0f} times as fast as datatrove")


def planted(words: list[str], similarity: float, drawn: random.Random) -> list[str]:
    """Words with some changed, so far apart that each spoils SHINGLE shingles, up to a Jaccard similarity."""
    total = len(words) - SHINGLE + 1
    spoiled = round((1 - similarity) / (1 + similarity) * total / SHINGLE)
    gap, changed = len(words) // spoiled, list(words)
    for i in range(spoiled):
        changed[i * gap + drawn.randrange(max(gap - SHINGLE, 0) + 1) + SHINGLE // 2] += "qq"
    return changed


def jaccard(first: list[str], second: list[str]) -> float:
    one, two = ({tuple(w[i : i + SHINGLE]) for i in range(len(w) - SHINGLE + 1)} for w in (first, second))
    return len(one & two) / len(one | two)


def kept_of(texts: list[str]) -> list[str]:
    """What near_duplicates leaves of some texts."""
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        (base / "c.jsonl").write_bytes(b"".join(orjson.dumps({"text": text}) + b"\n" for text in texts))
        (base / "r.toml").write_text("[near_duplicates]\n", "utf-8")
        shards = curate(Request(base / "r.toml", [base / "c.jsonl"], base / "out", 1)).manifest.shards
        files = [(base / "out" / shard.file).read_bytes() for shard in shards]
    lines = b"".join(zstandard.ZstdDecompressor().stream_reader(file).read() for file in files)
    return [orjson.loads(line)["text"] for line in lines.splitlines()]


def recall(records: list[dict[str, Any]], say: Callable[[str], None]) -> None:
    """How many near duplicates are found that were planted into a corpus of real documents."""
    drawn = random.Random(0)
    plain = ["".join(c if c.isalnum() else " " for c in r["text"].lower()).split()[:1500] for r in records]
    originals = [text.split() for text in kept_of([" ".join(words) for words in plain if len(words) >= 300])]
    for similarity in SIMILARITIES:
        copies = [planted(words, similarity, drawn) for words in originals]
        true = np.mean([jaccard(a, b) for a, b in zip(originals, copies, strict=True)])
        left = len(kept_of([" ".join(words) for words in [*originals, *copies]]))
        say(f"  Jaccard {true:.3f}: {(2 * len(originals) - left) / len(originals):.1%} found")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path, help="JSON lines with text")
    parser.add_argument("--peer", help="a Python with datatrove and spaCy")
    parser.add_argument("--megabytes", type=float, default=40.0, help="of ours")
    parser.add_argument("--peer-megabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    records = [orjson.loads(line) for line in arguments.corpus.open("rb")]
    random.Random(0).shuffle(records)
    sizes = np.cumsum([len(record["text"].encode()) for record in records])
    mine = records[: int(np.searchsorted(sizes, arguments.megabytes * 1e6)) + 1]
    size = sum(len(record["text"].encode()) for record in mine) / 1e6
    recipe = read_recipe(RECIPE)
    best: dict[str, float] = {}
    for _ in range(arguments.rounds + 1):  # the first makes tables
        spent = take_steps(recipe, mine)
        best = spent if not best or sum(spent.values()) < sum(best.values()) else best
    shares = ", ".join(f"{name} {1e3 * seconds / size:.1f}" for name, seconds in best.items())
    began = time.process_time()
    for record in mine:
        record["text"].split()
    split = size / (time.process_time() - began)
    rate = size / sum(best.values())
    print(f"all steps of {RECIPE.name}: {rate:.1f} MB per CPU second, where str.split makes {split:.0f}")
    print(f"  ns a byte: {shares}")
    if arguments.peer:
        fit = [
            r for r in records if len(r["text"]) < LONGEST and ODD.isdisjoint(r["text"]) and r["text"].strip()
        ]
        some = [r | {"text": r["text"].strip()} for r in fit]
        ends = np.cumsum([len(record["text"].encode()) for record in some])
        few = some[: int(np.searchsorted(ends, arguments.peer_megabytes * 1e6)) + 1]
        compare(arguments.peer, few, arguments.rounds, print)
    print("planted near duplicates:")
    recall(records[:1500], print)


if __name__ == "__main__":
    main()
