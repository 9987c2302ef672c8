/**
 * A model of the server, for users' tests: what docs/protocol.md says of it, for any number of clients, in memory and without waiting.
 *
 * It speaks the real messages. What a real service does in several steps and processes it does at once: a registration takes effect as it
 * is heard. What it owes it sends again until it is acknowledged, and over every new connection. Knows no clock but the one it is given.
 */

import { type Ack, type ClientMessage, DEFAULTS, type Init } from "../core/messages.ts";
import type { Register, Sync, SyncObject } from "../core/messages.ts";
import { type Name, nameFromText } from "../core/model.ts";
import { bucketOf, bucketSummaries } from "../core/buckets.ts";
import { hashOf, SetDigest } from "../core/summaries.ts";

const SETTLED_AFTER_S = 0.5;
const HINT_S = 60;
const START_MS = 1_700_000_000_000;
const UNKNOWN_CLIENT = { code: "token-invalid", keep: false };
const SUPERSEDED = { code: "session-superseded", keep: true };

/** What it wishes of its clients, and how it treats them: by default as a real service does. */
const POLICY = { ...DEFAULTS, offline_s: 4800, resend_min_s: 1, resend_max_s: 60, registrations_max: 100_000 };
export type Policy = typeof POLICY;

/** One connection: what is said to a client goes here. */
export interface Hearer {
  hear(data: string): void;
}

interface Owed {
  readonly name: Name;
  readonly seqno: number;
  readonly version: bigint | null; // null: unknown
  readonly epoch: number;
  againS: number;
  tries: number;
}

/** A client that is connected: which of its sessions speaks, and over what. */
interface Session {
  readonly number: number;
  readonly token: string;
  readonly to: Hearer;
  readonly lastOps: Map<Name, number>;
  lastSync: number;
  toldUnsettled: number;
  saidS: number;
  hintedS: number;
}

interface Row {
  readonly id: string;
  readonly application: string;
  readonly device: string;
  granted: number;
  seqno: number;
  readonly registered: Map<Name, number>; // the registration's seqno
  digest: SetDigest; // of their names
  readonly owed: Map<string, Owed>;
  session: Session | null;
}

export class Server {
  /** Notifications that were sent, repeats included. */
  notified = 0;
  readonly #config: Partial<Policy>;
  readonly #now: () => number;
  #rows = new Map<string, Row>();
  #versions = new Map<string, bigint>();
  readonly #epochs = new Map<string, number>();
  #minted = 0;

  constructor(config: Partial<Policy>, now: () => number) {
    this.#config = config;
    this.#now = now;
  }

  // What a client says.

  hear(from: Hearer, data: string): void {
    let message: ClientMessage;
    try {
      message = JSON.parse(data) as ClientMessage;
      if (typeof message.token !== "string" && message.init === undefined) throw new TypeError("neither token nor init");
    } catch (error) {
      return from.hear(JSON.stringify({ error: { code: "malformed-message", message: String(error), transient: false } }));
    }
    if (message.init !== undefined) return this.#handshake(from, message.init);
    const session = this.#enter(from, message.token as string);
    if (session !== null) this.#heard(...session, message);
  }

  #handshake(from: Hearer, init: Init): void {
    const prior = this.#claims(init.prior ?? "");
    let row = prior?.row;
    if (row === undefined || row.application !== init.application || row.device !== init.device || (prior?.session ?? 0) > row.granted) {
      const id = `client-${++this.#minted}`;
      const { application, device } = init;
      const nothing = { registered: new Map(), digest: new SetDigest(), owed: new Map(), session: null };
      row = { id, application, device, granted: 0, seqno: 0, ...nothing };
      this.#rows.set(id, row);
    }
    row.granted += 1;
    const token = `${row.id}/${row.granted}`;
    const config = { ...POLICY, ...this.#config, epoch: this.epoch(row.application) };
    this.#send(from, row, token, { grant: { nonce: init.nonce, token }, config });
  }

