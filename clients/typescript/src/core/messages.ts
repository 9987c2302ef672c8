/**
 * The messages between client and gateway, as docs/protocol.md describes them. Pure.
 *
 * One form over any channel, JSON. Unknown fields are ignored, so that either side may be older. Integers of 64 bits (versions and seqnos)
 * travel as decimal strings. What this side sends is built in the form of the wire: fields in the documented order, those with their
 * default left out, or undefined. What it receives is checked field by field, and defaults are filled in.
 */

import { MalformedMessage } from "./errors.ts";
import { isWhole } from "./model.ts";
import { BUCKETS, EPOCH_MAX } from "./settings.ts";


/** A set of registrations: how many, and the sum modulo 2^128 of a hash of each (32 hexadecimal digits). */
export interface Summary {
  readonly count: number;
  readonly digest: string;
}

/** A version that the application holds: decimal digits. `epoch` is left out if it is 0. */
export interface Stated {
  readonly version?: string | undefined;
  readonly epoch?: number | undefined;
}

export interface Init {
  readonly nonce: string;
  readonly application: string;
  readonly device: string;
  readonly prior?: string | undefined;
}

export interface Register extends Stated {
  readonly op: number;
  readonly object: string;
  readonly notify_interval_ms?: number | undefined;
}

export interface Unregister {
  readonly op: number;
  readonly object: string;
}

/** Names the notification that it answers: object, seqno and version as they came; no version means unknown. */
export interface Ack extends Stated {
  readonly object: string;
  readonly seqno: string;
}

export interface SyncObject extends Stated {
  readonly object: string;
  readonly notify_interval_ms?: number | undefined;
}

export interface BucketSummary extends Summary {
  readonly bucket: number;
}

/** States registrations: `objects` are all, or all of the named `buckets`; `summaries` ask which buckets differ. */
export type Sync =
  | { readonly op: number; readonly objects: readonly SyncObject[]; readonly buckets?: readonly number[] }
  | { readonly op: number; readonly summaries: readonly BucketSummary[] };

export interface ClientMessage {
  readonly token?: string;
  readonly summary: Summary; // of the registrations that the client wishes to have
  readonly init?: Init;
  readonly register?: readonly Register[] | undefined;
  readonly unregister?: readonly Unregister[] | undefined;
  readonly acks?: readonly Ack[] | undefined;
  readonly sync?: Sync;
  readonly info?: { readonly library: string; readonly channel?: string } | undefined;
  readonly forget?: true; // delete this client: its id, and whatever is kept of it
  readonly credential?: string; // who the user is
}

export interface Grant {
  readonly nonce: string;
  readonly token: string;
}

/** The token cannot be used. Handshake again: with it as `prior` if `keep`, else as a new client. */
export interface StartAnew {
  readonly code: string;
  readonly keep: boolean;
  readonly nonce: string; // of the init that is refused, if it was one
}

/** Of a registration: `registered`, `unregistered` or `failed`. Failed and not transient: give it up. */
export interface Status {
  readonly object: string;
  readonly state: string;
  readonly transient: boolean;
  readonly code: string;
  readonly message: string;
}

export interface Notify {
  readonly object: string;
  readonly seqno: string;
  readonly version: string | null; // null: unknown; fetch the object whatever you hold
  readonly epoch: number;
}

/** A hint that the summaries differ; with `buckets`, the answer to a sync of summaries. */
export interface SyncRequest {
  readonly op: number;
  readonly buckets: readonly number[] | null;
}

/**
 * What the server wishes of its clients, as far as a client has a use for it. Clients hold no policy of their own: they may not be upgraded
 * for years.
 */
export interface Config {
  readonly heartbeat_s: number;
  readonly heartbeat_smear: number;
  readonly keepalive_s: number;
  readonly retry_min_s: number;
  readonly retry_max_s: number;
  readonly connect_min_s: number;
  readonly connect_max_s: number;
  readonly quiet_s: number; // stay silent for so long from now, acknowledgements aside
  readonly operations_per_message_max: number;
  readonly message_bytes_max: number;
  readonly epoch: number;
}

/** What became of the user's credential. Wanted: nothing was done with the message, and nothing is told until one is accepted. */
export interface CredentialState {
  readonly wanted: boolean;
  readonly good_s: number; // it was accepted, for so long from now; 0: for as long as the session
  readonly code: string; // why one is wanted
  readonly message: string;
}

export interface ErrorReport {
  readonly code: string;
  readonly message: string;
  readonly transient: boolean;
  readonly retry_after_s: number;
}

