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
import { FULL_SYNC_MAX } from "./settings.ts";

/** What a message may hold besides token and summary. */
type Content = Pick<ClientMessage, "register" | "unregister" | "acks" | "sync" | "forget">;

const some = <T>(all: T[]): T[] | undefined => (all.length ? all : undefined);

export class Outbox {
  _mustSpeak = false; // a token takes effect with the first message that uses it
  _dueS = -Infinity; // the next heartbeat
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
    const due = acksOnly ? [] : operations._take(nowS, config, limit - acks.length, random());
    for (const operation of due) {
      const op = this._nextOp++;
      if (operation.register) register.push({ op, ...desired._stated(operation.name) });
      else unregister.push({ op, object: operation.name });
    }
    if (!due.length && !acks.length) return null;
    return this._message(nowS, { register: some(register), unregister: some(unregister), acks: some(acks) });
  }

  /** State all registrations if they are few, else the summaries of their buckets. Without the rest: all that fit, or each by itself. */
  _sync(nowS: number): void {
    const core = this.#core;
    const { config, desired, _rest: rest, _syncing: syncing } = core;
    const op = this._nextOp++;
    const all = desired.size <= Math.min(rest ? FULL_SYNC_MAX : Infinity, this._objectsMax());
    syncing._inFlight = true;
    syncing._askedOp = all ? 0 : op;
    syncing._lastS = nowS;
    syncing._dueS = nowS + pauseS(config, syncing._attempts++, core._random());
    if (all) core._do(this._message(nowS, { sync: { op, objects: [...desired.keys()].map((name) => desired._stated(name)) } }));
    else if (rest) core._do(this._message(nowS, { sync: { op, summaries: rest._bucketSummaries(desired.keys()) } }));
    else for (const name of desired.keys()) core._operations.add(name, true);
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
    this._dueS = nowS + config.heartbeat_s * (1 + smear);
  }
}
