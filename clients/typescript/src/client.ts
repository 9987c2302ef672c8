/**
 * `Client`: registers for objects, and is told of their latest versions (Thialfi 3.1; the upper half of src/roskva/client/shell.py).
 *
 * Here: handlers, loops and events. What they are told comes from a source: a session of this client's own, or the one that the tabs of a
 * page share.
 */

import { ClientStopped, FORGOTTEN, RoskvaError } from "./core/errors.ts";
import { checkStated, type Name, nameFromText } from "./core/model.ts";
import { InvalidSetting, ServiceUnreachable } from "./errors.ts";
import { type ClientEvents, type ClientOptions, type Settled, settled } from "./options.ts";
import type { Handler, Notification, RegisterOptions, Registrations, UnregisterOptions } from "./registrations.ts";
import { Session } from "./session.ts";
import type { Source, Told } from "./source.ts";

export type { ClientEvents, ClientOptions };

/**
 * At most one version and one unknown of an object, in the order in which they first came. A later one takes the place of an earlier one:
 * a slow application holds as many as it has objects. An unknown may stand for a later version than the one known, so neither takes the
 * other's place.
 */
export type Latest = Map<string, Notification>;
const UNKNOWN = "?";
const KNOWN = "=";
const keyOf = ({ name, version }: Notification): string => (version === null ? UNKNOWN : KNOWN) + name;

interface Handling {
  readonly _handler: Handler | null; // null: released, and not yet taken by another
  readonly manual: boolean;
  readonly refused: RegisterOptions["refused"];
  readonly _waiting: Latest;
  readonly _working: Latest; // with the handler, not acknowledged
  _busy: boolean;
}

const handlingOf = (handler: Handler | null, { manual = false, refused }: RegisterOptions = {}, waiting: Latest = new Map()): Handling => {
  return { _handler: handler, manual, refused, _waiting: waiting, _working: new Map(), _busy: false };
};

/** The events' types, in the manner of the platform's own classes. */
export interface Client {
  addEventListener<K extends keyof ClientEvents>(
    type: K,
    listener: (event: CustomEvent<ClientEvents[K]>) => void,
    options?: AddEventListenerOptions | boolean,
  ): void;
  addEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: AddEventListenerOptions | boolean): void;
}

export class Client extends EventTarget implements Registrations, AsyncIterable<Notification> {
  readonly application: string;
  readonly #options: Settled;
  readonly #handlings = new Map<Name, Handling>();
  readonly #signalled = new Map<Name, AbortController>(); // registrations with a signal; aborted when they end: it is listened to no more
  readonly #untaken: Latest = new Map(); // for loops
  readonly #withApplication = new Set<Notification>(); // taken by a loop, not acknowledged
  #forgetToo: (() => Promise<void>)[] = [];
  #emptied: Promise<void> | null = null;
  #source: Source | null = null;
  #starting: Promise<void> | null = null;
  readonly #watchers = new Set<() => void>();
  #started = false;
  #wasConnected = false;
  #wasInSync = false;
  #closed = false;

  constructor(url: string | readonly string[], options: ClientOptions) {
    super();
    const { signal } = options;
    this.#options = settled(url, options);
    this.application = this.#options.application;
    signal?.addEventListener("abort", () => void this.close(), { once: true });
    if (signal?.aborted) void this.close();
  }

