/**
 * A clock that is moved by hand. What needs no time happens by itself; what needs some, when somebody moves the clock.
 */

import type { Clock } from "../clock.ts";

const TURNS_MAX = 10_000; // of the event loop at one moment: more means that somebody goes round in circles

/** What a test waits for does not happen, however far the clock moves; or too much happens without any time. */
export class Stuck extends Error {
  override readonly name = "Stuck";
}

interface Timer {
  readonly at: number;
  readonly callback: () => void;
}

export class HandClock implements Clock {
  #now = 0;
  readonly #timers: Timer[] = []; // by their time; those of the same time in the order in which they were set
  #soon = 0; // that need no time, and have not happened yet

  now(): number {
    return this.#now;
  }

  after(delayS: number, callback: () => void): () => void {
    const timer: Timer = { at: this.#now + Math.max(0, delayS), callback };
    if (!(delayS > 0)) return this.#callSoon(callback);
    let place = this.#timers.length;
    while (place > 0 && (this.#timers[place - 1] as Timer).at > timer.at) place -= 1;
    this.#timers.splice(place, 0, timer);
    return () => {
      const found = this.#timers.indexOf(timer);
      if (found >= 0) this.#timers.splice(found, 1);
    };
  }

  #callSoon(callback: () => void): () => void {
    let wanted = true;
    this.#soon += 1;
    void turn().then(() => {
      this.#soon -= 1;
      if (wanted) callback();
    });
    return () => void (wanted = false);
  }

  /** Until then this moment is not over: what it waits for takes turns of the event loop, and no time. */
  hold(promise: Promise<unknown>): void {
    this.#soon += 1;
    const over = (): void => void (this.#soon -= 1);
    promise.then(over, over);
  }

  /** From timer to timer; done when it is there and nothing more happens at that moment. */
  async advance(seconds: number): Promise<void> {
    if (!(seconds >= 0) || seconds === Infinity) throw new RangeError("the clock goes forward, by seconds that have a number");
    const until = this.#now + seconds;
    await this.settled();
    while (await this.#step(until));
    this.#now = until;
  }

  /** To the first moment at which it is true. */
  async until(condition: () => boolean, withinS: number): Promise<void> {
    const until = this.#now + withinS;
    await this.settled();
    while (!condition()) {
      if (!(await this.#step(until))) throw new Stuck(`after ${withinS} s of the test's time it is still not true: ${String(condition)}`);
    }
  }

  async #step(until: number): Promise<boolean> {
    const next = this.#timers[0];
    if (next === undefined || next.at > until) return false;
    this.#timers.shift();
    this.#now = Math.max(this.#now, next.at);
    next.callback();
    await this.settled();
    return true;
  }

  /** Nothing more happens at this moment. */
  async settled(): Promise<void> {
    for (let turns = 0; turns < TURNS_MAX; turns++) {
      await turn();
      if (this.#soon === 0) return;
    }
    throw new Stuck(`${TURNS_MAX} turns at one moment: something goes round in circles`);
  }
}

type Immediate = (callback: () => void) => unknown;

/** One turn of the event loop: all promises that can be fulfilled are. */
function turn(): Promise<void> {
  const { setImmediate } = globalThis as { setImmediate?: Immediate };
  return new Promise((resolve) => void (setImmediate === undefined ? setTimeout(resolve, 0) : setImmediate(resolve)));
}
