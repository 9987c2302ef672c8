/**
 * Entries of a LiveCache that are driven from outside: stories of calls come as JSON on standard input, what each call answered and left
 * goes to standard output. tests/clients/test_freshness.py is the other end, and tells the Python twin the same stories.
 */

import { readFileSync } from "node:fs";
import { type Notification } from "../src/core/actions.ts";
import { nameFromText } from "../src/core/model.ts";
import { type Attempt, Entry, type Pauses } from "../src/freshness.ts";

type Told = [version: string | null, epoch: number, seqno: number];
interface Story {
  readonly pauses: Pauses;
  readonly calls: readonly [call: string, ...given: never[]][];
}

const DOC = nameFromText("doc");
const numberOf = (version: string | null): bigint | null => (version === null ? null : BigInt(version));

function notification([version, epoch, seqno]: Told): Notification {
  return { name: DOC, version: numberOf(version), epoch, seqno: BigInt(seqno), session: 0 };
}

function told(notifications: Notification[]): unknown {
  return notifications.map(({ version, epoch, seqno }) => [version?.toString() ?? null, epoch, Number(seqno)]);
}

function play({ pauses, calls }: Story): unknown[] {
  const entry = new Entry<string>(0, pauses);
  const attempts: Attempt[] = [];
  const does: Record<string, (...given: never[]) => unknown> = {
    restored: (value: string, version: string | null, epoch: number) => entry.restored(value, numberOf(version), epoch) ?? null,
    noticed: (now: number, one: Told) => told(entry.noticed(now, notification(one))),
    outdated: (now: number) => entry.outdated(now) ?? null,
    begin: (now: number, epoch: number) => {
      const { mark, began } = attempts[attempts.push(entry.begin(now, epoch)) - 1] as Attempt;
      return [mark, began, epoch];
    },
    suffices: (attempt: number) => entry.suffices(attempts[attempt] as Attempt),
    adopt: (now: number, attempt: number, value: string, version: string | null, dice: number) =>
      entry.adopt(now, attempts[attempt] as Attempt, value, numberOf(version), dice),
    stored: () => told(entry.stored()),
    failed: (now: number, trouble: string, dice: number) => entry.failed(now, trouble, dice) ?? null,
    choose: (now: number, until: number | null, outOfSyncS: number) => entry.choose(now, until, outOfSyncS),
    standing: (now: number, until: number | null) => Object.values(entry.standing(now, until)),
  };
  const held = ({ value, present, version, epoch, kept, tries, lagging, trouble }: Entry<string>): unknown =>
    [value ?? null, present, version?.toString() ?? null, epoch, kept, tries, lagging, trouble];
  return calls.map(([call, ...given]) => [
    does[call]?.(...given),
    held(entry),
    [entry.began, entry.freshSince, entry.staleSince, entry.retryAt].map((time) => (Number.isFinite(time) ? time : null)),
    [entry.due, told(entry.unacknowledged)],
  ]);
}

const stories = JSON.parse(readFileSync(0, "utf8")) as Story[];
process.stdout.write(JSON.stringify(stories.map(play)));
