/**
 * A small web service whose instances share one database, and still answer from memory: Node's http and a LiveCache. The twin of
 * examples/documents/service.py; for Node 22.18 or later, which runs it as it is.
 *
 *     (cd clients/typescript && npm ci && npm run build)
 *     cd examples/documents-node && npm install
 *     node service.ts --database documents.db --port 8001 &
 *     node service.ts --database documents.db --port 8002 &
 *     curl -X PUT --data 'first draft' http://127.0.0.1:8001/documents/plan
 *     curl -i http://127.0.0.1:8002/documents/plan   # X-Cache: fresh | stale | unknown, X-Fetches: how often it asked the database
 *
 * Each document has a version, which every write raises in its own transaction. After the commit the new version is published, and all
 * instances that hold the document fetch it again. Whoever crashes between commit and publish must publish again: here, at the next start.
 */

import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { type AddressInfo } from "node:net";
import { DatabaseSync } from "node:sqlite";
import { parseArgs } from "node:util";
import { Client } from "roskva";
import { FetchFailed, LiveCache, type Versioned } from "roskva/livecache";
import { type Change, Publisher } from "roskva/node";

const APPLICATION = "demo";
const DOCUMENT_BYTES_MAX = 1_000_000;

class Documents {
  fetches = 0;
  readonly #database: DatabaseSync;

  constructor(path: string) {
    this.#database = new DatabaseSync(path, { timeout: 10_000 });
    this.#database.exec("CREATE TABLE IF NOT EXISTS documents (name TEXT PRIMARY KEY, text TEXT NOT NULL, version INTEGER NOT NULL)");
  }

  /** What the cache calls: the value and its version. A document that is not there has version 0, and may be cached, too. */
  fetch(id: string): Versioned<string | null> {
    this.fetches += 1;
    const row = this.#database.prepare("SELECT text, version FROM documents WHERE name = ?").get(id.replace(/^document:/, ""));
    return row === undefined ? { value: null, version: 0 } : { value: String(row.text), version: Number(row.version) };
  }

  write(name: string, text: string): number {
    const row = this.#database
      .prepare(
        "INSERT INTO documents VALUES (?, ?, 1) ON CONFLICT (name) DO UPDATE SET text = excluded.text, version = version + 1" +
          " RETURNING version",
      )
      .get(name, text);
    return Number(row?.version);
  }

  versions(): Change[] {
    const rows = this.#database.prepare("SELECT name, version FROM documents").all();
    return rows.map(({ name, version }) => [`document:${name}`, Number(version)]);
  }

  close(): void {
    this.#database.close();
  }
}

class Application {
  readonly #documents: Documents;
  readonly #cache: LiveCache<string | null>;
  readonly #publisher: Publisher;

  constructor(documents: Documents, cache: LiveCache<string | null>, publisher: Publisher) {
    this.#documents = documents;
    this.#cache = cache;
    this.#publisher = publisher;
  }

  async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const name = nameOf(request.url ?? "");
    if (name === null) return answer(response, 404, "There is nothing here but /documents/NAME.\n");
    if (request.method === "PUT") {
      const text = await bodyOf(request);
      return text === null ? answer(response, 413, "That is too long.\n") : this.#write(response, name, text);
    }
    let text: string | null;
    try {
      text = await this.#cache.get(`document:${name}`);
    } catch (error) {
      if (!(error instanceof FetchFailed)) throw error;
      return answer(response, 503, `${error.message}\n`);
    }
    const { state } = this.#cache.state(`document:${name}`);
    const headers = { "X-Cache": state, "X-Fetches": String(this.#documents.fetches) };
    if (text === null) answer(response, 404, "There is no such document.\n", headers);
    else answer(response, 200, text, headers);
  }

  async #write(response: ServerResponse, name: string, text: string): Promise<void> {
    const version = this.#documents.write(name, text);
    await this.#publisher.publish(`document:${name}`, version);
    this.#cache.invalidate(`document:${name}`); // whoever asks this instance next sees the write; the others are told
    answer(response, 200, `version ${version}\n`);
  }
}

function nameOf(url: string): string | null {
  try {
    const name = decodeURIComponent(/^\/documents\/([^?#]+)$/.exec(url)?.[1] ?? "");
    const length = Buffer.byteLength(name);
    return length >= 1 && length <= 100 ? name : null;
  } catch {
    return null; // not UTF-8
  }
}

async function bodyOf(request: IncomingMessage): Promise<string | null> {
  const parts: Buffer[] = [];
  let length = 0;
  for await (const part of request as AsyncIterable<Buffer>) {
    length += part.length;
    if (length > DOCUMENT_BYTES_MAX) return null;
    parts.push(part);
  }
  return Buffer.concat(parts).toString("utf8");
}

function answer(response: ServerResponse, status: number, text: string, headers: Record<string, string> = {}): void {
  response.writeHead(status, { "Content-Type": "text/plain; charset=utf-8", "Content-Length": Buffer.byteLength(text), ...headers });
  response.end(text);
}

const { values: given } = parseArgs({
  options: {
    database: { type: "string" },
    port: { type: "string", default: "0" }, // any that is free
    url: { type: "string", default: process.env.ROSKVA_URL ?? "http://127.0.0.1:8470" }, // where Roskva is
  },
});
if (given.database === undefined) throw new Error("--database FILE is needed");
const documents = new Documents(given.database);
const publisher = new Publisher(given.url, { application: APPLICATION });
const client = new Client(given.url, { application: APPLICATION });
client.addEventListener("error", ({ detail }) => console.error(`roskva: ${detail.error}`));
const cache = new LiveCache<string | null>(client, (id) => documents.fetch(id), { versioned: true });
const application = new Application(documents, cache, publisher);
const server = createServer((request, response) => {
  application.handle(request, response).catch((error: unknown) => {
    console.error(error);
    if (!response.headersSent) answer(response, 500, "Something is wrong here.\n");
  });
});
await publisher.publishMany(documents.versions()); // what a crash kept from being published; of the others nobody hears twice
server.listen(Number(given.port), "127.0.0.1", () => console.log(`http://127.0.0.1:${(server.address() as AddressInfo).port}`));
for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.once(signal, () => {
    server.close();
    server.closeAllConnections();
    void Promise.all([cache.close(), publisher.close()])
      .then(() => client.close())
      .then(() => documents.close());
  });
}
