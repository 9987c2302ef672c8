/**
 * For backends: tells the service of changes (Thialfi 3.1 and 4.1.4), as src/roskva/publisher.py.
 *
 * A publish that was fulfilled is durable. One that failed with a transient error may or may not have landed: publishing the same version
 * again is always safe, since only the highest version of an object counts.
 */

import { systemClock } from "./clock.ts";
import { ClientStopped, InvalidVersion, RoskvaError } from "./core/errors.ts";
import { checkApplication, checkDevice, checkStated, nameFromText } from "./core/model.ts";
import { InvalidSetting, ServiceUnreachable } from "./errors.ts";

const BATCH_MAX = 1_000; // updates in one request
const RETRY_MIN_S = 0.1;
const RETRY_MAX_S = 5;
const REQUEST_S = 15; // how long one request may take

export interface PublisherOptions {
  readonly application: string;
  /** A publish key of the application, if it has any. One that is refused is not tried again. */
  readonly key?: string;
  /** What fails in a way that may pass is tried again for so long. */
  readonly retryForS?: number;
  /** Requests under way at a time. */
  readonly requestsMax?: number;
  /** Updates that wait at a time; beyond that `publish` waits for room. */
  readonly waitingMax?: number;
}

/** An object, its version, and the device that made the change, which is not told of it. */
export type Change = readonly [id: string, version: bigint | number | string, source?: string | undefined];

interface Update {
  readonly object: string;
  readonly version: string;
  readonly source?: string;
}

interface Report {
  readonly code?: string;
  readonly message?: string;
  readonly transient?: boolean;
  readonly retry_after_s?: number;
}

/** Of one update: durable (no error), refused, or to be tried again after a pause. */
interface Outcome {
  readonly error: RoskvaError | null;
  readonly again: boolean;
  readonly retryAfterS: number;
}

const DURABLE: Outcome = { error: null, again: false, retryAfterS: 0 };

interface Waiting {
  readonly update: Update;
  readonly deadlineS: number;
  readonly settle: (error: RoskvaError | null) => void;
  readonly calledMs: number; // since 1970
  attempts: number;
}

/** Concurrent calls travel together, up to 1,000 in a request. */
export class Publisher {
  readonly #url: string;
  readonly #application: string;
  readonly #headers: Record<string, string>;
  readonly #retryForS: number;
  readonly #requestsMax: number;
  readonly #waitingMax: number;
  readonly #queue: Waiting[] = [];
  readonly #forRoom: (() => void)[] = [];
  readonly #idle: (() => void)[] = [];
  #accepted = 0; // not settled yet
  #requests = 0;
  #closed = false;

  constructor(url: string, options: PublisherOptions) {
    const { application, key, retryForS = 30, requestsMax = 4, waitingMax = 10_000 } = options;
    if (!/^https?:\/\/[^/]/.test(url)) throw new InvalidSetting(`${url} is not the address of a service: http://HOST:PORT is expected.`);
    this.#url = `${url.replace(/\/+$/, "")}/v1/publish`;
    this.#application = checkApplication(application);
    this.#headers = headersOf(key);
    this.#retryForS = retryForS;
    this.#requestsMax = Math.max(1, requestsMax);
    this.#waitingMax = Math.max(1, waitingMax);
  }

  /** Fulfilled when the version is durable. */
  async publish(id: string, version: bigint | number | string, source?: string): Promise<void> {
    const error = await this.#publish(updateOf([id, version, source]));
    if (error) throw error;
  }

