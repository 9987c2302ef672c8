/**
 * Where a LiveCache keeps its values over a restart: the interface, one in memory; and how values become what a store can hold.
 *
 * Others: indexeddb-cache.ts (browsers), sqlite-cache.ts (Node). Anybody may write another: three methods, never two at a time.
 */

import type { Name } from "../core/model.ts";

/** One object: its value as the codec wrote it, the version if the application's values have them, and the version's epoch. */
export interface Kept {
  readonly name: Name;
  readonly value: unknown;
  readonly version: bigint | null;
  readonly epoch: number;
}

/**
 * Values to what the store can hold, and back. Either may throw: what cannot be encoded counts as not fetched, what cannot be decoded as
 * not kept.
 */
export interface Codec {
  encode(value: unknown): unknown;
  decode(data: unknown): unknown;
}

/**
 * What a LiveCache asks of a store.
 *
 * A store belongs to one client's state. It must not go back: the service does not repeat what was acknowledged because the store held it,
 * so whoever restores a store from a backup must delete the client's state.
 */
export interface CacheStore {
  /** What was written is there after a crash; then versions are stated to the service. Looked at after `load`. */
  readonly durable: boolean;
  /** The one that suits it, unless the application gives another. */
  readonly codec: Codec;
  /** Everything that is kept, what was written longest ago first. Called once, before anything else. */
  load(): Promise<readonly Kept[]>;
  /** Keep these, each in place of what its name had, and forget those. Resolved: it is done; rejected: it may not be. */
  write(kept: readonly Kept[], gone: readonly Name[]): Promise<void>;
  close(): Promise<void>;
}

/** Whatever JSON can hold, as text. What JSON would change in silence (a Date, a Map, NaN) comes back as JSON has it. */
export const jsonCodec: Codec = {
  encode(value) {
    const text: string | undefined = JSON.stringify(value);
    if (text === undefined) throw new TypeError(`JSON cannot hold ${typeof value}`);
    return text;
  },
  decode: (data) => JSON.parse(data as string),
};

/** Whatever the structured clone algorithm can copy: Date, Map, typed arrays and so on. For stores that hold such values themselves. */
export const cloneCodec: Codec = {
  encode: (value) => structuredClone(value),
  decode: (data) => data,
};

/** As long as the page or process lives: for tests. `durable` makes a cache believe that it outlives a restart. */
export class MemoryStore implements CacheStore {
  readonly durable: boolean;
  readonly codec = jsonCodec;
  readonly entries = new Map<Name, Kept>();

  constructor({ durable = false } = {}) {
    this.durable = durable;
  }

  async load(): Promise<readonly Kept[]> {
    return [...this.entries.values()];
  }

  async write(kept: readonly Kept[], gone: readonly Name[]): Promise<void> {
    for (const name of gone) this.entries.delete(name);
    for (const one of kept) {
      this.entries.delete(one.name); // the last one written is the last one loaded
      this.entries.set(one.name, one);
    }
  }

  async close(): Promise<void> {}
}
