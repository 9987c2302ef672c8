/**
 * The words that every part shares: names of objects, versions, applications, devices (docs/protocol.md, Forms of values). Pure.
 *
 * Names are bytes, and are compared as bytes. JavaScript has no bytes that can be the key of a map; so inside, a name is its one text form:
 * two names are the same bytes exactly if these texts are the same. The type `Name` can only be had from functions that make this form.
 */

import { InvalidApplication, InvalidDevice, InvalidName, InvalidSetting, InvalidVersion } from "./errors.ts";
import { DEVICE_BYTES_MAX, EPOCH_MAX, NAME_BYTES_MAX, NOTIFY_INTERVAL_MS_MAX } from "./settings.ts";
import { shown } from "./shown.ts";

const BASE64_MARK = "base64:";
// What Python's str.isprintable refuses; the ordinary space is printable.
const NOT_PRINTABLE = /(?! )[\p{C}\p{Z}]/u;
const HALF_A_PAIR = /\p{Cs}/u;

declare const form: unique symbol;
/** The name of an object in its one text form. */
export type Name = string & { readonly [form]: true };

/** No object's: what a text that cannot be a name stands for. */
export const NOBODY = "" as Name;

// Not of the language, but of every place where it runs: browsers, workers, Node.
interface Encoder {
  encode(text: string): Uint8Array;
}
interface Decoder {
  decode(bytes: Uint8Array): string;
}
declare const atob: (text: string) => string;
declare const btoa: (bytes: string) => string;
declare const TextEncoder: new () => Encoder;
declare const TextDecoder: new (label: string, options: { fatal: boolean; ignoreBOM: boolean }) => Decoder;
const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export function nameFromBytes(bytes: Uint8Array): Name {
  if (bytes.length < 1 || bytes.length > NAME_BYTES_MAX) {
    throw new InvalidName(toBase64(bytes.slice(0, NAME_BYTES_MAX)), `${bytes.length} bytes`);
  }
  let text = "";
  try {
    text = decoder.decode(bytes);
  } catch {
    // Not UTF-8.
  }
  if (text === "" || NOT_PRINTABLE.test(text) || text.startsWith(BASE64_MARK)) text = BASE64_MARK + toBase64(bytes);
  return text as Name;
}

/** Of either form, as an application or the server writes it. */
export function nameFromText(text: string): Name {
  return nameFromBytes(bytesOf(text));
}

export function bytesOf(text: string): Uint8Array {
  if (text.startsWith(BASE64_MARK)) return fromBase64(text);
  if (HALF_A_PAIR.test(text)) throw new InvalidName(text, "half of a surrogate pair");
  return encoder.encode(text);
}

function toBase64(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

function fromBase64(text: string): Uint8Array {
  const digits = text.slice(BASE64_MARK.length);
  if (!/^[\w-]*$/.test(digits) || digits.length % 4 === 1) throw new InvalidName(text, "not base64url");
  return Uint8Array.from(atob(digits.replaceAll("-", "+").replaceAll("_", "/")), (character) => character.charCodeAt(0));
}

/** (epoch, version) as one number: they compare as these do. An unknown (null) comes before every version of its epoch. */
export type Key = bigint;
export const keyOf = ({ epoch, version }: { epoch: number; version: bigint | null }): Key => (BigInt(epoch) << 64n) + (version ?? -1n);
export const NOTHING_YET = keyOf({ epoch: -1, version: null });

/** What the application states of an object: the version that it holds, with its epoch, and at most how often it wishes to be told. */
export function checkStated(version: bigint, epoch = 0, intervalMs = 0): void {
  if (typeof version !== "bigint" || version >> 63n /* negative, or too large */) throw new InvalidVersion(version);
  if (!isWhole(epoch, EPOCH_MAX)) throw new InvalidVersion(`${version} of epoch ${epoch}`);
  if (!isWhole(intervalMs, NOTIFY_INTERVAL_MS_MAX)) {
    throw new InvalidSetting(`notifyIntervalMs: ${shown(intervalMs)} is not a whole number from 0 to ${NOTIFY_INTERVAL_MS_MAX}.`);
  }
}

export const isWhole = (value: number, max: number): boolean => Number.isInteger(value) && value >= 0 && value <= max;

export function checkApplication(application: string): string {
  if (!/^[a-z0-9][a-z0-9._-]{0,63}$/.test(application)) throw new InvalidApplication(application);
  return application;
}

export function checkDevice(device: string): string {
  const length = HALF_A_PAIR.test(device) ? 0 : encoder.encode(device).length;
  if (length < 1 || length > DEVICE_BYTES_MAX) throw new InvalidDevice(device);
  return device;
}