  /** For each, in order: null if it is durable, else why not. Bad input throws before anything is sent. */
  async publishMany(changes: Iterable<Change>): Promise<(RoskvaError | null)[]> {
    const updates = Array.from(changes, updateOf);
    const results: (RoskvaError | null)[] = [];
    for (let start = 0; start < updates.length; start += BATCH_MAX) {
      const part = updates.slice(start, start + BATCH_MAX);
      results.push(...(await Promise.all(part.map((update) => this.#publish(update)))));
    }
    return results;
  }

  /** Waits for what was accepted, at most `retryForS` and a request; accepts nothing more. */
  async close(): Promise<void> {
    this.#closed = true;
    if (this.#accepted > 0) await new Promise<void>((done) => this.#idle.push(done));
  }

  async #publish(update: Update): Promise<RoskvaError | null> {
    if (this.#closed) throw new ClientStopped("The publisher was closed.");
    if (this.#accepted >= this.#waitingMax) await new Promise<void>((room) => this.#forRoom.push(room));
    else this.#accepted += 1; // else the place is taken over
    return new Promise((fulfil) => {
      const settle = (error: RoskvaError | null): void => {
        fulfil(error);
        const next = this.#forRoom.shift();
        if (next) return next();
        this.#accepted -= 1;
        if (this.#accepted === 0) for (const done of this.#idle.splice(0)) done();
      };
      this.#enqueue({ update, settle, deadlineS: systemClock.now() + this.#retryForS, calledMs: Date.now(), attempts: 0 });
    });
  }

  #enqueue(waiting: Waiting): void {
    if (this.#queue.push(waiting) === 1) queueMicrotask(() => this.#dispatch()); // whatever else is published in this turn goes along
  }

  #dispatch(): void {
    while (this.#queue.length > 0 && this.#requests < this.#requestsMax) {
      this.#requests += 1;
      void this.#request(this.#queue.splice(0, BATCH_MAX)).then(() => {
        this.#requests -= 1;
        this.#dispatch();
      });
    }
  }

  async #request(batch: readonly Waiting[]): Promise<void> {
    const calledMs = Math.min(...batch.map((waiting) => waiting.calledMs));
    const outcomes = await this.#post(batch.map(({ update }) => update), calledMs);
    const dice = Math.random();
    batch.forEach((waiting, index) => {
      const { error, again, retryAfterS } = outcomes[index] as Outcome;
      const waitS = pauseS(waiting.attempts, retryAfterS, dice);
      waiting.attempts += 1;
      if (!error || !again || systemClock.now() + waitS > waiting.deadlineS) waiting.settle(error);
      else systemClock.after(waitS, () => this.#enqueue(waiting));
    });
  }

  async #post(updates: readonly Update[], calledMs: number): Promise<Outcome[]> {
    const body = JSON.stringify({ application: this.#application, updates });
    // The first of the stamps by which the service tells how long updates take (Thialfi 6.3), in microseconds.
    const headers = { ...this.#headers, "Roskva-Published": `${Math.round(calledMs * 1000)}` };
    try {
      const signal = AbortSignal.timeout(REQUEST_S * 1000);
      const answer = await fetch(this.#url, { method: "POST", headers, body, signal });
      return outcomesOf(answer.status, await answer.text(), updates.length, answer.headers.get("Retry-After"));
    } catch (error) {
      const { message, cause } = error as Error;
      const what = `${this.#url} cannot be reached: ${(cause as Error | undefined)?.message || message}.`;
      return updates.map(() => ({ error: new ServiceUnreachable(what), again: true, retryAfterS: 0 }));
    }
  }
}

/** Checks everything here, so that a mistake is thrown where it was made. A version goes as text, so that no digit is lost. */
function updateOf([id, version, source]: Change): Update {
  const object = nameFromText(id);
  if (typeof version === "number" ? !Number.isSafeInteger(version) : typeof version === "string" && !/^\d+$/.test(version)) {
    throw new InvalidVersion(version);
  }
  const exact = BigInt(version);
  checkStated(exact);
  return { object, version: String(exact), ...(source === undefined ? {} : { source: checkDevice(source) }) };
}

/** Of every request. The key is never shown: an error may end up in a log. */
function headersOf(key: string | undefined): Record<string, string> {
  const headers = { "Content-Type": "application/json" };
  if (key === undefined) return headers;
  if (!/^[!-~]+$/.test(key)) {
    throw new InvalidSetting("A publish key is a text of printable ASCII characters, without spaces: `roskva app key add` makes one.");
  }
  return { ...headers, Authorization: `Bearer ${key}` };
}

/** What an answer means for each update of its request. `retryAfter` is the answer's header: a proxy's word, too. */
export function outcomesOf(status: number, body: string, count: number, retryAfter: string | null = null): Outcome[] {
  let answer: { results?: readonly { ok?: boolean; error?: Report | null }[] | null; error?: Report | null } = {};
  try {
    answer = Object(JSON.parse(body));
  } catch {
    // Not from the service itself.
  }
  const { results, error = null } = answer;
  if (Array.isArray(results) && results.length === count) {
    // With any status: if none was accepted it is not 200.
    return results.map((result) => (result?.ok && !result.error ? DURABLE : refused(result?.error, 200, 0)));
  }
  const retryAfterS = /^\d+$/.test(retryAfter ?? "") ? Number(retryAfter) : 0; // or a date, which nobody sends here
  return Array.from({ length: count }, () => refused(error, status, retryAfterS));
}

function refused(report: Report | null | undefined, status: number, retryAfterS: number): Outcome {
  if (!report?.code) {
    // Not from the service itself: a proxy, or an answer that was cut off.
    const again = [200, 408, 425, 429].includes(status) || status >= 500;
    const error = new ServiceUnreachable(`The service's address answered ${status}, which is not its own answer.`);
    return { error, again, retryAfterS };
  }
  const again = report.transient === true || [429, 502, 503, 504].includes(status);
  const error = new RoskvaError(report.code, report.message ?? "");
  return { error, again, retryAfterS: Math.max(report.retry_after_s ?? 0, retryAfterS) };
}

/** Never before the service says so, and up to half as long again: who was refused together does not return together. */
export function pauseS(attempt: number, retryAfterS: number, dice: number): number {
  return Math.max(retryAfterS * (1 + dice / 2), Math.min(RETRY_MAX_S, RETRY_MIN_S * 2 ** Math.min(attempt, 16)) * (0.5 + dice / 2));
}
