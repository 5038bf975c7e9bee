"""The command group, and the one place where errors become a line and an exit status."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

from node.cli.bench import bench
from node.cli.certs import certs
from node.cli.chat import chat
from node.cli.completion import COMMAND, completion
from node.cli.demo import demo
from node.cli.doctor import doctor
from node.cli.drain import drain
from node.cli.explain import explain
from node.cli.generate import generate
from node.cli.options import INTERRUPTED
from node.cli.peers import peers
from node.cli.prepare import prepare
from node.cli.sim import sim
from node.cli.testbed import testbed
from node.cli.token import token
from node.cli.top import top
from node.cli.up import up
from node.errors import NodeError, StartupError

FAILED = 1
WRONG_USE = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="rumormill")
def rumormill() -> None:
    """A peer-to-peer network of LLM servers.

    Start a node with `rumormill up`, ask it with `rumormill generate "..."` or `rumormill chat`,
    and see the whole thing at work with `rumormill demo`.

    Exit status: 0 done, 1 it failed, 2 wrong use or a node that can't start, 130 interrupted.
    """


for command in (
    up,
    generate,
    chat,
    peers,
    top,
    explain,
    bench,
    token,
    certs,
    doctor,
    drain,
    prepare,
    sim,
    demo,
    testbed,
    completion,
):
    rumormill.add_command(command)


def main() -> None:
    """Runs the command line and exits."""
    from certs.errors import CertsError
    from engine.errors import EngineConfigError, EngineError

    try:
        status = rumormill.main(prog_name=COMMAND, standalone_mode=False)
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(WRONG_USE)
    except click.ClickException as error:
        _fail(_click_message(error), error.exit_code)
    except (StartupError, CertsError, EngineConfigError) as error:
        _fail(str(error), WRONG_USE)
    except (NodeError, EngineError) as error:
        _fail(str(error), FAILED)
    except BrokenPipeError:
        # The reader of our output has gone; nothing is left to tell it, at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), FAILED)
    except UnicodeError as error:
        _fail(str(error), FAILED)
    sys.exit(status if isinstance(status, int) else 0)


def _click_message(error: click.ClickException) -> str:
    """What was wrong with the command line, and where its help is, in one line."""
    message = " ".join(error.format_message().split()).rstrip(".")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        message += f"; see `{error.ctx.command_path} --help`"
    return message


def _fail(message: str, status: int) -> NoReturn:
    click.echo(f"rumormill: {message}", err=True)
    sys.exit(status)
