/**
 * How a client gets its token, and loses it (Thialfi 4.1.2). Pure.
 *
 * Without a token `init` is repeated, each time with a new nonce: if several are answered, only the answer to the last one counts, and that
 * is the one which the server holds for valid. A token that the server refuses is kept as `prior` if the server says so, else dropped. The
 * first refusal is answered at once; refusals that follow without a sound message in between are answered after a pause that doubles, so
 * that two confused parties do not ask each other without end.
 */

import { pauseS } from "./limits.ts";
import type { Config, Init } from "./messages.ts";

/** What the server refuses is dealt with in refusals.ts. */
export class Handshake {
  readonly _application: string;
  readonly _device: string;
  _prior: string;
  _token = "";
  _grantedBefore = false; // in this run
  _dueS = -Infinity; // when `init` is sent (again)
  _welcomed = false; // whether this token's session has taken effect
  readonly #newNonce: () => string;
  _nonce = ""; // of the init that waits for its answer
  _attempts = 0; // since the last sound message
  _supersededAtS = -Infinity;

  constructor(application: string, device: string, newNonce: () => string, prior: string) {
    this._application = application;
    this._device = device;
    this.#newNonce = newNonce;
    this._prior = prior;
  }

  _init(nowS: number, config: Config, dice: number): Init {
    this._nonce = this.#newNonce();
    this._dueS = nowS + pauseS(config, this._attempts++, dice);
    return { nonce: this._nonce, application: this._application, device: this._device, prior: this._prior || undefined };
  }
}
