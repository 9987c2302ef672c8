/**
 * Who the client's user is: which messages say so, and what the server's answer changes (docs/protocol.md, Users and credentials): the same
 * as src/roskva/client/credential.py. Pure.
 *
 * Theory of operation. There is one text, or none. It goes with every `init`, with the first message over a connection, and with the next
 * message after it was changed or the server wanted it. The server's word decides the rest:
 *
 *     good for a while    before that ends, once, another is asked for (REFRESH)
 *     wanted              the server did nothing with a message, and tells nothing. All is held back for a while (`heldUntilS`); then
 *                         whatever is due is sent, at least one message, the first of them with the text; and so on, with pauses
 *                         that double
 *
 * Messages that were sent together are refused together: that counts once. One refusal is no news to the application: the server has not
 * seen the text that is held, because a message was lost or another Registrar has taken over. Then it is sent again without much ado, and
 * the shell is told only if it is still not seen after a pause.
 *
 * Few clients have a credential: a core is given one of these, or works without (core.ts).
 */

import type { Action } from "./actions.ts";
import type { ClientCore } from "./core.ts";
import { InvalidSetting } from "./errors.ts";
import { pauseS } from "./limits.ts";
import type { Config, CredentialState } from "./messages.ts";
import { CREDENTIAL_CHARACTERS_MAX } from "./settings.ts";

/** Why another is asked for, though nothing was refused. */
export const REFRESH = "credential-refresh";
const REQUIRED = "credential-required";
const REFRESH_FROM = 0.7; // of the time for which it is good
const REFRESH_UP_TO = 0.9;

/** It is never shown: an error may end up in a log. */
export function checkCredential(text: unknown): string {
  // Characters are Unicode's: a string of JavaScript may have two units for one of them.
  const fits = typeof text === "string" && (text.length <= CREDENTIAL_CHARACTERS_MAX || [...text].length <= CREDENTIAL_CHARACTERS_MAX);
  if (!fits) throw new InvalidSetting(`A credential is a text of at most ${CREDENTIAL_CHARACTERS_MAX} characters.`);
  return text;
}

export class Credential {
  /** @internal */
  _due = false; // the next message carries it
  /** @internal */
  _wanted = ""; // why the server wants one; empty: it does not
  /** @internal */
  _refreshAtS = Infinity;
  readonly #random: () => number;
  #text: string;
  #retryAtS = -Infinity;
  #expiresAtS = Infinity;
  #tried = false; // since it was wanted, something was sent
  #attempts = 0; // since one was accepted
  #sentAtS = -Infinity;

  constructor(random: () => number, text = "") {
    this.#random = random;
    this.#text = checkCredential(text);
  }

  /** @internal When the core wants to be called, which but for this would be at `nextS`. */
  _nextS(nextS: number, hasToken: boolean): number {
    const heldS = hasToken ? this.#retryAtS : Math.max(nextS, this.#retryAtS);
    return Math.min(this._refreshAtS, this._wanted ? heldS : nextS);
  }

  /** @internal Whether nothing may be sent now. Another is asked for, once for each that was accepted, before it ends. */
  _holdsBack(core: ClientCore, nowS: number): boolean {
    if (nowS >= this._refreshAtS) {
      this._refreshAtS = Infinity;
      core._do({ kind: "credentialWanted", code: REFRESH, message: "" });
    }
    if (!this._wanted) return false;
    if (nowS < this.#retryAtS) return true;
    this._turn();
    core._outbox._mustSpeak = true;
    return false;
  }

  /** @internal Another would be better, as far as is known. */
  _stale(nowS: number): boolean {
    return !this.#text || !!this._wanted || nowS >= this.#expiresAtS;
  }

  /** @internal A connection begins, or it is wanted and the pause is over. */
  _turn(): void {
    this._due = !!this.#text;
  }

  /** @internal Whether there is something to say at once. What the server refused it refuses again: that has its own pauses. */
  _use(text: string): boolean {
    checkCredential(text);
    const same = text === this.#text;
    if (same && (this._wanted || !text)) return false;
    if (!same) this.#expiresAtS = Infinity;
    this.#text = text;
    this._turn();
    this.#retryAtS = -Infinity;
    return this._due;
  }

  /** @internal What goes with the message that is sent now. */
  _take(nowS: number, config: Config, init = false): { credential: string } | null {
    if (this._wanted && this.#retryAtS <= nowS) {
      this.#tried = true;
      this.#pause(nowS, config);
    }
    if (!this._due && !init) return null;
    this._due = false;
    this.#sentAtS = nowS;
    return this.#text ? { credential: this.#text } : null;
  }

  /**
   * @internal The server's word on it, and what the shell is told of that. Wanted: nothing was done with a message, and nothing is told.
   * Accepted after that: what was refused with it is asked again.
   */
  _judged(core: ClientCore, nowS: number, state: CredentialState): void {
    const { config } = core;
    if (state.wanted) {
      core._heardAtS = -Infinity;
      const told = this.#refused(nowS, state.code, config);
      if (told) core._do({ kind: "credentialWanted", code: this._wanted, message: state.message });
    } else {
      const { _wanted: wanted } = this;
      this.#accepted(nowS, state.good_s, config);
      core._do({ kind: "credentialAccepted", goodS: state.good_s });
      if (wanted) core._askAgain();
    }
  }

  /** Whether the shell is to be told. */
  #refused(nowS: number, code: string, config: Config): boolean {
    const before = this._wanted;
    this._wanted = code || REQUIRED;
    const unseen = this._wanted === REQUIRED && this.#text !== "" && this.#attempts < 2;
    const tried = this.#tried;
    this.#tried = false;
    if (before) return (tried || this._wanted !== before) && !unseen;
    this._refreshAtS = Infinity;
    if (unseen && nowS - this.#sentAtS >= config.retry_min_s) this.#retryAtS = -Infinity;
    else this.#pause(nowS, config);
    return !unseen;
  }

  #pause(nowS: number, config: Config): void {
    this.#retryAtS = nowS + pauseS(config, this.#attempts, this.#random());
    this.#attempts += 1;
  }

  #accepted(nowS: number, goodS: number, config: Config): void {
    this._wanted = "";
    this.#attempts = 0;
    this.#expiresAtS = this._refreshAtS = Infinity;
    if (goodS > 0) {
      this.#expiresAtS = nowS + goodS;
      const part = REFRESH_FROM + (REFRESH_UP_TO - REFRESH_FROM) * this.#random();
      this._refreshAtS = nowS + Math.max(config.retry_min_s, goodS * part);
    }
  }
}

/** The user's credential from now on; it is shown at once. */
export function useCredential(core: ClientCore, nowS: number, text: string): Action[] {
  const { credential } = core;
  if (core.stopped || !credential?._use(text)) return [];
  core._handshake._dueS = -Infinity;
  core._outbox._mustSpeak = true;
  if (credential._wanted) core._askAgain();
  return core._flush(nowS);
}
