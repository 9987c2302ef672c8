/**
 * Registrations and unregistrations that the server has not answered yet, and when to send each (Thialfi 4.1.3, 4.1.6). Pure.
 *
 * At most one per object: a later wish replaces an earlier one. Each is repeated, with a pause that doubles, until its status arrives. Only
 * so many are unanswered at a time; the others wait their turn, so that a client with 100,000 registrations does not repeat all of them
 * because the first thousand took long.
 */

import { type Config } from "./messages.ts";
import { type Name } from "./model.ts";
import { Heap, Queue } from "./queues.ts";

export const MESSAGES_UNANSWERED_MAX = 4;
const DOUBLINGS_MAX = 32; // retry_max_s caps the pause long before

/** From retry_min_s up to a bound that doubles with each attempt and ends at retry_max_s; `dice` is from 0 to 1. */
export function pauseS(config: Config, attempt: number, dice: number): number {
  const boundS = Math.min(config.retry_max_s, config.retry_min_s * 2 ** Math.min(attempt + 1, DOUBLINGS_MAX));
  return config.retry_min_s + dice * Math.max(0, boundS - config.retry_min_s);
}

export interface Operation {
  readonly name: Name;
  readonly register: boolean;
  attempts: number;
  due: number;
  sent: boolean;
}

interface Repeat {
  readonly due: number;
  readonly ticket: number; // breaks ties
  readonly operation: Operation;
}

export class Operations {
  readonly #byName = new Map<Name, Operation>();
  readonly #waiting = new Queue<Operation>(); // never sent in this session; replaced ones are skipped
  // Entries of the past are skipped.
  readonly #repeats = new Heap<Repeat>((one, other) => one.due < other.due || (one.due === other.due && one.ticket < other.ticket));
  #unanswered = 0;
  #ticket = 0;

  get size(): number {
    return this.#byName.size;
  }

  has(name: Name): boolean {
    return this.#byName.has(name);
  }

  add(name: Name, register: boolean): void {
    this.settle(name);
    const operation = { name, register, attempts: 0, due: 0, sent: false };
    this.#byName.set(name, operation);
    this.#waiting.push(operation);
  }

  settle(name: Name): void {
    if (this.#byName.get(name)?.sent) this.#unanswered -= 1;
    this.#byName.delete(name);
  }

  /** The server answered "later": the operation leaves the unanswered ones and is sent again after its pause. */
  postpone(name: Name, register: boolean, nowS: number, config: Config, dice: number): void {
    const operation = this.#byName.get(name) ?? { name, register, attempts: 0, due: 0, sent: false };
    if (operation.sent) this.#unanswered -= 1;
    this.#byName.set(name, operation);
    operation.sent = false;
    this.#schedule(operation, nowS, config, dice);
  }

  /** The server had no room and said until when: what it has not answered is sent again then, not after its own longer pause. */
  againAt(untilS: number): void {
    for (const operation of this.#byName.values()) {
      if (operation.sent && operation.due > untilS) this.#scheduleAt(operation, untilS);
    }
  }

  clear(): void {
    this.#byName.clear();
    this.#forgetTimes();
  }

  /** A new session or connection: whatever is open is sent again at once. */
  restart(): void {
    this.#forgetTimes();
    for (const operation of this.#byName.values()) {
      operation.sent = false;
      this.#waiting.push(operation);
    }
  }

  /** Up to `limit` operations to send now. They share one throw of the dice, so that their repeats travel together too. */
  take(nowS: number, config: Config, limit: number, dice: number): Operation[] {
    const taken: Operation[] = [];
    while (taken.length < limit) {
      const operation = this.#nextRepeat(nowS);
      if (operation === undefined) break;
      taken.push(operation);
    }
    let fresh = unansweredMax(config) - this.#unanswered - taken.filter((operation) => !operation.sent).length;
    while (taken.length < limit && fresh > 0) {
      const operation = this.#nextWaiting();
      if (operation === undefined) break;
      taken.push(operation);
      fresh -= 1;
    }
    for (const operation of taken) {
      if (!operation.sent) this.#unanswered += 1;
      operation.sent = true;
      this.#schedule(operation, nowS, config, dice);
    }
    return taken;
  }

  /** When `take` would yield something; minus infinity: it would already; null: never. */
  nextDue(config: Config): number | null {
    let waiting = this.#waiting.first();
    while (waiting !== undefined && this.#byName.get(waiting.name) !== waiting) {
      this.#waiting.shift();
      waiting = this.#waiting.first();
    }
    if (waiting !== undefined && this.#unanswered < unansweredMax(config)) return -Infinity;
    this.#skipStale();
    return this.#repeats.first()?.due ?? null;
  }

  #forgetTimes(): void {
    this.#waiting.clear();
    this.#repeats.clear();
    this.#unanswered = 0;
  }

  #schedule(operation: Operation, nowS: number, config: Config, dice: number): void {
    this.#scheduleAt(operation, nowS + pauseS(config, operation.attempts, dice));
    operation.attempts += 1;
  }

  #scheduleAt(operation: Operation, dueS: number): void {
    operation.due = dueS;
    this.#ticket += 1;
    this.#repeats.push({ due: operation.due, ticket: this.#ticket, operation });
  }

  #skipStale(): void {
    for (let first = this.#repeats.first(); first !== undefined; first = this.#repeats.first()) {
      if (this.#byName.get(first.operation.name) === first.operation && first.operation.due === first.due) return;
      this.#repeats.pop();
    }
  }

  #nextRepeat(nowS: number): Operation | undefined {
    this.#skipStale();
    const first = this.#repeats.first();
    return first === undefined || first.due > nowS ? undefined : this.#repeats.pop()?.operation;
  }

  #nextWaiting(): Operation | undefined {
    let operation = this.#waiting.shift();
    while (operation !== undefined && this.#byName.get(operation.name) !== operation) operation = this.#waiting.shift();
    return operation;
  }
}

function unansweredMax(config: Config): number {
  return MESSAGES_UNANSWERED_MAX * config.operations_per_message_max;
}
