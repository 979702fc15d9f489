"""BERT's vocab.txt, written out as the tokenizer.json that it stands for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtl_common.errors import DataError

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST_WORD = 100  # characters; a longer one is unknown


def _vocabulary(path: Path) -> dict[str, int]:
    """Token -> line number; of a token that stands there twice the last line counts, as in transformers."""
    try:
        lines = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not a vocabulary: it is not UTF-8") from None
    vocabulary = {line.removesuffix("\r"): number for number, line in enumerate(lines)}
    if "[UNK]" not in vocabulary:
        raise DataError(f"{path} is not a WordPiece vocabulary: it holds no [UNK]")
    return vocabulary


def as_tokenizer_json(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer.json of a vocab.txt; letters become small unless tokenizer_config.json says otherwise."""
    vocabulary = _vocabulary(path)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": vocabulary[name], "content": name, "special": True, **flags}
        for name in SPECIALS
        if name in vocabulary
    ]
    return {
        "version": "1.0",
        "added_tokens": sorted(added, key=lambda token: int(token["id"])),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
            "strip_accents": config.get("strip_accents"),
            "lowercase": config.get("do_lower_case", True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": LONGEST_WORD,
            "vocab": vocabulary,
        },
    }
