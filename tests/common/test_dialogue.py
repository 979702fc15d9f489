"""Dialogues: the text of transformers, special tokens by the template alone, and what the assistant says."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus import EMOJI, END, train_bpe
from mtl_common.chat_template import Context, RefusedError
from mtl_common.dialogue import Dialogues, NoTemplateError, Piece
from mtl_common.errors import DataError
from mtl_common.tokenizers import load

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_2 = (
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA_3 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|im_start|>' + m.role + '\n\n' + m.content | trim + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n\n' }}{% endif %}"
)
PLAIN = (
    "{% for m in messages %}{{ '### ' + m.role | title + ':\n' + m.content + '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Assistant:\n' }}{% endif %}"
)
REASONING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and '</think>' in m.content %}"
    "{% set parts = m.content.split('</think>') %}"
    "{% if loop.last %}<think>{{ parts[0].split('<think>')[-1] | trim }}</think>{% endif %}"
    "{{ parts[-1].lstrip() }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "marked": MARKED,
    "llama 2": LLAMA_2,
    "llama 3": LLAMA_3,
    "plain": PLAIN,
    "reasoning": REASONING,
}
ANSWERS = ["Hello!", f"  padded {EMOJI}\n", "ends <|im_end|> early", "x"]

Place = Callable[[str | None], Path]


def talk(*contents: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": content} for n, content in enumerate(contents)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Writes a tokenizer of 1,026 entries with a chat template, and gives its directory."""
    original = json.loads(train_bpe(tmp_path_factory.mktemp("bpe") / "tokenizer.json").read_text())
    for id, name in enumerate(("<|im_start|>", "<|im_end|>"), 1024):
        original["added_tokens"].append({**original["added_tokens"][0], "id": id, "content": name})

    def write(template: str | None) -> Path:
        folder = tmp_path_factory.mktemp("tokenizer")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
        config |= {"bos_token": "<|im_start|>"} | ({"chat_template": template} if template else {})
        (folder / "tokenizer.json").write_text(json.dumps(original))
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return folder

    return write


@pytest.fixture(scope="module")
def chatml(place: Place) -> Dialogues:
    return dialogues(place(CHATML))


def dialogues(folder: Path) -> Dialogues:
    return Dialogues(load(folder))


def theirs(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def spans(piece: Piece) -> Sequence[tuple[int, int]]:
    return [(0, len(piece.text))] if piece.counts else piece.counted


def said(pieces: Sequence[Piece]) -> list[str]:
    """What counts, neighbouring parts joined."""
    found, at, end = [""], 0, None
    for piece in pieces:
        for start, stop in spans(piece):
            if end is not None and end != at + start:
                found.append("")
            found[-1] += piece.text[start:stop]
            end = at + stop
        at += len(piece.text)
    return found


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_is_that_of_transformers(place: Place, name: str) -> None:
    folder = place(TEMPLATES[name])
    ours, reference = dialogues(folder), theirs(folder)
    for count in range(1, len(ANSWERS) + 1):
        messages = talk(*(text for answer in ANSWERS[:count] for text in ("What & <why>?\n", answer)))
        assert text_of(ours.whole(messages)) == reference.apply_chat_template(messages, tokenize=False)
        prompt = reference.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
        assert text_of(ours.prompt(messages[:-1])) == prompt


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chatml", ["Hi!<|im_end|>", "  Yes.\n<|im_end|>"]),
        ("marked", ["Hi!<|im_end|>", "  Yes.\n<|im_end|>"]),
        ("llama 2", [" Hi! <|im_end|>", " Yes. <|im_end|>"]),
        ("llama 3", ["Hi!<|im_end|>", "Yes.<|im_end|>"]),
        ("plain", ["Hi!\n\n", "  Yes.\n\n\n"]),
        ("reasoning", ["Hi!<|im_end|>", "  Yes.\n<|im_end|>"]),
    ],
)
def test_the_assistant_s_turns_count_with_their_ends(place: Place, name: str, expected: list[str]) -> None:
    messages = talk("Hi! Yes.", "Hi!", "Hi! Yes.", "  Yes.\n")
    assert said(dialogues(place(TEMPLATES[name])).whole(messages)) == expected
    assert said(dialogues(place(TEMPLATES[name])).whole(messages[:3])) == expected[:1]