  /** Begin. A service that cannot be reached is no error: the client keeps trying. Whatever needs it calls this by itself. */
  start(): Promise<void> {
    return (this.#starting ??= this.#start().catch((error) => {
      this.#starting = this.#source = null; // what could not be loaded, say, may be another time
      throw error;
    }));
  }

  async #start(): Promise<void> {
    this.#check(null);
    const tell = (told: Told): void => this.#told(told);
    const { tabs, state, _stateAlone: stateAlone } = this.#options;
    if (tabs) {
      try {
        const { SharedSession } = await import("./tabs/shared.ts"); // what only browsers have a use for is loaded there
        await (this.#source = new SharedSession(this.#options, tell)).start();
      } catch (error) {
        // With a state of the application's own: another tab may have loaded it, and two clients with one state supersede each other.
        if (error instanceof RoskvaError || (!this.#source && state === stateAlone)) throw error;
        this.#source = null; // the browser has what it takes, but not for this page; or it could not be loaded
      }
    }
    if (!this.#source) {
      await (this.#source = new Session({ ...this.#options, state: stateAlone }, tell)).start();
    }
    this.#started = true;
  }

  /** End. The service keeps the registrations, and what is unacknowledged, for the next run of the same state. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    for (const over of this.#signalled.values()) over.abort();
    this.#watch();
    await this.#starting?.catch(() => {});
    if (this.#started) await this.#source?.close();
  }

  /**
   * Sign out: the service deletes this client's id with all its registrations, the kept state goes, and the client has ended; so have its
   * caches, and their stores are empty. If the service does not confirm it in time, or a store cannot be emptied, this fails; the rest is
   * done all the same.
   */
  async forget(timeoutMs = 10_000): Promise<void> {
    const source = await this.#running();
    source.forget();
    const emptied = (this.#emptied ??= this.#forgetCaches());
    emptied.catch(() => {}); // said below, after all else
    try {
      await this.#until(() => !!source.stopped, timeoutMs, "The client is not deleted");
    } finally {
      try {
        await source._deleteState();
      } finally {
        await this.close();
        await emptied;
      }
    }
  }

  whenForgotten(forget: () => Promise<void>): () => void {
    this.#forgetToo.push(forget);
    return () => void (this.#forgetToo = this.#forgetToo.filter((one) => one !== forget));
  }

  /** The last first: it may hold the store of one before it. */
  async #forgetCaches(): Promise<void> {
    const forget = this.#forgetToo.pop();
    if (!forget) return;
    try {
      await forget();
    } finally {
      await this.#forgetCaches();
    }
  }

  async register(id: string, handler: Handler | null = null, options: RegisterOptions = {}): Promise<void> {
    const { version, epoch = 0, manual = false, signal, notifyIntervalMs } = options;
    const name = nameFromText(id);
    const held = Number.isSafeInteger(version) ? BigInt(version as number) : (version as bigint | undefined);
    checkStated(held === undefined ? 0n : held, epoch, notifyIntervalMs);
    const source = await this.#running();
    signal?.throwIfAborted();
    const known = this.#handlings.get(name);
    const released = known?._handler === null;
    if (handler && source._wished.has(name) && !released && (known?._handler !== handler || known.manual !== manual)) {
      throw new InvalidSetting(`${name} is registered already, without this handler.`);
    }
    if (!known?._handler) {
      if (handler) this.#handlings.set(name, handlingOf(handler, options));
      else this.#handlings.delete(name);
    }
    if (signal) this.#unregisterAt(signal, name);
    source.register(name, held ?? null, epoch, notifyIntervalMs);
    if (released) for (const notification of known._waiting.values()) this.#notify(notification);
  }

  async unregister(id: string, { forget = false }: UnregisterOptions = {}): Promise<void> {
    const name = nameFromText(id);
    this.#unregister(await this.#running(), name, forget);
  }

  async release(id: string): Promise<void> {
    const name = nameFromText(id);
    await this.#running();
    const handling = this.#handlings.get(name);
    if (!handling) return;
    const { _working: working, _waiting: waiting } = handling;
    this.#handlings.set(name, handlingOf(null, {}, new Map([...working, ...waiting])));
    working.clear();
    waiting.clear();
    this.#unsignal(name);
  }

  acknowledge(notification: Notification): void {
    this.#withApplication.delete(notification);
    const handling = this.#handlings.get(notification.name);
    if (handling) dealtWith(handling, notification);
    if (!this.#closed) this.#source?.acknowledge(notification);
  }

  /** The user's credential from now on: shown at once if there is a connection, and whenever the service asks. Registrations stay. */
  async useCredential(text: string): Promise<void> {
    (await import("./credentials.ts")).checkGiven(text); // most have none: they load nothing of this
    if (this.#starting) await (await this.#running())._useCredential(text);
    else if (typeof this.#options.credential !== "function") this.#options.credential = text;
  }

  /** `credential-required`, `credential-refused` or `credential-expired`: the service does nothing for this client. Empty: none. */
  get credentialProblem(): string {
    return this.#ready?._credentialProblem ?? "";
  }

  /** The service has exactly the registrations wished for, owes this client nothing, and said so a moment ago. */
  get inSync(): boolean {
    return this.#ready?.inSync ?? false;
  }

  get connected(): boolean {
    return this.#ready?.connected ?? false;
  }

  get device(): string {
    return this.#source?.device ?? this.#options.device;
  }

  /** Where the client is connected, or tries to. */
  get url(): string {
    return this.#source?.url ?? (this.#options._urls[0] as string);
  }

  /** How: `websocket`, `long-poll` or `carried`. Empty until that is known. */
  get channel(): string {
    return this.#source?.channel ?? "";
  }

  /** The objects wished for. */
  registrations(): string[] {
    return [...(this.#ready?._wished.keys() ?? [])];
  }

  toldUntil(id: string): number | null {
    return this.#ready?._toldUntil(nameFromText(id)) ?? null;
  }

  now(): number {
    return this.#options.clock.now();
  }

  /**
   * Wait until the service has confirmed exactly the registrations wished for. It does not wait for notifications: whether any are owed or
   * unacknowledged, `inSync` tells.
   */
  async synced(timeoutMs = Infinity): Promise<void> {
    const source = await this.#running();
    await this.#until(() => this.#check(source)._confirmed, timeoutMs, "Not in sync");
  }

  /**
   * The notifications of objects without a handler, as they come. Each is acknowledged when the loop comes back for the next; one that the
   * loop left without coming back (a break, an exception) is given to the next loop again.
   */
  [Symbol.asyncIterator](): AsyncIterableIterator<Notification> {
    if (this.#options.onNotify) throw new InvalidSetting("onNotify is told everything.");
    return this.#loop();
  }

  /** What loops need is loaded by those who loop. */
  async *#loop(): AsyncGenerator<Notification, void> {
    const { loop } = await import("./later.ts");
    if (!this.#closed) await this.start();
    yield* loop({
      _client: this,
      _source: this.#source,
      _untaken: this.#untaken,
      _taken: this.#withApplication,
      _closed: () => this.#closed,
      _until: (happened) => this.#until(happened),
      _watch: () => this.#watch(),
    });
  }

  /** The source, once it is started. */
  get #ready(): Source | null {
    return this.#started && !this.#closed ? this.#source : null;
  }

  async #running(): Promise<Source> {
    await this.start();
    return this.#check(this.#source);
  }

  #check(source: Source | null): Source {
    if (source?.stopped) throw source.stopped;
    if (this.#closed) throw new ClientStopped("The client was closed.");
    return source as Source;
  }

  #unregister(source: Source, name: Name, forget: boolean): void {
    source.unregister(name, forget);
    this.#drop(source, name);
  }

  /** The registration has ended. What nobody has dealt with is told again, should there be another. */
  #drop(source: Source, name: Name): void {
    const { _working: working, _waiting: waiting } = this.#handlings.get(name) ?? {};
    this.#handlings.delete(name);
    this.#unsignal(name);
    for (const latest of [working, waiting, this.#untaken]) {
      for (const key of [UNKNOWN + name, KNOWN + name]) {
        const notification = latest?.get(key);
        latest?.delete(key);
        if (notification) source._giveBack(notification);
      }
    }
  }

  #unsignal(name: Name): void {
    this.#signalled.get(name)?.abort();
    this.#signalled.delete(name);
  }

  /** This registration, not one that comes after it. */
  #unregisterAt(signal: AbortSignal, name: Name): void {
    let over = this.#signalled.get(name);
    if (!over) this.#signalled.set(name, (over = new AbortController()));
    const ended = over.signal;
    const aborted = async (): Promise<void> => {
      const source = await this.#running();
      if (!ended.aborted) this.#unregister(source, name, false);
    };
    signal.addEventListener("abort", () => void aborted().catch(() => {}), { once: true, signal: ended });
  }

  /** It is looked at whenever something may have changed. */
  #until(happened: () => boolean, timeoutMs = Infinity, otherwise = ""): Promise<void> {
    return new Promise((fulfil, reject) => {
      const late = (): void => {
        this.#watchers.delete(look);
        reject(
          this.connected
            ? new DOMException(`${otherwise}${this.credentialProblem && ` (${this.credentialProblem})`}: ${this.url}, after ${timeoutMs} ms.`, "TimeoutError")
            : new ServiceUnreachable(this.#source?._unreachable || `There is no connection to ${this.url}.`),
        );
      };
      const cancel = timeoutMs < Infinity ? this.#options.clock.after(timeoutMs / 1000, late) : () => {};
      const look = (): void => {
        try {
          if (!happened()) return void this.#watchers.add(look);
          fulfil();
        } catch (error) {
          reject(error);
        }
        this.#watchers.delete(look);
        cancel();
      };
      look();
    });
  }

  #watch(): void {
    for (const look of [...this.#watchers]) look();
  }

  #dispatch<K extends keyof ClientEvents>(type: K, detail: ClientEvents[K]): void {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  #told(told: Told): void {
    if (told.kind === "notify") {
      this.#notify(told.notification);
    } else if (told.kind === "statusChanged") {
      this.#dispatch(told.registered ? "registered" : "unregistered", { name: told.name });
    } else if (told.kind === "registrationFailed") {
      const { kind, ...failed } = told;
      const { name, code, message } = failed;
      if (!failed.transient) {
        const refused = this.#handlings.get(name)?.refused;
        this.#drop(this.#source as Source, name);
        refused?.(name, code, message);
      }
      this.#dispatch("failed", failed);
    } else if (told.kind === "reissueRegistrations") {
      this.#dispatch("reissue", null);
    } else if (told.kind === "credentialWanted") {
      this.#dispatch("credentialrefused", { code: told.code, message: told.message });
    } else if (told.kind === "reported") {
      this.#dispatch("error", { error: new RoskvaError(told.code, told.message) });
    } else if (told.kind === "stopped") {
      this.#watch();
      this.#dispatch("stopped", { error: told.error });
      // In another tab, perhaps; else `forget` does it.
      if (told.error.message.startsWith(FORGOTTEN)) {
        (this.#emptied ??= this.#forgetCaches()).catch((error) => this.#dispatch("error", { error }));
      }
    } else {
      this.#changed();
    }
  }

  #changed(): void {
    const source = this.#source as Source;
    if (source.connected !== this.#wasConnected) {
      this.#wasConnected = !this.#wasConnected;
      if (this.#wasConnected) this.#dispatch("connected", { url: source.url, channel: source.channel });
      else this.#dispatch("disconnected", { reason: source._unreachable });
    }
    if (source.inSync !== this.#wasInSync) {
      this.#wasInSync = !this.#wasInSync;
      this.#dispatch(this.#wasInSync ? "insync" : "outofsync", null);
    }
    this.#watch();
  }

  #notify(notification: Notification): void {
    const { name } = notification;
    const { onNotify } = this.#options;
    let handling = this.#handlings.get(name);
    if (!handling && onNotify) this.#handlings.set(name, (handling = handlingOf(onNotify)));
    if (handling?.manual) return void this.#handOver(handling, notification);
    (handling?._waiting ?? this.#untaken).set(keyOf(notification), notification);
    if (!handling) this.#watch();
    else if (!handling._busy && handling._handler) void this.#work(handling);
  }

  /** One at a time, in the order in which they came. */
  async #work(handling: Handling): Promise<void> {
    handling._busy = true;
    for (const [key, notification] of handling._waiting) {
      handling._waiting.delete(key);
      await this.#handOver(handling, notification);
    }
    handling._busy = false;
  }

  async #handOver(handling: Handling, notification: Notification): Promise<void> {
    const { _handler: handler, manual, _working: working } = handling;
    const { name } = notification;
    working.set(keyOf(notification), notification);
    try {
      const done = handler?.(notification);
      if (!manual || done) await done;
      // Else it was given back, and is another's by now.
      if (!manual && (dealtWith(handling, notification) || !this.#source?._wished.has(name))) this.acknowledge(notification);
    } catch (error) {
      if (dealtWith(handling, notification) && !this.#closed) this.#source?._giveBack(notification);
      this.#dispatch("error", { error, name });
    }
  }
}

/** Whether the handler had it still to deal with. */
function dealtWith({ _working: working }: Handling, notification: Notification): boolean {
  return working.get(keyOf(notification)) === notification && working.delete(keyOf(notification));
}
