// What the tests tell a process to do, in JavaScript: see process in language_test.go.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import * as agent from "../node/baton.mjs";
import * as servers from "../node/baton_http.mjs";

const { BatonError, Failed, Held, Lost, Session } = agent;
const http = "BATON_SERVER" in process.env;
const door = http ? servers : agent;
const usual = http ? { ttl: Number(process.env.TTL) } : {};
class OfTheWork extends Error {}

let held;

const verbs = {
  async lock(key, wait, bound, mode, value = "-") {
    const kind = { ...usual };
    if (wait !== "-") kind.wait = wait === "inf" ? Infinity : Number(wait);
    if (bound !== "-") kind[http ? "ttl" : "maxHold"] = bound === "inf" ? Infinity : Number(bound);
    if (mode === "shared") kind.shared = true;
    else if (mode !== "-") kind.permits = mode.split("/").map(Number);
    if (value !== "-") kind.value = value;
    held = await door.lock(key, kind);
    return held.token;
  },
  async try(key) {
    const lock = await door.tryLock(key, usual);
    held = lock ?? held;
    return lock ? lock.token : "none";
  },
  async check() { return Math.floor(await held.check()); },
  unlock() { return held.unlock(); },
  forget() {
    held = undefined;
    setFlagsFromString("--expose_gc");
    runInNewContext("gc")();
  },
  told() {
    return new Promise((_, reject) => {
      const tell = () => reject(held.signal.reason);
      held.signal.aborted ? tell() : held.signal.addEventListener("abort", tell);
    });
  },
  async once(key, wait, what, text) {
    let ran = 0;
    const options = { ...usual };
    if (wait !== "-") options.wait = Number(wait);
    const result = await door.once(key, options, async (attempt) => {
      assert(await attempt.check() > 0);
      ran = attempt.attempts;
      if (what === "fail") throw new Failed(text);
      if (what === "raise") throw new OfTheWork();
      if (what === "block") {
        console.log("ok runs");
        await readFile(text);
      }
      return text;
    });
    return `${result} ${ran}`;
  },
  async take(rule, key, cost) {
    const { ok, remaining, retry } = await door.take(rule, key, cost === "-" ? {} : { cost: cost === "inf" ? Infinity : Number(cost) });
    return `${ok} ${remaining} ${retry === Infinity ? -1 : retry}`;
  },
  async settle(rule, key, cost, spent) {
    const { remaining, reservation } = await door.take(rule, key, { cost: Number(cost), reserve: true, also: [{ rule, key: `${key}-also`, cost: Number(cost) }] });
    await door.settle(reservation, Number(spent));
    await door.settle(reservation, 0);
    return `${remaining} ${(await door.take(rule, key, { cost: 0 })).remaining} ${(await door.take(rule, `${key}-also`, { cost: 0 })).remaining}`;
  },
  async leader(key) {
    const led = await door.leader(key);
    return led ? `${led.value} ${led.token}` : "none";
  },
  raise(key) { return door.withLock(key, usual, () => { throw new OfTheWork(); }); },
  async threads(key) { // requests that overlap
    const session = http ? { lock: (name) => door.lock(name, usual) } : await Session.open();
    await door.withLock(key, usual, (lock) => Promise.all([0, 1, 2, 3].map(async (i) => {
      for (let n = 0; n < 5; n++) {
        assert(await lock.check() > 0);
        const own = await session.lock(`${key}/${i}`);
        await own.check();
        await own.unlock();
      }
    })));
    session.close?.();
  },
  spawn(fifo) { return spawn("cat", [fifo], { stdio: "ignore" }).pid; },
  async count(key, file, times) {
    for (let i = 0; i < Number(times); i++) {
      await door.withLock(key, usual, async (lock) => {
        const [n, last] = (await readFile(file, "utf8")).split(" ").map(BigInt);
        assert(lock.token > last, "the token does not rise");
        await writeFile(file, `${n + 1n} ${lock.token}\n`);
      });
    }
  },
  async api(key) {
    if (http) return overHTTP(key);
    await agent.withLock(key, { wait: 5000, maxHold: 60_000 }, async (lock) => {
      const session = await Session.open();
      const who = (await session.ask("who", { key })).locks;
      assert.deepEqual(who.map((w) => w.token), [String(lock.token)]);
      await assert.rejects(session.lock(key, { wait: 0 }), (e) => e instanceof Held && !e.message.includes("the wait is over"));
      await assert.rejects(session.lock(key, { wait: 0.4 }), (e) => e instanceof Held && e.message.includes("the wait is over"));
      // Requests of one session overlap.
      const [a, b] = await Promise.all([session.lock(key + "/a"), session.lock(key + '/bé"\\')]);
      await assert.rejects(session.lock(key + "/a"), { code: "nested", name: "BatonError" });
      await assert.rejects(session.ask("lock", { key: "x", wait: 5 }), { code: "bad", message: /wait_ms/ });
      await a.unlock();
      session.close();
      assert(b.signal.aborted && b.signal.reason instanceof Lost);
      await assert.rejects(b.check(), Lost);
      await lock.unlock();
      await lock.unlock();
    });
    await agent.withLock(key + '/bé"\\', { wait: 5000 }, () => {});
    assert.equal(await agent.withLock(key, {}, () => 7), 7);
    await assert.rejects(agent.withLock(key, { maxHold: 1000 }, async (lock) => {
      if (!lock.signal.aborted) await new Promise((ended) => { lock.signal.addEventListener("abort", ended); });
      return 7;
    }), (e) => e instanceof Lost && e.result === 7);
    await assert.rejects(agent.withLock(key, {}, async (lock) => {
      await lock.unlock(); // which ends its session
      await assert.rejects(lock.check(), Lost);
      throw new RangeError("of the work");
    }), RangeError);
    const last = await agent.lock(key, { wait: 5000 });
    await last[Symbol.asyncDispose]();
    assert(last.signal.aborted);
  },
};

async function overHTTP(key) {
  const held = await door.lock(key);
  await assert.rejects(door.lock(key, { wait: 0.4 }), Held);
  await held.unlock();
  await held.unlock();
  assert(held.signal.aborted);
  assert.throws(() => held.check(), Lost);
  await door.lock(key, { wait: 0 }).then((last) => last[Symbol.asyncDispose]());
  await assert.rejects(door.withLock(key, { ttl: 300 }, () => {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 400); // which holds up the loop
    return 7;
  }), (e) => e instanceof Lost && e.result === 7);
  for (const urls of [["127.0.0.1:1"], []]) await assert.rejects(door.lock(key, { urls }), { code: "bad" });
}

// A test waits for "told" while other commands come.
for await (const line of createInterface(process.stdin)) {
  const [verb, ...args] = line.split(" ");
  try {
    console.log(["ok", await verbs[verb](...args)].join(" ").trim());
  } catch (e) {
    if (e instanceof OfTheWork) console.log("raised");
    else if (!(e instanceof BatonError)) throw e;
    else {
      const kind = e instanceof Held ? "held" : e instanceof Lost ? "lost" : e instanceof Failed ? "failed" : `error ${e.code}`;
      console.log(`${e.result === undefined ? "" : `kept ${e.result} `}${kind} ${e.message}`);
    }
  }
}
