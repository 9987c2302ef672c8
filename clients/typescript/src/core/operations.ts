/**
 * Registrations and unregistrations that the server has not answered yet, and when to send each (Thialfi 4.1.3, 4.1.6). Pure.
 *
 * At most one per object: a later wish replaces an earlier one. Each is repeated, with a pause that doubles, until its status arrives. Only
 * so many are unanswered at a time; the others wait their turn, so that a client with 100,000 registrations does not repeat all of them
 * because the first thousand took long.
 */

import { pauseS } from "./limits.ts";
import type { Config } from "./messages.ts";
import type { Name } from "./model.ts";
import { MESSAGES_UNANSWERED_MAX } from "./settings.ts";


export interface Operation {
  readonly name: Name;
  readonly register: boolean;
  attempts: number;
  dueS: number;
  sent: boolean;
}

export class Operations {
  readonly #byName = new Map<Name, Operation>(); // in the order in which they were wished for
  readonly #waiting = new Set<Operation>(); // never sent in this session
  readonly #repeats = new Set<Operation>(); // in the order in which they were scheduled
  #firstDueS = Infinity; // of the repeats; NaN: to be looked for, which takes time if they are many
  #unanswered = 0;

  get size(): number {
    return this.#byName.size;
  }

  has(name: Name): boolean {
    return this.#byName.has(name);
  }

  add(name: Name, register: boolean): void {
    this.settle(name);
    this.#waiting.add(this.#enter(name, register));
  }

  settle(name: Name): void {
    const operation = this.#byName.get(name);
    if (!operation) return;
    if (operation.sent) this.#unanswered -= 1;
    this.#byName.delete(name);
    this.#waiting.delete(operation);
    this.#repeats.delete(operation);
    this.#firstDueS = NaN;
  }

  /** The server answered "later": the operation leaves the unanswered ones and is sent again after its pause. */
  postpone(name: Name, register: boolean, nowS: number, config: Config, dice: number): void {
    const operation = this.#byName.get(name) ?? this.#enter(name, register);
    if (operation.sent) this.#unanswered -= 1;
    operation.sent = false;
    this.#schedule(operation, nowS, config, dice);
  }

  /** The server had no room and said until when: what it has not answered is sent again then, not after its own longer pause. */
  againAt(untilS: number): void {
    for (const operation of this.#byName.values()) {
      if (operation.sent && operation.dueS > untilS) this.#scheduleAt(operation, untilS);
    }
  }

  clear(): void {
    this.#byName.clear();
    this.restart();
  }

  /** A new session or connection: whatever is open is sent again at once. */
  restart(): void {
    this.#waiting.clear();
    this.#repeats.clear();
    this.#firstDueS = Infinity;
    this.#unanswered = 0;
    for (const operation of this.#byName.values()) {
      operation.sent = false;
      this.#waiting.add(operation);
    }
  }

  /** Up to `limit` operations to send now. They share one throw of the dice, so that their repeats travel together too. */
  take(nowS: number, config: Config, limit: number, dice: number): Operation[] {
    const due = this.#nextRepeatS() > nowS ? [] : [...this.#repeats].filter(({ dueS }) => dueS <= nowS);
    const taken = due.sort((one, other) => one.dueS - other.dueS).slice(0, limit);
    let fresh = Math.min(limit - taken.length, this.#room(config) - taken.filter(({ sent }) => !sent).length);
    for (const operation of this.#waiting) {
      if (fresh-- <= 0) break;
      this.#waiting.delete(operation);
      taken.push(operation);
    }
    for (const operation of taken) {
      if (!operation.sent) this.#unanswered += 1;
      operation.sent = true;
      this.#schedule(operation, nowS, config, dice);
    }
    return taken;
  }

  /** When `take` would yield something; minus infinity: it would already; infinity: never. */
  nextDueS(config: Config): number {
    return this.#waiting.size > 0 && this.#room(config) > 0 ? -Infinity : this.#nextRepeatS();
  }

  #enter(name: Name, register: boolean): Operation {
    const operation = { name, register, attempts: 0, dueS: 0, sent: false };
    this.#byName.set(name, operation);
    return operation;
  }

  #schedule(operation: Operation, nowS: number, config: Config, dice: number): void {
    this.#scheduleAt(operation, nowS + pauseS(config, operation.attempts++, dice));
  }

  #scheduleAt(operation: Operation, dueS: number): void {
    if (this.#repeats.delete(operation)) this.#firstDueS = NaN;
    this.#repeats.add(operation);
    operation.dueS = dueS;
    this.#firstDueS = Math.min(this.#firstDueS, dueS);
  }

  #nextRepeatS(): number {
    if (Number.isNaN(this.#firstDueS)) {
      this.#firstDueS = Infinity;
      for (const { dueS } of this.#repeats) this.#firstDueS = Math.min(this.#firstDueS, dueS);
    }
    return this.#firstDueS;
  }

  #room(config: Config): number {
    return MESSAGES_UNANSWERED_MAX * config.operations_per_message_max - this.#unanswered;
  }
}
