"""What datatrove's filters say of documents, and what CPU time each takes.

python curate_datatrove.py FILE.jsonl own|space -> a JSON object: step -> [CPU seconds, reasons]

`space` cuts words at white space, as mtl-prep does; `own` cuts them as datatrove does by itself. With `space`
there are C4's rules on lines, too: a reason, or the text that they leave after a `:`.
"""

import json
import sys
import time
from pathlib import Path

from datatrove.data import Document
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.formatters import PIIFormatter
from datatrove.utils.hashing import HashConfig
from datatrove.utils.typeshelper import Languages
from datatrove.utils.word_tokenizers import WordTokenizer


class Spaces(WordTokenizer):
    """Words between white space."""

    def word_tokenize(self, text: str) -> list[str]:
        """The words."""
        return text.split()

    def sent_tokenize(self, text: str) -> list[str]:
        """Not asked for."""
        raise NotImplementedError

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Not asked for."""
        raise NotImplementedError


def _reason(answer: bool | tuple[bool, str]) -> str:
    return answer[1] if isinstance(answer, tuple) else ""


def _left(c4: C4QualityFilter, document: Document) -> str:
    """The reason why a document goes, or what is left of it."""
    return _reason(c4.filter(document)) or f":{document.text}"


def main() -> None:
    """Takes all steps with one document after the other, so that words are cut once, as in a pipeline."""
    path, words = sys.argv[1:]
    texts = [json.loads(line)["text"] for line in Path(path).read_bytes().splitlines()]
    language = Spaces() if words == "space" else Languages.english
    quality, repetition = GopherQualityFilter(language=language), GopherRepetitionFilter(language=language)
    fineweb, c4, pii = FineWebQualityFilter(language=language), C4QualityFilter(), PIIFormatter()
    # its usual hash does not take texts in newer versions of xxhash
    config = MinhashConfig(num_buckets=18, hashes_per_bucket=7, hash_config=HashConfig(hash_fc="sha1"))
    minhash = MinhashDedupSignature("/dev/null", config)
    steps = {
        "gopher_quality": lambda d: _reason(quality.filter(d)),
        "gopher_repetition": lambda d: _reason(repetition.filter(d)),
        "fineweb": lambda d: _reason(fineweb.filter(d)),
    }
    if words == "space":
        lines = C4QualityFilter(min_num_sentences=-1)
        steps["c4_lines"] = lambda d: _left(lines, d)
        steps["c4"] = lambda d: _reason(c4.filter(d))
    else:
        steps |= {
            "near_duplicates": lambda d: minhash.get_signature(minhash.get_shingles(d.text)) and "",
            "pii": lambda d: pii.format(d.text) and "",
            "c4": lambda d: _reason(c4.filter(d)),
        }
    found = {name: [0.0, []] for name in steps}
    for text in texts:
        for name, step in steps.items():
            began = time.process_time()
            found[name][1].append(step(Document(text=text, id="")))
            found[name][0] += time.process_time() - began
    print(json.dumps(found))


if __name__ == "__main__":
    main()
