"""The commands for applications, their publish keys and their users: `app`, `user`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from roskva.cli.options import DATA_FOR_KEY, add_command, add_url
from roskva.config import FILE_NAME


def add_app(commands: Any) -> None:
    app = commands.add_parser(
        "app",
        help="make applications and their publish keys, in the settings file",
        description="Make applications and their publish keys, in the settings file.",
        epilog=_APP_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = app.add_subparsers(metavar="WHAT", required=True)
    listing = add_command(parts, "list", _of_apps("list_apps"), "show the applications", "")
    listing.add_argument("--json", action="store_true", help="print JSON, one object a line")
    create = add_command(parts, "create", _of_apps("create"), "make an application with a publish key, which is shown once", "")
    create.add_argument("name", metavar="NAME")
    create.add_argument("--auth", choices=("jwt", "webhook", "none"), help="how its clients say who their user is")
    create.add_argument("--jwt-keys", metavar="FILE|URL", help="what JSON Web Tokens are verified with")
    create.add_argument("--webhook", metavar="URL", help="what is asked whose a credential is")
    create.add_argument("--origin", metavar="ORIGIN", action="append", default=[], help="a page of which may call; may be repeated")
    key = parts.add_parser("key", help="add, list or remove publish keys", description="Add, list or remove publish keys.")
    keys = key.add_subparsers(metavar="WHAT", required=True)
    add = add_command(keys, "add", _of_apps("add_key"), "make another publish key, which is shown once", "")
    shown = add_command(keys, "list", _of_apps("list_keys"), "show how the hashes of the keys begin", "")
    remove = add_command(keys, "remove", _of_apps("remove_key"), "let a key count no more", "")
    for parser in (add, shown, remove):
        parser.add_argument("name", metavar="NAME", help="the application")
    remove.add_argument("prefix", metavar="PREFIX", help="how its hash begins")
    remove.add_argument("--force", action="store_true", help="the last one, too: then anybody may publish")
    for parser in (listing, create, add, shown, remove):
        parser.add_argument("--config", metavar="FILE", type=Path, help=f"settings file (default: {FILE_NAME})")


def add_user(commands: Any) -> None:
    user = commands.add_parser(
        "user",
        help="revoke a user's credentials, look at its clients, or erase them",
        description="Revoke a user's credentials, look at its clients, or erase them.",
        epilog=_USER_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = user.add_subparsers(metavar="WHAT", required=True)
    revoke = add_command(parts, "revoke", _of_users("revoke"), "let credentials that were issued until now count no more", "")
    clients = add_command(parts, "clients", _of_users("clients"), "show the user's clients; looks at all clients' rows", "")
    erase = add_command(parts, "erase", _of_users("erase"), "collect the user's clients, online or not; looks at all clients' rows", "")
    erase.add_argument("--yes", action="store_true", help="do not ask")
    for parser in (revoke, clients, erase):
        parser.add_argument("application", metavar="APPLICATION")
        parser.add_argument("user", metavar="USER", help="as credentials name it: `sub` of a JSON Web Token")
        parser.add_argument("--config", metavar="FILE", type=Path, help=f"settings file (default: {FILE_NAME})")
    for parser in (clients, erase):
        parser.add_argument("--data", metavar="DIR", help=DATA_FOR_KEY)
        add_url(parser)


def _of_apps(name: str) -> Callable[[argparse.Namespace], int]:
    def act(arguments: argparse.Namespace) -> int:
        from roskva.cli import apps

        status: int = getattr(apps, name)(arguments)
        return status

    return act


def _of_users(name: str) -> Callable[[argparse.Namespace], int]:
    def act(arguments: argparse.Namespace) -> int:
        from roskva.cli import users

        status: int = getattr(users, name)(arguments)
        return status

    return act


_APP_MORE: Final = """\
They are tables of the settings file, which is made if there is none; comments in it stay. A running service takes changes up by itself.
The file holds hashes of keys only: a key is shown once, alone on standard output.

examples:
  roskva app create shop --auth jwt --jwt-keys shop.pem --origin https://shop.example
  roskva app list
  roskva app key add shop
  roskva app key list shop
  roskva app key remove shop 3fa9c1"""

_USER_MORE: Final = """\
To revoke changes the settings file; a running service takes it up by itself, and the user's clients must show newer credentials. To
erase collects all clients of the user, for good; it does not revoke anything.

examples:
  roskva user revoke shop ann
  roskva user clients shop ann
  roskva user erase shop ann --yes"""
