/** Tokens, heartbeats, silence (Thialfi 4.1.2, 4.1.6): what tests/client/test_core_session.py pins. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { ClientCore } from "../src/core/index.ts";
import { ClientStopped, InvalidApplication, InvalidDevice, InvalidSetting, InvalidVersion } from "../src/core/errors.ts";
import { connectPauseS } from "../src/core/connecting.ts";
import { nameFromText } from "../src/core/model.ts";
import { encodeState } from "../src/core/state.ts";
import { SetDigest } from "../src/core/summaries.ts";
import { Bench, CONFIG, only, status } from "./scripted.ts";

const EMPTY = new SetDigest()._summary();
const OVERLOADED = { code: "overloaded", message: "busy", transient: true };

test("every start handshakes and asks for registrations", () => {
  const bench = new Bench();
  bench.start();
  assert.deepEqual(bench.actions, [{ kind: "reissueRegistrations" }]);
  assert.deepEqual(bench.said, [{ summary: EMPTY, init: { nonce: "nonce-1", application: "demo", device: "phone" } }]);
});

test("a start with state names the prior token", () => {
  const bench = new Bench({ state: encodeState("demo", "phone", "token-0") });
  bench.start();
  assert.equal(only(bench.said).init?.prior, "token-0");
  assert.equal(bench.core.stateIgnored, "");
});

test("a state of no use is ignored, and it is said why", () => {
  const damaged = ["", "{}", "[]", "null", "7", '{"v":1,"application":7,"device":"phone"}', encodeState("demo", "phone", "t".repeat(513))];
  const others = ['{"v":99,"application":"demo","device":"phone"}', encodeState("demo", "tablet", "t"), encodeState("x", "phone", "t")];
  for (const state of [...damaged, ...others]) {
    const bench = new Bench({ state });
    bench.start();
    assert.notEqual(bench.core.stateIgnored, "", state);
    assert.equal(only(bench.said).init?.prior, undefined);
  }
});

test("the state is written at each grant, and the grant is used at once", () => {
  const bench = new Bench();
  bench.start();
  bench.grant("token-7");
  assert.deepEqual(bench.actions.at(-1), {
    kind: "writeState",
    state: '{"v":1,"application":"demo","device":"phone","token":"token-7"}',
  });
  assert.deepEqual(bench.said.map((message) => message.token), [undefined, "token-7"]);
});

test("init is repeated with a new nonce, and only the last one counts", () => {
  const bench = new Bench();
  bench.start();
  bench.passTime(5);
  const nonces = bench.said.map((message) => message.init?.nonce);
  assert.ok(nonces.length >= 2 && nonces.length <= 4, String(nonces));
  assert.equal(new Set(nonces).size, nonces.length);
  bench.say({ token: "stale", grant: { nonce: "nonce-1", token: "stale" } });
  assert.equal(bench.count("writeState"), 0);
  bench.grant("good");
  assert.equal(bench.said.at(-1)?.token, "good");
  bench.say({ token: "token-2", grant: { nonce: nonces.at(-1), token: "token-2" } }); // a repeat
  bench.register("x");
  assert.equal(bench.said.at(-1)?.token, "good");
});

test("messages of another token are ignored", () => {
  const bench = new Bench().live().registered("a");
  assert.deepEqual(bench.say({ token: "other", status: [status("a", "unregistered")], config: { quiet_s: 100 } }), []);
  bench.register("b");
  assert.equal(bench.said.length, 1); // no quiet period began
});

test("start anew as a new client states everything by sync", () => {
  const bench = new Bench().live().registered("a", "b");
  bench.anew();
  assert.equal(bench.count("reissueRegistrations"), 1);
  assert.equal(only(bench.said).init?.prior, undefined);
  bench.serverHas();
  bench.grant("token-2");
  assert.deepEqual(bench.takeSaid().at(-1)?.sync, { op: 1, objects: [{ object: "a" }, { object: "b" }] });
  bench.serverHas("a", "b");
  bench.say();
  assert.ok(bench.core.inSync(bench.nowS));
});

test("start anew with the id kept names the prior token and resends nothing", () => {
  const bench = new Bench().live().registered("a");
  bench.anew("token-elsewhere", true);
  assert.equal(only(bench.said).init?.prior, "token-1");
  bench.anew("token-elsewhere", true); // a repeat, while the init waits
  assert.equal(bench.said.length, 1);
  bench.grant("token-2");
  assert.deepEqual(Object.keys(bench.said.at(-1) ?? {}), ["token", "summary"]);
  assert.equal(bench.count("reissueRegistrations"), 0);
});

test("a refused init is recognized by its nonce", () => {
  const bench = new Bench({ state: encodeState("demo", "phone", "token-0") });
  bench.start();
  bench.takeSaid();
  bench.anew("token-invalid", false, { token: "", nonce: "another" });
  assert.deepEqual(bench.takeSaid(), []);
  bench.anew("token-invalid", false, { token: "", nonce: "nonce-1" });
  assert.equal(only(bench.said).init?.prior, undefined);
});

test("a server that refuses everything is asked ever more slowly", () => {
  const bench = new Bench({ dice: 0 });
  bench.start();
  let inits = 0;
  for (let turn = 0; turn < 200; turn++) {
    bench.passTime(0.5);
    for (const message of bench.takeSaid()) {
      inits += 1;
      bench.anew("token-invalid", false, { token: "", nonce: message.init?.nonce ?? "" });
    }
  }
  assert.ok(inits <= 103, String(inits)); // dice of 0: a second each; never in a tight loop
});

test("superseded twice within a minute stops", () => {
  const bench = new Bench().live();
  bench.say();
  bench.anew("session-superseded", true);
  bench.grant("token-2");
  bench.say();
  bench.passTime(30);
  bench.anew("session-superseded", true);
  assert.deepEqual(bench.actions.slice(-2).map((action) => action.kind), ["closeChannel", "stopped"]);
  assert.ok(bench.core.stopped instanceof ClientStopped);
  assert.deepEqual(bench.core.register(bench.nowS, nameFromText("x")), []);
  assert.deepEqual(bench.core.tick(bench.nowS + 1e6), []);
  assert.equal(bench.core.nextDeadline(), null);
});

test("superseded again after more than a minute handshakes once more", () => {
  const bench = new Bench().live();
  bench.say();
  bench.anew("session-superseded", true);
  bench.grant("token-2");
  bench.say();
  bench.passTime(61);
  bench.takeSaid();
  bench.anew("session-superseded", true);
  assert.ok(only(bench.said).init);
});

test("sessions that never took effect do not count as superseded", () => {
  const bench = new Bench().live();
  for (const token of ["token-2", "token-3", "token-4"]) {
    bench.anew("session-superseded", true);
    bench.passTime(5);
    bench.grant(token);
    bench.say({ grant: { nonce: "an older one", token } }); // a repeat of the grant welcomes nobody
    bench.say({ summary: null, error: { code: "unavailable", message: "no Registrar", transient: true } });
  }
  assert.equal(bench.core.stopped, null);
  assert.equal(bench.said.at(-1)?.token, "token-4");
});

test("a reconnect speaks at once with the token and does not handshake", () => {
  const bench = new Bench().live();
  bench.do(bench.core.disconnected());
  assert.equal(bench.core.nextDeadline(), null);
  bench.nowS += 3;
  bench.do(bench.core.connected(bench.nowS));
  assert.deepEqual(bench.said, [{ token: "token-1", summary: EMPTY }]);
});

test("heartbeats are smeared both ways and counted from the last message", () => {
  for (const [dice, expectedS] of [[0, 960], [0.5, 1200], [1, 1440]] as const) {
    const bench = new Bench({ dice }).live();
    bench.passTime(500);
    bench.registered("a");
    bench.passTime(expectedS - 1);
    assert.deepEqual(bench.takeSaid(), []);
    bench.passTime(2);
    assert.equal(only(bench.said).summary.count, 1);
  }
});

test("trap 43: two keepalives of silence close the channel", () => {
  const bench = new Bench().live();
  bench.passTime(99, false);
  assert.equal(bench.count("closeChannel"), 0);
  bench.passTime(2, false);
  assert.equal(bench.count("closeChannel"), 1);
  assert.equal(bench.core.nextDeadline(), null);
});

test("trap 43: in sync needs equal summaries, nothing owed and a recent word", () => {
  const bench = new Bench();
  const inSync = (): boolean => bench.core.inSync(bench.nowS);
  assert.ok(!inSync());
  bench.live();
  assert.ok(inSync());
  assert.ok(!bench.core.inSync(bench.nowS + 100));
  bench.unsettled = 1;
  bench.say();
  assert.ok(!inSync());
  assert.ok(bench.core.confirmed(bench.nowS)); // it has what is wished for; it only owes something
  bench.say({ summary: null, unsettled: 0, error: { code: "unavailable", message: "later", transient: true } });
  assert.ok(!inSync()); // a message without summary says nothing of our session
  bench.unsettled = 0;
  bench.say();
  assert.ok(inSync());
  bench.register("a");
  assert.ok(!inSync());
  assert.ok(bench.core.alive(bench.nowS));
  bench.serverHas("a");
  bench.say({ status: [status("a")] });
  assert.ok(inSync());
  bench.reconnect();
  assert.ok(!inSync()); // not before the server spoke over this connection
  assert.ok(!bench.core.alive(bench.nowS));
  bench.say();
  assert.ok(inSync());
});

test("a quiet period holds back all but acknowledgements and heartbeats", () => {
  const bench = new Bench().live().registered("a");
  bench.notify("a", 1n);
  bench.say({ config: { quiet_s: 30, heartbeat_s: 20, heartbeat_smear: 0 } });
  bench.register("b");
  assert.deepEqual(bench.takeSaid(), []);
  bench.acknowledge(...bench.shown);
  assert.deepEqual(Object.keys(only(bench.takeSaid())), ["token", "summary", "acks"]);
  bench.passTime(25);
  assert.deepEqual(Object.keys(only(bench.takeSaid())), ["token", "summary"]); // a heartbeat
  bench.passTime(6);
  assert.deepEqual(bench.said.flatMap((message) => message.register ?? []).map((one) => one.object), ["b"]);
});

test("an error that asks for patience gets it, up to twice as long by chance", () => {
  for (const [dice, earliestS] of [[0, 5], [0.5, 7.5], [0.99, 9.9]] as const) {
    const bench = new Bench({ dice }).live();
    bench.say({ summary: null, error: { ...OVERLOADED, retry_after_s: 5 } });
    assert.deepEqual(bench.actions, [{ kind: "reported", ...OVERLOADED }]);
    bench.register("a");
    bench.passTime(earliestS - 0.25);
    assert.deepEqual(bench.takeSaid(), []);
    bench.passTime(0.5);
    assert.ok(bench.said[0]?.register);
  }
});

test("a gateway that goes is left at a moment of one's own, and only once", () => {
  const bench = new Bench().live();
  const pauseS = (failures: number, dice: number) => connectPauseS(bench.core.config, failures, dice, bench.core.spreadS);
  bench.say({ summary: null, error: { code: "going-away", message: "bye", transient: true, retry_after_s: 10 } });
  assert.deepEqual(bench.actions, [{ kind: "closeChannel" }]); // nothing was refused, and whatever carried it leads nowhere any more
  assert.deepEqual([0, 0.5, 1].map((dice) => pauseS(0, dice)), [0, 5, 10]);
  assert.equal(pauseS(1, 1), 2 * bench.core.config.connect_min_s); // it has waited its turn
  assert.equal(connectPauseS(bench.core.config, 0, 1, 1e9), bench.core.config.connect_max_s);
  bench.reconnect();
  assert.equal(pauseS(0, 1), bench.core.config.connect_min_s);
});

test("a session whose first message is refused says it again", () => {
  for (const before of ["granted", "reconnected"]) {
    const bench = new Bench().live();
    if (before === "reconnected") {
      bench.say();
      bench.reconnect();
      assert.equal(bench.takeSaid().length, 1);
    }
    for (let turn = 0; turn < 3; turn++) {
      bench.say({ summary: null, error: { ...OVERLOADED, retry_after_s: 1 } });
      assert.deepEqual(bench.takeSaid(), []);
      bench.passTime(2);
      assert.equal(only(bench.takeSaid()).token, "token-1");
    }
    bench.say();
    bench.passTime(40);
    assert.deepEqual(bench.said, []);
  }
});

test("an unknown application stops a client that never worked, and no other", () => {
  const error = { code: "unknown-application", message: "There is no application 'demo' here. Check the spelling." };
  const bench = new Bench();
  bench.start();
  bench.say({ token: "", summary: null, error });
  assert.equal(bench.core.stopped?.code, error.code);
  assert.equal(bench.core.stopped?.message, error.message);
  const worked = new Bench().live();
  worked.anew("token-elsewhere", true);
  worked.say({ token: "", summary: null, error });
  assert.equal(worked.core.stopped, null);
  worked.passTime(10);
  worked.grant("token-2");
  assert.equal(worked.said.at(-1)?.token, "token-2");
});

test("a configuration without reason makes no busy loop", () => {
  const config = { heartbeat_s: 0, heartbeat_smear: 9, keepalive_s: 0.2, retry_min_s: -1, retry_max_s: 0 };
  const bench = new Bench({ config: { ...config, operations_per_message_max: 0, message_bytes_max: 0 } }).live();
  bench.register("a", "b");
  for (let turn = 0; turn < 20; turn++) {
    bench.passTime(0.05);
    bench.say();
  }
  assert.ok(bench.said.length < 500);
  assert.ok(bench.said.every((message) => (message.register ?? []).length <= 1));
});

test("stop ends everything", () => {
  const bench = new Bench().live();
  assert.deepEqual(bench.core.stop(), [{ kind: "closeChannel" }]);
  assert.deepEqual(bench.core.stop(), []);
  assert.deepEqual(bench.say(), []);
});

test("sign-out wishes for nothing, and asks until the server has deleted the client", () => {
  const bench = new Bench({ dice: 0 }).live().registered("a");
  bench.do(bench.core.forget(bench.nowS));
  assert.deepEqual(only(bench.takeSaid()).sync, { op: 2, objects: [] });
  bench.register("b"); // too late
  assert.equal(bench.core.desired.size, 0);
  bench.serverHas();
  bench.unsettled = 1;
  bench.say();
  assert.deepEqual(bench.takeSaid(), []); // an unregistration is still on its way
  bench.unsettled = 0;
  bench.say();
  bench.passTime(2.5);
  assert.deepEqual(bench.takeSaid().map((message) => message.forget), [true, true, true]);
  bench.reconnect();
  assert.equal(only(bench.takeSaid()).forget, true);
  bench.anew();
  assert.deepEqual(bench.actions.slice(-3).map((action) => action.kind), ["writeState", "closeChannel", "stopped"]);
  assert.ok(bench.core.stopped instanceof ClientStopped);
});

test("sign-out does not wait for ever for what does not settle", () => {
  const bench = new Bench({ dice: 0 }).live().registered("a");
  bench.do(bench.core.forget(bench.nowS));
  bench.passTime(4.5);
  assert.ok(bench.said.every((message) => message.forget === undefined));
  bench.passTime(1);
  assert.ok(bench.said.some((message) => message.forget));
});

test("who never had a token is forgotten at once", () => {
  const bench = new Bench();
  bench.start();
  bench.register("a");
  assert.deepEqual(bench.core.forget(bench.nowS).map((action) => action.kind), ["writeState", "closeChannel", "stopped"]);
  assert.deepEqual(bench.core.forget(bench.nowS), []);
});

test("bad arguments are refused at once, by name", () => {
  const options = { random: () => 0.5, nonce: () => "n", config: CONFIG };
  assert.throws(() => new ClientCore("No Such Name", "phone", options), InvalidApplication);
  assert.throws(() => new ClientCore("demo", "", options), InvalidDevice);
  assert.throws(() => new ClientCore("demo", "\ud800", options), InvalidDevice);
  const core = new ClientCore("demo", "phone", options);
  for (const [version, epoch] of [[-1n, 0], [2n ** 63n, 0], [1n, 0.5], [1n, 2 ** 32]] as const) {
    assert.throws(() => core.register(0, nameFromText("a"), version, epoch), InvalidVersion);
  }
  assert.throws(() => core.register(0, nameFromText("a"), 7 as unknown as bigint), InvalidVersion);
  for (const wrong of [1.5, -1, 3_600_001, NaN, true, null, "500"]) {
    assert.throws(() => core.register(0, nameFromText("a"), null, 0, wrong as number), InvalidSetting);
  }
  assert.equal(core.desired.size, 0);
});
