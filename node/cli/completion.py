"""`rumormill completion`"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

COMMAND = "rumormill"
VARIABLE = "_RUMORMILL_COMPLETE"


@click.command(short_help="Shell completion, to be sourced.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options in a shell.

    \b
    bash:  echo 'eval "$(rumormill completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(rumormill completion zsh)"' >> ~/.zshrc
    fish:  rumormill completion fish > ~/.config/fish/completions/rumormill.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shells that are offered"
    click.echo(kind(context.find_root().command, {}, COMMAND, VARIABLE).source())
