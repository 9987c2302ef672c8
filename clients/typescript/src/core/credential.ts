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

import type { CredentialAccepted, CredentialWanted } from "./actions.ts";
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
  due = false; // the next message carries it
  wanted = ""; // why the server wants one; empty: it does not
  refreshAtS = Infinity;
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

  /** Nothing is sent before. */
  get heldUntilS(): number {
    return this.wanted ? this.#retryAtS : -Infinity;
  }

  /** Another would be better, as far as is known. */
  stale(nowS: number): boolean {
    return !this.#text || !!this.wanted || nowS >= this.#expiresAtS;
  }

  /** A connection begins, or it is wanted and the pause is over. */
  turn(): void {
    this.due = !!this.#text;
  }

  /** Whether there is something to say at once. What the server refused it refuses again: that has its own pauses. */
  use(text: string): boolean {
    checkCredential(text);
    const same = text === this.#text;
    if (same && (this.wanted || !text)) return false;
    if (!same) this.#expiresAtS = Infinity;
    this.#text = text;
    this.turn();
    this.#retryAtS = -Infinity;
    return this.due;
  }

  /** What goes with the message that is sent now. */
  take(nowS: number, config: Config, init = false): { credential: string } | null {
    if (this.wanted && this.#retryAtS <= nowS) {
      this.#tried = true;
      this.#pause(nowS, config);
    }
    if (!this.due && !init) return null;
    this.due = false;
    this.#sentAtS = nowS;
    return this.#text ? { credential: this.#text } : null;
  }

  /** The server's word on it, and what the shell is told of that. */
  judged(nowS: number, state: CredentialState, config: Config): (CredentialWanted | CredentialAccepted)[] {
    if (!state.wanted) {
      this.#accepted(nowS, state.good_s, config);
      return [{ kind: "credentialAccepted", goodS: state.good_s }];
    }
    const told = this.#refused(nowS, state.code, config);
    return told ? [{ kind: "credentialWanted", code: this.wanted, message: state.message }] : [];
  }

  /** Whether the shell is to be told. */
  #refused(nowS: number, code: string, config: Config): boolean {
    const before = this.wanted;
    this.wanted = code || REQUIRED;
    const unseen = this.wanted === REQUIRED && this.#text !== "" && this.#attempts < 2;
    const tried = this.#tried;
    this.#tried = false;
    if (before) return (tried || this.wanted !== before) && !unseen;
    this.refreshAtS = Infinity;
    if (unseen && nowS - this.#sentAtS >= config.retry_min_s) this.#retryAtS = -Infinity;
    else this.#pause(nowS, config);
    return !unseen;
  }

  #pause(nowS: number, config: Config): void {
    this.#retryAtS = nowS + pauseS(config, this.#attempts, this.#random());
    this.#attempts += 1;
  }

  #accepted(nowS: number, goodS: number, config: Config): void {
    this.wanted = "";
    this.#attempts = 0;
    this.#expiresAtS = this.refreshAtS = Infinity;
    if (goodS > 0) {
      this.#expiresAtS = nowS + goodS;
      const part = REFRESH_FROM + (REFRESH_UP_TO - REFRESH_FROM) * this.#random();
      this.refreshAtS = nowS + Math.max(config.retry_min_s, goodS * part);
    }
  }

  /** Another is asked for: once for each that was accepted. */
  asks(nowS: number): CredentialWanted[] {
    if (nowS < this.refreshAtS) return [];
    this.refreshAtS = Infinity;
    return [{ kind: "credentialWanted", code: REFRESH, message: "" }];
  }
}
