/**
 * The shell of the tabs: elects the leader, carries what tabs say to each other, and gives the leader a session.
 *
 * A Web Lock is the leader's while its tab lives, and goes to the next in the queue the moment it does not. Each tab also holds a lock of
 * its own, for which the leader queues: to get it means that the tab is gone. So nobody has to send signs of life, and a crash is noticed
 * as soon as a goodbye. Messages go over one BroadcastChannel.
 *
 * A tab that the browser has frozen keeps its locks. If it leads, a tab that somebody looks at takes the lead from it: it gets no answer
 * (tab.ts) and steals the lock. The one that lost it notices when it runs again: it ends its reign and follows.
 */

import type { RoskvaError } from "../core/errors.ts";
import type { Name } from "../core/model.ts";
import { EPOCH_MAX } from "../core/settings.ts";
import type { Notification } from "../registrations.ts";
import type { SessionOptions } from "../session.ts";
import type { Source, Told } from "../source.ts";
import { ClientStopped, FORGOTTEN, Session, unguessable } from "../together.ts";
import { Hub, type HubAction } from "./hub.ts";
import { type FromLeader, type FromTab, scopeOf, type Standing } from "./messages.ts";
import { onWake } from "../wake.ts";
import { Tab, type TabAction } from "./tab.ts";

const FIRST_WORD_S = 1; // how long a start waits to hear of a leader
const SAID_AGAIN_S = 1; // a standing that is unchanged is repeated, not more often than this
const LINGER_S = 1; // a leader that stopped for good holds its lock so long: first the others hear why

/** `to`: a tab, or empty for all. `term`: the reign, empty if none is known. */
type Envelope =
  | { readonly from: string; readonly term: string; readonly to: string; readonly leader: FromLeader }
  | { readonly from: string; readonly term: string; readonly tab: FromTab };

interface Reign {
  readonly term: string;
  readonly after: string; // the last one that this tab heard of
  readonly bornS: number; // from when on it has heard all that was told
  readonly hub: Hub;
  readonly session: Session;
  readonly watched: Set<string>; // tabs whose end is waited for
  said: string; // the last standing
  saidS: number;
}

export class SharedSession implements Source {
  #options: SessionOptions;
  readonly #tell: (told: Told) => void;
  readonly #scope: string;
  readonly #id = unguessable();
  readonly #over = new AbortController();
  readonly #tab = new Tab();
  readonly #channel: BroadcastChannel;
  readonly #inbox: Envelope[] = [];
  #busy = false;
  #reign: Reign | null = null;
  #candidacy = new AbortController(); // aborted: what it asked for, or got, counts no more
  #elected = false; // it has the lock
  #term = "";
  #release!: () => void;
  readonly #held = new Promise<void>((fulfil) => (this.#release = fulfil)); // our locks are
  #heardOf!: () => void;
  readonly #firstWord = new Promise<void>((fulfil) => (this.#heardOf = fulfil));
  #cancelTimer = (): void => {};
  #unlisten = (): void => {};
  #closing: Promise<void> | null = null;

  constructor(options: SessionOptions, tell: (told: Told) => void) {
    this.#options = options;
    this.#tell = tell;
    this.#scope = scopeOf(options.application, options.device);
    this.#channel = new BroadcastChannel(this.#scope);
  }

  async start(): Promise<void> {
    const { credential } = this.#options;
    if (credential !== undefined) (await import("../credentials.ts")).checkGiven(credential); // whoever leads
    try {
      await this.#lock(`tab:${this.#id}`, {});
      this.#channel.onmessage = ({ data }) => this.#take(data); // not before: a leader that gets our lock takes us for gone
      const bornS = (this.#tab.bornS = this.#now());
      const candidacy = this.#candidacy;
      const leads = await this.#lock("lead", { ifAvailable: true }, () => this.#deposed(candidacy));
      if (leads) {
        this.#tab.bornS = Infinity; // nobody led before it: it is not older than its own reign
        this.#elected = true;
        await this.#lead(bornS, candidacy);
      } else await this.#follow();
    } catch (error) {
      this.#end();
      throw error;
    }
    this.#unlisten = onWake(this.#options.clock, () => this.#perform(this.#tab.ask(this.#now(), "wake")), () => {});
    this.#tell({ kind: "reissueRegistrations" });
  }

  async #follow(): Promise<void> {
    this.#stand(false);
    this.#perform(this.#tab.ask(this.#now(), "hello"));
    const cancel = this.#options.clock.after(FIRST_WORD_S, this.#heardOf);
    await this.#firstWord;
    cancel();
  }

