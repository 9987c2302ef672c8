"""The entry point of `roskva`: all commands, and how errors look: one line on stderr, no traceback; 0 done, 1 failed, 2 misused.

Options and help are in cli/commands_*.py and cli/capture_commands.py. What a command does is imported when it runs, so that `roskva --help`
is quick and a machine without the server's packages can publish.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Final, NoReturn

from roskva.cli.capture_commands import add_capture
from roskva.cli.commands_applications import add_app, add_user
from roskva.cli.commands_running import add_running
from roskva.cli.commands_talking import add_talking
from roskva.cli.commands_trying import add_conformance, add_load, add_simulate
from roskva.errors import InvalidSetting, RoskvaError

_DESCRIPTION: Final = """\
Roskva keeps caches fresh: clients register for objects, backends publish new versions, and every registered client always
eventually learns the latest one."""

_EXAMPLES: Final = """\
examples:
  roskva up                               start the service here; Ctrl-C stops it
  roskva watch demo/hello                 print what clients of demo/hello are told
  roskva publish demo/hello 7             tell them of version 7
  roskva status                           who is connected, and how far behind the pipeline is
  roskva doctor                           check this machine, and say how to fix what is wrong
  roskva capture                          publish what changes in a database, without a line in the application

`roskva COMMAND --help` says more. Objects are written APPLICATION/NAME; a name that is not printable text is written
base64: and base64url. Settings: docs/settings.md. Errors: docs/errors.md."""


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of `roskva`; answers the exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        status: int = arguments.action(arguments)
    except InvalidSetting as error:
        print(f"roskva: {error}", file=sys.stderr)
        return 2
    except RoskvaError as error:
        print(f"roskva: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        extra = "capture" if error.name in ("psycopg2", "pymysql") else "server"
        print(
            f"roskva: {error.name} is not installed. Install what this command needs: pip install 'roskva[{extra}]'",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        return 1
    except BrokenPipeError:
        # Whoever read our output has gone, as in `roskva watch ... | head`. Python would complain once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


class _Parser(argparse.ArgumentParser):
    """Like argparse's, but errors say where to read on."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}. See: {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="roskva", description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"roskva {version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_running(commands)
    add_talking(commands)
    add_app(commands)
    add_user(commands)
    add_capture(commands)
    add_conformance(commands)
    add_simulate(commands)
    add_load(commands)
    return parser


def version() -> str:
    try:
        return metadata.version("roskva")
    except metadata.PackageNotFoundError:
        return "(not installed)"
