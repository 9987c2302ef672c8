"""`roskva app`: applications and their publish keys, in the settings file. A key is shown once; the file holds its hash.

A running service takes changes up by itself (gateway/reloading.py). On standard output is the key alone, so that scripts can take it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from tomlkit.items import Table

from roskva.access import check_access
from roskva.access.publish_keys import HASH_PREFIX, hash_of, new_key
from roskva.cli.editing import IMPLICIT, Unchanged, add_application, application_in, edited
from roskva.cli.settings import counts_after_s, settings_from, sources_of
from roskva.model import check_application

_PREFIX: Final = 12  # hexadecimal digits of a hash that are shown


def list_apps(arguments: argparse.Namespace) -> int:
    for name, application in sorted(settings_from(arguments).applications.items()):
        known = {
            "application": name,
            "publish_keys": len(application.publish_keys),
            "authentication": application.authentication,
            "origins": list(application.origins),
        }
        keys = f"{len(application.publish_keys)} publish keys" if application.publish_keys else "anybody may publish"
        clients = "anybody may be a client" if application.authentication == "none" else f"users by {application.authentication}"
        print(json.dumps(known) if arguments.json else f"{name:24}{keys:24}{clients}")
    return 0


def create(arguments: argparse.Namespace) -> int:
    name, file = check_application(arguments.name), sources_of(arguments).file
    key = new_key()
    with edited(file, lambda settings: check_access(name, settings.applications[name])) as document:
        tables = document.get("applications", {})
        if name in tables:
            raise Unchanged(f"There is an application {name!r} already. `roskva app key add {name}` makes another key for it.")
        first = not tables and name != IMPLICIT
        if first:
            add_application(document, IMPLICIT)
        table = add_application(document, name)
        table["publish_keys"] = [hash_of(key)]
        _set_authentication(table, arguments)
        if arguments.origin:
            table["origins"] = list(arguments.origin)
    _say(f"{name} is in {file}. This is its publish key. It is shown only now; the file has its hash:")
    print(key, flush=True)
    if first:
        _say(
            f"The file named no application yet, and then there is one named {IMPLICIT}. It is in the file now, too, so that the demo page"
            f" works on. Delete [applications.{IMPLICIT}] if you do not want it; before other machines are served, you must."
        )
    if arguments.auth in (None, "none"):
        _say(f'Anybody who reaches the service may be a client of {name}. For users, set authentication = "jwt" and jwt_keys there.')
    else:
        _say(
            f"Every user of {name} may register for every object of it, others' included, until you say in [applications.{name}] which,"
            ' such as: registrable = ["news:*", "inbox:{sub}"]'
        )
    _say_next(arguments, f"Then: ROSKVA_PUBLISH_KEY=KEY roskva publish {name}/hello 1")
    return 0


def _set_authentication(table: Table, arguments: argparse.Namespace) -> None:
    if arguments.jwt_keys and arguments.auth != "jwt":
        raise Unchanged("--jwt-keys goes with --auth jwt.")
    if arguments.auth is None:
        return
    table["authentication"] = arguments.auth
    if arguments.auth == "jwt":
        if not arguments.jwt_keys:
            raise Unchanged("--auth jwt needs --jwt-keys: a file with the public key or a JWK set, or the URL of one.")
        keys = arguments.jwt_keys
        table["jwt_keys"] = keys if "://" in keys else str(Path(keys).absolute())
    if arguments.auth == "webhook":
        if not arguments.webhook:
            raise Unchanged("--auth webhook needs --webhook: the URL that is asked whose a credential is.")
        table["authentication_webhook"] = arguments.webhook


def add_key(arguments: argparse.Namespace) -> int:
    key, file = new_key(), sources_of(arguments).file
    with edited(file) as document:
        table = application_in(document, arguments.name)
        first = not table.get("publish_keys")
        table["publish_keys"] = [*table.get("publish_keys", []), hash_of(key)]
    _say(f"This is a new publish key of {arguments.name}. It is shown only now; {file} has its hash:")
    print(key, flush=True)
    if first:
        _say(f"It is the first: from now on nobody publishes to {arguments.name} without one.")
    _say_next(arguments, "Those that were there count on; `roskva app key remove` ends one.")
    return 0


def list_keys(arguments: argparse.Namespace) -> int:
    applications = settings_from(arguments).applications
    if arguments.name not in applications:
        raise Unchanged(f"There is no application {arguments.name!r}. `roskva app list` shows them.")
    for known in applications[arguments.name].publish_keys:
        print(known.removeprefix(HASH_PREFIX)[:_PREFIX])
    return 0


def remove_key(arguments: argparse.Namespace) -> int:
    wanted = arguments.prefix.removeprefix(HASH_PREFIX).lower()
    file = sources_of(arguments).file
    with edited(file) as document:
        table = application_in(document, arguments.name)
        keys = [str(known) for known in table.get("publish_keys", [])]
        found = [known for known in keys if known.removeprefix(HASH_PREFIX).startswith(wanted)]
        if len(found) != 1:
            raise Unchanged(
                f"{len(found)} keys of {arguments.name} begin with {arguments.prefix!r}: `roskva app key list {arguments.name}` shows them."
            )
        if len(keys) == 1 and not arguments.force:
            raise Unchanged(f"It is the last key of {arguments.name}: without any, anybody may publish to it. --force removes it.")
        table["publish_keys"] = [known for known in keys if known != found[0]]
    _say(f"{found[0].removeprefix(HASH_PREFIX)[:_PREFIX]} is no key of {arguments.name} any more.")
    _say_next(arguments, "")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _say_next(arguments: argparse.Namespace, then: str) -> None:
    _say(f"A service that runs with this file takes it up within {counts_after_s(settings_from(arguments)):g} s. {then}".rstrip())
