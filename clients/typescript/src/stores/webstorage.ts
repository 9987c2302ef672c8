/** A state in a browser's localStorage, which the tabs of an origin share, or sessionStorage, which is a tab's and survives a reload. */

import type { StateStore } from "./store.ts";

export class WebStorageState implements StateStore {
  readonly #storage: Storage;
  readonly #key: string;

  constructor(key: string, storage: Storage = localStorage) {
    this.#key = key;
    this.#storage = storage;
  }

  read(): string | null {
    return this.#storage.getItem(this.#key);
  }

  /** A full or forbidden storage costs a new client id at the next start, and nothing else. */
  write(state: string): void {
    try {
      this.#storage.setItem(this.#key, state);
    } catch {
      // As said.
    }
  }

  delete(): void {
    this.#storage.removeItem(this.#key);
  }
}
