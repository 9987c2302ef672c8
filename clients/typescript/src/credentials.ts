/**
 * Where the credential of a client's user comes from: a text, or a function of the application's (docs/protocol.md, Users and credentials);
 * as src/roskva/client/shell_credentials.py. Loaded by those who have one, or whose service asks for one.
 *
 * Such a provider is called at the start, before a connection if what it gave was refused or has ended, and when the core asks for another;
 * one call at a time, and with pauses that double until one is accepted. What it answers is never shown, nor what it throws: that may hold
 * a secret, too.
 */

import type { Action } from "./core/actions.ts";
import { checkCredential, Credential, REFRESH, useCredential } from "./core/credential.ts";
import type { Session } from "./session.ts";
import { InvalidSetting, pauseS } from "./together.ts";

export type Provider = () => string | Promise<string>;

const CALL_S = 30; // a provider that takes longer failed
const BEFORE_CONNECTING_S = 10; // a connection waits at most so long for one

export class Credentials {
  /** The code by which the service refused the last one. */
  _problem = "";
  readonly #session: Session;
  readonly #provider: Provider | null;
  readonly #timers = new Set<() => void>(); // each ends its wait at once
  #asked = false;
  #providing = false;
  #answered: Promise<void> = Promise.resolve(); // no call is under way that a connection should wait for
  #answer = (): void => {};
  #calls = 0; // since one was accepted
  #refusals = 0;
  readonly #told = new Set<string>(); // codes that the application knows
  #closed = false;

  constructor(given: unknown, session: Session) {
    this.#session = session;
    this.#provider = typeof given === "function" ? (given as Provider) : null;
    session._core.credential = new Credential(Math.random, checkGiven(given));
    this.#ask();
  }

  close(): void {
    this.#closed = true;
    for (const end of [...this.#timers]) end();
    this.#answer();
  }

  _use(text: string): void {
    const session = this.#session;
    session._perform(useCredential(session._core, session._now(), text));
  }

  /** Whether this is not for the application: it is told once of each code, and not before its provider had a chance to mend it. */
  _keeps(action: Action): boolean {
    if (action.kind === "credentialWanted") return !this.#wanted(action.code);
    if (action.kind !== "credentialAccepted") return false;
    this._problem = "";
    this.#calls = this.#refusals = 0;
    this.#told.clear();
    return true;
  }

  /** Whether the application is to be told. */
  #wanted(code: string): boolean {
    this.#ask();
    if (code === REFRESH) return false;
    this.#session._following?._begins(); // nothing is told any more: as over a new connection, it must catch up first
    this._problem = code;
    this.#refusals += 1;
    if (this.#told.has(code) || (this.#provider && this.#refusals < 2)) return false;
    this.#told.add(code);
    return true;
  }

  async _beforeConnecting(): Promise<void> {
    if (!this.#provider) return;
    const session = this.#session;
    if (!this.#providing && session._core.credential?._stale(session._now())) this.#ask();
    await this.#atMost(BEFORE_CONNECTING_S, this.#answered);
  }

  #ask(): void {
    if (!this.#provider || this.#closed) return;
    this.#asked = true;
    if (!this.#calls) {
      this.#answer();
      this.#answered = new Promise((fulfil) => (this.#answer = fulfil));
    }
    if (!this.#providing) void this.#provide(this.#provider);
  }

  async #provide(provider: Provider): Promise<void> {
    this.#providing = true;
    const { _core: core } = this.#session;
    await null; // not inside of what asked
    while (this.#asked && !this.#closed) {
      if (this.#calls) await this.#atMost(pauseS(core.config, this.#calls - 1, Math.random()));
      if (this.#closed) break;
      this.#asked = false;
      this.#calls += 1;
      try {
        const answer = await this.#atMost(CALL_S, Promise.resolve(provider()));
        if (answer === undefined) throw new DOMException("", "TimeoutError");
        if (!this.#closed) this._use(answer);
      } catch (error) {
        if (this.#closed) break;
        this.#asked = true;
        const { name = typeof error } = Object(error) as { name?: unknown };
        this.#session._report("credential-required", `The provider of the credential failed with ${String(name)}; it is asked again.`);
      }
      this.#answer();
    }
    this.#providing = false;
  }

  /** What is answered; undefined if it takes longer, or the client is closed. */
  #atMost<T>(seconds: number, answer?: Promise<T>): Promise<T | undefined> {
    return new Promise((fulfil, reject) => {
      const end = (): void => {
        cancel();
        this.#timers.delete(end);
        fulfil(undefined);
      };
      const cancel = this.#session._options.clock.after(seconds, end);
      this.#timers.add(end);
      answer?.then(fulfil, reject).then(end);
    });
  }
}

/** The text, if it is one. */
export function checkGiven(given: unknown): string {
  if (typeof given === "function") return "";
  if (given !== undefined && typeof given !== "string") throw new InvalidSetting("A credential is a text, or a function that answers one.");
  return checkCredential(given ?? "");
}
