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
  _attempts: number;
  _dueS: number;
  _sent: boolean;
}

/** By name, in the order in which they were wished for. */
export class Operations extends Map<Name, Operation> {
  readonly #waiting = new Set<Operation>(); // never sent in this session
  readonly #repeats = new Set<Operation>(); // in the order in which they were scheduled
  #firstDueS = Infinity; // of the repeats; NaN: to be looked for, which takes time if they are many
  _unanswered = 0;

  add(name: Name, register: boolean): void {
    this._settle(name);
    this.#waiting.add(this._enter(name, register));
  }

  _settle(name: Name): void {
    const operation = this.get(name);
    if (!operation) return;
    if (operation._sent) this._unanswered -= 1;
    this.delete(name);
    this.#waiting.delete(operation);
    this.#repeats.delete(operation);
    this.#firstDueS = NaN;
  }

  override clear(): void {
    super.clear();
    this._restart();
  }

  /** A new session or connection: whatever is open is sent again at once. */
  _restart(): void {
    this.#waiting.clear();
    this.#repeats.clear();
    this.#firstDueS = Infinity;
    this._unanswered = 0;
    for (const operation of this.values()) {
      operation._sent = false;
      this.#waiting.add(operation);
    }
  }

  /** Up to `limit` operations to send now. They share one throw of the dice, so that their repeats travel together too. */
  _take(nowS: number, config: Config, limit: number, dice: number): Operation[] {
    const due = this.#nextRepeatS() > nowS ? [] : [...this.#repeats].filter(({ _dueS: dueS }) => dueS <= nowS);
    const taken = due.sort((one, other) => one._dueS - other._dueS).slice(0, limit);
    let fresh = Math.min(limit - taken.length, this.#room(config) - taken.filter(({ _sent: sent }) => !sent).length);
    for (const operation of this.#waiting) {
      if (fresh-- <= 0) break;
      this.#waiting.delete(operation);
      taken.push(operation);
    }
    for (const operation of taken) {
      if (!operation._sent) this._unanswered += 1;
      operation._sent = true;
      this._schedule(operation, nowS, config, dice);
    }
    return taken;
  }

  /** When `take` would yield something; minus infinity: it would already; infinity: never. */
  _nextDueS(config: Config): number {
    return this.#waiting.size > 0 && this.#room(config) > 0 ? -Infinity : this.#nextRepeatS();
  }

  _enter(name: Name, register: boolean): Operation {
    const operation: Operation = { name, register, _attempts: 0, _dueS: 0, _sent: false };
    this.set(name, operation);
    return operation;
  }

  _schedule(operation: Operation, nowS: number, config: Config, dice: number): void {
    this._scheduleAt(operation, nowS + pauseS(config, operation._attempts++, dice));
  }

  _scheduleAt(operation: Operation, dueS: number): void {
    if (this.#repeats.delete(operation)) this.#firstDueS = NaN;
    this.#repeats.add(operation);
    operation._dueS = dueS;
    this.#firstDueS = Math.min(this.#firstDueS, dueS);
  }

  #nextRepeatS(): number {
    if (Number.isNaN(this.#firstDueS)) {
      this.#firstDueS = Infinity;
      for (const { _dueS: dueS } of this.#repeats) this.#firstDueS = Math.min(this.#firstDueS, dueS);
    }
    return this.#firstDueS;
  }

  #room(config: Config): number {
    return MESSAGES_UNANSWERED_MAX * config.operations_per_message_max - this._unanswered;
  }
}
