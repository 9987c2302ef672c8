/**
 * Brings a LiveCache's changes into its store, in their order and together: what comes while a write is under way is the next write.
 *
 * At most one change per object waits. The store is never called twice at a time.
 */

import { ClientStopped } from "../core/errors.ts";
import type { Name } from "../core/model.ts";
import type { CacheStore, Kept } from "./cache.ts";

interface Waiting {
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

interface Batch {
  readonly changes: Map<Name, Kept | null>; // null: forget it
  readonly waiting: Waiting[];
}

const empty = (): Batch => ({ changes: new Map(), waiting: [] });

export class CacheWriter {
  readonly #store: CacheStore;
  readonly #warn: (message: string, error: unknown) => void;
  #next = empty();
  #writing: Promise<void> | null = null;
  #loaded = false;
  #closed = false;

  constructor(store: CacheStore, warn: (message: string, error: unknown) => void) {
    this.#store = store;
    this.#warn = warn;
  }

  async load(): Promise<readonly Kept[]> {
    const held = await this.#store.load();
    this.#loaded = true;
    return held;
  }

  /** Resolves when the store has it. */
  keep(kept: Kept): Promise<void> {
    if (this.#closed) return Promise.reject(new ClientStopped("The cache was closed."));
    return new Promise((resolve, reject) => {
      this.#next.waiting.push({ resolve, reject });
      this.#change(kept.name, kept);
    });
  }

  /** Soon. If it is lost, an object too many is taken up at the next start, and registered as it was. */
  forget(name: Name): void {
    this.#change(name, null);
  }

  #change(name: Name, kept: Kept | null): void {
    this.#next.changes.set(name, kept);
    this.#writing ??= this.#writeAll();
  }

  async #writeAll(): Promise<void> {
    await null; // what is said in this turn is one write
    while (this.#next.changes.size > 0) {
      const batch = this.#next;
      this.#next = empty();
      const kept = [...batch.changes.values()].filter((one) => one !== null);
      const gone = [...batch.changes].flatMap(([name, one]) => (one === null ? [name] : []));
      try {
        await this.#store.write(kept, gone);
        for (const { resolve } of batch.waiting) resolve();
      } catch (error) {
        if (batch.waiting.length === 0) this.#warn(`the store could not forget ${gone.length} objects`, error);
        for (const { reject } of batch.waiting) reject(error);
      }
    }
    this.#writing = null;
  }

  /** After what waits is written. */
  async close(): Promise<void> {
    this.#closed = true;
    await this.#writing;
    if (this.#loaded) await this.#store.close();
  }

  /** The store holds nothing any more: neither what this cache wrote, nor what was there before. */
  async clear(): Promise<void> {
    await this.close();
    try {
      await this.#store.write([], (await this.#store.load()).map(({ name }) => name));
    } finally {
      await this.#store.close();
    }
  }
}
