"""Dialogues in the forms that data sets have, as messages, tools and values for a chat template.

    OpenAI     {"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}, ...]}
    ShareGPT   {"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}, ...]}
    Alpaca     {"instruction": ..., "input": ..., "output": ..., "history": [[..., ...], ...]}

`system`, `tools` and `chat_template_kwargs` may stand beside the messages in all of them.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mtl_prep.corpus.keys import ABSENT, put_at, value_at
from mtl_prep.corpus.records import BadRecordError

MESSAGES, OTHER_FORM = "messages", "conversations"
ALPACA = ("instruction", "input", "output", "history")
BESIDE = ("system", "tools", "chat_template_kwargs")
SPOKEN = ("content", "value", "reasoning_content", "reasoning", "thinking")
ALL = (MESSAGES, OTHER_FORM, *ALPACA, *BESIDE)
ROLES = {
    **{role: role for role in ("system", "developer", "user", "assistant", "tool")},
    **dict.fromkeys(("gpt", "chatgpt", "model", "function_call"), "assistant"),
    **dict.fromkeys(("observation", "function", "function_response"), "tool"),
    "human": "user",
}
OWN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})


def string(value: Any, name: str, needed: bool = True) -> str:
    """A string that is not blank; raises BadRecordError, whose message is the reason, for anything else."""
    if not needed and value in (ABSENT, None, ""):
        return ""
    if value is ABSENT or value is None:
        raise BadRecordError(f"no {name}")
    if not isinstance(value, str):
        raise BadRecordError(f"{name} not a string")
    if not value.strip():
        raise BadRecordError(f"empty {name}")
    return value


def _parsed(value: Any, name: str) -> Any:
    """A value, or what it is as JSON in a string."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else None
    except (ValueError, RecursionError):
        raise BadRecordError(f"{name} not JSON") from None


def _content(found: Any) -> str | None:
    """The text of a message, which may come in parts."""
    if not isinstance(found, list):
        if found is not None and not isinstance(found, str):
            raise BadRecordError("content not a string")
        return found
    texts = []
    for part in found:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text":
            raise BadRecordError(f"content has a part of type {str(kind)[:40]}")
        texts.append(string(part.get("text"), "text of content"))
    return "".join(texts)


