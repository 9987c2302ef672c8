/** What the application is shown and what is acknowledged (Thialfi 3.3, 4.1.4): what tests/client/test_core_notifications.py pins. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { type Notification } from "../src/core/actions.ts";
import { nameFromText } from "../src/core/model.ts";
import { acks, Bench, only } from "./scripted.ts";

const withA = (...others: string[]): Bench => new Bench().live().registered("a", ...others);
const keys = (bench: Bench): [number, bigint | null][] => bench.shown.map((one) => [one.epoch, one.version]);
const forged = (name: string, version: bigint | null, seqno = 0n): Notification => ({
  name: nameFromText(name),
  version,
  epoch: 0,
  seqno,
  session: 1,
});

/** The service knows the client no longer; it counts in this epoch. */
function handshakeAnew(bench: Bench, epoch: number): void {
  bench.anew();
  bench.passTime(61);
  bench.grant("token-2", { config: { epoch } });
}

test("a notification is shown, and acknowledged exactly as it came", () => {
  const bench = withA();
  bench.notify("a", 2n ** 53n + 1n, 5, 2);
  const shown = only(bench.shown);
  assert.deepEqual([shown.name, shown.version, shown.epoch, shown.seqno], ["a", 9007199254740993n, 2, 5n]);
  assert.deepEqual(bench.takeSaid(), []); // acknowledgements are the application's
  bench.acknowledge(shown);
  assert.deepEqual(only(bench.said).acks, [{ object: "a", seqno: "5", version: "9007199254740993", epoch: 2 }]);
});

test("a redelivery while the application works does nothing; one of what it acknowledged is acknowledged again", () => {
  const bench = withA();
  for (let turn = 0; turn < 3; turn++) bench.notify("a", 7n);
  assert.deepEqual(bench.said, []);
  bench.acknowledge(...bench.shown);
  bench.takeSaid();
  bench.notify("a", 7n);
  bench.notify("a", 6n); // older than what was acknowledged: late
  assert.deepEqual(keys(bench), [[0, 7n]]);
  assert.deepEqual(acks(bench.said), [["a", "1", "7", 0], ["a", "1", "6", 0]]);
});

test("trap 34: no version goes back unless the epoch is larger", () => {
  const bench = withA();
  bench.notify("a", 100n);
  bench.notify("a", 5n);
  bench.notify("a", 5n, 1, 1);
  bench.notify("a", 101n);
  assert.deepEqual(keys(bench), [[0, 100n], [1, 5n]]);
});

test("a redelivery under a newer seqno is what gets acknowledged", () => {
  const bench = withA();
  bench.notify("a", 7n, 1);
  bench.notify("a", 7n, 9);
  bench.acknowledge(only(bench.shown));
  assert.deepEqual(acks(bench.said), [["a", "1", "7", 0], ["a", "9", "7", 0]]);
});

test("of five deliveries under five seqnos the oldest is forgotten", () => {
  const bench = withA();
  for (const seqno of [3, 1, 4, 5, 2]) bench.notify("a", 7n, seqno);
  bench.acknowledge(only(bench.shown));
  assert.deepEqual(acks(bench.said).map(([, seqno]) => seqno), ["3", "4", "5", "2"]);
});

test("the acknowledgement of an earlier version names that version", () => {
  const bench = withA();
  bench.notify("a", 7n);
  bench.notify("a", 8n);
  for (const [place, version] of ["7", "8"].entries()) {
    bench.acknowledge(bench.shown[place] as Notification);
    assert.deepEqual(acks(bench.takeSaid()), [["a", "1", version, 0]]);
  }
});

test("trap 16: nobody acknowledges what was never delivered", () => {
  const bench = withA();
  bench.acknowledge(forged("a", 2n ** 63n - 1n), forged("a", null), forged("never", 1n));
  bench.notify("a", 7n);
  bench.acknowledge(forged("a", 2n ** 63n - 1n, 1n));
  assert.deepEqual(bench.said, []);
});

