"""A page that shows a table of Postgres as it is now. Nothing here publishes anything: `roskva capture` does, from the database's log.

    python examples/postgres/page.py --dsn "host=127.0.0.1 port=5433 dbname=shop user=postgres"

It serves the page, its rows as JSON, and passes the page's own messages on to Roskva, as the proxy before a real site does.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import closing

import aiohttp
import psycopg2
from aiohttp import web

PAGE = """<!doctype html>
<meta charset="utf-8">
<title>Documents</title>
<h1>Documents</h1>
<ul></ul>
<script type="module">
  import { Client } from "/roskva.js";

  const client = new Client(location.origin, { application: "demo", channel: "long-poll" });
  await client.register("documents", async () => {
    const answer = await fetch("/documents");
    if (!answer.ok) throw new Error(answer.statusText); // whatever fails here: the notification comes again
    const rows = (await answer.json()).map(({ id, title }) => {
      const row = document.createElement("li");
      row.textContent = `${id}: ${title}`;
      return row;
    });
    document.querySelector("ul").replaceChildren(...rows);
  });
</script>
"""
DSN = web.AppKey("dsn", str)
SERVICE = web.AppKey("service", str)
HTTP = web.AppKey("http", aiohttp.ClientSession)


def rows(dsn: str) -> list[dict[str, object]]:
    with closing(psycopg2.connect(dsn)) as database, database.cursor() as cursor:
        cursor.execute("SELECT id, title FROM documents ORDER BY id")
        return [{"id": row, "title": title} for row, title in cursor.fetchall()]


async def page(request: web.Request) -> web.Response:
    return web.Response(text=PAGE, content_type="text/html")


async def documents(request: web.Request) -> web.Response:
    return web.json_response(await asyncio.to_thread(rows, request.app[DSN]), headers={"Cache-Control": "no-store"})


async def pass_on(request: web.Request) -> web.Response:
    url = request.app[SERVICE] + request.path_qs
    async with request.app[HTTP].request(request.method, url, data=await request.read()) as answer:
        headers = {"Content-Type": answer.content_type, "Cache-Control": "no-store"}
        return web.Response(status=answer.status, body=await answer.read(), headers=headers)


async def session(app: web.Application) -> AsyncIterator[None]:
    async with aiohttp.ClientSession() as app[HTTP]:
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description="A page that shows a table of Postgres as it is now.")
    parser.add_argument("--dsn", required=True, help="the database, as libpq reads it")
    parser.add_argument("--service", default="http://127.0.0.1:8470", help="where Roskva is")
    parser.add_argument("--port", type=int, default=8002)
    given = parser.parse_args()
    app = web.Application()
    app[DSN], app[SERVICE] = given.dsn, given.service
    app.cleanup_ctx.append(session)
    app.router.add_get("/", page)
    app.router.add_get("/documents", documents)
    app.router.add_get("/roskva.js", pass_on)
    app.router.add_route("*", "/v1/channels{rest:.*}", pass_on)
    web.run_app(app, host="127.0.0.1", port=given.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
