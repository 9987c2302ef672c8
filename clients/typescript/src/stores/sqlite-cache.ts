/**
 * A LiveCache's values in an SQLite file, for Node 22.13 or later (the twin of SqliteStore in src/roskva/client/livecache_stores.py).
 *
 * Node's SQLite is called in the event loop: a write blocks it for as long as the disk takes to be sure.
 */

import { existsSync, renameSync, rmSync } from "node:fs";
import type { DatabaseSync } from "node:sqlite";
import { InvalidSetting, StateInUse } from "../errors.ts";
import { type Name, nameFromText } from "../core/model.ts";
import { type CacheStore, jsonCodec, type Kept } from "./cache.ts";

const FORMAT = 1;
const BUSY = 5; // SQLite's result codes
const CORRUPT = 11;
const NOT_A_DATABASE = 26;

/** One file, held by one cache at a time. What is damaged is put aside as NAME.damaged, and the cache begins empty. */
export class SqliteStore implements CacheStore {
  readonly durable = true;
  readonly codec = jsonCodec;
  readonly path: string;
  #database: DatabaseSync | null = null;

  constructor(path: string) {
    this.path = path;
  }

  async load(): Promise<readonly Kept[]> {
    const sqlite = await import("node:sqlite").catch(() => {
      throw new InvalidSetting("This Node has no SQLite: version 22.13 or later is needed for a SqliteStore.");
    });
    try {
      return this.#open(sqlite.DatabaseSync);
    } catch (error) {
      await this.close();
      const code = codeOf(error);
      if (code === BUSY) throw new StateInUse(`The store ${this.path}`);
      if (code !== CORRUPT && code !== NOT_A_DATABASE && !(error instanceof WrongFormat)) {
        throw new InvalidSetting(`The store ${this.path} cannot be used: ${String(error instanceof Error ? error.message : error)}.`);
      }
    }
    this.#putAside();
    return this.#open(sqlite.DatabaseSync);
  }

  #open(Database: typeof DatabaseSync): Kept[] {
    const database = (this.#database = new Database(this.path));
    // Never let go: a second cache over the same file would write older values over newer ones. Not WAL, so that it is one file.
    database.exec("PRAGMA busy_timeout = 0; PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = FULL");
    database.exec("BEGIN EXCLUSIVE");
    const found = database.prepare("PRAGMA user_version").get()?.["user_version"];
    if (found !== 0 && found !== FORMAT) throw new WrongFormat(`format ${found}`);
    database.exec(
      "CREATE TABLE IF NOT EXISTS kept (turn INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE," +
        " value NOT NULL, version TEXT, epoch INTEGER NOT NULL)",
    );
    database.exec(`PRAGMA user_version = ${FORMAT}`);
    const rows = database.prepare("SELECT name, value, version, epoch FROM kept ORDER BY turn").all();
    database.exec("COMMIT");
    return rows.map(({ name, value, version, epoch }) => ({
      name: nameFromText(String(name)),
      value,
      version: version === null ? null : BigInt(String(version)),
      epoch: Number(epoch),
    }));
  }

  async write(kept: readonly Kept[], gone: readonly Name[]): Promise<void> {
    const database = this.#database;
    if (database === null) throw new InvalidSetting(`The store ${this.path} is not open.`);
    database.exec("BEGIN IMMEDIATE");
    try {
      const forget = database.prepare("DELETE FROM kept WHERE name = ?");
      for (const name of gone) forget.run(name);
      // A row that is replaced gets a new turn: the last one written is the last one loaded.
      const keep = database.prepare("INSERT OR REPLACE INTO kept (name, value, version, epoch) VALUES (?, ?, ?, ?)");
      for (const { name, value, version, epoch } of kept) {
        if (typeof value !== "string" && !(value instanceof Uint8Array)) throw new TypeError("the codec must make text or bytes");
        keep.run(name, value, version === null ? null : version.toString(), epoch);
      }
      database.exec("COMMIT");
    } catch (error) {
      if (database.isTransaction) database.exec("ROLLBACK");
      throw error;
    }
    // Deleted rows are still in the file; after signing out they must not be.
    if (gone.length > 0 && database.prepare("SELECT 1 FROM kept LIMIT 1").get() === undefined) database.exec("VACUUM");
  }

  async close(): Promise<void> {
    this.#database?.close();
    this.#database = null;
  }

  #putAside(): void {
    try {
      renameSync(this.path, `${this.path}.damaged`);
    } catch (error) {
      throw new InvalidSetting(`The store ${this.path} is damaged, and cannot be put aside: ${(error as Error).message}.`);
    }
    for (const ending of ["-journal", "-wal", "-shm"]) if (existsSync(this.path + ending)) rmSync(this.path + ending);
  }
}

class WrongFormat extends Error {}

function codeOf(error: unknown): number {
  const code = error instanceof Error && "errcode" in error ? Number(error.errcode) : 0;
  return code & 0xff; // without what SQLite adds to say more
}