test("unknown is shown once per seqno and acknowledged as unknown", () => {
  const bench = withA();
  bench.notify("a", null, 3);
  bench.notify("a", null, 3);
  bench.acknowledge(only(bench.shown));
  bench.notify("a", null, 3);
  assert.deepEqual(acks(bench.takeSaid()), Array(2).fill(["a", "3", undefined, 0]));
  bench.notify("a", null, 4);
  assert.equal(bench.shown.length, 2);
});

test("trap 31: an acknowledged version says nothing about an unknown", () => {
  const bench = withA();
  bench.notify("a", null, 3);
  bench.notify("a", 8n, 3);
  const [unknown, version] = bench.shown as [Notification, Notification];
  bench.acknowledge(version);
  assert.deepEqual(acks(bench.takeSaid()), [["a", "3", "8", 0]]);
  bench.notify("a", null, 3);
  assert.deepEqual(bench.said, []); // still the application's
  bench.acknowledge(unknown);
  assert.deepEqual(acks(bench.said), [["a", "3", undefined, 0]]);
});

test("an unknown of a new epoch hides versions of the old one", () => {
  const bench = withA();
  bench.notify("a", 100n);
  bench.notify("a", null, 2, 1);
  bench.notify("a", 101n);
  bench.notify("a", 0n, 2, 1);
  assert.deepEqual(keys(bench), [[0, 100n], [1, null], [1, 0n]]);
});

test("what is not wished for is neither shown nor acknowledged", () => {
  const bench = withA();
  bench.notify("other", 1n);
  bench.notify("base64:A", 1n); // no name at all
  bench.notify("a", 7n);
  const shown = only(bench.shown);
  bench.unregister("a");
  bench.takeSaid();
  bench.notify("a", 8n);
  bench.acknowledge(shown);
  assert.equal(bench.shown.length, 1);
  assert.deepEqual(acks(bench.said), []);
});

test("registering again in the same run shows no version twice, unless the application forgot", () => {
  for (const forget of [false, true]) {
    const bench = withA();
    bench.notify("a", 7n);
    bench.acknowledge(...bench.shown);
    bench.unregister("a", forget);
    bench.register("a");
    bench.notify("a", 7n, 9);
    assert.equal(bench.shown.length, forget ? 2 : 1);
    bench.notify("a", 8n, 9);
    assert.deepEqual(keys(bench).at(-1), [0, 8n]);
  }
});

test("a version held counts as acknowledged", () => {
  const bench = new Bench().live();
  bench.do(bench.core.register(bench.nowS, nameFromText("a"), 7n, 1));
  bench.takeSaid();
  bench.notify("a", 7n, 1, 1);
  bench.notify("a", 3n, 1, 1);
  assert.deepEqual(bench.shown, []);
  assert.equal(acks(bench.said).length, 2);
  bench.notify("a", 8n, 1, 1);
  assert.deepEqual(keys(bench), [[1, 8n]]);
});

test("an application that states less than it was shown is told again", () => {
  const bench = withA();
  bench.notify("a", 9n);
  bench.acknowledge(...bench.shown);
  bench.unregister("a");
  bench.do(bench.core.register(bench.nowS, nameFromText("a"), 3n));
  bench.notify("a", 9n, 9);
  assert.deepEqual(keys(bench), [[0, 9n], [0, 9n]]);
});

test("what the application gives back is shown at the next redelivery, be it after another registration", () => {
  for (const again of [false, true]) {
    const bench = withA();
    bench.notify("a", 7n);
    bench.notify("a", null, 2);
    if (again) bench.unregister("a");
    for (const shown of bench.shown) bench.do(bench.core.giveBack(bench.nowS, shown));
    if (again) bench.register("a");
    bench.notify("a", 6n); // outdated meanwhile: not shown
    bench.notify("a", 7n);
    bench.notify("a", null, 2);
    assert.deepEqual(keys(bench), [[0, 7n], [0, null], [0, 7n], [0, null]]);
  }
});

