/**
 * The core with a channel, a clock, dice and a store (Thialfi 3.3): the lower half of what src/roskva/client/shell.py is.
 *
 * It decides nothing about the protocol. It feeds the core, carries out its actions in order, keeps one timer for the core's next deadline,
 * connects again when a connection ends, and tells its client the rest. When the machine or the page wakes, it asks at once whether the
 * connection still stands.
 */

import { type Link, NotConnected } from "./channels/link.ts";
import type { SocketClass } from "./channels/websocket.ts";
import type { Clock } from "./clock.ts";
import type { Credentials, Provider } from "./credentials.ts";
import type { Outcome } from "./connector.ts";
import type { Action } from "./core/actions.ts";
import { ClientCore } from "./core/core.ts";
import type { MalformedMessage, RoskvaError } from "./core/errors.ts";
import { pauseS } from "./core/limits.ts";
import { type Config, decodeServer, encode, type ServerMessage } from "./core/messages.ts";
import type { Name } from "./core/model.ts";
import { type ChannelChoice, type Connections, connectFirst, kindOf } from "./first.ts";
import type { Following } from "./following.ts";
import type { Notification } from "./registrations.ts";
import { DRAIN_S, LOAD_S, URL_TRIES } from "./settings.ts";
import type { Source, Told } from "./source.ts";
import { openIdentity, type StateStore, unguessable } from "./stores/store.ts";

const LIBRARY = "roskva-typescript/1";
type Later = typeof import("./later.ts");

export interface SessionOptions {
  readonly _urls: readonly string[];
  readonly channel: ChannelChoice;
  readonly _socket: SocketClass | undefined;
  readonly application: string;
  readonly device: string; // empty: the one that was kept, or a new one
  readonly state: StateStore;
  readonly config: Partial<Config>; // until the service sends its own
  readonly clock: Clock;
  readonly fetch?: typeof fetch;
  readonly credential?: string | Provider | undefined;
}

export class Session implements Source {
  _unreachable = "";
  device: string;
  readonly _options: SessionOptions;
  readonly #tell: (told: Told) => void;
  #connector: Connections | null = null; // loaded later
  #address = 0; // without it: how often the client went on to the next address
  readonly #over = new AbortController();
  _core!: ClientCore;
  _following: Following | null = null; // loaded later
  #credentials: Credentials | null = null; // loaded by those who need it
  _link: Link | null = null;
  #cancelTimer = (): void => {};
  _endPause = (): void => {};
  _unlisten = (): void => {};
  /** The connection may be gone without a word. What looks is loaded later. */
  wake = (): void => {};
  #preparing: Promise<Later | null> | null = null;
  #later: Later | null = null;
  #running: Promise<void> = Promise.resolve();
  #writing: Promise<void> = Promise.resolve(); // of the state
  #toAcknowledge: Notification[] = [];
  #forgotten = false;
  #closed = false;
  _words = 0; // of the service, so far
  _wokeS = -Infinity;

  constructor(options: SessionOptions, tell: (told: Told) => void) {
    this._options = options;
    this.#tell = tell;
    this.device = options.device;
  }

  async start(): Promise<void> {
    const { application, state, config } = this._options;
    try {
      const { device, _prior: prior, _ignored: ignored } = await openIdentity(state, application, this.device);
      this.device = device;
      this._core = new ClientCore(application, device, { random: Math.random, nonce: unguessable, prior, config });
      if (this._options.credential !== undefined) await this.#loadCredentials();
      if (ignored) this._report("state-damaged", `The state is of no use: ${ignored}.`);
    } catch (error) {
      await state.close?.();
      throw error;
    }
    this._perform(this._core.start(this._now()));
    this.#running = this.#stayConnected();
  }

  get connected(): boolean {
    return this._link !== null;
  }

  get inSync(): boolean {
    return this._core.inSync(this._now());
  }

  get _confirmed(): boolean {
    return this._core.confirmed(this._now());
  }

