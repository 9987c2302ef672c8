/**
 * The client as a state machine without I/O (Thialfi 3.3 and 4.1): the same as src/roskva/client/core.py, driven by the same transcripts.
 *
 * Theory of operation. The core holds what the application wishes for (`desired`), the operations that the server has not answered
 * (`operations`), the one sync that may be in flight (`syncing`) and what was shown to the application (`handover`). It is in one of three
 * states:
 *
 *     without a token    `init` is repeated, each time with a new nonce; only the grant that echoes the last nonce counts
 *     with a token       every message carries it, and the summary of the desired registrations
 *     stopped            nothing happens any more
 *
 * Everything that waits for a time or for the connection is decided in one place, `#flush`, at the end of every input. The core never
 * waits: it says when it wants to be called (`nextDeadline`).
 *
 * The caller's duties, in this order:
 *
 * 1. Call `start` once; then the inputs, one at a time, as things happen. `nowS` is a monotonic clock in seconds and never falls.
 * 2. Carry out the returned actions in order. A `writeState` should be durable before the messages after it are sent: else a crash may
 *    cost a new client id, though never an update.
 * 3. Call `connected` when a channel is up, `disconnected` when it is gone; `closeChannel` means: close it, and connect again.
 * 4. Call `tick` at `nextDeadline`, which may change with every input. Earlier or later does no harm.
 * 5. Hand each `notify` to the application, and call `acknowledge` when it is done with it, or `giveBack` if it failed. What is neither is
 *    taken to be still at work, and is not shown again in this run.
 *
 * Not here: the pauses between connections (the shell's), and what is kept (the text of `writeState`, nothing else). Pure: no clock, no
 * timer, no randomness; `random` yields numbers from 0 to 1, `nonce` fresh unguessable texts.
 */

import { type Action, type Notification, type Send } from "./actions.ts";
import { Desired } from "./desired.ts";
import { ClientStopped, InvalidName, RoskvaError } from "./errors.ts";
import { ackOf, Handover } from "./handover.ts";
import { Handshake } from "./handshake.ts";
import { withinReason } from "./limits.ts";
import * as messages from "./messages.ts";
import type { Config, ErrorReport, ServerMessage, StartAnew, Status, Summary, SyncRequest } from "./messages.ts";
import { checkApplication, checkDevice, checkVersion, type Name, nameFromText, NOBODY } from "./model.ts";
import { Operations, pauseS } from "./operations.ts";
import { Outbox } from "./outbox.ts";
import { encodeState, priorToken } from "./state.ts";
import { SetDigest } from "./summaries.ts";
import { Syncing } from "./syncing.ts";

export const RESTATING_PAUSES_MAX = 10; // the application may take so many retry_min_s to restate its registrations after a restart
export const FORGET_SETTLES_S = 5; // a client that signs out waits so long for its unregistrations to reach the Matcher
const OVERLOADED = "overloaded";
const GOING_AWAY = "going-away";

export interface CoreOptions {
  readonly random: () => number;
  readonly nonce: () => string;
  /** What the last run's `writeState` gave. */
  readonly state?: string | null;
  readonly config?: Partial<Config>;
  readonly library?: string;
}

/** One run of one client. `stateIgnored` says why the state was of no use. */
export class ClientCore {
  readonly stateIgnored: string;
  readonly desired = new Desired();
  readonly #operations = new Operations();
  readonly #syncing = new Syncing();
  readonly #handover = new Handover();
  readonly #outbox: Outbox;
  readonly #handshake: Handshake;
  readonly #random: () => number;
  readonly #library: string;
  #config: Config;
  #stopped: RoskvaError | null = null;
  #connected = false;
  #aliveAtS = -Infinity; // when anything came, over this connection
  #heardAtS = -Infinity; // when a message of this session came, over this connection
  #quietUntilS = -Infinity; // after a config
  #refusedUntilS = -Infinity; // after an error, over this connection: another one may lead to a gateway that has room
  spreadS = 0; // a gateway that goes has asked its clients to come back within so long, not all at once
  // After a restart operations wait a moment, in case the server still has all that the application is about to restate.
  #restatingUntilS: number | null = null;
  #restatingEndS = -Infinity;
  #serverSummary: Summary | null = null;
  #unsettled = 0;
  #forgetDueS: number | null = null; // when the server is asked (again) to delete this client; null: never
  #forgetPatienceS = -Infinity; // until then it is not asked before its registrations are settled
  #forgetTries = 0;