  #claims(token: string): { row: Row; session: number } | null {
    const [id = "", session = ""] = token.split("/");
    const row = this.#rows.get(id);
    return row === undefined ? null : { row, session: Number(session) };
  }

  /** Whose message it is, if its session may speak. A later session takes the place of an earlier one by speaking. */
  #enter(from: Hearer, token: string): [Row, Session] | null {
    const claims = this.#claims(token);
    if (claims === null || claims.session > claims.row.granted) return this.#refuse(from, token, UNKNOWN_CLIENT);
    const { row, session: number } = claims;
    const known = row.session;
    if (known !== null && known.number === number && known.to === from) return [row, known];
    if (number !== row.granted && !(known !== null && number >= known.number)) return this.#refuse(from, token, SUPERSEDED);
    if (known !== null && known.number !== number) this.#refuse(known.to, known.token, SUPERSEDED);
    const same = known?.number === number ? known : null;
    const [lastOps, lastSync] = [same?.lastOps ?? new Map<Name, number>(), same?.lastSync ?? 0];
    row.session = { number, token, to: from, lastOps, lastSync, toldUnsettled: 0, saidS: this.#now(), hintedS: -Infinity };
    if (row.owed.size > 0) this.#tell(row, [...row.owed.values()]);
    return [row, row.session];
  }

  #refuse(to: Hearer, token: string, start_anew: object): null {
    to.hear(JSON.stringify({ token, time_ms: this.#timeMs(), start_anew }));
    return null;
  }

  #heard(row: Row, session: Session, message: ClientMessage): void {
    for (const ack of message.acks ?? []) this.#acknowledged(row, ack);
    if (message.forget) {
      this.#rows.delete(row.id);
      this.#refuse(session.to, session.token, UNKNOWN_CLIENT);
      return;
    }
    const status: object[] = [];
    const operations = [
      ...(message.register ?? []).map((one) => ({ ...one, registers: true })),
      ...(message.unregister ?? []).map((one) => ({ ...one, registers: false })),
    ].sort((one, other) => one.op - other.op);
    for (const { op, object, registers, ...held } of operations) {
      const name = nameFromText(object);
      if (op <= Math.max(session.lastSync, session.lastOps.get(name) ?? 0)) continue;
      session.lastOps.set(name, op);
      status.push(registers ? this.#register(row, name, held) : this.#unregister(row, name));
    }
    let sync_request: object | undefined;
    if (message.sync !== undefined && message.sync.op > session.lastSync) sync_request = this.#sync(row, session, message.sync, status);
    const asked = operations.length > 0 || message.sync !== undefined;
    const differ = !row.digest._matches(message.summary);
    if (!asked && differ && this.#now() - session.hintedS >= HINT_S) {
      session.hintedS = this.#now();
      sync_request = {};
    }
    if (asked || sync_request !== undefined || message.acks === undefined) {
      this.#say(row, { ...(status.length > 0 ? { status } : {}), ...(sync_request === undefined ? {} : { sync_request }) });
    }
  }

  #acknowledged(row: Row, ack: Ack): void {
    const key = keyOf(nameFromText(ack.object), ack.version === undefined);
    const owed = row.owed.get(key);
    if (owed === undefined || String(owed.seqno) !== ack.seqno || owed.epoch !== (ack.epoch ?? 0)) return;
    if ((owed.version?.toString() ?? undefined) === ack.version) row.owed.delete(key);
  }

  #register(row: Row, name: Name, held: Pick<Register, "version" | "epoch">): object {
    if (row.registered.has(name)) return { object: name, state: "registered" };
    const { registrations_max } = { ...POLICY, ...this.#config };
    if (row.registered.size >= registrations_max) {
      const message = `At most ${registrations_max} registrations are allowed.`;
      return { object: name, state: "failed", code: "too-many-registrations", message };
    }
    row.registered.set(name, ++row.seqno);
    row.digest._change(hashOf(name));
    const version = this.#versions.get(versionKey(row.application, name)) ?? null;
    const epoch = this.epoch(row.application);
    const holds = version !== null && held.version !== undefined && (held.epoch ?? 0) === epoch && BigInt(held.version) >= version;
    if (!holds) this.#owe(row, name, version);
    return { object: name, state: "registered" };
  }

  #unregister(row: Row, name: Name): object {
    if (row.registered.delete(name)) row.digest._change(hashOf(name), -1);
    row.owed.delete(keyOf(name, true));
    row.owed.delete(keyOf(name, false));
    return { object: name, state: "unregistered" };
  }

  /** Authoritative for what it names; an object whose last operation came after it is left as that operation put it. */
  #sync(row: Row, session: Session, sync: Sync, status: object[]): object | undefined {
    session.lastSync = sync.op;
    for (const [name, op] of session.lastOps) if (op < sync.op) session.lastOps.delete(name);
    if ("summaries" in sync) {
      const digests = (summaries: readonly { bucket: number; count: number; digest: string }[]): Map<number, string> =>
        new Map(summaries.map(({ bucket, count, digest }) => [bucket, `${count}/${digest}`]));
      const [mine, theirs] = [digests(bucketSummaries(row.registered.keys())), digests(sync.summaries)];
      const buckets = [...new Set([...mine.keys(), ...theirs.keys()])].filter((bucket) => mine.get(bucket) !== theirs.get(bucket));
      return { op: sync.op, buckets: buckets.sort((one, other) => one - other) };
    }
    const stated = new Map<Name, SyncObject>(sync.objects.map((one) => [nameFromText(one.object), one]));
    for (const name of [...row.registered.keys()]) {
      const named = sync.buckets === undefined || sync.buckets.includes(bucketOf(name));
      if (named && !stated.has(name) && !session.lastOps.has(name)) status.push(this.#unregister(row, name));
    }
    for (const [name, held] of stated) if (!session.lastOps.has(name)) status.push(this.#register(row, name, held));
    return undefined;
  }

  // What it says.

  #owe(row: Row, name: Name, version: bigint | null): void {
    const [seqno, epoch] = [row.registered.get(name) ?? row.seqno, this.epoch(row.application)];
    const owed: Owed = { name, seqno, version, epoch, againS: 0, tries: 0 };
    row.owed.set(keyOf(name, version === null), owed);
    this.#tell(row, [owed]);
  }

  #tell(row: Row, owed: readonly Owed[]): void {
    if (row.session === null) return;
    this.notified += owed.length;
    const { resend_min_s, resend_max_s } = { ...POLICY, ...this.#config };
    for (const one of owed) {
      one.againS = this.#now() + Math.min(resend_max_s, resend_min_s * 2 ** Math.min(one.tries, 16));
      one.tries += 1;
    }
    const notify = owed.map(({ name, seqno, version, epoch }) => ({
      object: name,
      seqno: String(seqno),
      ...(version === null ? {} : { version: version.toString() }),
      epoch,
    }));
    this.#say(row, { notify });
  }

  #say(row: Row, fields: object): void {
    const { session } = row;
    if (session === null) return;
    session.toldUnsettled = row.owed.size;
    session.saidS = this.#now();
    this.#send(session.to, row, session.token, fields);
  }

  #send(to: Hearer, row: Row, token: string, fields: object): void {
    to.hear(JSON.stringify({ token, summary: row.digest._summary(), unsettled: row.owed.size, time_ms: this.#timeMs(), ...fields }));
  }

  /** What is said because of time alone: that all is settled, that the connection lives, and once more what was not acknowledged. */
  tick(): void {
    const nowS = this.#now();
    for (const row of this.#rows.values()) {
      const again = [...row.owed.values()].filter((owed) => owed.againS <= nowS);
      if (row.session === null) continue;
      if (again.length > 0) this.#tell(row, again);
      else if (nowS >= this.#silentUntilS(row, row.session)) this.#say(row, {});
    }
  }

  /** When `tick` will have something to do. */
  dueS(): number {
    let dueS = Infinity;
    for (const row of this.#rows.values()) {
      if (row.session === null) continue;
      dueS = Math.min(dueS, this.#silentUntilS(row, row.session));
      for (const owed of row.owed.values()) dueS = Math.min(dueS, owed.againS);
    }
    return dueS;
  }

  #silentUntilS(row: Row, session: Session): number {
    const settled = session.toldUnsettled > 0 && row.owed.size === 0;
    return session.saidS + (settled ? SETTLED_AFTER_S : (this.#config.keepalive_s ?? POLICY.keepalive_s));
  }

  #timeMs(): number {
    return START_MS + Math.floor(this.#now() * 1000);
  }

  // What else happens.

  hungUp(by: Hearer): void {
    for (const row of this.#rows.values()) if (row.session?.to === by) row.session = null;
  }

  publish(application: string, name: Name, version: bigint, source: string | null): void {
    const key = versionKey(application, name);
    const known = this.#versions.get(key);
    if (known !== undefined && version <= known) return;
    this.#versions.set(key, version);
    for (const row of this.#rowsOf(application)) {
      if (row.registered.has(name) && !(source !== null && row.device === source)) this.#owe(row, name, version);
    }
  }

  /** Something changed, and the service cannot say to what. */
  loseVersion(application: string, name: Name): void {
    this.#versions.delete(versionKey(application, name));
    for (const row of this.#rowsOf(application)) {
      if (!row.registered.has(name)) continue;
      row.registered.set(name, ++row.seqno);
      this.#owe(row, name, null);
    }
  }

  /** A new epoch: versions count from below, and nobody is registered any more, until the clients have synced. */
  reset(application: string): void {
    this.#epochs.set(application, this.epoch(application) + 1);
    for (const key of [...this.#versions.keys()]) if (key.startsWith(versionKey(application, ""))) this.#versions.delete(key);
    for (const row of this.#rowsOf(application)) {
      row.registered.clear();
      row.digest = new SetDigest();
      row.owed.clear();
      this.#say(row, {});
    }
  }

  /** All that it knew is gone. */
  dropEverything(): void {
    this.#rows = new Map();
    this.#versions = new Map();
  }

  collect(application: string, device: string): void {
    for (const row of this.#rowsOf(application)) if (row.device === device) this.#rows.delete(row.id);
  }

  epoch(application: string): number {
    return this.#epochs.get(application) ?? 0;
  }

  version(application: string, name: Name): bigint | null {
    return this.#versions.get(versionKey(application, name)) ?? null;
  }

  devices(application: string, name: Name): string[] {
    return this.#rowsOf(application).filter((row) => row.registered.has(name)).map((row) => row.device).sort();
  }

  /** Notifications that clients have not acknowledged. */
  unacknowledged(application: string): number {
    return this.#rowsOf(application).reduce((sum, row) => sum + row.owed.size, 0);
  }

  #rowsOf(application: string): Row[] {
    return [...this.#rows.values()].filter((row) => row.application === application);
  }
}

/** An unknown and a version of the same object wait beside each other. */
const keyOf = (name: Name, unknown: boolean): string => `${unknown ? "?" : "="}${name}`;

const versionKey = (application: string, name: string): string => `${application}/${name}`;
