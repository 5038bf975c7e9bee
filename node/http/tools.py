"""Calls of tools as Hermes, Qwen and others write them: <tool_call>{"name", "arguments"}</tool_call>.

A model calls tools as its chat template taught it; templates of another form are refused, not guessed at.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from engine.grammar import json_rule

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def forced_call_grammar(functions: Sequence[dict[str, Any]], *, several: bool) -> str:
    """Answers that are calls of these functions and nothing else."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": function["name"]},
                "arguments": function.get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for function in functions
    ]
    rule = json_rule({"anyOf": calls})
    start = 'start: call ("\\n" call)*' if several else "start: call"
    return f'{start}\ncall: "{OPEN}\\n" body "\\n{CLOSE}"\nbody: {rule}\n'


class ToolReader:
    """Tells calls from content in streamed text; what only looks like a call is content."""

    def __init__(self, *, several: bool) -> None:
        self._several = several
        self._held = ""
        self._calls = 0

    def push(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """Content that is certain to be that, and the calls that are complete."""
        self._held += text
        content = ""
        calls: list[dict[str, Any]] = []
        while OPEN in self._held:
            before, _, rest = self._held.partition(OPEN)
            body, closed, after = rest.partition(CLOSE)
            content += self._outside(before)
            self._held = OPEN + rest
            if not closed:
                return content, calls
            self._held = after
            call = _read_call(body)
            if call is None:
                content += OPEN + body + CLOSE
            elif self._several or not self._calls:
                calls.append(call)
                self._calls += 1
        keep = _possible_beginning(self._held)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return content + self._outside(shown), calls

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        return self._outside(held)

    def _outside(self, text: str) -> str:
        """Between and after calls, white space says nothing."""
        return text if not self._calls or text.strip() else ""


def _read_call(body: str) -> dict[str, Any] | None:
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = json.dumps(call.get("arguments", {}), ensure_ascii=False)
    function = {"name": call["name"], "arguments": arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def _possible_beginning(text: str) -> int:
    """Length of the longest end of a text that begins a call."""
    return next((n for n in range(min(len(text), len(OPEN) - 1), 0, -1) if OPEN.startswith(text[-n:])), 0)