  /** Queue for the lead, or take it from a leader that does not answer. */
  #stand(steal: boolean): void {
    this.#candidacy.abort();
    const candidacy = (this.#candidacy = new AbortController());
    const { signal } = candidacy;
    const options = steal ? { steal } : { signal }; // both at once the platform does not take
    this.#lock("lead", options, () => this.#deposed(candidacy))
      .then(() => {
        if (signal.aborted) return;
        this.#elected = true;
        return this.#lead(this.#now(), candidacy);
      })
      .catch((error) => {
        if (signal.aborted) return; // closed, or it stands anew
        if (steal && !this.#elected) this.#stand(false); // a platform that knows no stealing
        else this.#failedToLead(error);
      });
  }

  /** Another took the lead while this tab was frozen. What it was told meanwhile nobody knows. */
  #deposed(candidacy: AbortController): void {
    if (candidacy.signal.aborted) return; // it took it from itself
    const reign = this.#reign;
    this.#reign = null;
    this.#elected = false;
    this.#term = "";
    this.#tab.bornS = -Infinity;
    this.#stand(false);
    this.#perform(this.#tab.ask(this.#now(), "hello"));
    reign?.session.close().catch(() => {}); // the store of its state may fail; the new leader has its own
  }

  get device(): string {
    return this.#tab.standing?.device ?? this.#options.device;
  }

  get connected(): boolean {
    return this.#standing?.connected ?? false;
  }

  get inSync(): boolean {
    return (this.#standing?.inSync ?? false) && this._confirmed;
  }

  get _confirmed(): boolean {
    return this.#tab.confirmed(this.#now());
  }

  get url(): string {
    return this.#tab.standing?.url ?? (this.#options._urls[0] as string);
  }

  get channel(): string {
    return this.#tab.standing?.channel ?? "";
  }

  get _unreachable(): string {
    return this.#standing?.unreachable ?? "The tab that has the connection does not answer.";
  }

  get _credentialProblem(): string {
    return this.#standing?.credentialProblem ?? "";
  }

  get stopped(): RoskvaError | null {
    return this.#tab.stopped;
  }

  get _wished(): Source["_wished"] {
    return this.#tab.wishes;
  }

  register(name: Name, version: bigint | null, epoch: number, intervalMs?: number): void {
    this.#perform(this.#tab.register(name, version, epoch, intervalMs));
  }

  unregister(name: Name, forget: boolean): void {
    this.#perform(this.#tab.unregister(name, forget));
  }

  acknowledge(notification: Notification): void {
    this.#perform(this.#tab.acknowledge(notification));
  }

  _giveBack(notification: Notification): void {
    this.#perform(this.#tab.giveBack(this.#now(), notification));
  }

  _toldUntil(name: Name): number | null {
    return this.#tab.toldUntil(this.#now(), name);
  }

  /** Every tab's: they are of one user. Who has a provider asks that when it leads. */
  async _useCredential(text: string): Promise<void> {
    this.#say({ kind: "credential", text });
  }

  #hasCredential(text: string): void {
    if (typeof this.#options.credential !== "function") this.#options = { ...this.#options, credential: text };
    this.#reign?.session._useCredential(text).catch(() => {}); // it was checked; what cannot be loaded now is when the service asks
  }

  forget(): void {
    this.#perform(this.#tab.forget());
  }

  /** All tabs are signed out, whether the service has confirmed it or not. */
  async _deleteState(): Promise<void> {
    const session = this.#reign?.session;
    const { code, message } = new ClientStopped(FORGOTTEN);
    this.#post({ from: this.#id, term: "", to: "", leader: { kind: "stopped", code, message } });
    if (session) await session._deleteState();
    else await this.#options.state.delete();
  }

  close(): Promise<void> {
    return (this.#closing ??= this.#close());
  }

  async #close(): Promise<void> {
    const reign = this.#reign;
    this.#reign = null;
    await reign?.session.close();
    if (reign && this.#tab.stopped) await new Promise<void>((done) => void this.#options.clock.after(LINGER_S, done));
    this.#end();
  }

  #end(): void {
    this.#cancelTimer();
    this.#unlisten();
    this.#over.abort();
    this.#candidacy.abort();
    this.#release();
    this.#channel.close();
  }

  #now(): number {
    return this.#options.clock.now();
  }

