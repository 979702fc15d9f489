"""From what a request holds to the tokens of its prompt.

A dialogue is rendered with the model's own chat template. Special tokens count only where the template
writes them: what a person writes is text, so nobody can end their own turn and speak as someone else.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mtl_common.errors import CheckpointError, UsageError
from mtl_common.tokenizers import Tokenizer
from mtl_serve.request import BadRequest

VEIL = "\ufdd0"  # a code point that Unicode keeps out of text for uses like this


class NoTemplate(UsageError):
    """A dialogue for a model that has no chat template."""


def _refuse(sentence: str) -> NoReturn:
    raise TemplateError(sentence)


def _compile(template: str) -> Template:
    """A chat template as transformers reads it: the same whitespace rules, functions and sandbox."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise CheckpointError(f"the tokenizer's chat template cannot be read: {error}") from None


class Prompts:
    """Encodes text and dialogues for one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._specials = {name: id for id in tokenizer.facts.specials if len(name := self._name(id)) > 1}
        longest_first = sorted(self._specials, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._template = _compile(tokenizer.chat_template) if tokenizer.chat_template else None

    def text(self, text: str) -> list[int]:
        """Tokens of plain text; nothing is added in front."""
        return self._tokenizer.encode(text)

    def dialogue(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of `{"role": ..., "content": ...}` messages up to where the assistant's next words begin.

        Raises NoTemplate when the model has no chat template, BadRequest when its template refuses the
        messages.
        """
        if self._template is None:
            raise NoTemplate("this model has no chat template; send the prompt as text")
        try:
            rendered = self._template.render(
                messages=[{**message, "content": self._veil(message["content"])} for message in messages],
                add_generation_prompt=True,
                bos_token=self._name(self._tokenizer.bos),
                eos_token=self._name(self._tokenizer.eod),
            )
        except TemplateError as error:
            raise BadRequest(f"the model's chat template refuses the dialogue: {error.message}") from None
        return self._encode(rendered)

    def _name(self, id: int | None) -> str:
        return "" if id is None else self._tokenizer.piece(id, special=True).decode("utf-8", "replace")

    def _veil(self, text: str) -> str:
        """Breaks the names of special tokens, so that the template's own can be told from them."""
        return self._special.sub(lambda found: found[0][0] + VEIL + found[0][1:], text.replace(VEIL, ""))

    def _encode(self, rendered: str) -> list[int]:
        ids, at = [], 0
        for found in self._special.finditer(rendered):
            ids += [*self._plain(rendered[at : found.start()]), self._specials[found[0]]]
            at = found.end()
        return ids + self._plain(rendered[at:])

    def _plain(self, text: str) -> list[int]:
        return self._tokenizer.encode(text.replace(VEIL, "")) if text else []
