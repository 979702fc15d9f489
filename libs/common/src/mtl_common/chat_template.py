"""Chat templates, rendered as transformers renders them: the same sandbox, whitespace rules and functions.

What a template puts between `{% generation %}` and `{% endgeneration %}` comes out between OPEN and CLOSE.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mtl_common.errors import DataError, UsageError

# Code points that Unicode keeps out of text for uses like this.
NO_CHARACTERS = "\ufdd0-\ufdef"
OPEN, CLOSE = "\ufdd1", "\ufdd2"
ESCAPED = re.compile(f"[^\\0-\\x7e{NO_CHARACTERS}]")  # by JSON that is ASCII; a mark has to stay one

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Context:
    """What a template is given beside the messages: definitions of tools, and values that it may ask for."""

    tools: Sequence[Any] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


NOTHING = Context()


class RefusedError(UsageError):
    """A dialogue that the chat template, or a rule of ours, does not allow; the message is the reason."""


class _Generation(Extension):
    """The tag around what the assistant says."""

    tags = {"generation"}  # noqa: RUF012, as jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Any) -> str:
        return f"{OPEN}{caller()}{CLOSE}"


def _refuse(sentence: str) -> NoReturn:
    raise TemplateError(sentence)


def _to_json(value: Any, ensure_ascii: bool = False, *form: Any, **named: Any) -> str:
    """Unlike jinja's own, leaves <, > and & as they are."""
    names = dict(zip(("indent", "separators", "sort_keys"), form, strict=False))
    written = json.dumps(value, ensure_ascii=False, **names, **named)
    return ESCAPED.sub(lambda found: json.dumps(found[0])[1:-1], written) if ensure_ascii else written


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _compile(template: str, clock: bool) -> Template:
    extensions = [_Generation, loopcontrols]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    if clock:
        environment.globals["strftime_now"] = _now
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise DataError(f"the tokenizer's chat template cannot be read: {error}") from None


class ChatTemplate:
    """One tokenizer's template.

    Args:
        template: the Jinja source.
        names: the special tokens that it may ask for: `bos_token`, `eos_token`.
        clock: whether it may ask what day it is. Without, such a template falls back on a fixed date or
            refuses, and the same messages always give the same text.
    """

    def __init__(self, template: str, names: Mapping[str, str], clock: bool) -> None:
        self._template, self._names = _compile(template, clock), dict(names)

    def render(self, messages: Messages, prompt: bool, context: Context = NOTHING) -> str:
        """The text of a dialogue, with `prompt` up to where the assistant's next words begin.

        Raises RefusedError when the template does.
        """
        own = {"messages": messages, "tools": context.tools, "add_generation_prompt": prompt}
        try:
            return self._template.render({"documents": None, **self._names, **context.values, **own})
        except TemplateError as error:
            raise RefusedError(f"the chat template refuses it: {error.message}") from None
        except Exception as error:  # templates are programs, and add up strings and None
            raise RefusedError(f"the chat template fails: {error}") from None
