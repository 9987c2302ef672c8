"""`python -m roskva.outbox`: a relay over SQLAlchemy, until it is stopped.

    python -m roskva.outbox --database postgresql+psycopg2://shop@127.0.0.1/shop --application shop --url http://127.0.0.1:8470
    python -m roskva.outbox --ddl postgresql

The publish key comes from ROSKVA_PUBLISH_KEY.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys

from roskva.errors import RoskvaError
from roskva.outbox.relay import POLL_S, Relay, run_until_signal
from roskva.outbox.rows import DDL
from roskva.publisher import BlockingPublisher


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m roskva.outbox", description="Brings what transactions have published to the service.")
    parser.add_argument("--database", help="SQLAlchemy's URL of the application's database")
    parser.add_argument("--application", action="append", help="whose rows are relayed; may be repeated")
    parser.add_argument("--url", default=os.environ.get("ROSKVA_URL", "http://127.0.0.1:8470"), help="where the service is")
    parser.add_argument("--poll-s", type=float, default=POLL_S, help="how often the table is looked at")
    parser.add_argument("--ddl", choices=sorted(DDL), help="print the statements that make the tables, and end")
    options = parser.parse_args(arguments)
    if options.ddl is not None:
        print(";\n".join(DDL[options.ddl]) + ";")
        return 0
    if options.database is None or not options.application:
        parser.error("--database and --application are needed")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        _run(options)
    except RoskvaError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _run(options: argparse.Namespace) -> None:
    from roskva.outbox import sqlalchemy as outbox  # isort: skip  # first: it says what to install, if that is missing
    from sqlalchemy import create_engine

    engine = create_engine(options.database)
    key = os.environ.get("ROSKVA_PUBLISH_KEY") or None
    publishers = {name: BlockingPublisher(options.url, application=name, key=key, retry_for_s=5.0) for name in options.application}
    try:
        run_until_signal(Relay(outbox.database(engine), publishers, poll_s=options.poll_s))
    finally:
        for publisher in publishers.values():
            publisher.close()
        engine.dispose()


if __name__ == "__main__":
    sys.exit(main())
