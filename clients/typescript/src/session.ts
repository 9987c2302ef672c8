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
import type { Connector } from "./connector.ts";
import type { Action } from "./core/actions.ts";
import { ClientCore } from "./core/core.ts";
import { MalformedMessage, type RoskvaError } from "./core/errors.ts";
import { connectPauseS } from "./core/limits.ts";
import { type Config, decodeServer, encode } from "./core/messages.ts";
import type { Name } from "./core/model.ts";
import { FULL_SYNC_MAX } from "./core/settings.ts";
import { type ChannelChoice, type Connections, First } from "./first.ts";
import { Following } from "./following.ts";
import type { Notification } from "./registrations.ts";
import { ANSWER_S, DRAIN_S, LOAD_S, WAKE_S } from "./settings.ts";
import type { Source, Told } from "./source.ts";
import { openIdentity, type StateStore, unguessable } from "./stores/store.ts";

const LIBRARY = "roskva-typescript/1";

export interface SessionOptions {
  readonly urls: readonly string[];
  readonly channel: ChannelChoice;
  readonly socket: SocketClass | undefined;
  readonly application: string;
  readonly device: string; // empty: the one that was kept, or a new one
  readonly state: StateStore;
  readonly config: Partial<Config>; // until the service sends its own
  readonly clock: Clock;
  readonly credential: string | Provider | undefined;
}

export class Session implements Source {
  unreachable = "";
  device: string;
  /** The service's, by its last word. Null: it has not said. */
  epoch: number | null = null;
  readonly #options: SessionOptions;
  readonly #tell: (told: Told) => void;
  #connector: Connections;
  #core!: ClientCore;
  #following!: Following;
  #credential: SessionOptions["credential"]; // as it was given
  #credentials: Credentials | null = null; // loaded by those who need it
  #link: Link | null = null;
  #cancelTimer = (): void => {};
  #endPause = (): void => {};
  #unlisten = (): void => {};
  #preparing: Promise<void> | null = null;
  #later: typeof import("./later.ts") | null = null;
  #chosen: Connector | null = null;
  #running: Promise<void> = Promise.resolve();
  #writing: Promise<void> = Promise.resolve(); // of the state
  #toAcknowledge: Notification[] = [];
  #forgotten = false;
  #closed = false;
  #words = 0; // of the service, so far
  #wokeS = -Infinity;

  constructor(options: SessionOptions, tell: (told: Told) => void) {
    this.#options = options;
    this.#tell = tell;
    this.#connector = new First(options.urls, options.channel, options.socket);
    this.device = options.device;
    this.#credential = options.credential;
  }

