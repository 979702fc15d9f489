"""Chat templates in the manner of known models, written for tests, and dialogues with tools and reasoning.

`SAID` and `DONE` stand around what the assistant says: `plain` takes them out, `marked` makes them the tags
that transformers knows.
"""

import random
from collections.abc import Sequence
from typing import Any

SAID, DONE = "{# said #}", "{# done #}"

CHATML = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.role == 'assistant' -%}{# said #}{{ m.content + '<|im_end|>' }}{# done #}"
    "{%- else -%}{{ m.content + '<|im_end|>' }}{%- endif -%}{{ '\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)

LLAMA_3 = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}{%- set rest = messages[1:] %}
{%- else %}{%- set system = '' %}{%- set rest = messages %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
{%- if tools is not none %}{{- 'Environment: ipython\n' }}{%- endif %}
{{- system + '<|eot_id|>' }}
{%- if tools is not none %}
    {%- set first = rest[0].content | trim %}{%- set rest = rest[1:] %}
    {{- '<|start_header_id|>user<|end_header_id|>\n\nYou may call these functions:\n\n' }}
    {%- for tool in tools %}{{- tool | tojson(indent=4) + '\n\n' }}{%- endfor %}
    {{- first + '<|eot_id|>' }}
{%- endif %}
{%- for m in rest %}
    {%- if m.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + (m.content | tojson) + '<|eot_id|>' }}
    {%- elif m.role == 'assistant' %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{# said #}
        {%- if 'tool_calls' in m %}
            {%- if m.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
            {%- set call = m.tool_calls[0].function %}
            {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}<|eom_id|>' }}
        {%- else %}{{- m.content | trim + '<|eot_id|>' }}{%- endif %}{# done #}
    {%- else %}
        {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
"""

MISTRAL = """\
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}{%- set rest = messages[1:] %}
{%- else %}{%- set rest = messages %}{%- endif %}
{%- set users = rest | selectattr('role', 'equalto', 'user') | list %}
{{- bos_token }}
{%- for m in rest %}
    {%- if m.role == 'user' %}
        {%- if tools is not none and m == users[-1] %}
            {{- '[AVAILABLE_TOOLS] [' }}
            {%- for tool in tools %}{{- tool | tojson }}{{- '' if loop.last else ', ' }}{%- endfor %}
            {{- '][/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {%- set start = system + '\n\n' if loop.last and system is defined else '' %}
        {{- '[INST] ' + start + m.content + '[/INST]' }}
    {%- elif m.tool_calls is defined and m.tool_calls is not none %}
        {# said #}{{- '[TOOL_CALLS] [' }}
        {%- for call in m.tool_calls %}
            {%- if call.id | length != 9 %}{{- raise_exception('ids are 9 letters or digits') }}{%- endif %}
            {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}
            {{- '' if loop.last else ', ' }}
        {%- endfor %}{{- ']' + eos_token }}{# done #}
    {%- elif m.role == 'assistant' %}{# said #}{{- ' ' + m.content | trim + eos_token }}{# done #}
    {%- elif m.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + m.content | string + ', "call_id": "' + m.tool_call_id + '"}' }}
        {{- '[/TOOL_RESULTS]' }}
    {%- else %}{{- raise_exception('no role ' + m.role) }}{%- endif %}
{%- endfor %}
"""

QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\n' + (messages[0].content + '\n\n' if messages[0].role == 'system' else '') }}
    {{- '# Tools\n<tools>' }}
    {%- for tool in tools %}{{- '\n' + tool | tojson }}{%- endfor %}{{- '\n</tools><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(asked=messages | length - 1, open=true) %}
{%- for m in messages[::-1] %}
    {%- set is_answer = m.content is string and m.content.endswith('</tool_response>') %}
    {%- if ns.open and m.role == 'user' and not is_answer %}
        {%- set ns.open = false %}{%- set ns.asked = messages | length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- set content = m.content if m.content is string else '' %}
    {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}
    {%- elif m.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if m.reasoning_content is string %}{%- set thought = m.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}{# said #}
        {%- if loop.index0 > ns.asked and (loop.last or thought) %}
            {{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}{{- content }}{%- endif %}
        {%- for call in m.tool_calls or [] %}
            {{- '\n' if (loop.first and content) or not loop.first else '' }}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {%- set given = call.function.arguments %}
            {{- given if given is string else given | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}{{- '<|im_end|>' }}{# done #}{{- '\n' }}
    {%- elif m.role == 'tool' %}
        {{- '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' else '' }}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {{- '<|im_end|>\n' if loop.last or messages[loop.index0 + 1].role != 'tool' else '' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {{- '<think>\n\n</think>\n\n' if enable_thinking is defined and enable_thinking is false else '' }}
{%- endif %}
"""

TEMPLATES = {"chatml": CHATML, "llama 3": LLAMA_3, "mistral": MISTRAL, "qwen": QWEN}
SPECIALS = (
    *("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
    *("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)
WORDS = (
    "Hello",
    " ",
    "\n",
    "it's",
    " 12 ",
    "\u00e9",
    "na\u00efve",
    "\u4f60\u597d",
    ".",
    "<|im",
    "{}",
    '"',
    "x" * 30,
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Finds things & <names>.",
            "parameters": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "limit": {"type": "integer"}},
                "required": ["name"],
            },
        },
    }
]


def plain(template: str) -> str:
    """A template as models have it."""
    return template.replace(SAID, "").replace(DONE, "")


def marked(template: str) -> str:
    """A template that marks what the assistant says."""
    return template.replace(SAID, "{% generation %}").replace(DONE, "{% endgeneration %}")


def _words(draw: random.Random) -> str:
    return "".join(draw.choices(WORDS, k=draw.randrange(1, 8))) + "." + draw.choice(["", " ", "\n", " \n\n"])


def _call(draw: random.Random) -> list[dict[str, Any]]:
    arguments = draw.choice([{"name": _words(draw), "limit": 3}, {"limit": 1.5, "name": "a"}, {}])
    id = f"call{draw.randrange(10**4, 10**5)}"
    asked = {
        "role": "assistant",
        "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "look_up", "arguments": arguments}}
        ],
    }
    return [asked, {"role": "tool", "tool_call_id": id, "content": _words(draw)}]


def talks(
    count: int, *, system: bool = True, calls: bool = False, thoughts: bool = False
) -> list[Sequence[dict[str, Any]]]:
    """Dialogues of odd strings, the same ones every time."""
    draw = random.Random(7)
    found: list[Sequence[dict[str, Any]]] = []
    for _ in range(count):
        messages: list[dict[str, Any]] = []
        if system and draw.random() < 0.5:
            messages.append({"role": "system", "content": _words(draw)})
        for _ in range(draw.randrange(1, 4)):
            messages.append({"role": "user", "content": _words(draw)})
            for _ in range(draw.randrange(3) if calls else 0):
                messages += _call(draw)
            thought = {"reasoning_content": _words(draw)} if thoughts and draw.random() < 0.5 else {}
            messages.append({"role": "assistant", "content": _words(draw), **thought})
        found.append(messages)
    return found
