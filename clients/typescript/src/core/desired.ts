/**
 * What the application wishes to be registered for, and what it still waits to hear about (Thialfi 4.1.3). Pure.
 *
 * The client, not the server, is the keeper of registrations: this set is what every loss is repaired from.
 */

import type { Stated, SyncObject } from "./messages.ts";
import type { Name } from "./model.ts";
import { hashOf, SetDigest } from "./summaries.ts";

/** The version that the application stated when it registered: it holds it, and still does so after a restart. */
export interface Held {
  readonly version: bigint;
  readonly epoch: number;
}

/** The fields of a message that state a version. */
export function stated({ version, epoch }: { version: bigint | null; epoch: number }): Stated {
  return { version: version?.toString(), epoch: epoch || undefined };
}

/** Names with the version held; `wish` and `drop` keep the rest up to date with each change. */
export class Desired extends Map<Name, Held | null> {
  /** @internal */
  readonly _digest = new SetDigest();
  /** @internal At most one notification in so many milliseconds, of those that state it. */
  readonly _intervals = new Map<Name, number>();
  /** @internal Of which the application still waits to hear that its wish took effect, the longest waiting first. */
  readonly _unconfirmed = new Set<Name>();

  /**
   * @internal Whether this changed the set, or the interval. Only what the application states is kept as held: to state a version is to
   * acknowledge it, so the library must not make one up from what it happened to see in memory.
   */
  _wish(name: Name, held: Held | null, ms = this._intervals.get(name)): boolean {
    const isNew = !this.has(name);
    const changed = isNew || ms !== this._intervals.get(name);
    if (isNew) this._digest._change(hashOf(name));
    if (changed) this._unconfirmed.add(name);
    if (isNew || held) this.set(name, held);
    if (ms !== undefined) this._intervals.set(name, ms);
    return changed;
  }

  /** @internal Whether this changed the set. */
  _drop(name: Name): boolean {
    this._intervals.delete(name);
    const known = this.delete(name);
    if (known) {
      this._digest._change(hashOf(name), -1);
      this._unconfirmed.add(name);
    }
    return known;
  }

  /** @internal What a message says of an object: the version held, and the interval. */
  _stated(object: Name): SyncObject {
    const held = this.get(object);
    return { object, ...(held && stated(held)), notify_interval_ms: this._intervals.get(object) };
  }
}
