/**
 * What waits for the application's loop: at most one version and one unknown of an object, in the order in which they first came.
 *
 * A later one takes the place of an earlier one that nobody has taken yet: a slow application holds as many as it has objects. An unknown
 * may stand for a later version than the one known, so neither takes the other's place.
 */

import type { Notification } from "./registrations.ts";

export class Mailbox {
  #waiting = new Map<string, Notification>();
  #takers: (() => void)[] = [];
  #closed = false;

  put(notification: Notification): void {
    this.#waiting.set(key(notification), notification);
    this.#wake();
  }

  /** To the front, as it was taken; unless something newer came meanwhile. */
  putBack(notification: Notification): void {
    if (!this.#waiting.has(key(notification))) this.#waiting = new Map([[key(notification), notification], ...this.#waiting]);
    this.#wake();
  }

  /** Takes out what waits of this object. */
  drop(name: string): Notification[] {
    return ["?", "="].flatMap((kind) => {
      const notification = this.#waiting.get(kind + name);
      return notification && this.#waiting.delete(kind + name) ? [notification] : [];
    });
  }

  /** Whoever waits, or comes, is told that there is nothing any more. */
  close(): void {
    this.#closed = true;
    this.#waiting.clear();
    this.#wake();
  }

  /** The oldest; null: closed. */
  async take(): Promise<Notification | null> {
    for (;;) {
      for (const [key, notification] of this.#waiting) {
        this.#waiting.delete(key);
        return notification;
      }
      if (this.#closed) return null;
      await new Promise<void>((done) => this.#takers.push(done));
    }
  }

  #wake(): void {
    for (const wake of this.#takers.splice(0)) wake();
  }
}

function key({ name, version }: Notification): string {
  return (version === null ? "?" : "=") + name;
}