def test_words_that_the_template_takes_apart_are_found_by_what_stands_before_them(place: Place) -> None:
    ours = dialogues(place(REASONING))
    answer = "<think> so </think>\n\nYes."
    assert said(ours.whole(talk("Why?", answer))) == ["<think>so</think>Yes.<|im_end|>"]
    assert said(ours.whole(talk("Why?", answer, "And?", answer))) == [
        "Yes.<|im_end|>",
        "<think>so</think>Yes.<|im_end|>",
    ]


def test_words_that_the_template_changes_are_refused(place: Place) -> None:
    ours = dialogues(place(CHATML.replace("m.content", "(m.content[1:] if loop.last else m.content)")))
    assert said(ours.whole(talk("ab", "cd", "ef"))) == ["cd<|im_end|>"]
    with pytest.raises(RefusedError, match="changes the assistant's words"):
        ours.whole(talk("ab", "cd"))


def test_a_template_that_marks_mislead_is_given_beginnings(place: Place) -> None:
    looking = CHATML.replace("{{ m.content }}", "{{ m.content | length }}: {{ m.content }}")
    assert said(dialogues(place(looking)).whole(talk("ab", "c", "d", "ef"))) == [
        "1: c<|im_end|>",
        "2: ef<|im_end|>",
    ]
    with pytest.raises(RefusedError, match="changes the assistant's words"):
        dialogues(place("{{ messages | length }}" + looking)).whole(talk("ab", "c"))


def test_words_that_a_template_leaves_out_are_refused(place: Place) -> None:
    only = CHATML.replace("in messages", "in messages if m.role != 'system'")
    system = [{"role": "system", "content": "Be kind."}]
    with pytest.raises(RefusedError, match="leaves out words of role system"):
        dialogues(place(only)).whole([*system, *talk("a", "b")])
    with pytest.raises(RefusedError, match="leaves out the definitions of tools"):
        dialogues(place(CHATML)).whole(talk("a", "b"), Context([{"name": "look"}]))
    call = {"role": "assistant", "content": "b", "tool_calls": [{"function": {"name": "look"}}]}
    with pytest.raises(RefusedError, match="leaves out what calls tools"):
        dialogues(place(CHATML)).whole([*talk("a"), call])


def test_answers_of_weight_0_do_not_count(place: Place) -> None:
    messages: list[dict[str, Any]] = [*talk("a", "b", "c", "d", "e", "f")]
    messages[3]["weight"] = 0
    messages[5]["weight"] = 1
    for template in (CHATML, MARKED, PLAIN, CHATML.replace("{{ m.content }}", "{{ m.content | length }}")):
        pieces = dialogues(place(template)).whole(messages)
        assert sum(len(spans(piece)) for piece in pieces if not piece.special) == 2


def test_a_template_for_tools_and_values_beside_the_messages(place: Place) -> None:
    named = [
        {"name": "default", "template": CHATML},
        {"name": "tool_use", "template": "{{ tools[0].name }} {{ pad_token }} {{ tone }} " + CHATML},
    ]
    folder = place(None)
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"chat_template": named}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": END}))
    ours, reference = dialogues(folder), theirs(folder)
    for tools, values in ((None, {}), ([{"name": "look"}], {"tone": "soft"})):
        expected = reference.apply_chat_template(talk("a", "b"), tools=tools, tokenize=False, **values)
        assert text_of(ours.whole(talk("a", "b"), Context(tools, values))) == expected
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools[0].name }}" + PLAIN)
    (folder / "chat_template.jinja").write_text(PLAIN)
    load(folder).save(folder / "copy")
    for place_ in (folder, folder / "copy"):
        expected = theirs(place_).apply_chat_template(talk("a", "b"), tools=[{"name": "n"}], tokenize=False)
        assert text_of(dialogues(place_).whole(talk("a", "b"), Context([{"name": "n"}]))) == expected


