/**
 * Summaries of registrations: an incremental set digest (Thialfi 4.1.3, Registration Sync Protocol). Pure.
 *
 * The digest of a set is the sum modulo 2^128 of the first 16 bytes of SHA-256 of each object's name: a change costs one addition, whatever
 * the size of the set.
 */

import type { Summary } from "./messages.ts";
import { bytesOf, type Name } from "./model.ts";
import { DIGEST_BITS } from "./settings.ts";
import { sha256 } from "./sha256.ts";


export function hashOf(name: Name): bigint {
  return sha256(bytesOf(name)).slice(0, DIGEST_BITS / 32).reduce((sum, word) => (sum << 32n) | BigInt(word >>> 0), 0n);
}

/** Count and digest of a set of names. The caller adds only what is absent and removes only what is present. */
export class SetDigest {
  #count = 0;
  #total = 0n;

  /** One more, or with -1 one less. */
  _change(hash: bigint, by = 1): void {
    this.#count += by;
    this.#total = BigInt.asUintN(DIGEST_BITS, this.#total + BigInt(by) * hash);
  }

  _summary(): Summary {
    return { count: this.#count, digest: this.#total.toString(16).padStart(DIGEST_BITS / 4, "0") };
  }

  _matches(summary: Summary): boolean {
    return this.#count === summary.count && this._summary().digest === summary.digest;
  }
}
