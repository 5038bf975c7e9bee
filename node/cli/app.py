"""The command group, and the one place where errors become a line and an exit status.

Exit status: 0 success, 1 the asked-for thing failed, 2 wrong use or a node that can't start, 130 Ctrl-C.
"""

from __future__ import annotations

import sys

import click

from node.cli.certs import certs
from node.cli.chat import chat
from node.cli.demo import demo
from node.cli.doctor import doctor
from node.cli.drain import drain
from node.cli.explain import explain
from node.cli.generate import generate
from node.cli.peers import peers
from node.cli.sim import sim
from node.cli.token import token
from node.cli.up import up
from node.errors import NodeError, StartupError

INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="rumormill")
def rumormill() -> None:
    """A peer-to-peer network of LLM servers.

    Start a node with `rumormill up`, ask it with `rumormill generate "..."` or `rumormill chat`,
    and see the whole thing at work with `rumormill demo`.
    """


for command in (up, generate, chat, peers, explain, token, certs, doctor, drain, sim, demo):
    rumormill.add_command(command)


def main() -> None:
    """Runs the command line and exits."""
    from certs.errors import CertsError

    try:
        status = rumormill.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (StartupError, CertsError) as error:
        sys.exit(_fail(str(error), 2))
    except NodeError as error:
        sys.exit(_fail(str(error), 1))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; nothing is left to tell it
        sys.exit(1)
    except (OSError, UnicodeError) as error:
        sys.exit(_fail(str(error), 1))
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> int:
    click.echo(f"rumormill: {message}", err=True)
    return status