  async start(): Promise<void> {
    const { application, state, config } = this.#options;
    try {
      const { device, kept } = await openIdentity(state, application, this.device);
      this.device = device;
      this.#core = new ClientCore(application, device, { random: Math.random, nonce: unguessable, state: kept, config });
      this.#following = new Following(this.#core);
      if (this.#credential !== undefined) await this.#loadCredentials();
    } catch (error) {
      await state.close?.();
      throw error;
    }
    if (this.#core.stateIgnored) this.#report("state-damaged", `The state is of no use: ${this.#core.stateIgnored}.`);
    this.#perform(this.#core.start(this.#now()));
    this.#running = this.#stayConnected();
  }

  get connected(): boolean {
    return this.#link !== null;
  }

  get inSync(): boolean {
    return !this.#closed && this.#core.inSync(this.#now());
  }

  get confirmed(): boolean {
    return !this.#closed && this.#core.confirmed(this.#now());
  }

  get url(): string {
    return this.#connector.url;
  }

  get channel(): string {
    return this.#connector.kind;
  }

  get stopped(): RoskvaError | null {
    return this.#core.stopped;
  }

  get credentialProblem(): string {
    return this.#credentials?.problem ?? "";
  }

  /** Changes of every confirmed registration are told as they happen. */
  get follows(): boolean {
    return !this.#closed && this.#following.follows(this.#now());
  }

  get config(): Config {
    return this.#core.config;
  }

  has(name: Name): boolean {
    return this.#core.desired.has(name);
  }

  names(): Iterable<Name> {
    return this.#core.desired.keys();
  }

  register(name: Name, version: bigint | null, epoch: number): void {
    this.#following.open.add(name);
    this.#perform(this.#core.register(this.#now(), name, version, epoch));
  }

  unregister(name: Name, forget: boolean): void {
    this.#following.open.add(name);
    this.#perform(this.#core.unregister(this.#now(), name, forget));
  }

  /** Those of one turn of the event loop travel together. */
  acknowledge(notification: Notification): void {
    if (this.#toAcknowledge.push(notification) === 1) queueMicrotask(() => this.#flushAcknowledgements());
  }

  giveBack(notification: Notification): void {
    this.#perform(this.#core.giveBack(this.#now(), notification));
  }

  toldUntil(name: Name): number | null {
    return this.#closed ? null : this.#following.toldUntil(this.#now(), name);
  }

  async useCredential(text: string): Promise<void> {
    if (!this.#credentials) this.#credential = text;
    (await this.#loadCredentials()).use(text);
  }

  /** From then on the core heeds what the service says of credentials. */
  async #loadCredentials(): Promise<Credentials> {
    const { Credentials } = await import("./credentials.ts");
    const credentials = (this.#credentials ??= new Credentials(this.#credential, {
      core: this.#core,
      following: this.#following,
      clock: this.#options.clock,
      perform: (actions) => this.#perform(actions),
      report: (code, message) => this.#report(code, message),
    }));
    if (this.#closed) credentials.close();
    return credentials;
  }

  forget(): void {
    this.#forgotten = true;
    this.#perform(this.#core.forget(this.#now()));
  }

  /** The connection may be gone without a word: speak, and hang up unless there is an answer soon. Without one, connect now. */
  wake(): void {
    if (this.#over() || this.#now() - this.#wokeS < WAKE_S) return;
    this.#wokeS = this.#now();
    this.#endPause();
    const link = this.#link;
    if (!link) return;
    this.#perform(this.#core.disconnected());
    this.#connects();
    const words = this.#words;
    this.#options.clock.after(ANSWER_S, () => {
      if (this.#words === words) link.hangUp("silent after a wake", true);
    });
  }

  async deleteState(): Promise<void> {
    this.#forgotten = true;
    await this.#writing; // one that has begun
    await this.#options.state.delete();
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#flushAcknowledgements();
    this.#closed = true;
    this.#cancelTimer();
    this.#unlisten();
    this.#credentials?.close();
    await new Promise<void>((done) => {
      const cancel = this.#options.clock.after(DRAIN_S, done);
      const drained = (): void => (cancel(), done());
      if (this.#link) this.#link.drained().then(drained);
      else drained();
    });
    this.#perform(this.#core.stop());
    this.#link?.hangUp();
    this.#endPause();
    this.#connector.close();
    await this.#running;
    await this.#options.state.close?.();
  }

  #now(): number {
    return this.#options.clock.now();
  }

  #flushAcknowledgements(): void {
    const waiting = this.#toAcknowledge;
    this.#toAcknowledge = [];
    if (waiting.length && !this.#closed) this.#perform(this.#core.acknowledge(this.#now(), waiting));
  }

  #report(code: string, message: string): void {
    this.#tell({ kind: "reported", code, message, transient: true });
  }

  #perform(actions: Action[]): void {
    for (const action of actions) {
      if (action.kind === "send") {
        const info = { library: LIBRARY, channel: this.channel };
        this.#link?.send(encode(action.message.init ? { ...action.message, info } : action.message));
      } else if (action.kind === "writeState") {
        this.#following.begins();
        this.#writeState(action.state);
      } else if (action.kind === "closeChannel") {
        this.#link?.hangUp();
      } else if (action.kind === "credentialAccepted") {
        this.#credentials?.accepted();
      } else if (action.kind === "credentialWanted") {
        if (this.#credentials?.wanted(action)) this.#tell(action);
      } else {
        if (action.kind === "statusChanged" || (action.kind === "registrationFailed" && !action.transient)) {
          this.#following.open.delete(action.name);
        }
        // After a reset of the application the next handshake says so; whoever is told a notification must know before.
        if (action.kind === "notify" && this.epoch !== null) this.epoch = Math.max(this.epoch, action.notification.epoch);
        this.#tell(action);
      }
    }
    this.#setTimer();
    if (!this.#preparing && (this.inSync || this.#core.desired.size > FULL_SYNC_MAX)) void this.#prepare();
    this.#tell({ kind: "changed" });
  }

  /** Load the rest (later.ts), for the connections after this one. What cannot be loaded is tried again after the next. */
  #prepare(): Promise<void> {
    return (this.#preparing ??= import("./later.ts").then(
      (later) => {
        if (this.#closed) return;
        this.#later = later;
        this.#core.buckets = later.buckets;
        this.#unlisten = later.onWake(this.#options.clock, () => this.wake(), () => this.#link?.hangUp("the page was left"));
      },
      () => void (this.#preparing = null),
    ));
  }

  /** From now on addresses and channels are chosen by what became of the connections before. */
  #choose(): Connector | null {
    const { urls, channel, socket, clock } = this.#options;
    if (!this.#later || this.#chosen) return null;
    return (this.#connector = this.#chosen = new this.#later.Connector(urls, channel, socket, clock));
  }

  #setTimer(): void {
    this.#cancelTimer();
    const deadlineS = this.#closed ? null : this.#core.nextDeadline();
    if (deadlineS === null) return;
    this.#cancelTimer = this.#options.clock.after(deadlineS - this.#now(), () => this.#perform(this.#core.tick(this.#now())));
  }

  #writeState(state: string): void {
    if (this.#forgotten) return;
    const write = async (): Promise<void> => {
      try {
        if (!this.#forgotten) await this.#options.state.write(state);
      } catch (error) {
        this.#report("state-damaged", `The state cannot be kept: ${(error as Error).message}.`);
      }
    };
    this.#link?.first(() => (this.#writing = write()));
  }

  async #stayConnected(): Promise<void> {
    if (this.channel === "long-poll") {
      await this.#prepare();
      this.#choose();
    }
    for (let failures = 0; !this.#over(); ) {
      await this.#credentials?.beforeConnecting();
      let beganS = 0;
      let link: Link | null = null;
      let error: unknown;
      try {
        link = await this.#connector.connect();
        beganS = this.#now();
        const heard = await this.#connection(link);
        failures = heard ? 0 : failures + 1;
      } catch (failure) {
        error = failure;
        this.unreachable = (error as Error).message;
        if (!failures && !this.#closed) this.#report(error instanceof NotConnected ? "service-unreachable" : "internal", this.unreachable);
        failures += 1;
      }
      const livedS = this.#now() - beganS;
      if (!this.#later && !this.#over()) {
        await Promise.race([this.#prepare(), this.#pause(LOAD_S)]);
        this.#endPause();
      }
      this.#choose()?.after({ error, link, livedS });
      const pauseS = this.#connector.hasNext ? 0 : connectPauseS(this.#core.config, failures, Math.random(), this.#core.spreadS);
      if (!this.#over()) await this.#pause(pauseS);
    }
  }

  #over(): boolean {
    return this.#closed || this.#core.stopped !== null;
  }

  #pause(seconds: number): Promise<void> {
    return new Promise((done) => {
      const cancel = this.#options.clock.after(seconds, done);
      this.#endPause = () => {
        cancel();
        done();
      };
    });
  }

  /** One connection, from its first word to its end; answers whether the service said anything over it. */
  async #connection(link: Link): Promise<boolean> {
    if (this.#over()) {
      link.shut();
      return false;
    }
    this.#link = link;
    this.#connects();
    try {
      this.unreachable = `The connection to ${this.url} was ${await this.#connector.carry(link, (data) => this.#received(link, data))}.`;
    } finally {
      this.#link = null;
      this.#perform(this.#core.disconnected());
    }
    return link.heard;
  }

  #connects(): void {
    this.#following.begins();
    this.#perform(this.#core.connected(this.#now()));
  }

  #received(link: Link, data: string): void {
    let message;
    try {
      message = decodeServer(data);
    } catch (error) {
      if (!(error instanceof MalformedMessage)) throw error;
      return this.#report(error.code, error.message);
    }
    link.heard = true;
    this.#words += 1;
    if (message.credential && !this.#credentials) {
      // It comes a little later, or is lost if that cannot be loaded: channels may do so, too.
      const again = (): void => void (this.#link === link && this.#received(link, data));
      return void this.#loadCredentials().then(again, () => {});
    }
    const actions = this.#core.received(this.#now(), message);
    if (message.config) this.epoch = message.config.epoch;
    this.#following.heard(this.#now());
    this.#perform(actions);
  }
}
