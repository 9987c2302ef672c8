/**
 * A state in a file, for Node: written whole or not at all, and held by one client at a time.
 *
 * Node has no file locks that end with their process. So a second file (`NAME.lock`) holds the process's number: it is in the way while
 * that process runs, and is taken over when it does not. It keeps apart processes of one machine that see each other's numbers, and the
 * clients of one process, but not its worker threads.
 */

import { link, mkdir, open, readFile, rename, rm, stat, writeFile } from "node:fs/promises";
import { dirname, resolve } from "node:path";
import { InvalidSetting, StateInUse } from "../errors.ts";
import type { StateStore } from "./store.ts";

const LOCK_TRIES = 3;
const PAUSE_MS = 100;
const CLEAR_MAX_MS = 10_000; // to remove a file takes no longer
// Of this process. A lock with this process's number that is not among them was left by another with the same number: the first process of
// a container has the same in every run.
const ours = new Set<string>();

export class FileState implements StateStore {
  readonly path: string;
  readonly #lock: string;
  #held = false;

  constructor(path: string) {
    this.path = resolve(path);
    this.#lock = `${this.path}.lock`;
  }

  async read(): Promise<string | null> {
    try {
      await mkdir(dirname(this.path), { recursive: true });
      await this.#take();
      return await readFile(this.path, "utf8");
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      if (code === "ENOENT") return null;
      if (error instanceof StateInUse) throw error;
      await this.close();
      throw new InvalidSetting(`The state file ${this.path} cannot be used: ${message}.`);
    }
  }

  async write(state: string): Promise<void> {
    const temporary = `${this.path}.tmp`;
    const file = await open(temporary, "w", 0o600);
    try {
      await file.writeFile(state);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(temporary, this.path);
    await syncFolder(dirname(this.path));
  }

  async delete(): Promise<void> {
    await rm(this.path, { force: true });
    await syncFolder(dirname(this.path));
  }

  async close(): Promise<void> {
    if (!this.#held) return;
    this.#held = false;
    await rm(this.#lock, { force: true });
    ours.delete(this.#lock);
  }

  async #take(): Promise<void> {
    if (ours.has(this.#lock)) throw new StateInUse(`The state file ${this.path}`);
    ours.add(this.#lock);
    try {
      await this.#make();
      this.#held = true;
    } finally {
      if (!this.#held) ours.delete(this.#lock);
    }
  }

  async #make(): Promise<void> {
    for (let attempt = 0; attempt < LOCK_TRIES; attempt++) {
      if (await this.#linked()) return;
      const holder = await readFile(this.#lock, "utf8").catch(() => null);
      if (holder === null) continue; // gone meanwhile
      if (runs(Number(holder))) break;
      await this.#clear(holder);
    }
    throw new StateInUse(`The state file ${this.path}`);
  }

  /** A lock is there with its holder's number in it, or not at all: an empty one would be taken for one that was left. */
  async #linked(): Promise<boolean> {
    const made = `${this.#lock}.${process.pid}`;
    try {
      await writeFile(made, String(process.pid), { mode: 0o600 });
      await link(made, this.#lock);
      return true;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
      return false;
    } finally {
      await rm(made, { force: true });
    }
  }

  /** One at a time: else the second would take away what the first has made since. */
  async #clear(left: string): Promise<void> {
    const turn = `${this.#lock}.clear`;
    try {
      await (await open(turn, "wx", 0o600)).close();
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
      const { mtimeMs = Date.now() } = await stat(turn).catch(() => ({ mtimeMs: undefined }));
      if (Date.now() - mtimeMs > CLEAR_MAX_MS) return rm(turn, { force: true }); // whoever was at it died
      return pause();
    }
    try {
      if ((await readFile(this.#lock, "utf8").catch(() => null)) === left) await rm(this.#lock, { force: true });
    } finally {
      await rm(turn, { force: true });
    }
  }
}

const pause = (): Promise<void> => new Promise((done) => void setTimeout(done, PAUSE_MS));

function runs(pid: number): boolean {
  if (!Number.isInteger(pid) || pid <= 0 || pid === process.pid) return false;
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}

async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}
