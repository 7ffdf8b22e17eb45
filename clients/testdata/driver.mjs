// What the tests tell a process to do, in JavaScript: see drive in language_test.go.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import * as agent from "../node/baton.mjs";
import * as http from "../node/baton_http.mjs";

const { BatonError, Held, Lost, Session } = agent;
const { lock, withLock } = "BATON_SERVER" in process.env
  ? { lock: (key, kind) => http.lock(key, { ttl: 4000, ...kind }), withLock: (key, kind, work) => http.withLock(key, { ttl: 4000, ...kind }, work) }
  : agent;

let held;

const verbs = {
  async lock(key, wait, maxHold, mode) {
    const kind = {};
    if (wait !== "-") kind.wait = Number(wait);
    if (maxHold !== "-") kind.maxHold = Number(maxHold);
    if (mode === "shared") kind.shared = true;
    else if (mode !== "-") kind.permits = mode.split("/").map(Number);
    held = await lock(key, kind);
    return held.token;
  },
  async check() { return Math.floor(await held.check()); },
  unlock() { return held.unlock(); },
  told() {
    return new Promise((_, reject) => {
      const tell = () => reject(held.signal.reason);
      held.signal.aborted ? tell() : held.signal.addEventListener("abort", tell);
    });
  },
  spawn(fifo) { return spawn("cat", [fifo], { stdio: "ignore" }).pid; },
  async count(key, file, times) {
    for (let i = 0; i < Number(times); i++) {
      await withLock(key, {}, async (lock) => {
        const [n, last] = (await readFile(file, "utf8")).split(" ").map(BigInt);
        assert(lock.token > last, "the token does not rise");
        await writeFile(file, `${n + 1n} ${lock.token}\n`);
      });
    }
  },
  async api(key) {
    if ("BATON_SERVER" in process.env) return overHTTP(key);
    await withLock(key, { wait: 5000, maxHold: 60_000 }, async (lock) => {
      const session = await Session.open();
      const who = (await session.ask("who", { key })).locks;
      assert.deepEqual(who.map((w) => w.token), [String(lock.token)]);
      await assert.rejects(session.lock(key, { wait: 0 }), (e) => e instanceof Held && !e.message.includes("the wait is over"));
      await assert.rejects(session.lock(key, { wait: 0.4 }), (e) => e instanceof Held && e.message.includes("the wait is over"));
      // Requests of one session overlap.
      const [a, b] = await Promise.all([session.lock(key + "/a"), session.lock(key + '/bé"\\')]);
      await assert.rejects(session.lock(key + "/a"), { code: "nested", name: "BatonError" });
      await assert.rejects(session.ask("lock", { key: "x", wait: 5 }), { code: "bad", message: /wait_ms/ });
      for (const wait of [NaN, -1]) await assert.rejects(session.lock("x", { wait }), { code: "bad" });
      await (await session.lock("x", { wait: Infinity, maxHold: Infinity })).unlock();
      await a.unlock();
      session.close();
      assert(b.signal.aborted && b.signal.reason instanceof Lost);
      await assert.rejects(b.check(), Lost);
      await lock.unlock();
      await lock.unlock();
    });
    await withLock(key + '/bé"\\', { wait: 5000 }, () => {});
    assert.equal(await withLock(key, {}, () => 7), 7);
    await assert.rejects(withLock(key, {}, async (lock) => {
      await lock.unlock(); // which ends its session
      await assert.rejects(lock.check(), Lost);
      throw new RangeError("of the work");
    }), RangeError);
    const last = await lock(key, { wait: 5000 });
    await last[Symbol.asyncDispose]();
    assert(last.signal.aborted);
  },
};

async function overHTTP(key) {
  for (const kind of [{ wait: NaN }, { wait: -1 }, { ttl: NaN }, { ttl: 0 }, { ttl: Infinity }]) {
    await assert.rejects(lock(key, kind), { code: "bad" }, JSON.stringify(kind));
  }
  process.env.BATON_SERVER = process.env.BATON_SERVER.split(",").map((url) => url + "/").join(" , ");
  const held = await lock(key, { wait: Infinity, ttl: 30_000 });
  await assert.rejects(lock(key, { wait: 0.4 }), Held);
  await held.unlock();
  await held.unlock();
  assert(held.signal.aborted);
  assert.throws(() => held.check(), Lost);
  await lock(key, { wait: 0 }).then((last) => last[Symbol.asyncDispose]());
}

// A test waits for "told" while other commands come.
for await (const line of createInterface(process.stdin)) {
  const [verb, ...args] = line.split(" ");
  try {
    console.log(["ok", await verbs[verb](...args)].join(" ").trim());
  } catch (e) {
    if (!(e instanceof BatonError)) throw e;
    const kind = e instanceof Held ? "held" : e instanceof Lost ? "lost" : `error ${e.code}`;
    console.log(`${kind} ${e.message}`);
  }
}
