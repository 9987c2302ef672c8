/** A state that lasts as long as the program: every run is a new client. */

import type { StateStore } from "./store.ts";

export class MemoryState implements StateStore {
  #state: string | null = null;

  read(): string | null {
    return this.#state;
  }

  write(state: string): void {
    this.#state = state;
  }

  delete(): void {
    this.#state = null;
  }
}
