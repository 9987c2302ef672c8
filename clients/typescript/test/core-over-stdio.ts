/**
 * Cores that are driven from outside, one line of JSON per call and one per answer: so the transcripts that drive the Python core drive
 * this one too (tests/clients/stdio.py is the other end).
 *
 *     {"core": 1, "call": "new", "with": ["demo", "phone", null, {}, "", ""]}      -> {"answer": ""}
 *     {"core": 1, "call": "connected", "with": [1000.0]}                           -> {"ask": "nonce"}
 *     {"answer": "nonce-1"}                                                        -> {"answer": [{"kind": "send", "text": "{...}"}]}
 *
 * What a core draws by chance is asked for while the call waits; so both cores draw the same. Messages travel as the texts that a channel
 * would carry, versions and seqnos as decimal texts.
 */

import { readSync, writeSync } from "node:fs";
import { type Action, type Notification } from "../src/core/actions.ts";
import { ClientCore } from "../src/core/index.ts";
import { Credential } from "../src/core/credential.ts";
import { RoskvaError } from "../src/core/errors.ts";
import { type Config, decodeServer, encode } from "../src/core/messages.ts";
import { nameFromText } from "../src/core/model.ts";

type Json = null | boolean | number | string | readonly Json[] | { readonly [field: string]: Json };
interface Told {
  readonly name: string;
  readonly version: string | null;
  readonly epoch: number;
  readonly seqno: string;
  readonly session: number;
}

const STDIN = 0;
const STDOUT = 1;
const chunk = Buffer.alloc(65_536);
let waiting = Buffer.alloc(0);

/** The next line; null at the end. It blocks: nothing else goes on here. */
function readLine(): string | null {
  for (;;) {
    const end = waiting.indexOf("\n");
    if (end >= 0) {
      const line = waiting.toString("utf8", 0, end);
      waiting = waiting.subarray(end + 1);
      return line;
    }
    const count = readSync(STDIN, chunk);
    if (count === 0) return null;
    waiting = Buffer.concat([waiting, chunk.subarray(0, count)]);
  }
}

function writeLine(value: Json): void {
  const line = Buffer.from(`${JSON.stringify(value)}\n`);
  for (let written = 0; written < line.length; ) written += writeSync(STDOUT, line, written);
}

function ask<T>(what: "random" | "nonce"): T {
  writeLine({ ask: what });
  const line = readLine();
  if (line === null) throw new Error("the other end is gone");
  return JSON.parse(line).answer;
}

function told(action: Action): Json {
  switch (action.kind) {
    case "send":
      return { kind: action.kind, text: encode(action.message) };
    case "notify": {
      const { version, seqno, ...rest } = action.notification;
      return { kind: action.kind, notification: { ...rest, version: version === null ? null : String(version), seqno: String(seqno) } };
    }
    case "stopped":
      return { kind: action.kind, code: action.error.code, message: action.error.message };
    default:
      return { ...action };
  }
}

function notification({ name, version, epoch, seqno, session }: Told): Notification {
  return { name: nameFromText(name), version: version === null ? null : BigInt(version), epoch, seqno: BigInt(seqno), session };
}

type New = [application: string, device: string, state: string | null, config: Partial<Config>, library: string, credential: string];

function newCore(...[application, device, state, config, library, text]: New): ClientCore {
  const random = (): number => ask("random");
  const credential = new Credential(random, text);
  return new ClientCore(application, device, { random, nonce: () => ask("nonce"), state, config, library, credential });
}

// JSON has no infinity; a deadline may have one.
const CALLS: { readonly [call: string]: (core: ClientCore, ...given: never[]) => Json } = {
  start: (core, nowS: number) => core.start(nowS).map(told),
  stop: (core) => core.stop().map(told),
  forget: (core, nowS: number) => core.forget(nowS).map(told),
  connected: (core, nowS: number) => core.connected(nowS).map(told),
  disconnected: (core) => core.disconnected().map(told),
  tick: (core, nowS: number) => core.tick(nowS).map(told),
  next_deadline: (core) => ((deadlineS) => (deadlineS === null ? null : String(deadlineS)))(core.nextDeadline()),
  in_sync: (core, nowS: number) => core.inSync(nowS),
  confirmed: (core, nowS: number) => core.confirmed(nowS),
  alive: (core, nowS: number) => core.alive(nowS),
  stopped: ({ stopped }) => (stopped === null ? null : { code: stopped.code, message: stopped.message }),
  desired: (core) => [[...core.desired.keys()], { ...core.desired._digest._summary() }],
  register: (core, nowS: number, name: string, version: string | null, epoch: number, intervalMs: number | null) =>
    core.register(nowS, nameFromText(name), version === null ? null : BigInt(version), epoch, intervalMs ?? undefined).map(told),
  unregister: (core, nowS: number, name: string, forget: boolean) => core.unregister(nowS, nameFromText(name), forget).map(told),
  acknowledge: (core, nowS: number, given: readonly Told[]) => core.acknowledge(nowS, given.map(notification)).map(told),
  give_back: (core, nowS: number, given: Told) => core.giveBack(nowS, notification(given)).map(told),
  use_credential: (core, nowS: number, text: string) => core.useCredential(nowS, text).map(told),
  received: (core, nowS: number, text: string) => core.received(nowS, decodeServer(text)).map(told),
};

const cores = new Map<number, ClientCore>();

function obey(number: number, call: string, given: never[]): Json {
  if (call === "new") {
    const core = newCore(...(given as unknown as New));
    cores.set(number, core);
    return core.stateIgnored;
  }
  const core = cores.get(number);
  const deed = CALLS[call];
  if (core === undefined || deed === undefined) throw new RangeError(`core ${number} cannot ${call}`);
  return deed(core, ...given);
}

for (let line = readLine(); line !== null; line = readLine()) {
  const { core, call, with: given } = JSON.parse(line);
  try {
    writeLine({ answer: obey(core, call, given) });
  } catch (error) {
    if (!(error instanceof RoskvaError)) throw error;
    writeLine({ refused: { code: error.code, message: error.message } });
  }
}
