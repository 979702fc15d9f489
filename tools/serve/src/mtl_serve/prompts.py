"""From what a request holds to the tokens of its prompt.

A dialogue is rendered with the model's own chat template. What a person writes in it is text, whatever
special tokens it spells: nobody can end their own turn and speak as someone else.
"""

from collections.abc import Mapping, Sequence

from mtl_common.chat_template import RefusedError
from mtl_common.dialogue import Dialogues, NoTemplateError, encode
from mtl_common.errors import UsageError
from mtl_common.tokenizers import Tokenizer
from mtl_serve.request import BadRequest


class NoTemplate(UsageError):
    """A dialogue for a model that has no chat template."""


class Prompts:
    """Encodes text and dialogues for one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        try:
            self._dialogues: Dialogues | None = Dialogues(tokenizer, clock=True)
        except NoTemplateError:
            self._dialogues = None

    def text(self, text: str) -> list[int]:
        """Tokens of plain text; nothing is added in front."""
        return self._tokenizer.encode(text)

    def dialogue(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of `{"role": ..., "content": ...}` messages up to where the assistant's next words begin.

        Raises NoTemplate when the model has no chat template, BadRequest when its template refuses the
        messages.
        """
        if self._dialogues is None:
            raise NoTemplate("this model has no chat template; send the prompt as text")
        try:
            return encode(self._dialogues.prompt(messages), self._tokenizer)
        except RefusedError as error:
            raise BadRequest(f"the dialogue cannot be a prompt: {error}") from None
