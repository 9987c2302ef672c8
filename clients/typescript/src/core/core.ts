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
 * Everything that waits for a time or for the connection is decided in one place, `_flush`, at the end of every input. The core never
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
import type { Credential } from "./credential.ts";
import { Desired } from "./desired.ts";
import { ClientStopped, type RoskvaError } from "./errors.ts";
import type { Forgetting } from "./forgetting.ts";
import { ackOf, Handover } from "./handover.ts";
import { Handshake } from "./handshake.ts";
import { withinReason } from "./limits.ts";
import * as messages from "./messages.ts";
import type { ClientMessage, Config, ServerMessage, Status, Summary } from "./messages.ts";
import { checkApplication, checkDevice, checkStated, type Name, nameFromText, NOBODY } from "./model.ts";
import { Operations } from "./operations.ts";
import { Outbox } from "./outbox.ts";
import { failed, refused, reported } from "./refusals.ts";
import type { Rest } from "./rest.ts";
import { RESTATING_PAUSES_MAX } from "./settings.ts";
import { encodeState } from "./state.ts";
import { SetDigest } from "./summaries.ts";
import { Syncing } from "./syncing.ts";

export interface CoreOptions {
  readonly random: () => number;
  readonly nonce: () => string;
  /** The token of the last run, if there was one (state.ts). */
  readonly prior?: string;
  readonly config?: Partial<Config>;
  /** Who the user is. It may be given later, too. */
  readonly credential?: Credential | null;
}

/** One run of one client. What is internal is for the core's own parts, and for nobody else. */
export class ClientCore {
  readonly desired = new Desired();
  /** The server's policy, within reason. */
  config: Config;
  /** Why it stopped, once it has. */
  stopped: RoskvaError | null = null;
  spreadS = 0; // a gateway that goes has asked its clients to come back within so long, not all at once
  /** Who the user is. */
  credential: Credential | null;
  /** What `init` says of this library and its channel. */
  info: ClientMessage["info"];
  /** @internal Null: it is not loaded. */
  _rest: Rest | null = null;
  /** @internal */
  readonly _operations = new Operations();
  /** @internal */
  readonly _syncing = new Syncing();
  /** @internal */
  readonly _handover = new Handover();
  /** @internal */
  readonly _outbox = new Outbox(this);
  /** @internal */
  readonly _handshake: Handshake;
  /** @internal */
  readonly _random: () => number;
  /** @internal The client signs out. */
  _forgetting: Forgetting | null = null;
  /** @internal When a message of this session came, over this connection. */
  _heardAtS = -Infinity;
  /** @internal After an error, over this connection: another one may lead to a gateway that has room. */
  _refusedUntilS = -Infinity;
  /**
   * @internal After a restart operations wait a moment, in case the server still has all that the application is about to restate. 0: they
   * do not wait.
   */
  _restatingUntilS = 0;
  /** @internal */
  _serverSummary: Summary | null = null;
  /** @internal */
  _unsettled = 0;
  #actions: Action[] = []; // of the input that is being dealt with
  #connected = false;
  #aliveAtS = -Infinity; // when anything came, over this connection
  #quietUntilS = -Infinity; // after a config
  #restatingEndS = -Infinity;

  constructor(application: string, device: string, { random, nonce, prior = "", config, credential = null }: CoreOptions) {
    this.config = withinReason({ ...messages.DEFAULTS, ...config });
    this._handshake = new Handshake(checkApplication(application), checkDevice(device), nonce, prior);
    this._random = random;
    this.credential = credential;
  }

  /** Begin. Every start handshakes (Thialfi 4.1.2), and asks the application for its registrations (4.1.3). */
  start(nowS: number): Action[] {
    this._do({ kind: "reissueRegistrations" });
    return this._flush(nowS);
  }

  /** End at the application's wish. The server keeps the registrations for the next start. */
  stop(): Action[] {
    if (this.stopped) return [];
    this.stopped = new ClientStopped("The client was stopped.");
    return [{ kind: "closeChannel" }];
  }

  /** A channel is up. A session lives on over any channel: its first message says where the client is now. */
  connected(nowS: number): Action[] {
    this.#connected = true;
    this.#aliveAtS = nowS;
    this._heardAtS = this._refusedUntilS = this._handshake._dueS = -Infinity;
    this.spreadS = 0;
    this._outbox._mustSpeak = true;
    this.credential?._turn();
    this._askAgain();
    return this._flush(nowS);
  }

  disconnected(): Action[] {
    this.#connected = false;
    this._heardAtS = -Infinity;
    return [];
  }

  /** @internal What was asked over another connection, or in another session, or without a credential, has no answer any more. */
  _askAgain(): void {
    this._operations._restart();
    this._syncing._restart();
    if (this._forgetting) this._forgetting._dueS = -Infinity;
  }

  tick(nowS: number): Action[] {
    return this._flush(nowS);
  }

