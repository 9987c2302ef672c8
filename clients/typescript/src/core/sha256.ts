/**
 * SHA-256 (FIPS 180-4), synchronous: `crypto.subtle` answers later, and is missing on pages that came over plain HTTP. Pure.
 */

const PRIMES: number[] = [];
for (let n = 2; PRIMES.length < 64; n++) if (PRIMES.every((prime) => n % prime)) PRIMES.push(n);

/** The first 32 bits of the fractions of roots: the standard's constants come from the first primes. */
const fractions = (root: (prime: number) => number): number[] => PRIMES.map((prime) => ((root(prime) % 1) * 2 ** 32) | 0);
const K = fractions(Math.cbrt);
const START = fractions(Math.sqrt).slice(0, 8);

const rotate = (x: number, n: number): number => (x >>> n) | (x << (32 - n));
const mixed = (x: number, i: number, j: number, third: number): number => rotate(x, i) ^ rotate(x, j) ^ third;

/** As eight words. */
export function sha256(bytes: Uint8Array): number[] {
  const words = new Int32Array(((bytes.length + 72) >> 6) << 4);
  [...bytes, 0x80].forEach((byte, place) => (words[place >> 2]! |= byte << (24 - 8 * (place % 4))));
  words[words.length - 1] = bytes.length * 8; // names are short: the upper half of the length stays 0
  let hash = START;
  for (let block = 0; block < words.length; block += 16) {
    const w = [...words.subarray(block, block + 16)];
    let state = hash;
    for (let i = 0; i < 64; i++) {
      const [a, b, c, d, e, f, g, h] = state as [number, number, number, number, number, number, number, number];
      const t = h + mixed(e, 6, 11, rotate(e, 25)) + (g ^ (e & (f ^ g))) + K[i]! + w[i]!;
      state = [(t + mixed(a, 2, 13, rotate(a, 22)) + ((a & b) | (c & (a | b)))) | 0, a, b, c, (d + t) | 0, e, f, g];
      const early = w[i + 1]!;
      const late = w[i + 14]!;
      w[i + 16] = (mixed(early, 7, 18, early >>> 3) + mixed(late, 17, 19, late >>> 10) + w[i]! + w[i + 9]!) | 0;
    }
    hash = hash.map((word, place) => (word + state[place]!) | 0);
  }
  return hash;
}
