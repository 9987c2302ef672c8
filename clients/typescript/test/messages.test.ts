/** Messages: defaults are filled in, unknown fields are ignored, what is malformed is refused by the name of what is wrong. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { MalformedMessage } from "../src/core/errors.ts";
import { connectPauseS } from "../src/core/connecting.ts";
import { objectsPerMessage, withinReason } from "../src/core/limits.ts";
import { decodeServer, DEFAULTS, encode } from "../src/core/messages.ts";
import { Bench, only } from "./scripted.ts";

const DIGEST = "0123456789abcdef".repeat(2);

test("an empty message is one of defaults", () => {
  assert.deepEqual(decodeServer("{}"), {
    v: 1,
    token: "",
    summary: null,
    unsettled: 0,
    grant: null,
    start_anew: null,
    status: [],
    notify: [],
    sync_request: null,
    config: null,
    error: null,
    credential: null,
  });
});

test("the defaults of a config are the documented policy", () => {
  assert.deepEqual(decodeServer('{"config":{}}').config, {
    heartbeat_s: 1200,
    heartbeat_smear: 0.2,
    keepalive_s: 50,
    retry_min_s: 1,
    retry_max_s: 60,
    connect_min_s: 0.5,
    connect_max_s: 60,
    quiet_s: 0,
    operations_per_message_max: 1000,
    message_bytes_max: 1048576,
    epoch: 0,
  });
});

test("a whole message is read field by field, and unknown fields are ignored at every depth", () => {
  const message = {
    v: 2,
    token: "t",
    summary: { count: 3, digest: DIGEST },
    unsettled: 2,
    grant: { nonce: "n", token: "u" },
    start_anew: { code: "token-invalid", keep: false, nonce: "n" },
    status: [{ object: "a", state: "failed", transient: true, code: "c", message: "m" }],
    notify: [{ object: "a", seqno: "9007199254740993", version: "9223372036854775807", epoch: 4294967295 }],
    sync_request: { op: 7, buckets: [0, 255] },
    config: { ...DEFAULTS, quiet_s: 2.5, epoch: 3 },
    error: { code: "c", message: "m".repeat(9999), transient: true, retry_after_s: 0.5 },
    credential: { wanted: true, good_s: 2.5, code: "c", message: "m" },
  };
  assert.deepEqual(decodeServer(JSON.stringify(message)), message);
  const sprinkled = JSON.stringify(message, (_, value) =>
    typeof value === "object" && value !== null && !Array.isArray(value) ? { ...value, later: 7, toString: 7 } : value,
  );
  assert.deepEqual(decodeServer(sprinkled), message);
});

test("null stands for what may be absent, and for nothing else", () => {
  const absent = '{"summary":null,"notify":[{"object":"a","seqno":"1","version":null}],"sync_request":{"buckets":null},"error":null}';
  assert.equal(decodeServer(absent).notify[0]?.version, null);
  for (const text of ['{"token":null}', '{"status":null}', '{"v":null}', '{"config":{"quiet_s":null}}']) {
    assert.throws(() => decodeServer(text), MalformedMessage, text);
  }
});

const MALFORMED: [text: string, names: RegExp][] = [
  ["", /not JSON/],
  ["{", /not JSON/],
  ["{}{}", /not JSON/],
  ["\ufffd", /not JSON/],
  ["[]", /not as documented: the message\./],
  ["null", /not as documented: the message/],
  ["7", /not as documented: the message/],
  ['{"token":7}', /token/],
  [`{"token":"${"t".repeat(513)}"}`, /token/],
  ['{"v":1.5}', / v\./],
  ['{"unsettled":-1}', /unsettled/],
  ['{"summary":{"count":1}}', /summary\.digest/],
  ['{"summary":{"count":-1,"digest":"x"}}', /summary\.count/],
  [`{"summary":{"count":1,"digest":"${DIGEST}\\n"}}`, /summary\.digest/],
  [`{"summary":{"count":1,"digest":"${DIGEST.toUpperCase()}"}}`, /summary\.digest/],
  ['{"grant":{"nonce":"n"}}', /grant\.token/],
  ['{"start_anew":{"code":"c"}}', /start_anew\.keep/],
  ['{"start_anew":{"code":"c","keep":1}}', /start_anew\.keep/],
  ['{"status":{}}', /status/],
  ['{"status":[{"object":"a"}]}', /status\[\]\.state/],
  ['{"notify":[7]}', /notify\[\]/],
  ['{"notify":[{"object":"a","seqno":7}]}', /notify\[\]\.seqno/],
  ['{"notify":[{"object":"a","seqno":"01"}]}', /seqno/],
  ['{"notify":[{"object":"a","seqno":"-1"}]}', /seqno/],
  ['{"notify":[{"object":"a","seqno":"1","version":"12345678901234567890"}]}', /version/],
  ['{"notify":[{"object":"a","seqno":"1","epoch":4294967296}]}', /epoch/],
  ['{"sync_request":{"buckets":[256]}}', /sync_request\.buckets\[\]/],
  ['{"sync_request":{"op":-1}}', /sync_request\.op/],
  ['{"config":{"keepalive_s":"50"}}', /config\.keepalive_s/],
  ['{"config":{"keepalive_s":1e999}}', /config\.keepalive_s/],
  ['{"config":{"operations_per_message_max":1.5}}', /config\.operations_per_message_max/],
  ['{"error":{"code":"c"}}', /error\.message/],
];

test("a malformed message is refused by the name of what is wrong", () => {
  for (const [text, named] of MALFORMED) {
    const refusal = (error: unknown): boolean => error instanceof MalformedMessage && named.test(error.message);
    assert.throws(() => decodeServer(text), refusal, text.slice(0, 80));
  }
});

test("the length of a text is counted in characters, as everywhere", () => {
  assert.equal([...decodeServer(JSON.stringify({ token: "☕😀".repeat(256) })).token].length, 512);
  assert.throws(() => decodeServer(JSON.stringify({ token: "😀".repeat(513) })), MalformedMessage);
});

test("fields go out in the documented order, and defaults are left out", () => {
  const bench = new Bench().live().registered("a", "b");
  bench.notify("a", 7n);
  bench.do(bench.core.disconnected());
  bench.acknowledge(...bench.shown);
  bench.unregister("b");
  bench.register("c");
  const sent = bench.core.connected(bench.nowS).flatMap((action) => (action.kind === "send" ? [encode(action.message)] : []));
  assert.equal(
    only(sent),
    `{"token":"token-1","summary":${JSON.stringify(bench.core.desired._digest._summary())},"register":[{"op":4,"object":"c"}],` +
      '"unregister":[{"op":3,"object":"b"}],"acks":[{"object":"a","seqno":"1","version":"7"}]}',
  );
});

test("what is out of reason in a config is bounded", () => {
  const heartbeat = { heartbeat_s: 0, heartbeat_smear: 9 };
  const bounded = withinReason({ ...DEFAULTS, ...heartbeat, retry_min_s: -1, retry_max_s: -2, quiet_s: 1e9, connect_min_s: 0 });
  assert.deepEqual(
    [bounded.heartbeat_s, bounded.heartbeat_smear, bounded.retry_min_s, bounded.retry_max_s, bounded.quiet_s, bounded.connect_min_s],
    [0.05, 0.5, 0.01, 0.01, 86_400, 0.01],
  );
  assert.deepEqual(withinReason(DEFAULTS), DEFAULTS);
  assert.equal(objectsPerMessage(DEFAULTS), 1000);
  assert.equal(objectsPerMessage({ ...DEFAULTS, message_bytes_max: 20_000 }), 39);
  assert.equal(objectsPerMessage({ ...DEFAULTS, message_bytes_max: 0 }), 1);
});

test("connecting again is quick at first, then slower up to a bound", () => {
  assert.deepEqual([0, 1, 2, 3, 9, 1000].map((failures) => connectPauseS(DEFAULTS, failures, 1)), [0.5, 1, 2, 4, 60, 60]);
  assert.deepEqual([0, 1, 9].map((failures) => connectPauseS(DEFAULTS, failures, 0)), [0, 0.5, 30]);
});