test("what was shown before an acknowledged unknown is acknowledged with it", () => {
  const bench = withA();
  bench.notify("a", 7n);
  bench.do(bench.core.giveBack(bench.nowS, only(bench.shown)));
  bench.notify("a", null, 2);
  bench.notify("a", 8n, 2);
  const [, unknown, later] = bench.shown as [Notification, Notification, Notification];
  bench.acknowledge(unknown);
  bench.takeSaid();
  bench.notify("a", 5n, 2);
  bench.notify("a", 8n, 2); // came after the unknown: the application has it in its hands
  assert.deepEqual(acks(bench.said), [["a", "2", "5", 0]]);
  bench.acknowledge(later);
  assert.deepEqual(acks(bench.said).at(-1), ["a", "2", "8", 0]);
});

test("seqnos of an earlier session hide nothing in the next; versions shown before are not shown again", () => {
  const bench = withA();
  bench.notify("a", null, 5);
  bench.notify("a", 7n, 5);
  const [unknown, version] = bench.shown as [Notification, Notification];
  bench.anew();
  bench.grant("token-2");
  bench.acknowledge(unknown); // of the old client id: not the new one's to acknowledge
  assert.deepEqual(acks(bench.said), []);
  bench.notify("a", null, 5);
  assert.equal(bench.shown.length, 3);
  bench.notify("a", 7n, 1);
  assert.equal(bench.shown.length, 3);
  bench.acknowledge(version);
  assert.deepEqual(acks(bench.said), [["a", "1", "7", 0]]); // under the seqno of the present session
});

test("acknowledgements go together, are not repeated, and wait for a connection", () => {
  const bench = withA("b");
  bench.say({ notify: [{ object: "a", seqno: "1", version: "1" }, { object: "b", seqno: "1", version: "2" }] });
  bench.do(bench.core.disconnected());
  bench.acknowledge(...bench.shown);
  assert.deepEqual(bench.said, []);
  bench.do(bench.core.connected(bench.nowS));
  assert.equal(only(bench.takeSaid()).acks?.length, 2);
  bench.passTime(100);
  assert.deepEqual(acks(bench.said), []);
});

test("a service that counts from below again is heard", () => {
  const bench = withA();
  bench.notify("a", 100n, 1, 3);
  bench.acknowledge(...bench.shown);
  handshakeAnew(bench, 0);
  for (const version of [5n, 4n, 6n]) bench.notify("a", version);
  assert.deepEqual(keys(bench), [[3, 100n], [0, 5n], [0, 6n]]);
});

test("a handshake in the same or a larger epoch forgets nothing", () => {
  for (const epoch of [3, 4]) {
    const bench = withA();
    bench.notify("a", 100n, 1, 3);
    handshakeAnew(bench, epoch);
    bench.notify("a", 100n, 9, 3);
    bench.notify("a", 99n, 9, 3);
    assert.deepEqual(keys(bench), [[3, 100n]]);
  }
});

test("a version held of an epoch above the service's hides nothing, unless the service told of it since", () => {
  const bench = new Bench();
  bench.start();
  bench.do(bench.core.register(bench.nowS, nameFromText("a"), 100n, 3));
  bench.grant("token-1", { config: { epoch: 0 } });
  bench.do(bench.core.register(bench.nowS, nameFromText("b"), 100n, 3));
  bench.notify("a", 5n);
  bench.notify("b", 5n);
  assert.deepEqual(keys(bench), [[0, 5n], [0, 5n]]);
  bench.notify("a", null, 2, 1);
  bench.do(bench.core.register(bench.nowS, nameFromText("c"), 7n, 1));
  bench.notify("c", 7n, 1, 1);
  assert.equal(bench.shown.length, 3);
});
