/**
 * How a client gets its token, and loses it (Thialfi 4.1.2). Pure.
 *
 * Without a token `init` is repeated, each time with a new nonce: if several are answered, only the answer to the last one counts, and that
 * is the one which the server holds for valid. A token that the server refuses is kept as `prior` if the server says so, else dropped. The
 * first refusal is answered at once; refusals that follow without a sound message in between are answered after a pause that doubles, so
 * that two confused parties do not ask each other without end.
 */

import type { Config, Grant, Init, StartAnew } from "./messages.ts";
import { pauseS } from "./limits.ts";
import { SUPERSEDED_AGAIN_S } from "./settings.ts";

const SUPERSEDED = "session-superseded";
const HOPELESS = ["unknown-application", "invalid-application", "invalid-device"];

export type Refusal =
  | "not ours" // of an older token or nonce, or a repeat
  | "handshake" // again; the client id may be kept
  | "anew" // begin as a new client
  | "two of us"; // superseded twice within a minute

export class Handshake {
  readonly application: string;
  readonly device: string;
  prior: string;
  token = "";
  grantedBefore = false; // in this run
  dueS = -Infinity; // when `init` is sent (again)
  welcomed = false; // whether this token's session has taken effect
  readonly #newNonce: () => string;
  #nonce = ""; // of the init that waits for its answer
  #attempts = 0; // since the last sound message
  #supersededAtS = -Infinity;

  constructor(application: string, device: string, newNonce: () => string, prior: string) {
    this.application = application;
    this.device = device;
    this.#newNonce = newNonce;
    this.prior = prior;
  }

  init(nowS: number, config: Config, dice: number): Init {
    this.#nonce = this.#newNonce();
    this.dueS = nowS + pauseS(config, this.#attempts, dice);
    this.#attempts += 1;
    const init = { nonce: this.#nonce, application: this.application, device: this.device };
    return this.prior ? { ...init, prior: this.prior } : init;
  }

  answers(grant: Grant): boolean {
    return this.#nonce !== "" && grant.nonce === this.#nonce;
  }

  granted(token: string): void {
    this.token = token;
    this.prior = this.#nonce = "";
    this.welcomed = false;
    this.grantedBefore = true;
  }

  /** No patience helps: the application names something that does not exist. Once it has worked, we keep trying. */
  hopeless(code: string): boolean {
    return !this.grantedBefore && HOPELESS.includes(code);
  }

  /** The server had no room and said until when. */
  againAt(untilS: number): void {
    if (this.#nonce !== "") this.dueS = Math.min(this.dueS, untilS);
  }

  /** The server speaks to our token. `welcomed`: its Registrar does, and so the session has taken effect. */
  sound(welcomed: boolean): void {
    this.#attempts = 0;
    this.welcomed ||= welcomed;
  }

  /** `token` is the message's. While an init waits, only what names its nonce counts: the rest is a repeat. */
  refused(nowS: number, token: string, refusal: StartAnew, config: Config, dice: number): Refusal {
    const ofInit = this.#nonce !== "" && refusal.nonce === this.#nonce;
    const ofToken = this.token !== "" && token === this.token;
    if (!ofInit && !ofToken) return "not ours";
    // A session that never took effect was overtaken by a repeat of our own init, not by another client with our state.
    if (refusal.code === SUPERSEDED && this.welcomed) {
      if (nowS - this.#supersededAtS < SUPERSEDED_AGAIN_S) return "two of us";
      this.#supersededAtS = nowS;
    }
    this.prior = refusal.keep ? this.token || this.prior : "";
    this.token = this.#nonce = "";
    this.dueS = this.#attempts <= 1 ? -Infinity : nowS + pauseS(config, this.#attempts, dice);
    return refusal.keep ? "handshake" : "anew";
  }
}