  get url(): string {
    const { _urls: urls } = this._options;
    return this.#connector?.url ?? (urls[this.#address % urls.length] as string);
  }

  get channel(): string {
    const { channel, _socket: socket } = this._options;
    return this.#connector?._kind ?? kindOf(channel, socket).replace("auto", "websocket");
  }

  get stopped(): RoskvaError | null {
    return this._core.stopped;
  }

  get _credentialProblem(): string {
    return this.#credentials?._problem ?? "";
  }

  get _wished(): Source["_wished"] {
    return this._core.desired;
  }

  register(name: Name, version: bigint | null, epoch: number, intervalMs?: number): void {
    this._following?._open.add(name);
    this._perform(this._core.register(this._now(), name, version, epoch, intervalMs));
  }

  unregister(name: Name, forget: boolean): void {
    this._following?._open.add(name);
    this._perform(this._core.unregister(this._now(), name, forget));
  }

  /** Those of one turn of the event loop travel together. */
  acknowledge(notification: Notification): void {
    if (this.#toAcknowledge.push(notification) === 1) queueMicrotask(() => this.#flushAcknowledgements());
  }

  _giveBack(notification: Notification): void {
    this._perform(this._core.giveBack(this._now(), notification));
  }

  _toldUntil(name: Name): number | null {
    void this.#prepare(); // who asks will ask again
    return this.#closed ? null : (this._following?._toldUntil(this._now(), name) ?? null);
  }

  async _useCredential(text: string): Promise<void> {
    (await this.#loadCredentials(text))._use(text);
  }

  /** From then on the core heeds what the service says of credentials. */
  async #loadCredentials(given = this._options.credential): Promise<Credentials> {
    const { Credentials } = await import("./credentials.ts");
    const credentials = (this.#credentials ??= new Credentials(given, this));
    if (this.#closed) credentials.close();
    return credentials;
  }

  forget(): void {
    this.#forgotten = true;
    void this.#prepare().then((later) => later && this._perform(later.forget(this._core, this._now())));
  }

  async _deleteState(): Promise<void> {
    this.#forgotten = true;
    await this.#writing; // one that has begun
    await this._options.state.delete();
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#flushAcknowledgements();
    this.#closed = true;
    this.#cancelTimer();
    this._unlisten();
    this.#credentials?.close();
    if (this._link) await this.#atMost(DRAIN_S, this._link._drained());
    this._perform(this._core.stop());
    this._endPause();
    this.#over.abort();
    await this.#running;
    await this._options.state.close?.();
  }

  _now(): number {
    return this._options.clock.now();
  }

  #flushAcknowledgements(): void {
    const waiting = this.#toAcknowledge;
    this.#toAcknowledge = [];
    if (waiting.length && !this.#closed) this._perform(this._core.acknowledge(this._now(), waiting));
  }

  _report(code: string, message: string): void {
    this.#tell({ kind: "reported", code, message, transient: true });
  }

  _perform(actions: Action[]): void {
    for (const action of actions) {
      if (action.kind === "send") {
        this._link?._send(encode(action.message));
      } else if (action.kind === "writeState") {
        this._following?._begins();
        this.#writeState(action.state);
      } else if (action.kind === "closeChannel") {
        this._link?._hangUp();
      } else if (!this.#credentials?._keeps(action)) {
        this._following?._told(action);
        this.#tell(action as Told);
      }
    }
    this.#setTimer();
    this.#tell({ kind: "changed" });
  }

  /** Load the rest (later.ts). Null: it cannot be loaded now, and whoever has a use for it next tries again. Nothing waits for long. */
  #prepare(): Promise<Later | null> {
    return (this.#preparing ??= import("./later.ts").then(
      (later) => {
        if (this.#closed) return null;
        later.complete(this);
        return (this.#later = later);
      },
      () => (this.#preparing = null),
    ));
  }

  /** From now on, if it can be loaded, addresses and channels are chosen by what became of the connections; first of the one before. */
  async #choose(outcome?: Outcome): Promise<void> {
    if (this.#connector || this._over()) return;
    await this.#atMost(LOAD_S, this.#prepare());
    if (this.#later) this.#connector = new this.#later.Connector(this._options, this.#over.signal, outcome);
  }

  #setTimer(): void {
    this.#cancelTimer();
    const deadlineS = this.#closed ? null : this._core.nextDeadline();
    if (deadlineS === null) return;
    this.#cancelTimer = this._options.clock.after(deadlineS - this._now(), () => this._perform(this._core.tick(this._now())));
  }

  #writeState(state: string): void {
    const write = async (): Promise<void> => {
      try {
        if (!this.#forgotten) await this._options.state.write(state);
      } catch (error) {
        this._report("state-damaged", `The state cannot be kept: ${(error as Error).message}.`);
      }
    };
    this._link?._first(() => (this.#writing = write()));
  }

  async #stayConnected(): Promise<void> {
    if (this.channel === "long-poll") await this.#choose();
    for (let failures = 0; !this._over(); ) {
      await this.#credentials?._beforeConnecting();
      let beganS = 0;
      let link: Link | null = null;
      let error: unknown;
      try {
        link = await (this.#connector?._connect() ?? connectFirst(this.url, this._options, this.#over.signal));
        beganS = this._now();
        const heard = await this.#connection(link);
        failures = heard ? 0 : failures + 1;
      } catch (failure) {
        error = failure;
        this._unreachable = (error as Error).message;
        if (!failures && !this.#closed) this._report(error instanceof NotConnected ? "service-unreachable" : "internal", this._unreachable);
        failures += 1;
      }
      if (failures && failures % URL_TRIES === 0) this.#address += 1;
      await this.#choose({ error, link, livedS: this._now() - beganS });
      const ownS = pauseS(this._core.config, failures, Math.random());
      if (!this._over()) await this.#pause(this.#connector?._pauseS(this._core, failures) ?? ownS);
    }
  }

  _over(): boolean {
    return this.#closed || this._core.stopped !== null;
  }

  #pause(seconds: number): Promise<void> {
    return new Promise((done) => {
      const cancel = this._options.clock.after(seconds, done);
      this._endPause = () => {
        cancel();
        done();
      };
    });
  }

  async #atMost(seconds: number, promise: Promise<unknown>): Promise<void> {
    await Promise.race([promise, this.#pause(seconds)]);
    this._endPause();
  }

  /** One connection, from its first word to its end; answers whether the service said anything over it. */
  async #connection(link: Link): Promise<boolean> {
    if (this._over()) {
      link._shut();
      return false;
    }
    this._link = link;
    this._connects();
    try {
      this._unreachable = `The connection to ${this.url} was ${await this.#carry(link)}.`;
    } finally {
      this._link = null;
      this._perform(this._core.disconnected());
    }
    return link._heard;
  }

  #carry(link: Link): Promise<string> {
    const received = (data: string): void => this.#received(link, data);
    return this.#connector?._carry(link, received) ?? link._run(received);
  }

  _connects(): void {
    this._following?._begins();
    this._core.info = { library: LIBRARY, channel: this.channel };
    this._perform(this._core.connected(this._now()));
  }

  #received(link: Link, data: string): void {
    let message: ServerMessage;
    try {
      message = decodeServer(data);
    } catch (error) {
      const { code, message } = error as MalformedMessage;
      return this._report(code, message);
    }
    link._heard = true;
    const words = (this._words += 1);
    const { credential } = message;
    if (credential && !this.#credentials) {
      // What heeds it is loaded first. If anything else comes meanwhile, this is as good as lost: a message is never taken in after a later
      // one, and what the service still wants it says again.
      const again = (): void => void (this._link === link && this._words === words && this.#received(link, data));
      return void this.#loadCredentials().then(again, () => this._report(credential.code, credential.message));
    }
    void this.#prepare(); // the service is there: soon all else is wanted, too
    const actions = this._core.received(this._now(), message);
    this._following?._heard(this._now());
    this._perform(actions);
  }
}