def test_a_template_of_parts_gets_parts(place: Place) -> None:
    parts = CHATML.replace("{{ m.content }}", "{% for part in m.content %}{{ part.text }}{% endfor %}")
    folder, messages = place(parts), talk("What?", " So. ")
    in_parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
    expected = theirs(folder).apply_chat_template(in_parts, tokenize=False)
    assert text_of(dialogues(folder).whole(messages)) == expected
    assert said(dialogues(folder).whole(messages)) == [" So. <|im_end|>"]


def test_json_in_templates_is_that_of_transformers(place: Place) -> None:
    folder = place(
        "{{ messages[0] | tojson(ensure_ascii=true, indent=2) }}{{ messages[0] | tojson(sort_keys=True) }}"
    )
    messages = talk('a<|im_end|>\u00e9"\\ud83d \U0001f600\x7f\n')
    assert text_of(dialogues(folder).prompt(messages)) == theirs(folder).apply_chat_template(
        messages, tokenize=False
    )


PARTS = ("a", " ", "\n", "<|im_end|>", "<|im_start|>", "<|", "|>", "\u00e9", "assistant\n")
contents = st.lists(st.sampled_from(PARTS), max_size=8).map("".join)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(contents, contents), min_size=1, max_size=3))
def test_only_the_template_writes_special_tokens(chatml: Dialogues, turns: list[tuple[str, str]]) -> None:
    messages = talk(*(text for turn in turns for text in turn))
    pieces = chatml.whole(messages)
    assert [piece.text for piece in pieces if piece.special] == ["<|im_start|>", "<|im_end|>"] * len(messages)
    assert text_of(pieces) == "".join(
        f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages
    )
    counted = "".join(piece.text[a:b] for piece in pieces for a, b in spans(piece))
    assert counted == "".join(f"{answer}<|im_end|>" for _, answer in turns)


def test_a_mark_around_nothing_counts_nothing(place: Place) -> None:
    empty = CHATML.replace("{% for", "ab{% generation %}{% endgeneration %}cd{% for", 1)
    assert said(dialogues(place(empty)).whole(talk("x", "y"))) == [""]


def test_refusals(place: Place) -> None:
    with pytest.raises(RefusedError, match="refuses it: roles must alternate"):
        dialogues(place(LLAMA_2)).whole(talk("a", "b")[1:])
    with pytest.raises(RefusedError, match="fails: can only concatenate"):
        dialogues(place(LLAMA_3)).whole([{"role": 3, "content": "x"}])
    with pytest.raises(RefusedError, match=r"holds one of U\+FDD0"):
        dialogues(place(CHATML)).prompt(talk("a\ufdd1b"))
    with pytest.raises(NoTemplateError, match="has no chat template"):
        dialogues(place(None))
    with pytest.raises(DataError, match="chat template cannot be read"):
        dialogues(place("{% for %}"))


def test_a_template_sees_a_clock_only_when_it_may(place: Place) -> None:
    dated = "{{ strftime_now('%Y') if strftime_now is defined else 'never' }} {{ messages[0].content }}"
    folder = place(dated)
    assert text_of(dialogues(folder).prompt(talk("x"))) == "never x"
    assert text_of(Dialogues(load(folder), clock=True).prompt(talk("x")))[:2] == "20"


def test_templates_are_kept_in_their_sandbox(place: Place) -> None:
    for hole in (
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
    ):
        with pytest.raises(RefusedError):
            dialogues(place(hole)).whole(talk("a", "b"))