  get #standing(): Standing | null {
    return this.#tab.now(this.#now());
  }

  /** Queue for a lock, and hold it until this tab is closed, or it is `lost`. False: it is not available, and to wait was not wanted. */
  #lock(name: string, options: LockOptions, lost = (): void => {}): Promise<boolean> {
    return new Promise((granted, reject) => {
      let has = false;
      const asked = navigator.locks.request(`${this.#scope}:${name}`, options, (lock) => {
        has = lock !== null;
        granted(has);
        return has ? this.#held : undefined;
      });
      asked.catch((error) => (has ? lost() : reject(error)));
    });
  }

  // The leader's part.

  async #lead(bornS: number, { signal }: AbortController): Promise<void> {
    const session = new Session(this.#options, (told) => this.#reign === reign && this.#sessionTold(reign, told));
    const began = { term: unguessable(), after: this.#term, bornS, hub: new Hub(), session };
    const reign: Reign = { ...began, watched: new Set([this.#id]), said: "", saidS: -Infinity };
    await session.start();
    if (signal.aborted) return session.close();
    this.#reign = reign;
    this.#sayLead("", reign);
  }

  #failedToLead(error: unknown): void {
    const { code = "internal", message = String(error) } = error as Partial<RoskvaError>;
    this.#perform(this.#tab.heard(this.#now(), { kind: "stopped", code, message }));
    this.#end();
  }

  #speak(to: string, leader: FromLeader): void {
    if (this.#reign) this.#post({ from: this.#id, term: this.#reign.term, to, leader });
  }

  #sayLead(to: string, reign: Reign): void {
    this.#speak(to, { kind: "lead", term: reign.term, after: reign.after, ageS: this.#now() - reign.bornS });
    reign.said = "";
    this.#sayStanding();
  }

  #sessionTold({ hub }: Reign, told: Told): void {
    if (told.kind === "notify") {
      this.#sayStanding(); // its epoch first
      this.#carryOut(hub.notified(told.notification));
    } else if (told.kind === "statusChanged") this.#carryOut(hub.status({ ...told, kind: "status" }));
    else if (told.kind === "registrationFailed") this.#carryOut(hub.status({ ...told, kind: "failed" }));
    else if (told.kind === "reported") this.#speak("", told);
    else if (told.kind === "credentialWanted") {
      this.#sayStanding(); // which names the problem
      this.#speak("", told);
    }
    else if (told.kind === "stopped") this.#speak("", { kind: "stopped", code: told.error.code, message: told.error.message });
    else if (told.kind === "changed") this.#sayStanding();
  }

  #carryOut(actions: HubAction[]): void {
    for (const action of actions) {
      const session = this.#reign?.session;
      if (!session) return; // the one before ended it
      if (action.kind === "post") this.#speak(action.to, action.message);
      else if (action.kind === "register") session.register(action.wish.name, action.wish.version, action.wish.epoch, action.wish.intervalMs);
      else if (action.kind === "unregister") session.unregister(action.name, action.forget);
      else if (action.kind === "acknowledge") session.acknowledge(action.notification);
      else session.forget();
    }
  }

  #sayStanding(): void {
    const reign = this.#reign;
    if (!reign) return;
    const { session } = reign;
    const { device, connected, inSync, url, channel, _confirmed: confirmed, _unreachable: unreachable } = session;
    const { _credentialProblem: credentialProblem, _core: core } = session;
    const { _epoch } = core._handover;
    const epoch = _epoch === EPOCH_MAX ? null : _epoch; // null: the service has not said
    const follows = !!session._following?._follows(session._now());
    const how = { device, connected, inSync, confirmed, follows, url, channel, unreachable, credentialProblem, epoch };
    const standing = { ...how, validS: 2 * core.config.keepalive_s };
    const said = JSON.stringify(standing);
    if (said === reign.said && this.#now() - reign.saidS < SAID_AGAIN_S) return;
    reign.said = said;
    reign.saidS = this.#now();
    this.#speak("", { kind: "standing", standing });
  }

  /** The leader hears a tab. */
  #heardTab(reign: Reign, from: string, term: string, message: FromTab): void {
    if (!reign.watched.has(from)) {
      reign.watched.add(from);
      const { signal } = this.#over;
      // Shared: a leader that was frozen and lost the lead may be in the queue, too.
      const gone = navigator.locks.request(`${this.#scope}:tab:${from}`, { signal, mode: "shared" }, () => {
        reign.watched.delete(from); // the lock may come before its last words: they make it a tab again, whose end is noticed at once
        if (this.#reign === reign) this.#carryOut(reign.hub.gone(from));
      });
      gone.catch(() => {}); // aborted: this tab is closed
    }
    if (term !== reign.term) {
      this.#sayLead(from, reign); // it has not heard of this reign: then it will restate all
    } else if (message.kind === "wake" || message.kind === "hello") {
      if (message.kind === "wake") reign.session.wake();
      reign.said = "";
      this.#sayStanding();
    } else {
      this.#carryOut(reign.hub.said(from, message));
    }
  }

  // Every tab's part.

  #perform(actions: TabAction[]): void {
    for (const action of actions) {
      if (action.kind === "say") this.#say(action.message);
      else if (action.kind === "unanswered") this.#takeOver();
      else this.#tell(action);
    }
    this.#cancelTimer();
    const dueS = this.#over.signal.aborted ? null : this.#tab.nextDeadline();
    if (dueS === null) return;
    this.#cancelTimer = this.#options.clock.after(dueS - this.#now(), () => this.#perform(this.#tab.tick(this.#now())));
  }

  /** Not if nobody looks at this tab: then nobody misses anything, and it may be frozen next. */
  #takeOver(): void {
    if (!this.#elected && globalThis.document?.visibilityState !== "hidden") this.#stand(true);
  }

  #say(message: FromTab): void {
    this.#post({ from: this.#id, term: this.#term, tab: message });
  }

  #post(envelope: Envelope): void {
    if (this.#over.signal.aborted) return;
    const mine = "leader" in envelope ? envelope.to === this.#id : this.#reign?.term === envelope.term;
    const ofAll = "tab" in envelope && envelope.tab.kind === "credential";
    if (!mine || ofAll) this.#channel.postMessage(envelope);
    this.#take(envelope); // a channel does not bring one's own words
  }

  /** One at a time, though to take one may mean to post another. */
  #take(envelope: Envelope): void {
    this.#inbox.push(envelope);
    if (this.#busy) return;
    this.#busy = true;
    try {
      for (let next; (next = this.#inbox.shift()) !== undefined; ) this.#heard(next);
    } finally {
      this.#busy = false;
    }
  }

  #heard(envelope: Envelope): void {
    if ("tab" in envelope) {
      if (envelope.tab.kind === "credential") this.#hasCredential(envelope.tab.text);
      else if (this.#reign) this.#heardTab(this.#reign, envelope.from, envelope.term, envelope.tab);
      else if (this.#elected) this.#post({ from: this.#id, term: "", to: envelope.from, leader: { kind: "soon" } });
      return;
    }
    const { term, to, leader } = envelope;
    if (to !== "" && to !== this.#id) return;
    if (leader.kind === "lead") {
      if (term === this.#term) return; // somebody else asked, too
      this.#term = term;
      this.#heardOf();
    } else if (term !== this.#term && leader.kind !== "stopped" && leader.kind !== "soon") {
      return; // of a leader before this one
    }
    this.#perform(this.#tab.heard(this.#now(), leader));
    if (leader.kind === "stopped") void this.close(); // so that whoever comes next does not wait for this one
  }
}
