"""Chat templates, rendered as transformers renders them: the same sandbox, whitespace rules and functions.

What a template puts between `{% generation %}` and `{% endgeneration %}` comes out between OPEN and CLOSE.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mtl_common.errors import DataError, UsageError

OPEN, CLOSE = "\ufdd1", "\ufdd2"  # code points that Unicode keeps out of text for uses like this

Messages = Sequence[Mapping[str, Any]]


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


def _to_json(value: Any, ensure_ascii: bool = False, **form: Any) -> str:
    """Unlike jinja's own, leaves <, > and & as they are."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **form)


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

    def render(self, messages: Messages, prompt: bool) -> str:
        """The text of a dialogue, with `prompt` up to where the assistant's next words begin.

        Raises RefusedError when the template does.
        """
        try:
            return self._template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=prompt, **self._names
            )
        except TemplateError as error:
            raise RefusedError(f"the chat template refuses it: {error.message}") from None
        except Exception as error:  # templates are programs, and add up strings and None
            raise RefusedError(f"the chat template fails: {error}") from None
