"""How commands turn what was typed into a prompt and its sampling."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from node.cli.screen import note
from node.errors import NodeError
from overlay.core.routing import POLICIES

if TYPE_CHECKING:
    from rumormill.v1 import inference_pb2

Command = TypeVar("Command", bound=Callable[..., Any])

raw_option = click.option(
    "--raw", is_flag=True, help="Complete the text as it stands, without the model's chat template."
)
system_option = click.option("--system", metavar="TEXT", help="System prompt; the model's own by default.")

policy_option = click.option(
    "--policy",
    type=click.Choice(list(POLICIES)),
    help="Routing policy for this request; the node's own by default.",
)

_SAMPLING = (
    click.option("--max-tokens", type=click.IntRange(1, 2**32 - 1), default=256, show_default=True),
    click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy."),
    click.option("--top-p", type=float, default=1.0, show_default=True),
    click.option("--top-k", type=click.IntRange(0, 2**32 - 1), default=0, help="0 (default) means all."),
    click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Same seed, same answer. Default: drawn."),
    click.option(
        "--stop", multiple=True, metavar="TEXT", help="End the answer before this text; may be repeated."
    ),
)


def prompt_argument(command: Command) -> Command:
    """Adds PROMPT and --file."""
    command = click.option(
        "--file",
        "-f",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="Read the prompt from this file.",
    )(command)
    return click.argument("prompt", required=False)(command)


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt as given, or from a file, or from standard input; raises PromptError or UsageError."""
    if file is not None and prompt is not None:
        raise click.UsageError("give PROMPT or --file, not both")
    if file is not None:
        text = _decoded(str(file), file.read_bytes())
    elif prompt is not None and prompt != "-":
        text = prompt
    else:
        if sys.stdin.isatty():
            note("type the prompt; Ctrl-D on a line of its own ends it")
        text = _decoded("standard input", sys.stdin.buffer.read())
    if not text.strip():
        raise PromptError("the prompt is empty; give it as an argument, with --file or on standard input")
    return text


class PromptError(NodeError):
    """A prompt that can't be used."""


def _decoded(source: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"{source} is not UTF-8 text (byte {error.start}); convert it first") from None


def sampling_options(command: Command) -> Command:
    """Adds --max-tokens, --temperature, --top-p, --top-k, --seed and --stop."""
    for option in reversed(_SAMPLING):
        command = option(command)
    return command


def as_sampling(
    max_tokens: int, temperature: float, top_p: float, top_k: int, seed: int | None, stop: tuple[str, ...]
) -> inference_pb2.Sampling:
    from rumormill.v1 import inference_pb2

    return inference_pb2.Sampling(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, stop=stop
    )


def as_prompt(text: str, *, system: str | None, raw: bool) -> str | list[inference_pb2.ChatMessage]:
    """Text to complete, or a chat of one user message."""
    from rumormill.v1 import inference_pb2

    if raw:
        if system is not None:
            raise click.UsageError("--system belongs to the chat template; leave out --raw")
        return text
    messages = [inference_pb2.ChatMessage(role="user", content=text)]
    if system is not None:
        messages.insert(0, inference_pb2.ChatMessage(role="system", content=system))
    return messages
