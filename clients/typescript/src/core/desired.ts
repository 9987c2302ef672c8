/**
 * What the application wishes to be registered for, and what it still waits to hear about (Thialfi 4.1.3). Pure.
 *
 * The client, not the server, is the keeper of registrations: this set is what every loss is repaired from.
 */

import { type Summary, type SyncObject } from "./messages.ts";
import { type Name } from "./model.ts";
import { SetDigest } from "./summaries.ts";

/** The version that the application stated when it registered: it holds it, and still does so after a restart. */
export interface Held {
  readonly version: bigint;
  readonly epoch: number;
}

/** The fields of a message that state a version. */
export function stated({ version, epoch }: { version: bigint | null; epoch: number }): { version?: string; epoch?: number } {
  return { ...(version === null ? null : { version: String(version) }), ...(epoch ? { epoch } : null) };
}

/** Names with the version held, their summary kept up to date with each change, and the wishes not yet confirmed. */
export class Desired {
  readonly #names = new Map<Name, Held | null>();
  readonly #digest = new SetDigest();
  #unconfirmed = new Set<Name>();

  get size(): number {
    return this.#names.size;
  }

  has(name: Name): boolean {
    return this.#names.has(name);
  }

  names(): IterableIterator<Name> {
    return this.#names.keys();
  }

  /** What a message says of the version held. */
  stated(name: Name): ReturnType<typeof stated> {
    const held = this.#names.get(name);
    return held ? stated(held) : {};
  }

  /**
   * Whether this changed the set. Only what the application states is kept as held: to state a version is to acknowledge it, so the
   * library must not make one up from what it happened to see in memory.
   */
  add(name: Name, held: Held | null): boolean {
    const isNew = !this.#names.has(name);
    if (isNew) {
      this.#digest.add(name);
      this.#unconfirmed.add(name);
    }
    if (isNew || held !== null) this.#names.set(name, held);
    return isNew;
  }

  /** Whether this changed the set. */
  remove(name: Name): boolean {
    if (!this.#names.delete(name)) return false;
    this.#digest.remove(name);
    this.#unconfirmed.add(name);
    return true;
  }

  summary(): Summary {
    return this.#digest.summary();
  }

  matches(summary: Summary): boolean {
    return this.#digest.matches(summary);
  }

  /** Does the application still wait to hear that this wish took effect? */
  isUnconfirmed(name: Name): boolean {
    return this.#unconfirmed.has(name);
  }

  doubt(name: Name): void {
    this.#unconfirmed.add(name);
  }

  doubtAll(): void {
    this.#unconfirmed = new Set(this.#names.keys());
  }

  /** Whether it was still to be confirmed. */
  confirm(name: Name): boolean {
    return this.#unconfirmed.delete(name);
  }

  /** All that were still to be confirmed, the longest waiting first. */
  confirmAll(): Name[] {
    const confirmed = [...this.#unconfirmed];
    this.#unconfirmed.clear();
    return confirmed;
  }

  syncObject(name: Name): SyncObject {
    return { object: name, ...this.stated(name) };
  }
}
