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
 * In the first two the server may want to know who the user is (credential.ts): until it does, little is said. A core without a
 * `credential` takes no notice.
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
 * Not here: the pauses between connections (the shell's), and what is kept (the text of `writeState`, nothing else). It is long, since all
 * inputs stand beside the one place that they meet in. Pure: no clock, no timer, no randomness; `random` yields numbers from 0 to 1,
 * `nonce` fresh unguessable texts.
 */

import type { Action, Notification, Send } from "./actions.ts";
import type { Buckets } from "./buckets.ts";
import type { Credential } from "./credential.ts";
import { Desired } from "./desired.ts";
import { ClientStopped, FORGOTTEN, InvalidName, RoskvaError } from "./errors.ts";
import { ackOf, Handover } from "./handover.ts";
import { Handshake } from "./handshake.ts";
import { pauseS, withinReason } from "./limits.ts";
import * as messages from "./messages.ts";
import type { Config, ErrorReport, ServerMessage, StartAnew, Status, Summary, SyncRequest } from "./messages.ts";
import { checkApplication, checkDevice, checkVersion, type Name, nameFromText, NOBODY } from "./model.ts";
import { Operations } from "./operations.ts";
import { Outbox } from "./outbox.ts";
import { FORGET_SETTLES_S, RESTATING_PAUSES_MAX } from "./settings.ts";
import { encodeState, priorToken } from "./state.ts";
import { SetDigest } from "./summaries.ts";
import { Syncing } from "./syncing.ts";

const OVERLOADED = "overloaded";
const GOING_AWAY = "going-away";
const NOT_AUTHORIZED = "not-authorized";

export interface CoreOptions {
  readonly random: () => number;
  readonly nonce: () => string;
  /** What the last run's `writeState` gave. */
  readonly state?: string | null;
  readonly config?: Partial<Config>;
  readonly library?: string;
  /** Who the user is. It may be given later, too. */
  readonly credential?: Credential | null;
  /** To state more than 256 registrations. They may be given later, too: until then such a statement is as good as lost. */
  readonly buckets?: Buckets | null;
}

/** One run of one client. */
export class ClientCore {
  /** Why the state was of no use, if it was not. */
  readonly stateIgnored: string;
  readonly desired = new Desired();
  /** The server's policy, within reason. */
  config: Config;
  /** Why it stopped, once it has. */
  stopped: RoskvaError | null = null;
  spreadS = 0; // a gateway that goes has asked its clients to come back within so long, not all at once
  readonly #operations = new Operations();
  readonly #syncing = new Syncing();
  readonly #handover = new Handover();
  readonly #outbox: Outbox;
  readonly #handshake: Handshake;
  readonly #random: () => number;
  readonly #library: string;
  #actions: Action[] = []; // of the input that is being dealt with
  #connected = false;
  #aliveAtS = -Infinity; // when anything came, over this connection
  #heardAtS = -Infinity; // when a message of this session came, over this connection
  #quietUntilS = -Infinity; // after a config
  #refusedUntilS = -Infinity; // after an error, over this connection: another one may lead to a gateway that has room
  // After a restart operations wait a moment, in case the server still has all that the application is about to restate.
  #restatingUntilS: number | null = null;
  #restatingEndS = -Infinity;
  #serverSummary: Summary | null = null;
  #unsettled = 0;
  #forgets = false; // the client signs out
  #forgetDueS = -Infinity; // when the server is asked (again) to delete it
  #forgetPatienceS = -Infinity; // until then it is not asked before its registrations are settled
  #forgetTries = 0;

  constructor(application: string, device: string, options: CoreOptions) {
    const { random, nonce, state = null, config = {}, library = "", credential = null, buckets = null } = options;
    this.config = withinReason({ ...messages.DEFAULTS, ...config });
    this.#outbox = new Outbox(this.desired, this.#operations, random);
    const { prior, ignored } = priorToken(state, checkApplication(application), checkDevice(device));
    this.#handshake = new Handshake(application, device, nonce, prior);
    this.stateIgnored = ignored;
    this.#random = random;
    this.#library = library;
    this.credential = credential;
    this.buckets = buckets;
  }

  set buckets(buckets: Buckets | null) {
    this.#outbox.buckets = buckets;
  }

  get credential(): Credential | null {
    return this.#outbox.credential;
  }

  set credential(credential: Credential | null) {
    this.#outbox.credential = credential;
  }

  /** Begin. Every start handshakes (Thialfi 4.1.2), and asks the application for its registrations (4.1.3). */
  start(nowS: number): Action[] {
    this.#do({ kind: "reissueRegistrations" });
    return this.#flush(nowS);
  }

  /** End at the application's wish. The server keeps the registrations for the next start. */
  stop(): Action[] {
    if (this.stopped) return [];
    this.stopped = new ClientStopped("The client was stopped.");
    return [{ kind: "closeChannel" }];
  }

  /**
   * Sign out: wish for nothing, and when the server has settled that, or has not for a while, ask it to delete this client.
   *
   * `stopped` says that it did.
   */
  forget(nowS: number): Action[] {
    if (this.stopped) return [];
    if (!this.#handshake.token && !this.#handshake.prior) {
      this.#forgotten();
    } else {
      this.#forgets = true;
      this.#forgetDueS = -Infinity;
      this.#forgetPatienceS = nowS + FORGET_SETTLES_S;
      this.#restatingUntilS = null;
      this.#operations.clear(); // the sync states that there is nothing; its number is above theirs
      for (const name of [...this.desired.keys()]) {
        this.#handover.unregistered(name, true);
        this.desired.drop(name);
      }
      this.desired.unconfirmed.clear(); // nobody waits to hear of it any more
    }
    return this.#flush(nowS);
  }

  #forgotten(): void {
    this.#writeState();
    this.#end(new ClientStopped(FORGOTTEN));
  }

  /** A channel is up. A session lives on over any channel: its first message says where the client is now. */
  connected(nowS: number): Action[] {
    this.#connected = true;
    this.#aliveAtS = nowS;
    this.#heardAtS = this.#refusedUntilS = this.#handshake.dueS = -Infinity;
    this.spreadS = 0;
    this.#outbox.mustSpeak = true;
    this.credential?.turn();
    this.#askAgain();
    return this.#flush(nowS);
  }

  disconnected(): Action[] {
    this.#connected = false;
    this.#heardAtS = -Infinity;
    return [];
  }

  /** The user's credential from now on; it is shown at once. Empty: there is none any more, which is not said to anybody. */
  useCredential(nowS: number, text: string): Action[] {
    if (this.stopped || !this.credential?.use(text)) return [];
    this.#handshake.dueS = -Infinity;
    this.#outbox.mustSpeak = true;
    if (this.credential.wanted) this.#askAgain();
    return this.#flush(nowS);
  }

  /** What was asked over another connection, or in another session, or without a credential, has no answer any more. */
  #askAgain(): void {
    this.#operations.restart();
    this.#syncing.interrupted();
    this.#forgetDueS = -Infinity;
  }

  tick(nowS: number): Action[] {
    return this.#flush(nowS);
  }

  /** When `tick` is wanted. Null: only after another input. */
  nextDeadline(): number | null {
    if (!this.#lives()) return null;
    const { token, dueS } = this.#handshake;
    let waitingS = this.#operations.nextDueS(this.config);
    const { refreshAtS = Infinity, heldUntilS = -Infinity, wanted } = this.credential ?? {};
    if (!token || wanted) {
      waitingS = Math.max(token ? -Infinity : dueS, heldUntilS);
    } else if (this.#restatingUntilS !== null) {
      waitingS = this.#restatingUntilS;
    } else {
      if (this.#operations.size === 0 && this.#differs()) waitingS = this.#syncing.notBeforeS;
      waitingS = Math.min(waitingS, this.#forgetAtS());
    }
    if (!token || !wanted) waitingS = Math.max(waitingS, this.#silentUntilS());
    return Math.min(this.#silentS(), refreshAtS, token && !wanted ? this.#outbox.heartbeatDueS : Infinity, waitingS);
  }

  #lives(): boolean {
    return !this.stopped && this.#connected;
  }

  /** When the other side, if it has said nothing until then, is taken to be gone. */
  #silentS(): number {
    return this.#aliveAtS + 2 * this.config.keepalive_s;
  }

  /** Until when this side says nothing that can wait. */
  #silentUntilS(): number {
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
    const known = this.#lives() && this.#handshake.token && this.#serverSummary && !this.credential?.wanted;
    return !!known && nowS - this.#heardAtS < 2 * this.config.keepalive_s;
  }

  /** Wish for an object. `version` is what the application holds, and will still hold after a restart. */
  register(nowS: number, name: Name, version: bigint | null = null, epoch = 0): Action[] {
    const held = version === null ? null : { version, epoch };
    if (version !== null) checkVersion(version, epoch);
    if (this.stopped || this.#forgets) return [];
    const isNew = this.desired.wish(name, held);
    this.#handover.registered(name, held, !isNew);
    return this.#wished(nowS, name, true, isNew);
  }

  /** Wish for it no more. `forget`: the application drops what it knew; should it register again, all is told anew. */
  unregister(nowS: number, name: Name, forget = false): Action[] {
    if (this.stopped) return [];
    this.#handover.unregistered(name, forget);
    return this.#wished(nowS, name, false, this.desired.drop(name));
  }

  #wished(nowS: number, name: Name, registered: boolean, isNew: boolean): Action[] {
    if (isNew) {
      this.#operations.add(name, registered);
      if (this.#restatingUntilS !== null) this.#restatingUntilS = Math.min(nowS + this.config.retry_min_s, this.#restatingEndS);
    } else if (!this.desired.unconfirmed.has(name)) {
      return [{ kind: "statusChanged", name, registered }];
    }
    return this.#flush(nowS);
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
      if (this.desired.has(notification.name)) this.#outbox.acks.push(...acks);
    }
    return this.#flush(nowS);
  }

  /** The application failed on it: it is shown again when the server delivers it again. */
  giveBack(nowS: number, notification: Notification): Action[] {
    this.#handover.giveBack(notification);
    return this.#flush(nowS);
  }

  received(nowS: number, message: ServerMessage): Action[] {
    if (!this.#lives()) return [];
    this.#aliveAtS = nowS;
    const { token, config, error, summary } = message;
    const grant = message.grant && this.#handshake.answers(message.grant) ? message.grant : null;
    const ours = grant || (token && token === this.#handshake.token);
    if (message.start_anew && !grant) {
      this.#refused(nowS, token, message.start_anew);
    } else if (ours || !token) {
      // Else of another session: late, or not for us.
      if (config) {
        this.config = withinReason(config);
        this.#quietUntilS = nowS + this.config.quiet_s;
        this.#outbox.setHeartbeat(nowS, this.config);
      }
      if (error) this.#reported(nowS, error);
      if (message.credential && this.credential) {
        // Wanted: nothing was done with a message, and nothing is told. Accepted after that: what was refused with it is asked again.
        const { wanted } = this.credential;
        this.#actions.push(...this.credential.judged(nowS, message.credential, this.config));
        if (message.credential.wanted) this.#heardAtS = -Infinity;
        else if (wanted) this.#askAgain();
      }
      if (grant) {
        if (config) this.#handover.countsIn(config.epoch);
        this.#granted(nowS, grant.token, summary);
      } else if (ours) {
        this.#handshake.sound(!!summary && !message.grant);
      }
      if (ours) this.#ofSession(nowS, message);
    }
    return this.#flush(nowS);
  }

  #ofSession(nowS: number, { summary, unsettled, status, notify, sync_request }: ServerMessage): void {
    // Without a summary a gateway speaks that cannot reach the Registrar: it says nothing of our session.
    if (summary) {
      this.#heardAtS = nowS;
      this.#serverSummary = summary;
      this.#unsettled = unsettled;
    }
    for (const each of status) this.#status(nowS, each);
    for (const told of notify) this.#notified(told);
    if (sync_request) this.#syncRequested(nowS, sync_request);
  }

  /**
   * A message was refused as a whole. What it asked for is repeated by its own timer, not before the server says so.
   *
   * Up to twice as late, so that clients which were refused together do not return together. If the Registrar has not spoken over this
   * connection, what was refused may be the message that says where the client is now, and no other follows: it is said again.
   */
  #reported(nowS: number, { code, message, transient, retry_after_s }: ErrorReport): void {
    if (this.#handshake.hopeless(code)) return this.#end(new RoskvaError(code, message));
    if (code === GOING_AWAY) {
      this.spreadS = retry_after_s;
      return this.#do({ kind: "closeChannel" });
    }
    if (retry_after_s > 0) {
      const leastS = Math.min(Math.max(retry_after_s, this.config.retry_min_s), this.config.retry_max_s);
      const untilS = (this.#refusedUntilS = Math.max(this.#refusedUntilS, nowS + leastS * (1 + this.#random())));
      if (code === OVERLOADED) {
        // It has no room, and knows when it will: then, however long the own pauses have become, and not later.
        for (const asked of [this.#operations, this.#syncing, this.#handshake]) asked.againAt(untilS);
        this.#forgetDueS = Math.min(this.#forgetDueS, untilS);
      }
      if (this.#heardAtS === -Infinity || !this.#handshake.welcomed) {
        this.#outbox.heartbeatDueS = Math.min(this.#outbox.heartbeatDueS, untilS);
      }
    }
    this.#do({ kind: "reported", code, message, transient });
  }

  #granted(nowS: number, token: string, summary: Summary | null): void {
    const { prior, grantedBefore } = this.#handshake;
    this.#handshake.granted(token);
    this.#serverSummary = summary ?? (prior ? null : new SetDigest().summary());
    this.#outbox.begin(token);
    this.#handover.newSession();
    this.#askAgain();
    if (prior && !grantedBefore && summary?.count) {
      this.#restatingUntilS = nowS + this.config.retry_min_s;
      this.#restatingEndS = nowS + RESTATING_PAUSES_MAX * this.config.retry_min_s;
    }
    this.#writeState();
  }

  #refused(nowS: number, token: string, refusal: StartAnew): void {
    const outcome = this.#handshake.refused(nowS, token, refusal, this.config, this.#random());
    if (outcome === "not ours") return;
    if (outcome === "two of us") {
      return this.#end(new ClientStopped("Another client runs with the same state: it superseded this one twice within a minute."));
    }
    this.#serverSummary = this.#restatingUntilS = null;
    if (outcome === "handshake") return;
    if (this.#forgets) return this.#forgotten();
    this.#operations.clear(); // a new client has no registrations: the sync states them all
    this.desired.doubtAll();
    this.#writeState();
    this.#do({ kind: "reissueRegistrations" });
  }

  #do(action: Action): void {
    this.#actions.push(action);
  }

  #changed(name: Name, registered: boolean): void {
    this.#do({ kind: "statusChanged", name, registered });
  }

  #writeState(): void {
    this.#do({ kind: "writeState", state: encodeState(this.#handshake.application, this.#handshake.device, this.#handshake.token) });
  }

  #end(error: RoskvaError): void {
    this.stopped = error;
    this.#do({ kind: "closeChannel" });
    this.#do({ kind: "stopped", error });
  }

  #status(nowS: number, status: Status): void {
    const name = nameOf(status.object);
    const registered = status.state === messages.REGISTERED;
    if (status.state === messages.FAILED) return this.#failed(nowS, name, status);
    if (!registered && status.state !== messages.UNREGISTERED) return; // of a later protocol
    if (registered === this.desired.has(name)) {
      this.#operations.settle(name);
      if (this.desired.unconfirmed.delete(name)) this.#changed(name, registered);
    } else if (!registered && !this.#operations.has(name) && !this.desired.unconfirmed.has(name)) {
      // Else a late answer to an earlier wish. The server dropped it, or this is a late repeat. The summaries tell which; until then it
      // counts as absent.
      this.desired.unconfirmed.add(name);
      this.#changed(name, false);
    }
  }

  #failed(nowS: number, name: Name, { transient, code, message }: Status): void {
    const wished = this.desired.has(name);
    const stood = wished && !this.#operations.has(name) && !this.desired.unconfirmed.has(name);
    if (!this.#operations.has(name) && !wished) return; // a late answer to an earlier wish
    if (transient) {
      this.#operations.postpone(name, wished, nowS, this.config, this.#random());
    } else {
      this.#operations.settle(name);
      // Else the summaries would differ for ever.
      if (this.desired.drop(name)) this.#handover.unregistered(name, false);
      this.desired.unconfirmed.delete(name);
      if (stood && code === NOT_AUTHORIZED) this.#changed(name, false); // its user may not have it any more
    }
    this.#do({ kind: "registrationFailed", name, transient, code, message });
  }

  #syncRequested(nowS: number, { op, buckets }: SyncRequest): void {
    if (!buckets) {
      // `#flush` does it, if the summaries differ and nothing is in flight.
      if (this.#syncing.hinted(nowS)) this.#syncing.notBeforeS = -Infinity;
    } else if (op && op === this.#syncing.askedOp) {
      this.#syncing.askedOp = 0;
      for (const send of this.#outbox.syncBuckets(nowS, this.config, buckets)) this.#do(send);
    }
  }

  #notified({ object, version, epoch, seqno }: messages.Notify): void {
    const name = nameOf(object);
    // Neither shown nor acknowledged: the server voids it when the unregistration arrives.
    if (!this.desired.has(name)) return;
    const notification: Notification = {
      name,
      version: version === null ? null : BigInt(version),
      epoch,
      seqno: BigInt(seqno),
      session: this.#handover.session,
    };
    const verdict = this.#handover.delivered(notification);
    if (verdict === "hand over") this.#do({ kind: "notify", notification });
    if (verdict === "acknowledge again") this.#outbox.acks.push(ackOf(notification));
  }

  /** Answers what is to be done, with everything that may be sent now. In a quiet period: acknowledgements and heartbeats only. */
  #flush(nowS: number): Action[] {
    if (this.#lives()) this.#speak(nowS);
    const actions = this.#actions;
    this.#actions = [];
    return actions;
  }

  #speak(nowS: number): void {
    if (nowS >= this.#silentS()) {
      this.#connected = false; // half open: the other side is gone and nobody told us
      return this.#do({ kind: "closeChannel" });
    }
    const { credential } = this;
    if (credential) this.#actions.push(...credential.asks(nowS));
    if (credential?.wanted) {
      if (nowS < credential.heldUntilS) return;
      credential.turn();
      this.#outbox.mustSpeak = true;
    }
    const quiet = nowS < this.#silentUntilS();
    if (!this.#handshake.token) {
      if (!quiet && nowS >= this.#handshake.dueS) this.#init(nowS);
      return;
    }
    if (this.#restatingUntilS !== null && (nowS >= this.#restatingUntilS || !this.#differs())) {
      this.#restatingUntilS = null;
      this.#operations.clear(); // the server has them, or the sync states them
    }
    const restating = this.#restatingUntilS !== null;
    for (let batch: Send | null; (batch = this.#outbox.batch(nowS, this.config, quiet || restating)); ) this.#do(batch);
    if (this.#operations.size === 0 && !restating && this.#serverSummary) {
      if (!this.#differs()) {
        // Nothing is in flight: the server has every wish, whether or not it said so one by one.
        this.#syncing.agreed();
        for (const name of this.desired.unconfirmed) this.#changed(name, this.desired.has(name));
        this.desired.unconfirmed.clear();
      } else if (!quiet && nowS >= this.#syncing.notBeforeS) {
        const sync = this.#outbox.sync(nowS, this.config, this.#syncing);
        if (sync) this.#do(sync);
      }
    }
    if (!quiet && nowS >= this.#forgetAtS()) {
      this.#forgetDueS = nowS + pauseS(this.config, this.#forgetTries++, this.#random());
      this.#do(this.#outbox.message(nowS, this.config, { forget: true }));
    } else if (this.#outbox.mustSpeak || nowS >= this.#outbox.heartbeatDueS) {
      this.#do(this.#outbox.message(nowS, this.config));
    }
  }

  /** When to ask for it: when nothing is left to settle, so that the Matcher has no copy of any registration; or else, in the end. */
  #forgetAtS(): number {
    if (!this.#forgets || !this.#serverSummary) return Infinity;
    return Math.max(this.#forgetDueS, this.#differs() || this.#unsettled ? this.#forgetPatienceS : -Infinity);
  }

  #differs(): boolean {
    return !!this.#serverSummary && !this.desired.digest.matches(this.#serverSummary);
  }

  #init(nowS: number): void {
    const init = this.#handshake.init(nowS, this.config, this.#random());
    const info = this.#library ? { info: { library: this.#library } } : null;
    const credential = this.credential?.take(nowS, this.config, true);
    this.#do({ kind: "send", message: { summary: this.desired.digest.summary(), init, ...info, ...credential } });
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