export interface ServerMessage {
  readonly v: number;
  readonly token: string;
  readonly summary: Summary | null; // of the registrations that the server has
  readonly unsettled: number; // registrations on their way, and notifications not yet acknowledged
  readonly grant: Grant | null;
  readonly start_anew: StartAnew | null;
  readonly status: readonly Status[];
  readonly notify: readonly Notify[];
  readonly sync_request: SyncRequest | null;
  readonly config: Config | null;
  readonly error: ErrorReport | null;
  readonly credential: CredentialState | null;
}

export const REGISTERED = "registered";
export const UNREGISTERED = "unregistered";
export const FAILED = "failed";

/** Checks one value, which stands at `at` of the message. A field that is not there is undefined. */
export type Read<T> = (value: unknown, at: string) => T;

export const is = <T>(fits: (value: T) => boolean): Read<T> => (value, at) => {
  if (fits(value as T)) return value as T;
  throw new MalformedMessage(`not as documented: ${at || "the message"}.`);
};
// Characters are Unicode's: a string of JavaScript may have two units for one of them.
const text = (max: number): Read<string> => is((value) => typeof value === "string" && (value.length <= max || [...value].length <= max));
const digits = (pattern: RegExp): Read<string> => is((value) => typeof value === "string" && pattern.test(value));
const whole = (max: number): Read<number> => is((value) => isWhole(value, max));
const truth: Read<boolean> = is((value) => typeof value === "boolean");
const array = is<unknown[]>(Array.isArray);
const object = is<Record<string, unknown>>((value) => !!value && typeof value === "object" && !Array.isArray(value));
const number = is<number>(Number.isFinite);
export const short = text(512);

export const or = <T>(value: T, read: Read<T>): Read<T> => (given, at) => (given === undefined ? value : read(given, at));
const orNull = <T>(read: Read<T>): Read<T | null> => (value, at) => (value === undefined || value === null ? null : read(value, at));
const list = <T>(read: Read<T>): Read<readonly T[]> =>
  or<readonly T[]>([], (value, at) => array(value, at).map((one) => read(one, `${at}[]`)));

const OF_TYPE: Record<string, Read<unknown>> = { string: short, number, boolean: truth };

/** A default, or how to read the field. A text, number or truth may be left out where a default stands for it, and must be one. */
type Field<T> = Read<T> | (T & (string | number | boolean));

export const record = <T extends object>(fields: { readonly [K in keyof T]: Field<T[K]> }): Read<T> => (value, at) => {
  const given = object(value, at);
  const found: Record<string, unknown> = {};
  for (const name in fields) {
    const field: unknown = fields[name];
    const read = (typeof field === "function" ? field : or(field, OF_TYPE[typeof field] as Read<unknown>)) as Read<unknown>;
    found[name] = read(given[name], at ? `${at}.${name}` : name);
  }
  return found as T;
};

const count = whole(2 ** 32);
const epoch = or(0, whole(EPOCH_MAX));
export const anyWhole = is<number>(Number.isInteger);
const decimal = digits(/^(0|[1-9]\d{0,18})$/);

const readConfig = record<Config>({
  heartbeat_s: 1200,
  heartbeat_smear: 0.2,
  keepalive_s: 50,
  retry_min_s: 1,
  retry_max_s: 60,
  connect_min_s: 0.5,
  connect_max_s: 60,
  quiet_s: 0,
  operations_per_message_max: or(1000, anyWhole),
  message_bytes_max: or(1048576, anyWhole),
  epoch,
});

/** What a client uses until it has heard the server's. */
export const DEFAULTS: Config = readConfig({}, "");

const readServerMessage = record<ServerMessage>({
  v: or(1, anyWhole),
  token: "",
  summary: orNull(record<Summary>({ count, digest: digits(/^[\da-f]{32}$/) })),
  unsettled: or(0, count),
  grant: orNull(record<Grant>({ nonce: short, token: short })),
  start_anew: orNull(record<StartAnew>({ code: short, keep: truth, nonce: "" })),
  status: list(record<Status>({ object: short, state: short, transient: false, code: "", message: "" })),
  notify: list(record<Notify>({ object: short, seqno: decimal, version: orNull(decimal), epoch })),
  sync_request: orNull(record<SyncRequest>({ op: or(0, whole(Infinity)), buckets: orNull(list(whole(BUCKETS - 1))) })),
  config: orNull(readConfig),
  error: orNull(record<ErrorReport>({ code: short, message: text(Infinity), transient: false, retry_after_s: 0 })),
  credential: orNull(record<CredentialState>({ wanted: false, good_s: 0, code: "", message: "" })),
});

export const encode: (message: ClientMessage) => string = JSON.stringify;

export function decodeServer(data: string): ServerMessage {
  let value: unknown;
  try {
    value = JSON.parse(data);
  } catch {
    throw new MalformedMessage("not JSON.");
  }
  return readServerMessage(value, "");
}