  constructor(application: string, device: string, { random, nonce, state = null, config = {}, library = "" }: CoreOptions) {
    this.#config = withinReason({ ...messages.DEFAULTS, ...config });
    this.#outbox = new Outbox(this.desired, this.#operations, random);
    const { prior, ignored } = priorToken(state, checkApplication(application), checkDevice(device));
    this.#handshake = new Handshake(application, device, nonce, prior);
    this.stateIgnored = ignored;
    this.#random = random;
    this.#library = library;
  }

  /** The server's policy, within reason. */
  get config(): Config {
    return this.#config;
  }

  /** Why it stopped, once it has. */
  get stopped(): RoskvaError | null {
    return this.#stopped;
  }

  /** Begin. Every start handshakes (Thialfi 4.1.2), and asks the application for its registrations (4.1.3). */
  start(nowS: number): Action[] {
    return [{ kind: "reissueRegistrations" }, ...this.#flush(nowS)];
  }

  /** End at the application's wish. The server keeps the registrations for the next start. */
  stop(): Action[] {
    if (this.#stopped !== null) return [];
    this.#stopped = new ClientStopped("The client was stopped.");
    return [{ kind: "closeChannel" }];
  }

  /**
   * Sign out: wish for nothing, and when the server has settled that, or has not for a while, ask it to delete this client.
   *
   * `stopped` says that it did.
   */
  forget(nowS: number): Action[] {
    if (this.#stopped !== null) return [];
    if (!this.#handshake.token && !this.#handshake.prior) return this.#forgotten();
    this.#forgetDueS = -Infinity;
    this.#forgetPatienceS = nowS + FORGET_SETTLES_S;
    this.#restatingUntilS = null;
    this.#operations.clear(); // the sync states that there is nothing; its number is above theirs
    for (const name of [...this.desired.names()]) {
      this.#handover.unregistered(name, true);
      this.desired.remove(name);
    }
    this.desired.confirmAll(); // nobody waits to hear of it any more
    return this.#flush(nowS);
  }

  #forgotten(): Action[] {
    return [this.#writeState(), ...this.#end(new ClientStopped("The client was forgotten."))];
  }

  /** A channel is up. A session lives on over any channel: its first message says where the client is now. */
  connected(nowS: number): Action[] {
    this.#connected = true;
    this.#aliveAtS = nowS;
    this.#heardAtS = -Infinity;
    this.#refusedUntilS = -Infinity;
    this.spreadS = 0;
    this.#handshake.dueS = -Infinity;
    this.#outbox.mustSpeak = true;
    this.#operations.restart();
    this.#syncing.interrupted();
    if (this.#forgetDueS !== null) this.#forgetDueS = -Infinity;
    return this.#flush(nowS);
  }

  disconnected(): Action[] {
    this.#connected = false;
    this.#heardAtS = -Infinity;
    return [];
  }

  tick(nowS: number): Action[] {
    return this.#flush(nowS);
  }

  /** When `tick` is wanted. Null: only after another input. */
  nextDeadline(): number | null {
    if (this.#stopped !== null || !this.#connected) return null;
    const silentS = this.#aliveAtS + 2 * this.#config.keepalive_s;
    if (!this.#handshake.token) return Math.min(silentS, Math.max(this.#handshake.dueS, this.#silentUntilS));
    const deadlineS = Math.min(silentS, this.#outbox.heartbeatDueS);
    if (this.#restatingUntilS !== null) return Math.min(deadlineS, Math.max(this.#restatingUntilS, this.#silentUntilS));
    let waitingS = this.#operations.nextDue(this.#config);
    if (this.#operations.size === 0 && this.#differs()) waitingS = this.#syncing.notBeforeS;
    const forgetAtS = this.#forgetAtS();
    if (forgetAtS !== null) waitingS = Math.min(waitingS ?? Infinity, forgetAtS);
    return waitingS === null ? deadlineS : Math.min(deadlineS, Math.max(waitingS, this.#silentUntilS));
  }

  get #silentUntilS(): number {
    return Math.max(this.#quietUntilS, this.#refusedUntilS);
  }

  /** The server has exactly what is wished for, owes nothing, and said so within two keepalives. */
  inSync(nowS: number): boolean {
    return this.#unsettled === 0 && this.confirmed(nowS);
  }

  /** The server has exactly what is wished for, and said so within two keepalives; it may owe notifications. */
  confirmed(nowS: number): boolean {
    return this.alive(nowS) && !this.#differs() && this.#operations.size === 0 && !this.#syncing.inFlight;
  }

  /** The server spoke to this session over this connection, and within two keepalives. */
  alive(nowS: number): boolean {
    return (
      this.#stopped === null &&
      this.#connected &&
      this.#handshake.token !== "" &&
      this.#serverSummary !== null &&
      nowS - this.#heardAtS < 2 * this.#config.keepalive_s
    );
  }

  /** Wish for an object. `version` is what the application holds, and will still hold after a restart. */
  register(nowS: number, name: Name, version: bigint | null = null, epoch = 0): Action[] {
    if (version !== null) checkVersion(version, epoch);
    if (this.#stopped !== null || this.#forgetDueS !== null) return [];
    const isNew = this.desired.add(name, version === null ? null : { version, epoch });
    this.#handover.registered(name, version === null ? null : [epoch, version], !isNew);
    if (isNew) this.#operate(nowS, name, true);
    else if (!this.desired.isUnconfirmed(name)) return [{ kind: "statusChanged", name, registered: true }];
    return this.#flush(nowS);
  }

  /** Wish for it no more. `forget`: the application drops what it knew; should it register again, all is told anew. */
  unregister(nowS: number, name: Name, forget = false): Action[] {
    if (this.#stopped !== null) return [];
    this.#handover.unregistered(name, forget);
    if (this.desired.remove(name)) this.#operate(nowS, name, false);
    else if (!this.desired.isUnconfirmed(name)) return [{ kind: "statusChanged", name, registered: false }];
    return this.#flush(nowS);
  }

  #operate(nowS: number, name: Name, register: boolean): void {
    this.#operations.add(name, register);
    if (this.#restatingUntilS !== null) this.#restatingUntilS = Math.min(nowS + this.#config.retry_min_s, this.#restatingEndS);
  }

  /**
   * The application is done with these. Several at once travel in one message.
   *
   * They are not repeated: if one is lost the server delivers again, and is answered then.
   */
  acknowledge(nowS: number, notifications: readonly Notification[]): Action[] {
    for (const notification of notifications) {
      const acks = this.#handover.acknowledged(notification);
      // Else void: the server drops what it owes together with the registration.
      if (this.desired.has(notification.name)) this.#outbox.acknowledge(acks);
    }
    return this.#flush(nowS);
  }

  /** The application failed on it: it is shown again when the server delivers it again. */
  giveBack(nowS: number, notification: Notification): Action[] {
    this.#handover.giveBack(notification);
    return this.#flush(nowS);
  }

  received(nowS: number, message: ServerMessage): Action[] {
    if (this.#stopped !== null || !this.#connected) return [];
    this.#aliveAtS = nowS;
    const grant = message.grant !== null && this.#handshake.answers(message.grant) ? message.grant : null;
    if (message.start_anew !== null && grant === null) {
      return [...this.#refused(nowS, message.token, message.start_anew), ...this.#flush(nowS)];
    }
    const ours = grant !== null || (message.token !== "" && message.token === this.#handshake.token);
    if (!ours && message.token !== "") return this.#flush(nowS); // of another session: late, or not for us
    const actions: Action[] = [];
    if (message.config !== null) this.#configure(nowS, message.config);
    if (message.error !== null) actions.push(...this.#reported(nowS, message.error));
    if (grant !== null) {
      if (message.config !== null) this.#handover.countsIn(message.config.epoch);
      actions.push(...this.#granted(nowS, grant.token, message.summary));
    } else if (ours) {
      this.#handshake.sound(message.summary !== null && message.grant === null);
    }
    return [...actions, ...(ours ? this.#ofSession(nowS, message) : []), ...this.#flush(nowS)];
  }

  #ofSession(nowS: number, message: ServerMessage): Action[] {
    // Without a summary a gateway speaks that cannot reach the Registrar: it says nothing of our session.
    if (message.summary !== null) {
      this.#heardAtS = nowS;
      this.#serverSummary = message.summary;
      this.#unsettled = message.unsettled;
    }
    return [
      ...message.status.flatMap((status) => this.#status(nowS, status)),
      ...message.notify.flatMap((told) => this.#notified(told)),
      ...(message.sync_request === null ? [] : this.#syncRequested(nowS, message.sync_request)),
    ];
  }

  #configure(nowS: number, config: Config): void {
    this.#config = withinReason(config);
    this.#quietUntilS = nowS + this.#config.quiet_s;
    this.#outbox.setHeartbeat(nowS, this.#config);
  }

  /**
   * A message was refused as a whole. What it asked for is repeated by its own timer, not before the server says so.
   *
   * Up to twice as late, so that clients which were refused together do not return together. If the Registrar has not spoken over this
   * connection, what was refused may be the message that says where the client is now, and no other follows: it is said again.
   */
  #reported(nowS: number, error: ErrorReport): Action[] {
    if (this.#handshake.hopeless(error.code)) return this.#end(new RoskvaError(error.code, error.message));
    if (error.code === GOING_AWAY) {
      this.spreadS = error.retry_after_s;
      return [{ kind: "closeChannel" }];
    }
    if (error.retry_after_s > 0) {
      const leastS = Math.min(Math.max(error.retry_after_s, this.#config.retry_min_s), this.#config.retry_max_s);
      this.#refusedUntilS = Math.max(this.#refusedUntilS, nowS + leastS * (1 + this.#random()));
      if (error.code === OVERLOADED) this.#againAt(this.#refusedUntilS);
      if (this.#heardAtS === -Infinity || !this.#handshake.welcomed) {
        this.#outbox.heartbeatDueS = Math.min(this.#outbox.heartbeatDueS, this.#refusedUntilS);
      }
    }
    return [{ kind: "reported", code: error.code, message: error.message, transient: error.transient }];
  }

  /** The server has no room, and knows when it will: then, however long the own pauses have become, and not later. */
  #againAt(untilS: number): void {
    this.#operations.againAt(untilS);
    this.#syncing.againAt(untilS);
    this.#handshake.againAt(untilS);
    if (this.#forgetDueS !== null) this.#forgetDueS = Math.min(this.#forgetDueS, untilS);
  }

  #granted(nowS: number, token: string, summary: Summary | null): Action[] {
    const returning = this.#handshake.prior !== "";
    const restarted = returning && !this.#handshake.grantedBefore;
    this.#handshake.granted(token);
    this.#serverSummary = summary !== null || returning ? summary : new SetDigest().summary();
    this.#outbox.begin(token);
    this.#handover.newSession();
    this.#operations.restart();
    this.#syncing.interrupted();
    if (this.#forgetDueS !== null) this.#forgetDueS = -Infinity;
    if (restarted && summary !== null && summary.count > 0) {
      this.#restatingUntilS = nowS + this.#config.retry_min_s;
      this.#restatingEndS = nowS + RESTATING_PAUSES_MAX * this.#config.retry_min_s;
    }
    return [this.#writeState()];
  }

  #refused(nowS: number, token: string, refusal: StartAnew): Action[] {
    const outcome = this.#handshake.refused(nowS, token, refusal, this.#config, this.#random());
    if (outcome === "not ours") return [];
    if (outcome === "two of us") {
      return this.#end(new ClientStopped("Another client runs with the same state: it superseded this one twice within a minute."));
    }
    this.#serverSummary = null;
    this.#restatingUntilS = null;
    if (outcome === "handshake") return [];
    if (this.#forgetDueS !== null) return this.#forgotten();
    this.#operations.clear(); // a new client has no registrations: the sync states them all
    this.desired.doubtAll();
    return [this.#writeState(), { kind: "reissueRegistrations" }];
  }

  #writeState(): Action {
    return { kind: "writeState", state: encodeState(this.#handshake.application, this.#handshake.device, this.#handshake.token) };
  }

  #end(error: RoskvaError): Action[] {
    this.#stopped = error;
    return [{ kind: "closeChannel" }, { kind: "stopped", error }];
  }

  #status(nowS: number, status: Status): Action[] {
    const name = nameOf(status.object);
    if (status.state === messages.FAILED) return this.#failed(nowS, name, status);
    if (status.state !== messages.REGISTERED && status.state !== messages.UNREGISTERED) return []; // of a later protocol
    const registered = status.state === messages.REGISTERED;
    if (registered === this.desired.has(name)) {
      this.#operations.settle(name);
      return this.desired.confirm(name) ? [{ kind: "statusChanged", name, registered }] : [];
    }
    // A late answer to an earlier wish.
    if (registered || this.#operations.has(name) || this.desired.isUnconfirmed(name)) return [];
    // The server dropped it, or this is a late repeat. The summaries tell which; until then it counts as absent.
    this.desired.doubt(name);
    return [{ kind: "statusChanged", name, registered: false }];
  }

  #failed(nowS: number, name: Name, { transient, code, message }: Status): Action[] {
    if (!this.#operations.has(name) && !this.desired.has(name)) return []; // a late answer to an earlier wish
    if (transient) {
      this.#operations.postpone(name, this.desired.has(name), nowS, this.#config, this.#random());
    } else {
      this.#operations.settle(name);
      // Else the summaries would differ for ever.
      if (this.desired.remove(name)) this.#handover.unregistered(name, false);
      this.desired.confirm(name);
    }
    return [{ kind: "registrationFailed", name, transient, code, message }];
  }

  #syncRequested(nowS: number, request: SyncRequest): Action[] {
    if (request.buckets === null) {
      // `#flush` does it, if the summaries differ and nothing is in flight.
      if (this.#syncing.hinted(nowS)) this.#syncing.notBeforeS = -Infinity;
      return [];
    }
    if (request.op === 0 || request.op !== this.#syncing.askedOp) return [];
    this.#syncing.askedOp = 0;
    return this.#outbox.syncBuckets(nowS, this.#config, request.buckets);
  }

  #notified(told: messages.Notify): Action[] {
    const name = nameOf(told.object);
    // Neither shown nor acknowledged: the server voids it when the unregistration arrives.
    if (!this.desired.has(name)) return [];
    const notification: Notification = {
      name,
      version: told.version === null ? null : BigInt(told.version),
      epoch: told.epoch,
      seqno: BigInt(told.seqno),
      session: this.#handover.session,
    };
    const verdict = this.#handover.delivered(notification);
    if (verdict === "hand over") return [{ kind: "notify", notification }];
    if (verdict === "acknowledge again") this.#outbox.acknowledge([ackOf(notification)]);
    return [];
  }

  /** Everything that may be sent now. In a quiet period: acknowledgements and heartbeats only. */
  #flush(nowS: number): Action[] {
    if (this.#stopped !== null || !this.#connected) return [];
    if (nowS >= this.#aliveAtS + 2 * this.#config.keepalive_s) {
      this.#connected = false; // half open: the other side is gone and nobody told us
      return [{ kind: "closeChannel" }];
    }
    const quiet = nowS < this.#silentUntilS;
    if (!this.#handshake.token) return quiet || nowS < this.#handshake.dueS ? [] : [this.#init(nowS)];
    if (this.#restatingUntilS !== null && (nowS >= this.#restatingUntilS || !this.#differs())) {
      this.#restatingUntilS = null;
      this.#operations.clear(); // the server has them, or the sync states them
    }
    const restating = this.#restatingUntilS !== null;
    const actions: Action[] = [];
    for (let batch: Send | null; (batch = this.#outbox.batch(nowS, this.#config, quiet || restating)) !== null; ) actions.push(batch);
    if (this.#operations.size === 0 && !restating && this.#serverSummary !== null) {
      if (!this.#differs()) for (const action of this.#agree()) actions.push(action); // may be too many for one call
      else if (!quiet && nowS >= this.#syncing.notBeforeS) actions.push(this.#outbox.sync(nowS, this.#config, this.#syncing));
    }
    const forgetAtS = this.#forgetAtS();
    if (forgetAtS !== null && !quiet && nowS >= forgetAtS) {
      this.#forgetDueS = nowS + pauseS(this.#config, this.#forgetTries, this.#random());
      this.#forgetTries += 1;
      actions.push(this.#outbox.message(nowS, this.#config, { forget: true }));
    } else if (this.#outbox.mustSpeak || nowS >= this.#outbox.heartbeatDueS) {
      actions.push(this.#outbox.message(nowS, this.#config));
    }
    return actions;
  }

  /** When to ask for it: when nothing is left to settle, so that the Matcher has no copy of any registration; or else, in the end. */
  #forgetAtS(): number | null {
    if (this.#forgetDueS === null || this.#serverSummary === null) return null;
    const settled = !this.#differs() && this.#unsettled === 0;
    return settled ? this.#forgetDueS : Math.max(this.#forgetDueS, this.#forgetPatienceS);
  }

  #differs(): boolean {
    return this.#serverSummary !== null && !this.desired.matches(this.#serverSummary);
  }

  /** The summaries are equal with nothing in flight: the server has every wish, whether or not it said so one by one. */
  #agree(): Action[] {
    this.#syncing.agreed();
    return this.desired.confirmAll().map((name) => ({ kind: "statusChanged", name, registered: this.desired.has(name) }));
  }

  #init(nowS: number): Send {
    const init = this.#handshake.init(nowS, this.#config, this.#random());
    const info = this.#library ? { info: { library: this.#library } } : {};
    return { kind: "send", message: { summary: this.desired.summary(), init, ...info } };
  }
}

/** A name that the server sent. One that cannot be is nobody's. */
function nameOf(text: string): Name {
  try {
    return nameFromText(text);
  } catch (error) {
    if (error instanceof InvalidName) return NOBODY;
    throw error;
  }
}
