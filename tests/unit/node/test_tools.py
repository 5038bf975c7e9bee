"""Forced calls of tools are grammars that hold, and templates tell whether they have tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.errors import InvalidSamplingError
from engine.model_files import open_model
from engine.tokenizer import Tokenizer
from node.http.tools import ToolReader, forced_call_grammar

pytestmark = pytest.mark.model

FUNCTIONS: list[dict[str, Any]] = [
    {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    {"name": "now"},
]

TEMPLATE = (
    "{%- if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}Use <tool_call>.{% endif -%}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.arguments.city }}{% endfor %}\n{% endfor %}"
)


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer(open_model("smollm2"))


def call(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


WEATHER, NOW = call("weather", {"city": "Oslo"}), call("now", {})


@pytest.mark.parametrize(
    ("text", "several", "holds"),
    [
        (WEATHER, False, True),
        (NOW, False, True),
        (f"{WEATHER}\n{NOW}", True, True),
        (f"{WEATHER}\n{NOW}", False, False),
        (call("weather", {"town": "Oslo"}), True, False),
        (call("tomorrow", {}), True, False),
        ("I can't.", True, False),
    ],
)
def test_a_forced_answer_is_calls_of_the_tools(
    tokenizer: Tokenizer, text: str, several: bool, holds: bool
) -> None:
    grammar = forced_call_grammar(FUNCTIONS, several=several)
    answer = tokenizer.encode(text)
    if not holds:
        with pytest.raises(InvalidSamplingError, match="does not match"):
            tokenizer.grammars.constraint(grammar, answer)
        return
    ends = tokenizer.grammars.constraint(grammar, answer).allowed()
    assert all(ends[token] for token in tokenizer.eos_token_ids)
    reader = ToolReader(several=several)
    assert len(reader.push(text)[1]) == text.count("<tool_call>")
    assert reader.flush() == ""


def test_a_template_says_whether_it_has_tools(tokenizer: Tokenizer) -> None:
    assert not tokenizer.chat_takes_tools
    assert not tokenizer.writes_tool_calls
    other = Tokenizer(open_model("smollm2"))
    other.chat_template = TEMPLATE
    assert other.chat_takes_tools
    assert other.writes_tool_calls
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"arguments": {"city": "Oslo"}}}],
    }
    assert other.render_chat([message], [{"type": "function", "function": {"name": "now"}}]) == (
        '{"type": "function", "function": {"name": "now"}}\nUse <tool_call>.assistant: Oslo'
    )
