/**
 * The messages of one session: what every one carries, how much fits one, how operations are numbered (docs/protocol.md). Pure.
 *
 * Every message carries the token and the summary of the desired registrations, so every one of them is a heartbeat too: the next heartbeat
 * is counted from the last message, smeared so that clients which started together do not speak together.
 */

import type { Send } from "./actions.ts";
import type { ClientCore } from "./core.ts";
import { objectsPerMessage, pauseS } from "./limits.ts";
import type { Ack, ClientMessage, Register, Unregister } from "./messages.ts";
import { statement } from "./syncing.ts";

/** What a message may hold besides token and summary. */
type Content = Pick<ClientMessage, "register" | "unregister" | "acks" | "sync" | "forget">;

export class Outbox {
  _mustSpeak = false; // a token takes effect with the first message that uses it
  _heartbeatDueS = -Infinity;
  _acks: Ack[] = []; // that wait to be sent
  _nextOp = 1;
  readonly #core: ClientCore;

  constructor(core: ClientCore) {
    this.#core = core;
  }

  /** A new session: its operations are numbered from 1. Acknowledgements of the old one are not its to make. */
  _begin(): void {
    this._acks = [];
    this._mustSpeak = true;
    this._nextOp = 1;
  }

  /** One message of what waits: acknowledgements first, then operations that are due. */
  _batch(nowS: number, acksOnly: boolean): Send | null {
    const { config, desired, _operations: operations, _random: random } = this.#core;
    const limit = this._objectsMax();
    const acks = this._acks.splice(0, limit);
    const register: Register[] = [];
    const unregister: Unregister[] = [];
    for (const operation of acksOnly ? [] : operations._take(nowS, config, limit - acks.length, random())) {
      const numbered = { op: this._nextOp++, object: operation.name };
      if (operation.register) register.push({ ...numbered, ...desired._stated(operation.name) });
      else unregister.push(numbered);
    }
    const content = {
      ...(register.length && { register }),
      ...(unregister.length && { unregister }),
      ...(acks.length && { acks }),
    };
    return Object.keys(content).length ? this._message(nowS, content) : null;
  }

  /** Null: there is nothing that could be said. It counts all the same, as if it were lost. */
  _sync(nowS: number): Send | null {
    const { config, desired, _rest: rest, _syncing: syncing, _random: random } = this.#core;
    const op = this._nextOp++;
    const sync = statement(desired, op, this._objectsMax(), rest);
    syncing._sent(nowS, op, pauseS(config, syncing._attempts, random()), !!sync && "summaries" in sync);
    return sync && this._message(nowS, { sync });
  }

  /** Any message but `init`; with nothing in it, a heartbeat. */
  _message(nowS: number, content: Content = {}): Send {
    const { config, credential, desired, _handshake: handshake } = this.#core;
    this._mustSpeak = false;
    this._setHeartbeat(nowS);
    const shown = credential?._take(nowS, config);
    return { kind: "send", message: { token: handshake._token, summary: desired._digest._summary(), ...content, ...shown } };
  }

  _objectsMax(): number {
    return objectsPerMessage(this.#core.config, this.#core.credential?._due);
  }

  _setHeartbeat(nowS: number): void {
    const { config, _random: random } = this.#core;
    const smear = config.heartbeat_smear * (2 * random() - 1);
    this._heartbeatDueS = nowS + config.heartbeat_s * (1 + smear);
  }
}
