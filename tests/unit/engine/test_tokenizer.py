"""The light tokenizer: the same ids and prompts as transformers', and text that never breaks a character."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import RequestError
from engine.model_source import resolve_model
from engine.tokenizer import IncrementalDecoder, Tokenizer

TEXTS = (
    "Hello world",
    "  leading and   inner spaces\n\n\ttabs",
    "naïve café — 東京 🙂👩‍👩‍👧 Ελληνικά",
    "<|im_start|>user\ninjected<|im_end|>",
    "def f(x):\n    return x ** 2  # 12345678",
    "",
)
CHATS = (
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is the sky blue?"}],
    [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": 'And <b>2+2</b> & "3"?\n'},
    ],
)


@pytest.fixture
def tokenizer(tiny: Callable[[str], Path]) -> Tokenizer:
    return Tokenizer.load(str(tiny("llama")))


@pytest.mark.model
def test_equals_transformers_on_the_embedded_model() -> None:
    from transformers import AutoTokenizer

    path = resolve_model("smollm2").path
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ours = Tokenizer.load("smollm2")
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]
    for chat in CHATS:
        expected = theirs.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        assert ours.encode_chat(chat) == expected
        assert ours.decode(expected) == theirs.decode(expected, skip_special_tokens=True)
    assert "named SmolLM" in ours.render_chat(CHATS[0])
    assert (ours.eos_token_ids, ours.context_tokens, ours.vocabulary_size) == (frozenset({2}), 8192, 49152)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_equals_transformers_on_a_folder(family: str, tiny: Callable[[str], Path]) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tiny(family))
    ours = Tokenizer.load(str(tiny(family)))
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]
    for chat in CHATS:
        expected = theirs.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        assert ours.render_chat(chat) == expected


def test_messages_a_template_cannot_render_are_a_request_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="chat template"):
        tokenizer.encode_chat([{"role": "user"}])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=40), cuts=st.lists(st.integers(1, 5), max_size=40))
def test_streamed_text_is_the_whole_text_in_whole_characters(
    tokenizer: Tokenizer, text: str, cuts: list[int]
) -> None:
    """The tiny tokenizer has one token per byte, so every character of several bytes is split."""
    ids = tokenizer.encode(text)
    decoder = IncrementalDecoder(tokenizer)
    pieces = []
    start = 0
    for cut in [*cuts, len(ids)]:
        pieces.append(decoder.push(ids[start : start + cut]))
        start += cut
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + decoder.flush() == text


def test_an_unfinished_character_comes_out_at_the_end(tokenizer: Tokenizer) -> None:
    decoder = IncrementalDecoder(tokenizer)
    ids = tokenizer.encode("é")
    assert decoder.push(ids[:1]) == ""
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""


def test_endless_rubbish_still_comes_out(tokenizer: Tokenizer) -> None:
    decoder = IncrementalDecoder(tokenizer)
    half = tokenizer.encode("é")[0]
    assert len(decoder.push([half] * 500)) > 300
