"""`manage.py roskva_relay --application shop --url http://127.0.0.1:8470`: a relay, until it is stopped."""

from __future__ import annotations

import os
from typing import Any

from django.core.management.base import BaseCommand

from roskva.outbox.django import DEFAULT, database
from roskva.outbox.relay import POLL_S, Relay, run_until_signal
from roskva.publisher import BlockingPublisher


class Command(BaseCommand):  # type: ignore[misc]
    help = "Brings what transactions have published to Roskva. The publish key comes from ROSKVA_PUBLISH_KEY."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--application", action="append", required=True, help="whose rows are relayed; may be repeated")
        parser.add_argument("--url", default=os.environ.get("ROSKVA_URL", "http://127.0.0.1:8470"), help="where the service is")
        parser.add_argument("--database", default=DEFAULT, help="the alias of the database")
        parser.add_argument("--poll-s", type=float, default=POLL_S, help="how often the table is looked at")
        parser.add_argument("--once", action="store_true", help="relay what is there, unless another relay does, and end")

    def handle(self, *args: Any, **options: Any) -> None:
        key = os.environ.get("ROSKVA_PUBLISH_KEY") or None
        publishers = {
            name: BlockingPublisher(options["url"], application=name, key=key, retry_for_s=5.0) for name in options["application"]
        }
        try:
            relay = Relay(database(options["database"]), publishers, poll_s=options["poll_s"])
            if options["once"]:
                while relay.once():
                    pass
                relay.close()
            else:
                run_until_signal(relay)
        finally:
            for publisher in publishers.values():
                publisher.close()
