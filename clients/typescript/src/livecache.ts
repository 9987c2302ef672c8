/**
 * `LiveCache`: values of the application, fetched once, and again when the service tells of a change (Thialfi 3.1).
 *
 * The shell around `freshness.ts`, which decides what is fresh, what is fetched and what may be acknowledged. Here: who waits for which
 * fetch, which entries stay, the store, and the background. The twin of src/roskva/client/livecache.py.
 */

import { type Clock, systemClock } from "./clock.ts";
import { ClientStopped, RoskvaError } from "./core/errors.ts";
import { type Name, nameFromText } from "./core/model.ts";
import { FetchFailed, InvalidSetting, NotAuthorized } from "./errors.ts";
import { type Attempt, Entry, PAUSES, type Standing } from "./freshness.ts";
import type { Asked, CacheClient, LiveCacheOptions, Versioned } from "./livecache-options.ts";
import { type Fetched, fetchedOf, type Flight, newSlot, type Slot } from "./livecache-slots.ts";
import type { Notification } from "./registrations.ts";
import { type CacheStore, type Codec, jsonCodec } from "./stores/cache.ts";
import { CacheWriter } from "./stores/cache-writer.ts";
import { orAborted, Places } from "./waiting.ts";
import { type Live, Watching } from "./watching.ts";

export { FetchFailed, NotAuthorized } from "./errors.ts";
export type { Pauses, Standing, State } from "./freshness.ts";
export type { Asked, CacheClient, LiveCacheOptions, Versioned } from "./livecache-options.ts";
export { type CacheStore, cloneCodec, type Codec, jsonCodec, type Kept, MemoryStore } from "./stores/cache.ts";
export { IndexedDbStore } from "./stores/indexeddb-cache.ts";
export type { Live } from "./watching.ts";

const LOOK_S = 0.02;
const FORBIDDEN_S = 60; // after a refusal `get` says so for so long, before it tries again
const NOT_AUTHORIZED = "not-authorized";
const CLOSED = "The cache was closed.";

/**
 * Holds what `fetch` answered, and fetches again when it changed.
 *
 *     const cache = new LiveCache(client, (id, { signal }) => load(id, signal));
 *     await cache.get("doc:42"); // fetched
 *     await cache.get("doc:42"); // from memory
 *
 * With `versioned: true`, `fetch` answers `{ value, version }`: saves fetches, and finds replicas that lag.
 */
export class LiveCache<V> {
  readonly #client: CacheClient;
  readonly #clock: Clock;
  readonly #fetch: (id: string, asked: Asked) => unknown;
  readonly #options: Required<Omit<LiveCacheOptions, "store" | "codec">>;
  readonly #versioned: boolean;
  readonly #store: CacheStore | null;
  readonly #writer: CacheWriter | null;
  readonly #codec: Codec;
  readonly #background: Places;
  readonly #slots = new Map<Name, Slot<V>>(); // the least recently used first
  readonly #flights = new Set<Flight<V>>();
  readonly #forbidden = new Map<Name, number>(); // until when; what was refused longest ago first
  readonly #watching: Watching<V>;
  readonly #ending = new AbortController();
  readonly #turns = new Map<Name, Promise<void>>(); // registrations on their way
  readonly #wakes = new Set<() => void>(); // whoever pauses
  #epoch = 0; // of the last notification: in which the versions of what is fetched from now on are counted
  readonly #outliveForgetting: () => void;
  #starting: Promise<void> | null = null;
  #ready: boolean; // or there is something to take up

