"""Real text and small tokenizers for tests: the running interpreter's own standard library, no download."""

import sysconfig
from functools import cache
from pathlib import Path

END = "<|endoftext|>"
EMOJI = "I \u2764\ufe0f \U0001f468\u200d\U0001f469\u200d\U0001f467 na\u00efve \u4f60\u597d, \u0645\u0631!"


@cache
def stdlib_texts(count: int = 40) -> tuple[str, ...]:
    """The source text of some modules of the standard library, the same ones every time."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:count]
    return tuple(file.read_text("utf-8") for file in files)


def train_bpe(path: Path, vocab_size: int = 1024) -> Path:
    """Writes a byte-level BPE tokenizer.json of GPT-2's kind, trained on the standard library."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(stdlib_texts(15), trainer)
    tokenizer.save(str(path))
    return path
