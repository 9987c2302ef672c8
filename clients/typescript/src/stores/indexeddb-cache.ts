/**
 * A LiveCache's values in IndexedDB, for browsers.
 *
 * Of several tabs one holds the store, by a Web Lock; the others are guests for as long as they live. A guest keeps nothing: where it
 * would, it bars the object, and from then on the store has nothing of it until another holder begins. So whatever any tab acknowledged,
 * the store has nothing older, even if a holder that was not told yet writes an old value and dies. Without Web Locks (a page that was not
 * loaded securely) every tab is a guest.
 */

import { InvalidSetting } from "../errors.ts";
import type { Name } from "../core/model.ts";
import { type CacheStore, cloneCodec, type Kept } from "./cache.ts";

const FORMAT = 1;
const KEPT = "kept";

interface Row {
  readonly name: Name;
  readonly value: unknown;
  readonly version: string | null; // decimal digits
  readonly epoch: number;
  readonly turn: number; // the last one written has the largest
  readonly barred: boolean; // by a guest
}

export interface IndexedDbStoreOptions {
  /** Those of the platform, unless given: for tests. */
  readonly indexedDB?: IDBFactory;
  readonly locks?: LockManager;
}

export class IndexedDbStore implements CacheStore {
  readonly codec = cloneCodec;
  readonly #name: string;
  readonly #factory: IDBFactory;
  readonly #locks: LockManager | undefined;
  #database: IDBDatabase | null = null;
  #release: (() => void) | null = null; // holder: lets the others have it
  #turn = 0;

  /** `name` is the database's: one for each client state and kind of value. */
  constructor(name = "roskva-cache", options: IndexedDbStoreOptions = {}) {
    const factory = options.indexedDB ?? globalThis.indexedDB;
    if (factory === undefined) throw new InvalidSetting("There is no IndexedDB here: use another store, or none.");
    this.#name = name;
    this.#factory = factory;
    this.#locks = options.locks ?? globalThis.navigator?.locks;
  }

  /** Whether this tab holds the store. */
  get durable(): boolean {
    return this.#release !== null;
  }

  async load(): Promise<readonly Kept[]> {
    this.#release = await hold(this.#locks, `roskva-cache:${this.#name}`);
    const database = (this.#database = await this.#open());
    if (!this.durable) return [];
    const transaction = database.transaction(KEPT, "readwrite");
    const store = transaction.objectStore(KEPT);
    const rows: Row[] = await answered(store.getAll());
    for (const { name } of rows.filter((row) => row.barred)) store.delete(name); // nobody can write what the last holder knew
    await done(transaction);
    const held = rows.filter((row) => !row.barred).sort((one, other) => one.turn - other.turn);
    this.#turn = held.at(-1)?.turn ?? 0;
    return held.map(({ name, value, version, epoch }) => ({ name, value, version: version === null ? null : BigInt(version), epoch }));
  }

  async #open(): Promise<IDBDatabase> {
    const request = this.#factory.open(this.#name, FORMAT);
    request.onupgradeneeded = () => request.result.createObjectStore(KEPT, { keyPath: "name" });
    const database = await answered(request);
    database.onversionchange = () => database.close(); // a later version of this library wants it, or it is deleted
    return database;
  }

  async write(kept: readonly Kept[], gone: readonly Name[]): Promise<void> {
    if (this.#database === null) throw new InvalidSetting(`The store ${this.#name} is not open.`);
    // Strict: what is acknowledged now must be there after a power failure, too.
    const transaction = this.#database.transaction(KEPT, "readwrite", { durability: "strict" });
    const rows = transaction.objectStore(KEPT);
    if (this.durable) {
      for (const name of gone) unlessBarred(rows, name, () => rows.delete(name));
      for (const one of kept) unlessBarred(rows, one.name, () => rows.put(this.#row(one)));
    } else {
      for (const { name } of kept) rows.put({ name, value: null, version: null, epoch: 0, turn: 0, barred: true } satisfies Row);
    }
    await done(transaction);
  }

  #row({ name, value, version, epoch }: Kept): Row {
    return { name, value, version: version === null ? null : version.toString(), epoch, turn: ++this.#turn, barred: false };
  }

  async close(): Promise<void> {
    this.#database?.close();
    this.#database = null;
    this.#release?.();
    this.#release = null;
  }
}

/** The lock's release, or null if another has it. */
async function hold(locks: LockManager | undefined, name: string): Promise<(() => void) | null> {
  if (locks === undefined) return null;
  return new Promise((resolve, reject) => {
    const held = locks.request(name, { ifAvailable: true }, (lock) => {
      if (lock === null) return resolve(null);
      return new Promise<void>((release) => resolve(release));
    });
    held.catch(reject);
  });
}

function answered<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function unlessBarred(rows: IDBObjectStore, name: Name, then: () => void): void {
  const request: IDBRequest<Row | undefined> = rows.get(name);
  request.onsuccess = () => {
    if (!request.result?.barred) then();
  };
}

function done(transaction: IDBTransaction): Promise<void> {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error ?? new Error("the transaction was aborted"));
  });
}
