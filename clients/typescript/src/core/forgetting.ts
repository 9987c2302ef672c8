/**
 * How a client signs out (docs/protocol.md, `forget`): it wishes for nothing, and when the server has settled that, so that the Matcher has
 * no copy of any registration, or has not for a while, it asks to be deleted. Pure.
 *
 * A part of the core (core.ts) that few runs need: it is given with the rest (rest.ts).
 */

import type { Action, Send } from "./actions.ts";
import type { ClientCore } from "./core.ts";
import { ClientStopped, FORGOTTEN } from "./errors.ts";
import { pauseS } from "./limits.ts";
import { FORGET_SETTLES_S } from "./settings.ts";

/** `stopped` says that the server did it. */
export function forget(core: ClientCore, nowS: number): Action[] {
  const { desired, _handshake: handshake } = core;
  if (core.stopped) return [];
  if (!handshake._token && !handshake._prior) {
    forgotten(core);
  } else {
    core._forgetting = new Forgetting(core, nowS + FORGET_SETTLES_S);
    core._restatingUntilS = 0;
    core._operations.clear(); // the sync states that there is nothing; its number is above theirs
    for (const name of [...desired.keys()]) {
      core._handover._unregistered(name, true);
      desired._drop(name);
    }
    desired._unconfirmed.clear(); // nobody waits to hear of it any more
  }
  return core._flush(nowS);
}

function forgotten(core: ClientCore): void {
  core._writeState();
  core._end(new ClientStopped(FORGOTTEN));
}

export class Forgetting {
  readonly #core: ClientCore;
  readonly #patienceS: number; // until then the server is not asked before the registrations are settled
  _dueS = -Infinity; // when it is asked (again)
  #tries = 0;

  constructor(core: ClientCore, patienceS: number) {
    this.#core = core;
    this.#patienceS = patienceS;
  }

  /** When to ask for it: when nothing is left to settle, or else, in the end. */
  _atS(): number {
    const { _serverSummary: serverSummary, _unsettled: unsettled } = this.#core;
    if (!serverSummary) return Infinity;
    return Math.max(this._dueS, this.#core._differs() || unsettled ? this.#patienceS : -Infinity);
  }

  /** The server has no such client any more. */
  _done(): void {
    forgotten(this.#core);
  }

  _ask(nowS: number): Send {
    const { config, _outbox: outbox, _random: random } = this.#core;
    this._dueS = nowS + pauseS(config, this.#tries++, random());
    return outbox._message(nowS, { forget: true });
  }
}