  constructor(client: CacheClient, fetch: (id: string, asked: Asked) => V | Promise<V>, options?: LiveCacheOptions & { versioned?: false });
  constructor(
    client: CacheClient,
    fetch: (id: string, asked: Asked) => Versioned<V> | Promise<Versioned<V>>,
    options: LiveCacheOptions & { versioned: true },
  );
  constructor(client: CacheClient, fetch: (id: string, asked: Asked) => unknown, options: LiveCacheOptions & { versioned?: boolean } = {}) {
    this.#options = {
      entriesMax: options.entriesMax ?? 10_000,
      refresh: options.refresh ?? "background",
      outOfSyncS: options.outOfSyncS ?? 10,
      serveIfFailed: options.serveIfFailed ?? false,
      startWaitS: options.startWaitS ?? 2,
      fetchTimeoutS: options.fetchTimeoutS ?? 30,
      refreshesMax: options.refreshesMax ?? 8,
      pauses: options.pauses ?? PAUSES,
      warn: options.warn ?? ((message, error) => console.warn(`roskva: ${message}:`, error)),
    };
    if (!(this.#options.entriesMax >= 1) || !(this.#options.refreshesMax >= 1)) {
      throw new InvalidSetting("A LiveCache needs room for at least one entry, and for one fetch in the background.");
    }
    if (!["background", "on-use"].includes(this.#options.refresh)) {
      throw new InvalidSetting(`refresh is "background" or "on-use", not ${JSON.stringify(this.#options.refresh)}.`);
    }
    this.#client = client;
    this.#clock = client.clock ?? systemClock;
    this.#fetch = fetch;
    this.#versioned = options.versioned ?? false;
    this.#store = options.store ?? null;
    this.#writer = this.#store === null ? null : new CacheWriter(this.#store, this.#options.warn);
    this.#codec = options.codec ?? this.#store?.codec ?? jsonCodec;
    this.#background = new Places(this.#options.refreshesMax);
    this.#watching = new Watching(this.#clock, this.#options.pauses, (name) => this.#live(name), (name) => this.get(name), this.#options.warn);
    this.#watching.listen(client);
    this.#outliveForgetting = client.whenForgotten?.(() => this.forget()) ?? (() => {});
    this.#ready = this.#store === null;
  }

  /** Take up what the store has, and wait a moment for the service to confirm it. The first `get` does this, too. */
  async start(): Promise<void> {
    this.#checkOpen();
    if (!this.#ready) this.#starting ??= this.#takeUp(); // if it failed, it says so to everybody
    await this.#starting;
  }

  /** End. With a durable store the registrations stay at the service for the next run, else they go. */
  async close(): Promise<void> {
    if (this.#ending.signal.aborted) return;
    this.#watching.close();
    this.#ending.abort(new ClientStopped(CLOSED));
    for (const { abort } of this.#flights) abort.abort(this.#ending.signal.reason);
    for (const wake of this.#wakes) wake();
    await Promise.allSettled([this.#starting, ...[...this.#flights].map((flight) => flight.landed)]);
    await Promise.all([...this.#slots.values()].map((slot) => this.#leave(slot, this.#store?.durable ?? false)));
    this.#slots.clear();
    if (this.#writer === null) this.#outliveForgetting();
    else await this.#writer.close();
  }

  /** The user signed out (`Client.forget` calls this): the cache has ended, and its store is empty, whoever filled it. */
  async forget(): Promise<void> {
    for (const slot of this.#slots.values()) slot.registered = false; // the client has none any more
    await this.close();
    await this.#writer?.clear();
  }

  /**
   * The value. From memory if it is fresh; else it is fetched, once for all who ask. Who aborts `signal` takes nothing from the others.
   *
   * Throws FetchFailed if the value is outdated, or not there, and the fetch fails (unless `serveIfFailed`), and NotAuthorized if the service
   * refused the registration because the client's user may not have it.
   */
  async get(id: string, { signal }: { readonly signal?: AbortSignal } = {}): Promise<V> {
    const name = nameFromText(id);
    signal?.throwIfAborted();
    this.#checkOpen();
    if (!this.#ready) await orAborted(this.start(), signal);
    this.#checkAllowed(name);
    let slot = this.#slots.get(name);
    if (slot === undefined) slot = this.#add(name);
    else this.#touch(slot);
    const { entry } = slot;
    const now = this.#client.now();
    const choice = entry.choose(now, this.#toldUntil(slot), this.#options.outOfSyncS);
    if (choice === "fetch") return orAborted(this.#fetched(slot), signal);
    if (choice === "fail" && !this.#options.serveIfFailed) throw new FetchFailed(name, entry.trouble, Math.max(0, entry.retryAt - now));
    return entry.value as V;
  }

  /** The value that is held, whatever its state. Undefined: nothing is held. */
  peek(id: string): V | undefined {
    return this.#slots.get(nameFromText(id))?.entry.value;
  }

  /** `fresh`, `stale` or `unknown`, and for how long. */
  state(id: string): Standing {
    const slot = this.#slots.get(nameFromText(id));
    const now = this.#client.now(); // before `toldUntil`, which says now or later while all is well
    return slot?.entry.standing(now, this.#toldUntil(slot)) ?? { state: "unknown", forS: 0 };
  }

  /** The application knows that the value is outdated, because it just wrote another: as after a notification. */
  invalidate(id: string): void {
    const slot = this.#slots.get(nameFromText(id));
    if (slot === undefined) return;
    slot.entry.outdated(this.#client.now());
    this.#refreshSoon(slot);
    this.#watching.look(slot.name);
  }

  /** Hold it no longer, and be told of it no longer. If it was refused, the next `get` tries again. */
  async discard(id: string): Promise<void> {
    const name = nameFromText(id);
    this.#forbidden.delete(name);
    const slot = this.#slots.get(name);
    if (slot !== undefined) await this.#evict(slot);
  }

  get size(): number {
    return this.#slots.size;
  }

  has(id: string): boolean {
    return this.#slots.has(nameFromText(id));
  }

  /**
   * Somebody shows the object: it is fetched now, again when it changed, and again after a pause when that failed, until what this answers
   * is called. `changed` is called whenever `live` has something else to say.
   */
  subscribe(id: string, changed: () => void): () => void {
    return this.#watching.subscribe(nameFromText(id), changed);
  }

  /** What there is to show of it: value, state and the error of the last fetch. */
  live(id: string): Live<V> {
    return this.#watching.live(nameFromText(id));
  }

  #live(name: Name): Omit<Live<V>, "error"> {
    return { value: this.peek(name), state: this.state(name).state };
  }

  // Entries.

  async #takeUp(): Promise<void> {
    const { entriesMax, startWaitS, warn } = this.#options;
    const writer = this.#writer as CacheWriter;
    const held = await writer.load();
    held.forEach(({ name, value, version, epoch }, place) => {
      if (held.length - place > entriesMax) return writer.forget(name); // written longest ago
      try {
        const slot = this.#newSlot(name);
        slot.entry.restored(this.#codec.decode(value) as V, version, epoch);
        this.#slots.set(name, slot);
        this.#epoch = Math.max(this.#epoch, epoch);
      } catch (error) {
        warn(`what the store has of ${name} is of no use`, error);
        writer.forget(name);
      }
    });
    for (const slot of this.#slots.values()) this.#register(slot);
    for (let looks = 0; looks * LOOK_S < startWaitS && !this.#ending.signal.aborted; looks++) {
      if ([...this.#slots.values()].every((slot) => this.#current(slot))) break;
      await this.#pause(LOOK_S);
    }
    this.#checkOpen();
    this.#ready = true;
  }

  #current(slot: Slot<V>): boolean {
    const now = this.#client.now();
    return (this.#toldUntil(slot) ?? -Infinity) >= now;
  }

  /** Of a registration of somebody else, whatever is told is told to somebody else. */
  #toldUntil(slot: Slot<V>): number | null {
    return slot.registered ? this.#client.toldUntil(slot.name) : null;
  }

  #newSlot(name: Name): Slot<V> {
    return newSlot(name, new Entry<V>(this.#client.now(), this.#options.pauses));
  }

  #add(name: Name): Slot<V> {
    const slot = this.#newSlot(name);
    this.#slots.set(name, slot);
    while (this.#slots.size > this.#options.entriesMax) void this.#evict(this.#leastWanted(slot));
    return slot;
  }

  /** The least recently used one that nobody shows; if all are shown, the least recently used one. */
  #leastWanted(but: Slot<V>): Slot<V> {
    let first: Slot<V> | null = null;
    for (const slot of this.#slots.values()) {
      if (slot === but) continue;
      if (!this.#watching.has(slot.name)) return slot;
      first ??= slot;
    }
    return first ?? but;
  }

  #touch(slot: Slot<V>): void {
    this.#slots.delete(slot.name);
    this.#slots.set(slot.name, slot);
  }

  async #evict(slot: Slot<V>): Promise<void> {
    slot.gone = true;
    this.#slots.delete(slot.name);
    slot.wake?.();
    this.#writer?.forget(slot.name);
    this.#watching.look(slot.name);
    await this.#leave(slot, false);
  }

  /** State the registration, with the version held if that outlives a restart: to state one is to acknowledge it. */
  #register(slot: Slot<V>): void {
    void this.#inTurn(slot.name, async () => {
      const { entry, name } = slot;
      if (slot.gone || this.#ending.signal.aborted) return;
      const version = (this.#store?.durable ?? false) && entry.kept ? entry.version : null;
      if (version === null && this.#toldUntil(slot) !== null) return;
      const held = version === null ? {} : { version, epoch: entry.epoch };
      try {
        await this.#client.register(name, this.#noticed, { manual: true, refused: this.#refused, ...held });
        slot.registered = true;
        this.#watching.look(name);
      } catch (error) {
        slot.registered = false; // the client has ended, or it is registered for somebody else
        if (!slot.warned) this.#options.warn(`${name} is cached without being registered`, error);
        slot.warned = true;
      }
    });
  }

  /**
   * The service will not tell of it, and so the store must not bring it back as fresh. What the user may not have is held no longer; what was
   * refused for another reason is cached by time, and registered again when it is fetched again.
   */
  readonly #refused = (id: string, code: string, message: string): void => {
    const name = id as Name;
    const slot = this.#slots.get(name);
    if (slot === undefined || this.#ending.signal.aborted) return;
    slot.registered = slot.entry.kept = false;
    this.#writer?.forget(name);
    if (code === NOT_AUTHORIZED) {
      slot.gone = true;
      this.#slots.delete(name);
      slot.wake?.();
      this.#forbidden.delete(name);
      this.#forbidden.set(name, this.#client.now() + FORBIDDEN_S);
      if (this.#forbidden.size > this.#options.entriesMax) this.#forbidden.delete(this.#forbidden.keys().next().value as Name);
    }
    if (!slot.warned) this.#options.warn(`${name} is not registered`, new RoskvaError(code, message));
    slot.warned = true;
    this.#watching.look(name);
  };

  #checkAllowed(name: Name): void {
    const untilS = this.#forbidden.get(name);
    if (untilS === undefined) return;
    if (this.#client.now() < untilS) throw new NotAuthorized();
    this.#forbidden.delete(name);
  }

  /** Be told of it no more. `keep`: the registration is for the next run, or for the next cache of this client. */
  #leave(slot: Slot<V>, keep: boolean): Promise<void> {
    return this.#inTurn(slot.name, async () => {
      if (!slot.registered) return;
      try {
        if (keep) await this.#client.release(slot.name);
        else await this.#client.unregister(slot.name, { forget: true });
      } catch (error) {
        // The client ended before the cache: its registrations are its own business.
        if (!(error instanceof RoskvaError)) this.#options.warn(`${slot.name} is not unregistered`, error);
      }
    });
  }

  /** After what was begun before with the same object, be it for an entry that is gone. */
  async #inTurn(name: Name, work: () => Promise<void>): Promise<void> {
    const before = this.#turns.get(name);
    const turn = before === undefined ? work() : before.then(work);
    this.#turns.set(name, turn);
    await turn;
    if (this.#turns.get(name) === turn) this.#turns.delete(name);
  }

  readonly #noticed = (notification: Notification): void => {
    this.#epoch = notification.epoch;
    const slot = this.#slots.get(notification.name);
    if (slot === undefined || this.#ending.signal.aborted) return;
    for (const done of slot.entry.noticed(this.#client.now(), notification)) this.#client.acknowledge(done);
    if (this.#options.refresh === "background" && slot.entry.due) this.#refreshSoon(slot);
    this.#watching.look(slot.name);
  };

  // Fetches.

  /** Wait for a fetch that answers this caller: one that meets all that is owed, or else began after the caller came. */
  async #fetched(asked: Slot<V>): Promise<V> {
    let slot = asked;
    if (slot.flight !== null && !slot.entry.suffices(slot.flight.attempt)) {
      await slot.flight.landed.catch(() => {});
      this.#checkOpen();
      slot = this.#slots.get(slot.name) ?? slot;
    }
    let answer: V;
    try {
      answer = await (slot.flight ?? this.#takeOff(slot)).landed;
    } catch (error) {
      if (!(error instanceof FetchFailed)) throw error;
      if (this.#options.serveIfFailed && slot.entry.present) return slot.entry.value as V;
      throw error;
    }
    this.#checkAllowed(slot.name);
    // What others fetched meanwhile may be later, and may be acknowledged: never answer an older one.
    const latest = this.#slots.get(slot.name) ?? slot;
    return latest.entry.present ? (latest.entry.value as V) : answer;
  }

  #takeOff(slot: Slot<V>): Flight<V> {
    const attempt = slot.entry.begin(this.#client.now(), this.#epoch);
    const abort = new AbortController();
    const flight: Flight<V> = { attempt, abort, landed: Promise.resolve().then(() => this.#fly(slot, attempt, abort)) };
    const over = (): void => void this.#flights.delete(flight);
    flight.landed.then(over, over); // nobody need wait for it, even if it fails
    this.#flights.add(flight);
    slot.flight = flight;
    return flight;
  }

  async #fly(slot: Slot<V>, attempt: Attempt, abort: AbortController): Promise<V> {
    const { entry } = slot;
    let fetched: Fetched<V>;
    let encoded: unknown;
    try {
      fetched = await this.#call(slot.name, abort);
      encoded = this.#writer === null ? undefined : this.#codec.encode(fetched.value);
    } catch (error) {
      slot.flight = null;
      if (this.#ending.signal.aborted) throw this.#ending.signal.reason;
      throw this.#failed(slot, error);
    }
    try {
      if (entry.adopt(this.#client.now(), attempt, fetched.value, fetched.version, Math.random())) slot.encoded = encoded;
      if (!slot.gone) await this.#keep(slot);
    } finally {
      slot.flight = null;
    }
    if (entry.due && !slot.gone && (this.#options.refresh === "background" || !entry.kept)) this.#refreshSoon(slot);
    this.#watching.look(slot.name);
    return fetched.value;
  }

  #failed(slot: Slot<V>, error: unknown): FetchFailed {
    const { entry, name } = slot;
    const now = this.#client.now();
    const trouble = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
    entry.failed(now, trouble, Math.random());
    if (entry.present) {
      this.#options.warn(`${name} could not be fetched again`, error);
    } else if (!slot.gone) {
      this.#slots.delete(name); // nothing is held of what was never fetched
      slot.gone = true;
    }
    this.#watching.look(name);
    return new FetchFailed(name, trouble, Math.max(0, entry.retryAt - now), error);
  }

  async #call(name: Name, abort: AbortController): Promise<Fetched<V>> {
    const { fetchTimeoutS } = this.#options;
    const late = (): void => abort.abort(new DOMException(`there was no answer within ${fetchTimeoutS} s`, "TimeoutError"));
    const cancel = fetchTimeoutS === Infinity ? () => {} : this.#clock.after(fetchTimeoutS, late);
    let answer: unknown;
    try {
      abort.signal.throwIfAborted();
      answer = await orAborted(Promise.resolve(this.#fetch(name, { signal: abort.signal })), abort.signal);
    } finally {
      cancel();
    }
    return fetchedOf<V>(answer, this.#versioned);
  }

  /** Bring the entry's value into the store; only then is anything acknowledged, or its version stated. */
  async #keep(slot: Slot<V>): Promise<void> {
    const { entry, name } = slot;
    let kept = true;
    if (!entry.kept && this.#writer !== null) {
      try {
        await this.#writer.keep({ name, value: slot.encoded, version: entry.version, epoch: entry.epoch });
      } catch (error) {
        this.#options.warn(`${name} could not be stored, and is not acknowledged`, error);
        entry.failed(this.#client.now(), `its value could not be stored: ${String(error)}`, Math.random());
        kept = false;
      }
    }
    if (slot.gone || this.#ending.signal.aborted) return;
    if (kept) {
      slot.encoded = undefined;
      for (const done of entry.stored()) this.#client.acknowledge(done);
    }
    this.#register(slot);
  }

  #refreshSoon(slot: Slot<V>): void {
    if (!slot.refreshing && !this.#ending.signal.aborted) void this.#keepFresh(slot);
  }

  async #keepFresh(slot: Slot<V>): Promise<void> {
    const { entry } = slot;
    const wanted = (): boolean => entry.due && !slot.gone && !this.#ending.signal.aborted;
    slot.refreshing = true;
    while (wanted() && entry.tries < this.#options.pauses.triesMax) {
      await this.#pause(entry.retryAt - this.#client.now(), slot);
      await this.#background.enter();
      try {
        if (wanted()) await (slot.flight ?? this.#takeOff(slot)).landed.catch(() => {});
      } finally {
        this.#background.leave();
      }
    }
    slot.refreshing = false;
  }

  /** Ended early by the cache's end, or by that of the slot. */
  async #pause(seconds: number, slot: Slot<V> | null = null): Promise<void> {
    if (!(seconds > 0)) return;
    let wake = (): void => {};
    const over = new Promise<void>((resolve) => void (wake = resolve));
    const cancel = this.#clock.after(seconds, wake);
    this.#wakes.add(wake);
    if (slot !== null) slot.wake = wake;
    await over;
    cancel();
    this.#wakes.delete(wake);
    if (slot !== null) slot.wake = null;
  }

  #checkOpen(): void {
    if (this.#ending.signal.aborted) throw new ClientStopped(CLOSED);
  }
}
