/**
 * The messages of one session: what every one carries, how much fits one, how operations are numbered (docs/protocol.md). Pure.
 *
 * Every message carries the token and the summary of the desired registrations, so every one of them is a heartbeat too: the next heartbeat
 * is counted from the last message, smeared so that clients which started together do not speak together.
 */

import type { Send } from "./actions.ts";
import type { Buckets } from "./buckets.ts";
import type { Credential } from "./credential.ts";
import type { Desired } from "./desired.ts";
import { objectsPerMessage, pauseS } from "./limits.ts";
import type { Ack, ClientMessage, Config, Register, Unregister } from "./messages.ts";
import type { Operations } from "./operations.ts";
import { statement, type Syncing } from "./syncing.ts";

/** What a message may hold besides token and summary. */
type Content = Pick<ClientMessage, "register" | "unregister" | "acks" | "sync" | "forget">;

export class Outbox {
  mustSpeak = false; // a token takes effect with the first message that uses it
  heartbeatDueS = -Infinity;
  credential: Credential | null = null; // who the user is, if there is one
  buckets: Buckets | null = null;
  readonly #desired: Desired;
  readonly #operations: Operations;
  readonly #random: () => number;
  #token = "";
  acks: Ack[] = []; // that wait to be sent
  #nextOp = 1;

  constructor(desired: Desired, operations: Operations, random: () => number) {
    this.#desired = desired;
    this.#operations = operations;
    this.#random = random;
  }

  /** A new session: its operations are numbered from 1. Acknowledgements of the old one are not its to make. */
  begin(token: string): void {
    this.#token = token;
    this.acks = [];
    this.mustSpeak = true;
    this.#nextOp = 1;
  }

  /** One message of what waits: acknowledgements first, then operations that are due. */
  batch(nowS: number, config: Config, acksOnly: boolean): Send | null {
    const limit = this.#objectsMax(config);
    const acks = this.acks.slice(0, limit);
    this.acks = this.acks.slice(limit);
    const register: Register[] = [];
    const unregister: Unregister[] = [];
    for (const operation of acksOnly ? [] : this.#operations.take(nowS, config, limit - acks.length, this.#random())) {
      const numbered = { op: this.#nextOp++, object: operation.name };
      if (operation.register) register.push({ ...numbered, ...this.#desired.stated(operation.name) });
      else unregister.push(numbered);
    }
    const content = {
      ...(register.length && { register }),
      ...(unregister.length && { unregister }),
      ...(acks.length && { acks }),
    };
    return Object.keys(content).length ? this.message(nowS, config, content) : null;
  }

  /** Null: there is nothing that could be said. It counts all the same, as if it were lost. */
  sync(nowS: number, config: Config, syncing: Syncing): Send | null {
    const op = this.#nextOp++;
    const sync = statement(this.#desired, op, this.#objectsMax(config), this.buckets);
    const pause = pauseS(config, syncing.attempts, this.#random());
    syncing.sent(nowS, op, pause, !!sync && "summaries" in sync);
    return sync && this.message(nowS, config, { sync });
  }

  syncBuckets(nowS: number, config: Config, buckets: readonly number[]): Send[] {
    const statements = this.buckets?.statements(this.#desired, buckets, this.#nextOp, this.#objectsMax(config)) ?? [];
    this.#nextOp += statements.length;
    return statements.map((sync) => this.message(nowS, config, { sync }));
  }

  /** Any message but `init`; with nothing in it, a heartbeat. */
  message(nowS: number, config: Config, content: Content = {}): Send {
    this.mustSpeak = false;
    this.setHeartbeat(nowS, config);
    const credential = this.credential?.take(nowS, config);
    return { kind: "send", message: { token: this.#token, summary: this.#desired.digest.summary(), ...content, ...credential } };
  }

  #objectsMax(config: Config): number {
    return objectsPerMessage(config, this.credential?.due);
  }

  setHeartbeat(nowS: number, config: Config): void {
    const smear = config.heartbeat_smear * (2 * this.#random() - 1);
    this.heartbeatDueS = nowS + config.heartbeat_s * (1 + smear);
  }
}
