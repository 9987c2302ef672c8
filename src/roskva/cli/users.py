"""`roskva user`: what an operator does about one user of an application: revoke its credentials, look at its clients, erase them.

To revoke is a change of the settings file. The other two ask the running service, page by page.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any, Final

from roskva.cli.drop import agreed
from roskva.cli.editing import Unchanged, application_in, edited
from roskva.cli.http import checked_url, post_json
from roskva.cli.inspect import Asking
from roskva.cli.settings import as_operator, counts_after_s, settings_from, sources_of
from roskva.errors import BadRequest
from roskva.model import check_application

_PAGE: Final = 1_000
_REQUESTS_MAX: Final = 100_000


def revoke(arguments: argparse.Namespace) -> int:
    """What was issued in this second is revoked, too: credentials tell no more than seconds. Tokens are signed by another machine, whose
    clock may be ahead: those that say that they were issued within the leeway from now on do not count either (Credentials.is_revoked).
    """
    user, file = _user(arguments), sources_of(arguments).file
    since_s = int(time.time()) + 1
    with edited(file) as document:
        table = application_in(document, arguments.application)
        if table.get("authentication", "none") == "none":
            raise Unchanged(f"{arguments.application} asks nobody who its users are: there is nothing to revoke.")
        others = [str(one) for one in table.get("revoked_users", []) if str(one).rpartition("@")[0] != user]
        table["revoked_users"] = [*others, f"{user}@{since_s}"]
    settings = settings_from(arguments)
    after_s, application = counts_after_s(settings), settings.applications[arguments.application]
    print(f"Credentials of {user} that were issued until now count no more: in {file}, and with a running service within {after_s:g} s.")
    if application.authentication == "jwt" and application.jwt_leeway_s:
        print(f"Nor do those that are issued within {application.jwt_leeway_s:g} s from now (jwt_leeway_s): clocks may differ by so much.")
    return 0


def clients(arguments: argparse.Namespace) -> int:
    url = checked_url(arguments.url)
    application, user = check_application(arguments.application), _user(arguments)
    path = f"users/{application}/{urllib.parse.quote(user, safe='')}"
    count = 0
    for page in Asking(f"{url}/v1/inspect", as_operator(url, arguments)).pages(path, _PAGE):
        for client in page["clients"]:
            count += 1
            print(json.dumps(client) if arguments.json else _client_text(client))
    if not count:
        print(f"{user} has no clients.", file=sys.stderr)
    return 0


def _client_text(client: dict[str, Any]) -> str:
    online = {True: "online", False: "offline", None: "only its owner knows whether it is online"}[client["online"]]
    seen = client["seen_day"] or "no day"
    return f"{client['client']}  device {client['device']}  {client['registrations']:,} registrations  seen on {seen} (UTC)  {online}"


def erase(arguments: argparse.Namespace) -> int:
    """0 when all were erased; 1 when some could not be, and it should be said again."""
    url = checked_url(arguments.url)
    application, user = check_application(arguments.application), _user(arguments)
    if not arguments.yes:
        print(f"All clients of {user} in {application} go, with their registrations and what waits for them. Running ones start anew.")
        if not agreed("user erase"):
            return 1
    erased = failed = 0
    for answer in _answers(url, {"application": application, "user": user}, as_operator(url, arguments)):
        erased += answer["erased"]
        failed += answer["failed"]
    told = {"application": application, "user": user, "erased": erased, "failed": failed}
    print(json.dumps(told) if arguments.json else f"{erased:,} clients of {user} are erased.")
    if failed:
        print(f"roskva: {failed:,} could not be erased now. Say it again.", file=sys.stderr)
    elif erased and not arguments.json:
        print("What is left of their rows goes with the next sweep; `roskva sweep zombies` removes it now.")
    return 1 if failed else 0


def _answers(url: str, request: dict[str, str], shown: dict[str, str]) -> Iterator[dict[str, Any]]:
    after = ""
    for _ in range(_REQUESTS_MAX):
        answer = post_json(f"{url}/v1/erase", request | {"after": after}, 120.0, shown)
        yield answer
        after = answer["next"]
        if not after:
            return


def _user(arguments: argparse.Namespace) -> str:
    if not arguments.user:
        raise BadRequest("The user is empty.")
    return str(arguments.user)
