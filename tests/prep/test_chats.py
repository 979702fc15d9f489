"""Dialogues as data sets have them: every form, tools, tokenizers that swallow space; beside transformers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chat_templates import CHATML, MISTRAL, QWEN, SPECIALS, TEMPLATES, TOOLS, marked, plain, talks
from corpus import END, stdlib_texts, train_bpe
from mtl_common.bins import Bins
from mtl_common.errors import DataError
from mtl_common.tokenizers import load
from mtl_prep.encoding.shapes import parse_shape
from preparing import Make, bad_of, json_lines

FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        train_bpe(tmp_path_factory.mktemp("bpe") / "tokenizer.json").read_text()
    )
    return found


def write_tokenizer(folder: Path, base: dict[str, Any], template: str, **flags: bool) -> Path:
    """A tokenizer with the special tokens that the templates write, and a template."""
    folder.mkdir(parents=True)
    first = len(base["model"]["vocab"])
    added = [
        {"id": id, "content": name, "special": True, **FLAGS, **flags}
        for id, name in enumerate(SPECIALS, first)
    ]
    (folder / "tokenizer.json").write_text(
        json.dumps({**base, "added_tokens": [*base["added_tokens"], *added]})
    )
    names = {"bos_token": END, "eos_token": END}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def theirs(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


def write(path: Path, records: Sequence[Any]) -> Path:
    path.write_bytes(json_lines(records))
    return path


def assert_as_theirs(bins: Bins, reference: Any, template: str, records: Sequence[Any]) -> None:
    """Every document has transformers' ids, and its mask of the template that marks what is said."""
    assert len(bins) == len(records)
    for i, record in enumerate(records):
        found = reference.apply_chat_template(
            record["messages"],
            tools=record.get("tools"),
            chat_template=marked(template),
            return_dict=True,
            return_assistant_tokens_mask=True,
            **record.get("chat_template_kwargs", {}),
        )
        ids, mask = found["input_ids"], found["assistant_masks"]
        ended = ids[-1] == bins.eod
        assert bins.document(i).tolist() == (ids if ended else [*ids, bins.eod])
        assert bins.loss(i).tolist() == (mask if ended else [*mask, mask[-1]])


def records_for(name: str, count: int) -> list[dict[str, Any]]:
    system = name != "mistral"  # whose template writes it in the last message only
    records: list[dict[str, Any]] = [{"messages": talk} for talk in talks(count, system=system)]
    if name != "chatml":
        with_calls = talks(count, system=system, calls=True, thoughts=name == "qwen")
        records += [{"messages": talk, "tools": TOOLS} for talk in with_calls]
    return records


@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_and_masks_are_those_of_transformers(
    make: Make, base: dict[str, Any], tmp_path: Path, name: str
) -> None:
    template, records = TEMPLATES[name], records_for(name, 60)
    source = write(tmp_path / "a.jsonl", records)
    for how in (plain, marked):
        folder = write_tokenizer(tmp_path / how.__name__, base, how(template))
        bins = make(source, tokenizer=folder, shape="chat", name=f"bins-{how.__name__}")
        assert_as_theirs(bins, theirs(folder), template, records)