def _call(found: Any) -> dict[str, Any]:
    """A call of a tool whose arguments are an object, as templates want them, not a string of JSON."""
    function = found.get("function", found) if isinstance(found, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadRecordError("call of a tool without a name")
    arguments = _parsed(function.get("arguments"), "arguments of a tool")
    whole = {**function, "arguments": {} if arguments is None else arguments}
    return {"type": "function", **found, "function": whole} if "function" in found else {"function": whole}


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The calls in a message, in each of the ways to write them."""
    found = message.get("tool_calls")
    if message.get("from") == "function_call":
        found = _parsed(message.get("value"), "function_call")
    elif found is None:
        found = message.get("function_call")
    if found is None:
        return []
    return [_call(call) for call in (found if isinstance(found, list) else [found])]


def _message(found: Any) -> dict[str, Any]:
    """A message as role and content, whichever form it has; its other keys stay, unless null."""
    if not isinstance(found, Mapping):
        raise BadRecordError("message not an object")
    role, calls = ROLES.get(str(found.get("role", found.get("from")))), _calls(found)
    content = (
        None if found.get("from") == "function_call" else _content(found.get("content", found.get("value")))
    )
    if role is None:
        raise BadRecordError("unknown role")
    if found.get("weight") not in (None, 0, 1):
        raise BadRecordError("weight neither 0 nor 1")
    if content is None and not calls:
        raise BadRecordError("no content")
    if role == "assistant" and not calls and not (content or "").strip():
        raise BadRecordError("empty answer")
    left_out = {"from", "value", "function_call", "tool_calls", "content"}
    kept = {key: value for key, value in found.items() if key not in left_out and value is not None}
    own = {"content": content} if content is not None else {}
    return {**kept, "role": role, **own, **({"tool_calls": calls} if calls else {})}


def _list(found: Any, name: str) -> list[Any]:
    if not isinstance(found, list):
        raise BadRecordError(f"{name} not a list")
    return found


def _turns(question: Any, answer: Any, names: tuple[str, str]) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": string(question, names[0])},
        {"role": "assistant", "content": string(answer, names[1])},
    ]


def _alpaca(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The turns of a record of instruction and output."""
    messages = []
    for pair in _list(record.get("history") or [], "history"):
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadRecordError("history not of pairs")
        messages += _turns(pair[0], pair[1], ("question in history", "answer in history"))
    asked, more = record.get("instruction"), string(record.get("input"), "input", needed=False)
    if more:
        asked = f"{string(asked, 'instruction')}\n{more}"
    return messages + _turns(asked, record.get("output"), ("instruction", "output"))


def _place(record: Mapping[str, Any], key: str) -> str | None:
    """The key or path of the messages; None for a record of instruction and output."""
    if key != MESSAGES or value_at(record, key) not in (ABSENT, None):
        return key
    if record.get(OTHER_FORM) is not None:
        return OTHER_FORM
    return None if {"instruction", "output"} <= record.keys() else key


def _messages(record: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    place = _place(record, key)
    if place is None:
        return _alpaca(record)
    found = value_at(record, place)
    if found in (ABSENT, None, []):
        raise BadRecordError("no messages")
    return [_message(message) for message in _list(found, "messages")]


def _tools(value: Any) -> list[Any]:
    parsed = _parsed(value, "tools")
    if parsed is None:
        return []
    found = _list(parsed, "tools")
    if not all(isinstance(tool, Mapping) for tool in found):
        raise BadRecordError("tools not a list of objects")
    return found


def _values(found: Any) -> dict[str, Any]:
    values = _parsed(found, "chat_template_kwargs")
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise BadRecordError("chat_template_kwargs not an object")
    if wrong := sorted(OWN & values.keys()):
        raise BadRecordError(f"chat_template_kwargs names {wrong[0]}")
    return {key: value for key, value in values.items() if value is not None}


def dialogue(record: Mapping[str, Any], key: str) -> dict[str, Any]:
    """`messages`, `tools` and `values` of a record whose messages stand at a key or path.

    Raises BadRecordError, whose message is the reason, for a record without an answer to learn.
    """
    messages = _messages(record, key)
    inside = key.rpartition(".")[0]
    beside = [value_at(record, f"{inside}.{name}" if inside else name) for name in BESIDE]
    system, tools, values = (None if found is ABSENT else found for found in beside)
    if (system := string(system, "system", needed=False)) and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    if not any(m["role"] == "assistant" and m.get("weight") != 0 for m in messages):
        raise BadRecordError("no answer")
    return {"messages": messages, "tools": _tools(tools), "values": _values(values)}


def _edited(value: Any, keys: Iterable[str], edit: Callable[[str], str]) -> Any:
    """An object whose texts under some keys, whole or in parts, are edited."""
    out = dict(value)
    for key in keys:
        if isinstance(value.get(key), str):
            out[key] = edit(value[key])
        elif isinstance(value.get(key), list):
            out[key] = [_edited(part, ("text",), edit) for part in value[key]]
    return out


def _with_edits(record: Mapping[str, Any], key: str, edit: Callable[[str], str]) -> dict[str, Any]:
    """A good record whose texts are edited in order; calls of tools and beside the messages none are."""
    place = _place(record, key)
    if place is None:
        pairs = [[edit(text) for text in pair] for pair in record.get("history") or []]
        whole = dict(record) | ({"history": pairs} if pairs else {})
        return dict(_edited(whole, ALPACA[:3], edit))
    found = value_at(record, place)
    return put_at(record, place, [_edited(message, SPOKEN, edit) for message in found])


def texts(record: Mapping[str, Any], key: str) -> list[str]:
    """The texts of a good record in order: contents and reasoning."""
    found: list[str] = []

    def take(text: str) -> str:
        found.append(text)
        return text

    _with_edits(record, key, take)
    return found


def with_texts(record: Mapping[str, Any], key: str, texts: Iterable[str]) -> dict[str, Any]:
    """A good record with others in the place of its texts."""
    rest = iter(texts)
    return _with_edits(record, key, lambda _: next(rest))
