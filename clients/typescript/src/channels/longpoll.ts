/** A connection by long polls: a GET that waits for what the service says, and POSTs (docs/protocol.md, Long polls). */

import type { Choice, Failure } from "../choice.ts";
import type { Clock } from "../clock.ts";
import { CONNECT_S } from "../settings.ts";
import { Link, NotConnected, systemClock } from "../together.ts";
import type { Received } from "./link.ts";

const TRIES = 3; // of one request, or of polls in a row, before the connection is given up
const PAUSE_S = 1; // before a request is made again
const WAIT_MIN_S = 5;
const GRACE_S = 15; // for an answer, beyond the wait that was asked for
const SEND_S = 15;
const BATCH_MAX = 100; // messages of one request
const BATCH_LENGTH_MAX = 1 << 18;

type Fetch = typeof fetch;

interface Answer {
  readonly status: number; // 0: no answer came
  readonly body: string;
}

export class LongPollLink extends Link {
  readonly #url: string;
  readonly #fetch: Fetch | undefined;
  readonly #requests = new AbortController();
  #waitS: number;

  constructor(url: string, waitS: number, fetch?: Fetch) {
    super();
    this.#url = url;
    this.#fetch = fetch;
    this.#waitS = Math.max(WAIT_MIN_S, waitS);
  }

  static async connect(service: string, signal: AbortSignal, fetch?: Fetch): Promise<LongPollLink> {
    const url = `${service}/v1/channels`;
    const { status, body } = await ask(fetch, url, { method: "POST", signal }, CONNECT_S);
    if (status === 201) {
      try {
        const { id, wait_s = 50 } = JSON.parse(body);
        return new LongPollLink(`${url}/${id}`, wait_s, fetch);
      } catch {
        // Not of the service.
      }
    }
    // Above 500 it is often a proxy's word for a service that is down.
    const why = status === 0 ? "unreachable" : status < 500 || status === 501 ? "refused" : "broken";
    throw new NotConnected(status ? `${url} answered ${status}.` : `${url} cannot be reached.`, why);
  }

  protected _open(received: Received): void {
    this.#read(received).catch((error: Error) => this._hangUp(`broken: ${error.message}`, true));
  }

  /** Try a WebSocket beside the polls now and then, and end when there is one. Answers how to stop that. */
  _giveWay(clock: Clock, choice: Choice, connect: () => Promise<Link>, made: (link: Link) => void): (() => void) | null {
    const atS = choice._returnAtS();
    if (atS === null) return null;
    let over = false;
    let cancel: (() => void) | null = clock.after(atS - clock.now(), () => {
      connect().then(
        (link) => {
          if (over) return link._shut();
          made(link);
          this._hangUp("exchanged for a WebSocket");
        },
        (error) => {
          if (over) return;
          choice._returnFailed(clock.now(), whyOf(error));
          cancel = this._giveWay(clock, choice, connect, made);
        },
      );
    });
    return () => {
      over = true;
      cancel?.();
    };
  }

  async #read(received: Received): Promise<void> {
    const { signal } = this.#requests;
    for (let failures = 0; !signal.aborted; ) {
      const beganS = systemClock.now();
      const { status, body } = await ask(this.#fetch, `${this.#url}?wait_s=${Math.floor(this.#waitS)}`, { signal }, this.#waitS + GRACE_S);
      const early = systemClock.now() - beganS < PAUSE_S;
      if (signal.aborted) return;
      if (status === 200 || status === 204) {
        failures = 0;
        for (const line of body.split("\n")) if (line) received(line);
        if (!body && early) await pause(PAUSE_S); // whoever answered did not wait
        continue;
      }
      failures += 1;
      if (status === 410) return this._hangUp("closed by the service");
      if (failures === TRIES) return this._hangUp(`broken: ${TRIES} polls failed, the last with ${status || "no answer"}`, true);
      if (!early) this.#waitS = Math.max(WAIT_MIN_S, this.#waitS / 2); // perhaps a proxy that does not wait so long
      await pause(PAUSE_S);
    }
  }

  protected async _put(messages: string[]): Promise<void> {
    let batch: string[] = [];
    let length = 0;
    for (const data of messages) {
      length += data.length;
      if (batch.length === BATCH_MAX || (batch.length && length > BATCH_LENGTH_MAX)) {
        await this.#post(batch);
        batch = [];
        length = data.length;
      }
      batch.push(data);
    }
    await this.#post(batch);
  }

  async #post(messages: string[]): Promise<void> {
    const { signal } = this.#requests;
    for (let attempt = 1; ; attempt++) {
      const { status } = await ask(this.#fetch, this.#url, { method: "POST", body: messages.join("\n"), signal }, SEND_S);
      if (signal.aborted) return;
      if (status === 413 && messages.length > 1) {
        for (const data of messages) await this.#post([data]);
        return;
      }
      if (status > 0 && status < 500 && status !== 410) return; // taken, or refused for good: the core says again what matters
      if (attempt === TRIES || status === 410) throw new Error(`a request was answered with ${status || "nothing"}`);
      await pause(PAUSE_S);
    }
  }

  /** Tell the service, so that it need not wait for a poll that will not come; even while the page goes away. */
  _shut(): void {
    this.#requests.abort();
    void ask(this.#fetch, this.#url, { method: "DELETE", keepalive: true }, SEND_S);
  }
}

export const whyOf = (error: unknown): Failure => (error as Partial<NotConnected>)._why ?? "broken";

/** What is answered, body and all; 0: nothing in time, or it was aborted. */
async function ask(given: Fetch | undefined, url: string, request: RequestInit, limitS: number): Promise<Answer> {
  const { signal } = request;
  const controller = new AbortController();
  const abort = (): void => controller.abort();
  const cancel = systemClock.after(limitS, abort);
  signal?.addEventListener("abort", abort);
  try {
    signal?.throwIfAborted(); // it will not say so again
    const answer = await (given ?? fetch)(url, { ...request, cache: "no-store", signal: controller.signal });
    return { status: answer.status, body: await answer.text() };
  } catch {
    return { status: 0, body: "" };
  } finally {
    cancel();
    signal?.removeEventListener("abort", abort);
  }
}

const pause = (seconds: number): Promise<void> => new Promise((done) => void systemClock.after(seconds, done));