  /** When `tick` is wanted. Null: only after another input. */
  nextDeadline(): number | null {
    if (!this.#lives()) return null;
    const { _token: token, _dueS: dueS } = this._handshake;
    const wordS = Math.max(token ? this.#waitingS() : dueS, this.#silentUntilS());
    const nextS = token ? Math.min(wordS, this._outbox._dueS) : wordS;
    return Math.min(this.#silentS(), this.credential?._nextS(nextS, !!token) ?? nextS);
  }

  /** When there is something to say that can wait. */
  #waitingS(): number {
    if (this._restatingUntilS) return this._restatingUntilS;
    const dueS = this._operations.size === 0 && this._differs() ? this._syncing._dueS : this._operations._nextDueS(this.config);
    return Math.min(dueS, this._forgetting?._atS() ?? Infinity);
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
    return Math.max(this.#quietUntilS, this._refusedUntilS);
  }

  /** The server has exactly what is wished for, owes nothing, and said so within two keepalives. */
  inSync(nowS: number): boolean {
    return this._unsettled === 0 && this.confirmed(nowS);
  }

  /** The server has exactly what is wished for, and said so within two keepalives; it may owe notifications. */
  confirmed(nowS: number): boolean {
    return this.alive(nowS) && !this._differs() && this._operations.size === 0 && !this._syncing._inFlight;
  }

  /** The server spoke to this session over this connection, and within two keepalives. */
  alive(nowS: number): boolean {
    const known = this.#lives() && this._handshake._token && this._serverSummary && !this.credential?._wanted;
    return !!known && nowS - this._heardAtS < 2 * this.config.keepalive_s;
  }

  /**
   * Wish for an object. `version` is what the application holds, and will still hold after a restart. `ms`: to be told at most once in so
   * long; undefined leaves what the registration has.
   */
  register(nowS: number, name: Name, version: bigint | null = null, epoch = 0, ms?: number): Action[] {
    const held = version === null ? null : { version, epoch };
    checkStated(version ?? 0n, epoch, ms);
    if (this.stopped || this._forgetting) return [];
    this._handover._registered(name, held, this.desired.has(name));
    return this.#wished(nowS, name, true, this.desired._wish(name, held, ms));
  }

  /** Wish for it no more. `forget`: the application drops what it knew; should it register again, all is told anew. */
  unregister(nowS: number, name: Name, forget = false): Action[] {
    if (this.stopped) return [];
    this._handover._unregistered(name, forget);
    return this.#wished(nowS, name, false, this.desired._drop(name));
  }

  #wished(nowS: number, name: Name, registered: boolean, isNew: boolean): Action[] {
    if (isNew) {
      this._operations.add(name, registered);
      if (this._restatingUntilS) this._restatingUntilS = Math.min(nowS + this.config.retry_min_s, this.#restatingEndS);
    } else if (!this.desired._unconfirmed.has(name)) {
      return [{ kind: "statusChanged", name, registered }];
    }
    return this._flush(nowS);
  }

  /**
   * The application is done with these. Several at once travel in one message.
   *
   * They are not repeated: if one is lost the server delivers again, and is answered then.
   */
  acknowledge(nowS: number, notifications: readonly Notification[]): Action[] {
    for (const notification of notifications) {
      const acks = this._handover._acknowledged(notification);
      // Else void: the server drops what it owes together with the registration.
      if (this.desired.has(notification.name)) this._outbox._acks.push(...acks);
    }
    return this._flush(nowS);
  }

  /** The application failed on it: it is shown again when the server delivers it again. */
  giveBack(nowS: number, notification: Notification): Action[] {
    this._handover._giveBack(notification);
    return this._flush(nowS);
  }

  received(nowS: number, message: ServerMessage): Action[] {
    if (!this.#lives()) return [];
    this.#aliveAtS = nowS;
    const { token, config, error, summary } = message;
    const handshake = this._handshake;
    const grant = handshake._nonce && message.grant?.nonce === handshake._nonce ? message.grant : null;
    const ours = grant || (token && token === handshake._token);
    if (message.start_anew && !grant) {
      refused(this, nowS, token, message.start_anew);
    } else if (ours || !token) {
      // Else of another session: late, or not for us.
      if (config) {
        this.config = withinReason(config);
        this.#quietUntilS = nowS + this.config.quiet_s;
        this._outbox._setHeartbeat(nowS);
      }
      if (error) reported(this, nowS, error);
      if (message.credential) this.credential?._judged(this, nowS, message.credential);
      if (grant) {
        if (config) this._handover._countsIn(config.epoch);
        this.#granted(nowS, grant.token, summary);
      } else if (ours) {
        handshake._attempts = 0;
        handshake._welcomed ||= !!summary && !message.grant; // its Registrar speaks: the session has taken effect
      }
      if (ours) this.#ofSession(nowS, message);
    }
    return this._flush(nowS);
  }

  #ofSession(nowS: number, { summary, unsettled, status, notify, sync_request }: ServerMessage): void {
    // Without a summary a gateway speaks that cannot reach the Registrar: it says nothing of our session.
    if (summary) {
      this._heardAtS = nowS;
      this._serverSummary = summary;
      this._unsettled = unsettled;
    }
    for (const each of status) this.#status(nowS, each);
    for (const told of notify) this.#notified(told);
    if (sync_request) this._rest?._syncRequested(this, nowS, sync_request);
  }

  #granted(nowS: number, token: string, summary: Summary | null): void {
    const handshake = this._handshake;
    const { _prior: prior, _grantedBefore: grantedBefore } = handshake;
    handshake._token = token;
    handshake._prior = handshake._nonce = "";
    handshake._welcomed = false;
    handshake._grantedBefore = true;
    this._serverSummary = summary ?? (prior ? null : new SetDigest()._summary());
    this._outbox._begin();
    this._handover._newSession();
    this._askAgain();
    if (prior && !grantedBefore && summary?.count) {
      this._restatingUntilS = nowS + this.config.retry_min_s;
      this.#restatingEndS = nowS + RESTATING_PAUSES_MAX * this.config.retry_min_s;
    }
    this._writeState();
  }

  /** @internal */
  _do(action: Action): void {
    this.#actions.push(action);
  }

  /** @internal */
  _changed(name: Name, registered: boolean): void {
    this._do({ kind: "statusChanged", name, registered });
  }

  /** @internal */
  _writeState(): void {
    this._do({ kind: "writeState", state: encodeState(this._handshake._application, this._handshake._device, this._handshake._token) });
  }

  /** @internal */
  _end(error: RoskvaError): void {
    this.stopped = error;
    this._do({ kind: "closeChannel" });
    this._do({ kind: "stopped", error });
  }

  #status(nowS: number, status: Status): void {
    const name = nameOf(status.object);
    const registered = status.state === messages.REGISTERED;
    if (status.state === messages.FAILED) return failed(this, nowS, name, status);
    if (!registered && status.state !== messages.UNREGISTERED) return; // of a later protocol
    if (registered === this.desired.has(name)) {
      this._operations._settle(name);
      if (this.desired._unconfirmed.delete(name)) this._changed(name, registered);
    } else if (!registered && !this._operations.has(name) && !this.desired._unconfirmed.has(name)) {
      // Else a late answer to an earlier wish. The server dropped it, or this is a late repeat. The summaries tell which; until then it
      // counts as absent.
      this.desired._unconfirmed.add(name);
      this._changed(name, false);
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
      session: this._handover._session,
    };
    const verdict = this._handover._delivered(notification);
    if (verdict === "show") this._do({ kind: "notify", notification });
    if (verdict === "again") this._outbox._acks.push(ackOf(notification));
  }

  /** Answers what is to be done, with everything that may be sent now. In a quiet period: acknowledgements and heartbeats only. */
  /** @internal */
  _flush(nowS: number): Action[] {
    if (this.#lives()) this.#speak(nowS);
    const actions = this.#actions;
    this.#actions = [];
    return actions;
  }

  #speak(nowS: number): void {
    if (nowS >= this.#silentS()) {
      this.#connected = false; // half open: the other side is gone and nobody told us
      return this._do({ kind: "closeChannel" });
    }
    if (this.credential?._holdsBack(this, nowS)) return;
    const quiet = nowS < this.#silentUntilS();
    if (!this._handshake._token) {
      if (!quiet && nowS >= this._handshake._dueS) this.#init(nowS);
      return;
    }
    if (this._restatingUntilS && (nowS >= this._restatingUntilS || !this._differs())) {
      this._restatingUntilS = 0;
      this._operations.clear(); // the server has them, or the sync states them
      for (const name of this.desired._intervals.keys()) this._operations.add(name, true); // but no summary tells of these
    }
    const restating = !!this._restatingUntilS;
    for (let batch: Send | null; (batch = this._outbox._batch(nowS, quiet || restating)); ) this._do(batch);
    if (this._operations.size === 0 && !restating && this._serverSummary) {
      if (!this._differs()) {
        // Nothing is in flight: the server has every wish, whether or not it said so one by one.
        this._syncing._agreed();
        for (const name of this.desired._unconfirmed) this._changed(name, this.desired.has(name));
        this.desired._unconfirmed.clear();
      } else if (!quiet && nowS >= this._syncing._dueS) {
        this._outbox._sync(nowS);
      }
    }
    if (!quiet && this._forgetting && nowS >= this._forgetting._atS()) {
      this._do(this._forgetting._ask(nowS));
    } else if (this._outbox._mustSpeak || nowS >= this._outbox._dueS) {
      this._do(this._outbox._message(nowS));
    }
  }

  /** @internal */
  _differs(): boolean {
    return !!this._serverSummary && !this.desired._digest._matches(this._serverSummary);
  }

  #init(nowS: number): void {
    const init = this._handshake._init(nowS, this.config, this._random());
    const credential = this.credential?._take(nowS, this.config, true);
    this._do({ kind: "send", message: { summary: this.desired._digest._summary(), init, info: this.info, ...credential } });
  }
}

/** A name that the server sent. One that cannot be is nobody's. */
function nameOf(text: string): Name {
  try {
    return nameFromText(text);
  } catch {
    return NOBODY;
  }
}
