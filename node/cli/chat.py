"""`rumormill chat`"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING

import click

from node.cli.generate import Answer
from node.cli.options import Target, json_option, node_options
from node.cli.prompts import as_sampling, sampling_options, system_option

if TYPE_CHECKING:
    from node.client import Client
    from rumormill.v1 import inference_pb2


@click.command(short_help="Talk to the mesh.")
@system_option
@sampling_options
@node_options
@json_option
def chat(
    system: str | None,
    max_tokens: int,
    temperature: float,
    top_p: float,
    top_k: int,
    seed: int | None,
    stop: tuple[str, ...],
    target: Target,
    as_json: bool,
) -> None:
    """Talk to the mesh: one line in, one answer out, with the whole conversation as context.

    Ctrl-C stops an answer; Ctrl-D ends the chat. With --json, each answer is one JSON object a line.
    """
    from certs.roles import Role
    from rumormill.v1 import inference_pb2

    sampling = as_sampling(max_tokens, temperature, top_p, top_k, seed, stop)
    with target.client(Role.CLIENT) as client:
        conversation = Conversation(client, sampling, as_json=as_json)
        if system is not None:
            conversation.messages.append(inference_pb2.ChatMessage(role="system", content=system))
        while (line := _read_line()) is not None:
            if line:
                conversation.say(line)


class Conversation:
    """A chat so far, kept by the client and sent whole with every turn."""

    def __init__(self, client: Client, sampling: inference_pb2.Sampling, *, as_json: bool) -> None:
        self._client = client
        self._sampling = sampling
        self._as_json = as_json
        self.messages: list[inference_pb2.ChatMessage] = []

    def say(self, text: str) -> None:
        """One turn; what was said of an interrupted answer stays in the conversation."""
        from rumormill.v1 import inference_pb2

        self.messages.append(inference_pb2.ChatMessage(role="user", content=text))
        answer = Answer(echo=not self._as_json)
        interrupted = False
        try:
            for response in self._client.generate(self.messages, self._sampling):
                answer.add(response)
        except KeyboardInterrupt:
            interrupted = True
        self.messages.append(inference_pb2.ChatMessage(role="assistant", content=answer.text))
        if self._as_json:
            click.echo(json.dumps({"text": answer.text} if interrupted else answer.as_object()))
            return
        click.echo()
        if sys.stderr.isatty():
            click.secho("[stopped]" if interrupted else answer.summary(), err=True, dim=True)


def _read_line() -> str | None:
    """The next line typed, empty after Ctrl-C, None at the end of input."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  gives input() editing and history, where there is one
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except KeyboardInterrupt:
        click.echo()
        return ""
    except EOFError:
        return None