@pytest.mark.parametrize(
    "flags", [{"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}], ids=str
)
def test_special_tokens_may_swallow_the_white_space_beside_them(
    make: Make, base: dict[str, Any], tmp_path: Path, flags: dict[str, bool]
) -> None:
    for name in ("llama 3", "qwen"):
        folder, records = (
            write_tokenizer(tmp_path / name, base, plain(TEMPLATES[name]), **flags),
            records_for(name, 40),
        )
        bins = make(write(tmp_path / "a.jsonl", records), tokenizer=folder, shape="chat", name=f"bins-{name}")
        assert_as_theirs(bins, theirs(folder), TEMPLATES[name], records)


def test_a_prompt_that_values_ask_for_is_not_said(make: Make, base: dict[str, Any], tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "t", base, plain(QWEN))
    talk = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    records = [{"messages": talk, "chat_template_kwargs": {"enable_thinking": on}} for on in (True, False)]
    bins = make(write(tmp_path / "a.jsonl", records), tokenizer=folder, shape="chat")
    assert bins.document(0).tolist() == bins.document(1).tolist()
    said = [load(folder).decode(bins.document(i)[bins.loss(i) == 1].tolist()) for i in range(2)]
    assert said == ["<think>\n\n</think>\n\nSo.", "So."]


def test_a_space_before_the_first_word_alone(make: Make, tmp_path: Path) -> None:
    """As newer tokenizers of Llama's kind have it: text behind a special token begins without a space."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    library = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    library.decoder = decoders.Metaspace(prepend_scheme="first")
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=["<unk>", END, *alphabet], show_progress=False
    )
    library.train_from_iterator([line for text in stdlib_texts(5) for line in text.splitlines()], trainer)
    content = json.loads(library.to_str())
    content["added_tokens"] = [
        token for token in content["added_tokens"] if token["content"] in ("<unk>", END)
    ]
    records = [{"messages": talk} for talk in talks(80)]
    folder = write_tokenizer(tmp_path / "t", content, plain(CHATML))
    bins = make(write(tmp_path / "a.jsonl", records), tokenizer=folder, shape="chat")
    assert_as_theirs(bins, theirs(folder), CHATML, records)
    assert load(folder).encode("x") != load(folder).inside.encode("x")
    headless = write_tokenizer(
        tmp_path / "headless", content, "{{ messages[0].content }}[INST]{{ messages[1].content }}"
    )
    talk = [{"role": "user", "content": "def"}, {"role": "assistant", "content": "def"}]
    bins = make(write(tmp_path / "b.jsonl", [{"messages": talk}]), tokenizer=headless, shape="chat", name="b")
    assert bins.document(0).tolist() == [*theirs(headless)("def[INST]def")["input_ids"], bins.eod]


def test_a_special_token_that_must_be_a_word_is_refused(
    make: Make, base: dict[str, Any], tmp_path: Path
) -> None:
    folder = write_tokenizer(tmp_path / "t", base, plain(CHATML), single_word=True)
    with pytest.raises(DataError, match="special tokens that count only as words of their own"):
        make(write(tmp_path / "a.jsonl", records_for("chatml", 1)), tokenizer=folder, shape="chat")


CALL = {"name": "look_up", "arguments": {"name": "a", "limit": 2}}
ASKED = {"role": "user", "content": "Who is a?"}
USED: list[Any] = [
    ASKED,
    {"role": "assistant", "tool_calls": [{"type": "function", "id": "call00001", "function": CALL}]},
    {"role": "tool", "tool_call_id": "call00001", "content": "nobody"},
    {"role": "assistant", "content": "Nobody."},
]
AS_STRING = {**CALL, "arguments": json.dumps(CALL["arguments"])}
FORMS: dict[str, dict[str, Any]] = {
    "arguments as a string of JSON": {
        "messages": [
            ASKED,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call00001", "function": AS_STRING}],
            },
            *USED[2:],
        ],
        "tools": TOOLS,
    },
    "the older way to call": {
        "messages": [
            ASKED,
            {"role": "assistant", "content": None, "function_call": AS_STRING, "tool_calls": None},
            {"role": "function", "name": "look_up", "content": "nobody"},
            USED[3],
        ],
        "tools": TOOLS,
    },
    "null beside everything": {
        "messages": [
            {
                "role": "user",
                "content": "Who is a?",
                "tool_calls": None,
                "reasoning_content": None,
                "weight": None,
            },
            {**USED[1], "content": None, "tool_call_id": None},
            {**USED[2], "tool_calls": []},
            {**USED[3], "tool_calls": []},
        ],
        "tools": json.dumps(TOOLS),
        "chat_template_kwargs": {"enable_thinking": None},
    },
    "ShareGPT": {
        "conversations": [
            {"from": "human", "value": "Who is a?"},
            {"from": "function_call", "value": json.dumps(CALL)},
            {"from": "observation", "value": "nobody"},
            {"from": "gpt", "value": "Nobody."},
        ],
        "tools": json.dumps(TOOLS),
        "system": "",
    },
    "parts": {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "Who "}, {"type": "text", "text": "is a?"}],
            },
            *USED[1:3],
            {"role": "assistant", "content": [{"type": "text", "text": "Nobody."}]},
        ],
        "tools": TOOLS,
    },
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_calls_is_the_same_dialogue(
    make: Make, base: dict[str, Any], tmp_path: Path, name: str
) -> None:
    folder = write_tokenizer(tmp_path / "t", base, plain(QWEN))
    usual = {"messages": USED, "tools": TOOLS}
    bins = make(write(tmp_path / "a.jsonl", [usual, FORMS[name]]), tokenizer=folder, shape="chat")
    assert_as_theirs(bins, theirs(folder), QWEN, [usual, usual])


def test_instructions_are_dialogues_too(make: Make, base: dict[str, Any], tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "t", base, plain(CHATML))
    records = [
        {"instruction": "Add.", "input": "1 2", "output": "3"},
        {"instruction": "Add.", "input": "", "output": "3", "system": "Be short.", "history": [["Hi", "Ho"]]},
        {"instruction": "Add.", "output": " "},
        {"instruction": "Add.", "output": "3", "history": ["Hi"]},
        {"instruction": "Add."},
    ]
    said = [
        [{"role": "user", "content": "Add.\n1 2"}, {"role": "assistant", "content": "3"}],
        [
            {"role": "system", "content": "Be short."},
            *({"role": r, "content": c} for r, c in (("user", "Hi"), ("assistant", "Ho"))),
            *({"role": r, "content": c} for r, c in (("user", "Add."), ("assistant", "3"))),
        ],
    ]
    bins = make(write(tmp_path / "a.jsonl", records), tokenizer=folder, shape="chat")
    assert_as_theirs(bins, theirs(folder), CHATML, [{"messages": messages} for messages in said])
    assert bad_of(bins) == {"empty output": 1, "history not of pairs": 1, "no messages": 1}


def test_tools_stand_beside_messages_wherever_those_are(
    make: Make, base: dict[str, Any], tmp_path: Path
) -> None:
    folder = write_tokenizer(tmp_path / "t", base, plain(QWEN))
    record = {"data": {"talk": USED, "tools": TOOLS}}
    bins = make(write(tmp_path / "a.jsonl", [record]), tokenizer=folder, shape="chat", keys="data.talk")
    assert_as_theirs(bins, theirs(folder), QWEN, [{"messages": USED, "tools": TOOLS}])


def test_a_table_holds_tools(make: Make, base: dict[str, Any], tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    folder, records = (
        write_tokenizer(tmp_path / "t", base, plain(QWEN)),
        [{"messages": USED, "tools": TOOLS}] * 3,
    )
    columns = {"messages": [USED] * 3, "tools": [json.dumps(TOOLS)] * 3, "other": [1, 2, 3]}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    bins = make(tmp_path / "a.parquet", tokenizer=folder, shape="chat")
    assert_as_theirs(bins, theirs(folder), QWEN, records)


TALK: list[Any] = [ASKED, {"role": "assistant", "content": "b"}]
BAD: list[tuple[Any, str]] = [
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "content has a part of type image_url",
    ),
    ({"messages": [{"role": "user", "content": ["a"]}]}, "content has a part of type str"),
    (
        {"messages": [ASKED, {"role": "assistant", "tool_calls": [{"function": {}}]}]},
        "call of a tool without a name",
    ),
    (
        {"messages": [ASKED, {"role": "assistant", "tool_calls": [{"name": "a", "arguments": "{"}]}]},
        "arguments of a tool not JSON",
    ),
    ({"messages": [ASKED, {"role": "assistant", "content": "", "tool_calls": []}]}, "empty answer"),
    ({"messages": [ASKED, {"role": "assistant", "content": "b", "weight": 0}]}, "no answer"),
    ({"messages": [ASKED, {"role": "assistant", "content": "b", "weight": 2}]}, "weight neither 0 nor 1"),
    ({"messages": TALK, "tools": "["}, "tools not JSON"),
    ({"messages": TALK, "tools": {"a": 1}}, "tools not a list"),
    ({"messages": TALK, "tools": ["a"]}, "tools not a list of objects"),
    ({"messages": TALK, "chat_template_kwargs": [1]}, "chat_template_kwargs not an object"),
    ({"messages": TALK, "chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs names messages"),
    ({"messages": TALK, "system": 3}, "system not a string"),
    (
        {"messages": [{"role": "system", "content": "x"}, *TALK, ASKED, TALK[1]]},
        "the chat template leaves out words",
    ),
    ({"messages": TALK, "tools": TOOLS}, "good"),
]


def test_what_no_dialogue_is_made_of(make: Make, base: dict[str, Any], tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "t", base, plain(MISTRAL))
    bins = make(write(tmp_path / "a.jsonl", [record for record, _ in BAD]), tokenizer=folder, shape="chat")
    found = [json.loads(line) for line in (bins.path / "bad.jsonl").read_text().splitlines()]
    assert len(bins) == 1
    assert [line["line"] for line in found] == list(range(1, len(BAD)))
    for line, (_, reason) in zip(found, BAD[:-1], strict=True):
        assert line["reason"].startswith(reason)


def test_texts_of_every_form_can_be_edited() -> None:
    shape = parse_shape("chat", None, "\n")
    assert shape is not None
    for record in (
        *FORMS.values(),
        {"instruction": "a", "input": "", "output": "b", "history": [["c", "d"]]},
    ):
        texts = shape.texts(record)
        assert shape.with_texts(record, texts) == record
        edited = shape.with_texts(record, [f"{text}!" for text in texts])
        assert shape.texts(edited) == [f"{text}!" for text in texts]
        assert json.dumps(edited).count("!") == len(texts) >= 3


def test_bins_of_dialogues_depend_on_nothing_else(make: Make, base: dict[str, Any], tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "t", base, plain(QWEN))
    source = write(tmp_path / "a.jsonl", records_for("qwen", 60))
    one = make(source, tokenizer=folder, shape="chat", part_bytes=9000)
    two = make(source, tokenizer=folder, shape="chat", workers=2, name="two", part_bytes=9000)
    assert np.array_equal(one.window(0, one.tokens), two.window(0, two.tokens))
    assert np.array_equal(one.window_loss(0, one.tokens), two.window_loss(0, two.tokens))
