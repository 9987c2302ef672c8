"""`roskva publish` and `roskva watch`: a publisher and a client, as any program would use them."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, TextIO

from roskva.cli.http import checked_url
from roskva.cli.settings import operator_key, publish_key, secret_in
from roskva.client.actions import Notification
from roskva.client.shell import Client
from roskva.errors import BadRequest, MalformedMessage, RoskvaError
from roskva.model import check_application, check_device, name_from_text, name_to_text, version_from_number, version_from_text
from roskva.publisher import BlockingPublisher

_RETRY_FOR_S: Final = 10.0  # a person waits
_BATCH: Final = 1_000
_FIELDS: Final = {"object", "version", "source"}


@dataclass(frozen=True, slots=True)
class Change:
    application: str
    name: str
    version: int
    source: str | None
    line: int = 0

    def text(self) -> str:
        return f"{self.application}/{self.name}"


def split_object(text: str) -> tuple[str, str]:
    """APPLICATION/NAME; the name may hold slashes. Both checked, the name in its one text form."""
    application, slash, name = text.partition("/")
    if not slash:
        raise BadRequest(f"{text!r} is not an object: it is written APPLICATION/NAME, such as demo/hello.")
    return check_application(application), name_to_text(name_from_text(name))


def publish(arguments: argparse.Namespace) -> int:
    url = checked_url(arguments.url)
    key = publish_key(arguments) or operator_key(url, arguments)
    if arguments.object == "-":
        return _publish_lines(url, key, sys.stdin, arguments)
    application, name = split_object(arguments.object)
    source = check_device(arguments.source) if arguments.source else None
    change = Change(application, name, version_from_text(arguments.version), source)
    error = _send(url, key, application, [change])[0]
    if error is not None:
        raise error
    _print(change, arguments.json)
    return 0


def _publish_lines(url: str, key: str, lines: TextIO, arguments: argparse.Namespace) -> int:
    """In batches, in the order of the lines. A line that is refused is told and left out; the rest goes through."""
    refused = 0
    numbered = enumerate(lines, 1)
    while part := list(islice(numbered, _BATCH)):
        changes: dict[str, list[Change]] = {}
        for number, line in part:
            if not line.strip():
                continue
            try:
                change = read_change(line, number, arguments.source)
                changes.setdefault(change.application, []).append(change)
            except RoskvaError as error:
                refused += 1
                print(f"roskva: line {number}: {error}", file=sys.stderr)
        for application, batch in changes.items():
            for change, failed in zip(batch, _send(url, key, application, batch), strict=True):
                if failed is None:
                    _print(change, arguments.json)
                else:
                    refused += 1
                    print(f"roskva: line {change.line}: {failed}", file=sys.stderr)
    return 1 if refused else 0


def read_change(line: str, number: int, source: str) -> Change:
    """One line of `publish -`, checked as a whole before anything of it is sent."""
    try:
        value: Any = json.loads(line)
    except ValueError as error:
        raise MalformedMessage(f"It is not JSON: {error}.") from None
    if not isinstance(value, dict) or not isinstance(value.get("object"), str) or "version" not in value:
        raise MalformedMessage('It should look like {"object": "demo/hello", "version": 7}.')
    if unknown := sorted(set(value) - _FIELDS):
        raise MalformedMessage(f"The field {unknown[0]!r} is unknown; object, version and source are known.")
    application, name = split_object(value["object"])
    named = value.get("source") or source or None
    if named is not None and not isinstance(named, str):
        raise MalformedMessage("The source is not text.")
    return Change(application, name, version_from_number(value["version"]), named and check_device(named), number)


def _send(url: str, key: str, application: str, changes: list[Change]) -> list[RoskvaError | None]:
    with BlockingPublisher(url, application=application, key=key or None, retry_for_s=_RETRY_FOR_S) as publisher:
        return publisher.publish_many([(change.name, change.version, change.source) for change in changes])


def _print(change: Change, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"object": change.text(), "version": change.version, "durable": True}), flush=True)
    else:
        print(f"{change.text()} {change.version} is durable", flush=True)


def watch(arguments: argparse.Namespace) -> int:
    """0 when it was interrupted or has seen as many as asked for; 1 when the time was over before."""
    wanted = wishes(arguments.objects)
    if arguments.state is not None and len(wanted) > 1:
        raise BadRequest("A state file belongs to one application: watch one at a time with --state.")
    # The client says in its log that it cannot connect and keeps trying: that is for the person who waits.
    logging.basicConfig(level=logging.WARNING, format="roskva: %(message)s", stream=sys.stderr)
    try:
        return asyncio.run(_watch(checked_url(arguments.url), wanted, arguments))
    except KeyboardInterrupt:
        return 0


def wishes(objects: Iterable[str]) -> dict[str, list[str]]:
    """The names by application, each once."""
    wanted: dict[str, list[str]] = {}
    for application, name in dict.fromkeys(map(split_object, objects)):
        wanted.setdefault(application, []).append(name)
    return wanted


async def _watch(url: str, wanted: dict[str, list[str]], arguments: argparse.Namespace) -> int:
    tickets: Iterator[int] = iter(range(arguments.count or sys.maxsize))
    try:
        async with asyncio.timeout(arguments.timeout), AsyncExitStack() as stack:
            followers = []
            for application, names in wanted.items():
                client = await stack.enter_async_context(
                    Client(
                        url,
                        application=application,
                        state=arguments.state,
                        credential=credential_of(arguments.credential),
                        on_failure=_failure(application),
                        on_credential_refused=_credential_refused,
                    )
                )
                for name in names:
                    await client.register(name)
                followers.append(asyncio.create_task(_follow(client, application, tickets, arguments)))
            done, others = await asyncio.wait(followers, return_when=asyncio.FIRST_COMPLETED)
            for task in others:
                task.cancel()
            for task in done:
                task.result()
    except TimeoutError:
        print(f"roskva: not all that was waited for came within {arguments.timeout:g} s.", file=sys.stderr)
        return 1
    return 0


def credential_of(text: str) -> str | Callable[[], str] | None:
    """A credential, or what reads one from a file whenever another is needed; None: there is none."""
    if not text.startswith("@"):
        return text or None
    file = Path(text[1:])

    def read() -> str:
        return secret_in(file, "credential")

    read()  # says at once what is wrong with it
    return read


def _credential_refused(code: str, message: str) -> None:
    print(f"roskva: {message or code}", file=sys.stderr)


async def _follow(client: Client, application: str, tickets: Iterator[int], arguments: argparse.Namespace) -> None:
    """Print and acknowledge, until as many as asked for were printed by all of these together."""
    last = (arguments.count or sys.maxsize) - 1
    async for notification in client:
        ticket = next(tickets, None)
        if ticket is None:
            return
        print(notification_text(application, notification, arguments.json), flush=True)
        client.acknowledge(notification)
        if ticket == last:
            return


def notification_text(application: str, notification: Notification, as_json: bool) -> str:
    text = f"{application}/{notification.object}"
    if as_json:
        return json.dumps({"object": text, "version": notification.version, "epoch": notification.epoch})
    return f"{text} {'unknown' if notification.unknown else notification.version}"


def _failure(application: str) -> Any:
    def failed(name: str, transient: bool, code: str, message: str) -> None:
        again = "It is tried again." if transient else "It is given up."
        print(f"roskva: {application}/{name} is not registered: {message or code} {again}", file=sys.stderr)

    return failed
