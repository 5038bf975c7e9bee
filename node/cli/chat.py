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
from node.cli.screen import note

if TYPE_CHECKING:
    from node.client import Client
    from rumormill.v1 import inference_pb2

CLEAR = "/clear"


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

    Ctrl-C stops an answer, /clear forgets what was said, Ctrl-D ends the chat. With --json, each answer is
    one JSON object a line.
    """
    from certs.roles import Role

    sampling = as_sampling(max_tokens, temperature, top_p, top_k, seed, stop)
    interactive = sys.stdin.isatty()
    with target.client(Role.CLIENT) as client:
        conversation = Conversation(client, sampling, system, as_json=as_json)
        if interactive:
            note(f"talking to the mesh through {target.node}; /clear starts anew, Ctrl-D ends")
        while (line := _read_line(interactive=interactive)) is not None:
            if line == CLEAR:
                conversation.clear()
            elif line:
                _say(conversation, line, interactive=interactive)


def _say(conversation: Conversation, line: str, *, interactive: bool) -> None:
    """One turn; a person is told of a failure and may go on, a program is not."""
    from node.client import ClientError

    try:
        conversation.say(line)
    except ClientError as error:
        if not interactive:
            raise
        click.echo(f"rumormill: {error}", err=True)


class Conversation:
    """A chat so far, kept by the client and sent whole with every turn."""

    def __init__(
        self, client: Client, sampling: inference_pb2.Sampling, system: str | None, *, as_json: bool
    ) -> None:
        self._client = client
        self._sampling = sampling
        self._system = system
        self._as_json = as_json
        self.clear()

    def clear(self) -> None:
        """Forgets everything but the system prompt."""
        self.messages = [] if self._system is None else [_message("system", self._system)]

    def say(self, text: str) -> None:
        """One turn; what was said of an interrupted answer stays in the conversation.

        Raises ClientError, with the conversation as it was before.
        """
        messages = [*self.messages, _message("user", text)]
        answer = Answer(echo=not self._as_json)
        interrupted = False
        try:
            for response in self._client.generate(messages, self._sampling):
                answer.add(response)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            answer.end_line()
        if answer.text or not interrupted:
            self.messages = [*messages, _message("assistant", answer.text)]
        if self._as_json:
            click.echo(json.dumps({"text": answer.text} if interrupted else answer.as_object()))
        else:
            note("[stopped]" if interrupted else answer.summary())


def _message(role: str, content: str) -> inference_pb2.ChatMessage:
    from rumormill.v1 import inference_pb2

    return inference_pb2.ChatMessage(role=role, content=content)


def _read_line(*, interactive: bool) -> str | None:
    """The next line typed, empty after Ctrl-C, None at the end of input."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  gives input() editing and history, where there is one
    try:
        return input("> " if interactive else "").strip()
    except KeyboardInterrupt:
        click.echo()
        return ""
    except EOFError:
        if interactive:
            click.echo()
        return None
