"""`roskva inspect`: one client or one object as the running service sees it, for a person or as JSON.

Long lists come in pages, so that no request is long: of an object's clients all pages are read, and those that have not acknowledged its
version are shown, up to `--limit`.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from roskva.cli.http import checked_url, get_json
from roskva.cli.settings import as_operator
from roskva.cli.talk import split_object

_PAGE: Final = 1_000
_PAGES_MAX: Final = 10_000  # ten million clients of one object


def inspect(arguments: argparse.Namespace) -> int:
    url = checked_url(arguments.url)
    asking = Asking(f"{url}/v1/inspect", as_operator(url, arguments))
    if arguments.what == "client":
        answer = look_at_client(asking, arguments.name, arguments.limit)
        lines = client_lines(answer)
    else:
        answer = look_at_object(asking, *split_object(arguments.name), arguments.limit)
        lines = object_lines(answer)
    print(json.dumps(answer) if arguments.json else "\n".join(lines))
    return 0


class Asking(NamedTuple):
    """Where to look, and the header with the key for it."""

    url: str
    shown: Mapping[str, str]

    def pages(self, path: str, limit: int, within: str = "") -> Iterator[dict[str, Any]]:
        after = ""
        for _ in range(_PAGES_MAX):
            query = urllib.parse.urlencode({"limit": limit, "after": after})
            page = get_json(f"{self.url}/{path}?{query}", 30.0, self.shown)
            yield page
            following = (page[within] if within else page).get("next")
            if not following or following == after:
                return
            after = following


def look_at_client(asking: Asking, client: str, limit: int) -> dict[str, Any]:
    """The first page says all but the rest of the registrations."""
    path = f"clients/{urllib.parse.quote(client, safe='')}"
    answer: dict[str, Any] = {}
    listed: list[Any] = []
    for page in asking.pages(path, min(limit, _PAGE), "registrations"):
        answer = answer or page
        listed += page["registrations"]["list"]
        if len(listed) >= limit:
            break
    answer["registrations"] = answer["registrations"] | {"list": listed[:limit]}
    return answer


def look_at_object(asking: Asking, application: str, name: str, limit: int) -> dict[str, Any]:
    """All pages: how many clients there are, and who of them has not acknowledged."""
    path = f"objects/{application}/{urllib.parse.quote(name, safe='')}"
    answer: dict[str, Any] = {}
    total = {"looked_at": 0, "outdated": 0, "pending": 0}
    unacknowledged: list[Any] = []
    count = 0
    for page in asking.pages(path, _PAGE):
        answer = answer or page
        clients = page["clients"]
        total = {name: total[name] + clients[name] for name in total}
        count += len(clients["unacknowledged"])
        unacknowledged += clients["unacknowledged"][: limit - len(unacknowledged)]
    answer["registered"] = {"count": total["looked_at"], "more": False}
    answer["clients"] = total | {"unacknowledged": unacknowledged, "unacknowledged_count": count}
    answer["next"] = ""
    return answer


def client_lines(answer: Mapping[str, Any]) -> list[str]:
    registrations, pending, owed = answer["registrations"], answer["pending"], answer["unacknowledged"]
    lines = [
        f"client          {answer['client']}",
        f"application     {answer['application'] or '-'}, device {answer['device'] or '-'}",
        f"session         {answer['session']}, last seen on {answer['seen_day'] or 'no day'} (UTC)",
        f"online          {_online(answer)}",
        f"owner           {_owner(answer)}",
        f"registrations   {_count(registrations)}",
    ]
    if answer["gone"]:
        lines.insert(1, "gone            it was collected or lost: when it is heard of it starts anew, under another id")
    lines += [f"  {one['object']}" for one in registrations["list"]]
    lines.append(f"on their way    {pending['count']:,}")
    lines += [f"  {one['object']}  {_on_its_way(one)}" for one in pending["list"]]
    lines.append(f"unacknowledged  {_count(owed)}")
    lines += [f"  {one['object']}  {_what_is_owed(one)}" for one in owed["list"]]
    return lines


def object_lines(answer: Mapping[str, Any]) -> list[str]:
    clients = answer["clients"]
    version = "none" if answer["version"] is None else answer["version"]
    way = f"{clients['pending']:,} of them on their way, {clients['outdated']:,} outdated"
    lines = [
        f"object          {answer['application']}/{answer['object']}",
        f"version         {version}{'' if answer['known'] else ', which counts as unknown: ' + answer['why_unknown']}",
        f"epoch           {answer['epoch']}",
        f"partition       {answer['partition']}, {answer['records_behind']:,} records behind",
        f"registered      {_count(answer['registered'])} clients, {way}",
        f"unacknowledged  {clients['unacknowledged_count']:,}",
    ]
    shown = clients["unacknowledged"]
    lines += [f"  {one['client']}  ({one['device']})  {_what_is_owed(one)}" for one in shown]
    if len(shown) < clients["unacknowledged_count"]:
        lines.append(f"  ... and {clients['unacknowledged_count'] - len(shown):,} more: --limit shows them")
    return lines


def _online(answer: Mapping[str, Any]) -> str:
    if answer["online"] is None:
        here = ", and connected to the gateway that answered" if answer["connected_here"] else ""
        return f"only its owner knows{here}"
    if not answer["online"]:
        return "no"
    where = "to this gateway" if answer["connected_here"] else "through another gateway"
    return f"yes, since {_time(answer['online_since_ms'])}, connected {where}, heard {answer['heard_s_ago']:.0f} s ago"


def _owner(answer: Mapping[str, Any]) -> str:
    owner = answer["owner"]
    if owner is None:
        return "no gateway"
    return f"{owner['member']} at {owner['address']}{' (which answered)' if answer['owned_here'] else ': ask there with --url'}"


def _on_its_way(one: Mapping[str, Any]) -> str:
    repair = ", a repair" if one["repair"] else ""
    return f"{one['operation']}{repair}, since {_time(one['since_ms'], 'before the gateway that answered took over')}"


def _what_is_owed(one: Mapping[str, Any]) -> str:
    what = "unknown" if one["version"] is None else f"version {one['version']}"
    if not one["stored"]:
        return f"{what}, just sent"
    sent = "" if one["sent_s_ago"] is None else f", last sent {one['sent_s_ago']:.0f} s ago"
    return f"{what}, since {_time(one['since_ms'])}{sent}"


def _count(what: Mapping[str, Any]) -> str:
    return f"{what['count']:,}{' or more' if what['more'] else ''}"


def _time(time_ms: int | None, otherwise: str = "a time that is not known") -> str:
    return otherwise if time_ms is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ms / 1_000))
