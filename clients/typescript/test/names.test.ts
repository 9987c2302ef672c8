/** Names, hashes, summaries, and the queues that operations wait in. */

import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { test } from "node:test";
import { InvalidName } from "../src/core/errors.ts";
import { bytesOf, nameFromBytes, nameFromText } from "../src/core/model.ts";
import { sha256 } from "../src/core/sha256.ts";
import { bucketOf, bucketSummaries } from "../src/core/buckets.ts";
import { hashOf, SetDigest } from "../src/core/summaries.ts";
import { digestOfAll } from "./scripted.ts";

const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString("hex");
const hexOfWords = (words: number[]): string => words.map((word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
const digestOf = (...names: string[]): string => digestOfAll(names.map(nameFromText))._summary().digest;

test("SHA-256 is SHA-256, whatever the length", () => {
  for (let length = 0; length <= 300; length++) {
    const bytes = randomBytes(length);
    assert.equal(hexOfWords(sha256(bytes)), createHash("sha256").update(bytes).digest("hex"), hex(bytes));
  }
});

test("the worked example of the documentation holds", () => {
  assert.deepEqual(new SetDigest()._summary(), { count: 0, digest: "0".repeat(32) });
  assert.equal(digestOf("hello"), "2cf24dba5fb0a30e26e83b2ac5b9e29e");
  assert.equal(digestOf("hello", "world"), "7560f21c84825e5ddd692e7a4254bc08");
  assert.deepEqual(["hello", "world"].map(nameFromText).map(bucketOf), [44, 72]);
});

test("sums wrap at 128 bits, and what is removed leaves no trace", () => {
  const names = Array.from({ length: 1000 }, (_, number) => nameFromText(String(number)));
  const digest = digestOfAll(names);
  assert.equal(BigInt(`0x${digest._summary().digest}`), names.map(hashOf).reduce((sum, hash) => sum + hash) % 2n ** 128n);
  for (const name of names.slice(1)) digest._change(hashOf(name), -1);
  assert.deepEqual(digest._summary(), digestOfAll(names.slice(0, 1))._summary());
  assert.ok(digest._matches(digestOfAll(names.slice(0, 1))._summary()));
  assert.ok(!digest._matches({ ...digest._summary(), count: 2 }));
});

test("the summaries of buckets are in order and add up", () => {
  const names = Array.from({ length: 700 }, (_, number) => nameFromText(`n${number}`));
  const summaries = bucketSummaries(names);
  const buckets = summaries.map((one) => one.bucket);
  assert.deepEqual(buckets, [...new Set(names.map(bucketOf))].sort((one, other) => one - other));
  assert.equal(summaries.reduce((sum, one) => sum + one.count, 0), 700);
  const total = summaries.reduce((sum, one) => sum + BigInt(`0x${one.digest}`), 0n) % 2n ** 128n;
  assert.equal(total.toString(16).padStart(32, "0"), digestOfAll(names)._summary().digest);
});

test("the form of a name is the documented one", () => {
  const forms: [bytes: Uint8Array | string, text: string][] = [
    ["hello", "hello"],
    ["Röskva ☕", "Röskva ☕"],
    ["a b/c?d=e&f", "a b/c?d=e&f"],
    ["😀", "😀"],
    [Uint8Array.of(0xff, 0xfe), "base64:__4"],
    ["line\n", "base64:bGluZQo"],
    ["base64:x", "base64:YmFzZTY0Ong"],
    ["\u200d", "base64:4oCN"],
    ["\ufeffx", "base64:77u_eA"],
    ["\u00a0", "base64:wqA"],
    ["\u0000", "base64:AA"],
  ];
  for (const [given, text] of forms) {
    const bytes = typeof given === "string" ? new TextEncoder().encode(given) : given;
    assert.equal(nameFromBytes(bytes), text);
    assert.equal(nameFromText(text), text);
    assert.equal(hex(bytesOf(text)), hex(bytes));
  }
});

test("every name survives its text form, and has one only", () => {
  for (let length = 1; length <= 128; length++) {
    const bytes = randomBytes(length);
    assert.equal(hex(bytesOf(nameFromBytes(bytes))), hex(bytes));
  }
  assert.equal(nameFromText("base64:aGVsbG8"), "hello");
  assert.equal(nameFromText("base64:YR"), nameFromText("base64:YQ")); // bits beyond the last byte say nothing
});

test("a bad name is refused with its reason", () => {
  const bad: [text: string, reason: RegExp][] = [
    ["", /0 bytes/],
    ["base64:", /0 bytes/],
    ["x".repeat(129), /129 bytes/],
    ["ü".repeat(65), /130 bytes/],
    [`base64:${"A".repeat(172)}`, /129 bytes/],
    ["base64:a+b/", /not base64url/],
    ["base64:YQ==", /not base64url/],
    ["base64:YWJj\n", /not base64url/],
    ["base64:A", /not base64url/],
    ["base64:ü", /not base64url/],
    ["\ud800", /surrogate/],
  ];
  for (const [text, reason] of bad) {
    const refusal = (error: unknown): boolean => error instanceof InvalidName && reason.test(error.message) && error.message.length < 300;
    assert.throws(() => nameFromText(text), refusal, text);
  }
});
