/**
 * Where a client connects next, and over which channel (docs/protocol.md, Which of them): as src/roskva/client/choice.py. Pure.
 *
 * Of several addresses: three failures in a row, and the next one's turn comes. A failure is a connection that did not come about, on
 * which nothing was said, or that was cut off young. After a move the client stays for STAY_S, if it was answered there: to move may mean
 * a new handshake, and clients that all run to and fro help nobody. It never goes back by itself.
 *
 * Of the channels: a WebSocket first. After two failures of it in a row, or one refusal (something answered, but does not upgrade), long
 * polls. That nobody accepts a connection says nothing about WebSockets, nor does a gateway that says goodbye. If long polls fail too,
 * nothing was learned, and both are tried in turn. If they work, the WebSocket is tried again beside them: soon, since the failures may
 * have been the service's, later after a refusal; each time that it fails the pause doubles.
 */

import { URL_TRIES } from "./settings.ts";

export type Kind = "websocket" | "long-poll" | "carried";
/**
 * Why a connection did not come about: nobody accepted one; it was accepted, but led nowhere; or what answered will not carry this
 * channel. A browser does not say why a WebSocket failed: there it is always `broken`.
 */
export type Failure = "unreachable" | "broken" | "refused";

const WEBSOCKET_TRIES = 2;
const YOUNG_S = 60;
export const STAY_S = 180;
export const RETURN_S = 30;
export const RETURN_REFUSED_S = 300;
export const RETURN_MAX_S = 3_600;
const SMEAR = 0.25; // of the pauses, up or down, by chance: clients that lost their WebSockets together do not return together

export interface Attempt {
  readonly url: number; // which of the addresses
  readonly kind: Kind;
}

/** `attempt` says what to try next. Tell what became of it: `failed`, or `ended` after it came about. */
export class Choice {
  readonly #urls: number;
  readonly #kind: Kind | "auto";
  readonly #random: () => number;
  #url = 0;
  #failures = 0; // in a row, here
  #movedAtS = -Infinity;
  #heardHere = false;
  #websocketFailures = 0; // in a row, here
  #fallenBack = false; // to long polls
  #returnAtS = -Infinity; // when they should give way to a WebSocket
  #returnS = RETURN_S;
  #pollsWork = false; // while the WebSocket does not

  constructor(urls: number, kind: Kind | "auto", random: () => number) {
    this.#urls = urls;
    this.#kind = kind;
    this.#random = random;
  }

  _attempt(nowS: number): Attempt {
    const polls = this.#fallenBack && (nowS < this.#returnAtS || !this.#pollsWork);
    return { url: this.#url, kind: this.#kind !== "auto" ? this.#kind : polls ? "long-poll" : "websocket" };
  }

  /** It did not come about. */
  _failed(nowS: number, attempt: Attempt, why: Failure): void {
    this.#failures += 1;
    if (attempt.kind !== "websocket") {
      this.#fallenBack = this.#pollsWork = false;
    } else if (why !== "unreachable") {
      this.#websocketFailures += why === "refused" ? WEBSOCKET_TRIES : 1;
      if (this.#websocketFailures >= WEBSOCKET_TRIES) this.#fallBack(nowS, why);
    }
    const settled = this.#heardHere && nowS - this.#movedAtS < STAY_S;
    if (this.#failures >= URL_TRIES && this.#urls > 1 && !settled) this.#move(nowS);
  }

  /** It came about, and is over. `heard`: the service said something over it; `cut`: nobody said goodbye. */
  _ended(nowS: number, attempt: Attempt, livedS: number, heard: boolean, cut: boolean): void {
    this.#heardHere ||= heard;
    this.#pollsWork ||= heard && attempt.kind === "long-poll";
    if (heard && livedS >= YOUNG_S) {
      this.#failures = 0;
      if (attempt.kind === "websocket") {
        this.#websocketFailures = 0;
        this.#pollsWork = false;
      }
    } else if (cut || !heard) {
      this._failed(nowS, attempt, "broken");
      if (heard && attempt.kind === "long-poll" && this.#url === attempt.url) {
        this.#fallenBack = this.#pollsWork = true; // they work, if not for long
      }
    }
  }

  /** When to try a WebSocket beside the long polls. Null: never. */
  _returnAtS(): number | null {
    return this.#kind === "auto" ? this.#returnAtS : null;
  }

  _returnFailed(nowS: number, why: Failure): void {
    this.#pollsWork = true;
    this.#fallBack(nowS, why);
  }

  /** The WebSocket that was tried beside the long polls came about. */
  _returned(): Attempt {
    this.#fallenBack = false;
    this.#websocketFailures = WEBSOCKET_TRIES - 1; // it must show that it lasts
    return { url: this.#url, kind: "websocket" };
  }

  #fallBack(nowS: number, why: Failure): void {
    if (this.#pollsWork) this.#returnS = Math.min(2 * this.#returnS, RETURN_MAX_S);
    else this.#returnS = why === "refused" ? RETURN_REFUSED_S : RETURN_S;
    this.#fallenBack = true;
    this.#returnAtS = nowS + this.#returnS * (1 + SMEAR * (2 * this.#random() - 1));
  }

  #move(nowS: number): void {
    this.#url = (this.#url + 1) % this.#urls;
    this.#movedAtS = nowS;
    this.#heardHere = this.#pollsWork = this.#fallenBack = false;
    this.#failures = this.#websocketFailures = 0;
  }
}
