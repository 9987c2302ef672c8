/**
 * One connection to a gateway, over whatever channel: messages out, messages in, until it ends (as src/roskva/client/channels/link.py).
 *
 * A channel may drop messages: what does not fit the queue is dropped, and the core repeats what needs an answer.
 */

import type { Failure } from "../choice.ts";
import { QUEUE_MAX } from "../settings.ts";


export type Work = () => Promise<void> | void;
export type Received = (data: string) => void;

/** Why a connection did not come about, for a person and for the choice of the next. */
export class NotConnected extends Error {
  readonly _why: Failure;

  constructor(what: string, why: Failure) {
    super(what);
    this._why = why;
  }
}

/** What the client knows of a connection. The channels below it open, put and shut. */
export abstract class Link {
  _heard = false; // the service said something over it
  _cut = false; // it ended without a goodbye
  #waiting: (string | Work)[] = [];
  #writing: Promise<void> | null = null;
  #over = "";
  #end!: (why: string) => void;
  /** Answers why. */
  readonly _ended = new Promise<string>((fulfil) => (this.#end = fulfil));

  /** Never waits. Dropped if the other side has not taken what was sent before. */
  _send(data: string): void {
    if (this.#waiting.length < QUEUE_MAX) this._first(data);
  }

  /** Do this before anything that is sent from now on. */
  _first(item: string | Work): void {
    if (this.#over && typeof item === "string") return;
    this.#waiting.push(item);
    this.#writing ??= this.#write();
  }

  _hangUp(why = "closed by this client", cut = false): void {
    if (this.#over) return;
    this.#over = why;
    this._cut = cut;
    this.#end(why);
  }

  /** Everything queued so far has been handed to the network. */
  async _drained(): Promise<void> {
    await this.#writing;
  }

  /** Until either side hangs up; answers why it ended. Work that had to be done first is done in any case. */
  async _run(received: Received): Promise<string> {
    this._open((data) => {
      if (!this.#over) received(data);
    });
    const why = await this._ended;
    this._shut();
    await this.#writing;
    return why;
  }

  /** Call `received` with every message, and `hangUp` when the other side ended it. */
  protected abstract _open(received: Received): void;
  /** Bring these to the other side, or fail. */
  protected abstract _put(messages: string[]): Promise<void> | void;
  /** End the connection, whatever its state. */
  abstract _shut(): void;

  async #write(): Promise<void> {
    await null; // those of one turn travel together
    while (this.#waiting.length) {
      const works = this.#waiting.findIndex((item) => typeof item !== "string");
      try {
        const texts = this.#waiting.splice(0, works < 0 ? QUEUE_MAX : works) as string[];
        if (!works) await (this.#waiting.shift() as Work)();
        else if (!this.#over) await this._put(texts);
      } catch (error) {
        this._hangUp(`broken: ${(error as Error).message}`, true);
      }
    }
    this.#writing = null;
  }
}
