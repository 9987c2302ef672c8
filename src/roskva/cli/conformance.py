"""`roskva conformance`: checks a server at an address, or a client that comes here, by the frozen transcripts (docs/conformance.md)."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from roskva.cli.http import checked_url
from roskva.cli.settings import publish_key
from roskva.conformance.outcome import FAILED, Outcome, table
from roskva.conformance.transcripts import Transcript, load, select
from roskva.errors import BadRequest, Unavailable
from roskva.model import check_application


def conformance(arguments: argparse.Namespace) -> int:
    transcripts = select(load(), arguments.only)
    if arguments.list:
        for one in transcripts:
            print(json.dumps({"name": one.name, "title": one.title}) if arguments.json else f"{one.name:24}{one.title}")
        return 0
    if (arguments.url is None) == (arguments.serve is None):
        raise BadRequest("conformance takes the URL of a server, or --serve PORT for a client; one of them.")
    if arguments.serve is not None and not 0 <= arguments.serve <= 65535:
        raise BadRequest(f"{arguments.serve} is not a port: 0 to 65535.")
    outcomes = asyncio.run(_server(arguments, transcripts) if arguments.serve is None else _client(arguments, transcripts))
    if not arguments.json:
        print(table(outcomes))
    return 1 if any(one.result == FAILED for one in outcomes) else 0


async def _server(arguments: argparse.Namespace, transcripts: list[Transcript]) -> list[Outcome]:
    from roskva.conformance.service import check

    return await check(
        checked_url(arguments.url),
        transcripts,
        application=check_application(arguments.application),
        channel=arguments.channel,
        patience_s=arguments.patience,
        key=publish_key(arguments),
        slow=arguments.slow,
        told=lambda outcome: _tell(outcome, arguments.json),
    )


async def _client(arguments: argparse.Namespace, transcripts: list[Transcript]) -> list[Outcome]:
    from roskva.conformance.stage import Stage

    try:
        async with Stage("127.0.0.1", arguments.serve, arguments.patience) as stage:
            print(
                f"roskva: {stage.url} plays the server. Let your driver POST to {stage.url}/conformance/next.", file=sys.stderr, flush=True
            )
            return await stage.run(transcripts, arguments.slow, lambda outcome: _tell(outcome, arguments.json))
    except OSError as error:
        raise Unavailable(f"Port {arguments.serve} cannot be opened: {error}.") from None


def _tell(outcome: Outcome, as_json: bool) -> None:
    if as_json:
        print(json.dumps(outcome.as_json()), flush=True)
    else:
        print(f"roskva: {outcome.name} {outcome.result}", file=sys.stderr, flush=True)
