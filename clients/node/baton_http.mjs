// Distributed locks through servers ("baton serve"), for where there is no agent; baton_http.d.mts describes what is exported:
//
//   await withLock("invoice/42", { wait: 10_000 }, async (lock) => {
//     await write(lock.token); // what the lock protects refuses a lower token
//     if (lock.check() > 1000) await pay(); // the milliseconds that are left for a step that must not happen twice
//   });
import { randomBytes } from "node:crypto";
import { uptime } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { BatonError, Failed, Held, Lost, closed, milliseconds, orNull, taken, under, whole } from "./baton.mjs";
export { BatonError, Failed, Held, Lost } from "./baton.mjs";

// Node's clock stands still while the machine is suspended. Linux' uptime goes on; it has hundredths of a second.
const [now, grain] = process.platform === "linux" ? [() => uptime() * 1000, 10] : [() => performance.now(), 0];
const passing = ["unavailable", "resource_exhausted"]; // of which the next attempt may know nothing
const help = { unavailable: ": start baton serve, or set BATON_SERVER or urls", unauthenticated: ": give access, a token of the server's --roles" };

export async function ask(urls, access, call, fields = {}, patience = 5000) {
  const first = urls[0], url = first + (call.startsWith("/") ? call : `/baton.v1.${call}`);
  const aborted = new AbortController();
  let answer, why, timer;
  const over = new Promise((_, reject) => { // fetch may forget its signal, when the garbage is collected
    timer = setTimeout(() => { reject(new Error("no answer in time")); aborted.abort(); }, Math.max(0, Math.ceil(patience)));
  });
  const fetched = async () => {
    const response = await fetch(url, {
      method: "POST", body: JSON.stringify(fields), signal: aborted.signal,
      redirect: "error", // the access token is for the servers that were named, and no other
      headers: { "Content-Type": "application/json", ...(access && { Authorization: `Bearer ${access}` }) },
    });
    return [response, await response.text()];
  };
  try {
    const [response, text] = await Promise.race([fetched(), over]);
    why = `HTTP ${response.status}, and not from baton serve`;
    answer = JSON.parse(text);
    if (response.ok || "ok" in answer) return Object(answer); // a limit that is used up is no error
  } catch (e) {
    why ??= e.cause?.message || e.message;
  } finally {
    clearTimeout(timer);
  }
  const { code = "unavailable", message = why } = answer ?? {};
  if (code === "unavailable" && urls[0] === first) urls.push(urls.shift()); // the next call goes to the next server
  throw new (code === "not_found" ? Lost : BatonError)(code, `${url}: ${message}${answer?.code === "unavailable" ? "" : help[code] ?? ""}`); // it has said what it lacks
}

// Makes a call at each server, once within the time that remains, until one has answered. A call that ends a lease goes on until the
// lease is over: its handle is good for this lease alone, so a repetition does nothing twice.
async function answered(urls, access, call, fields, until = Infinity) {
  const began = now();
  let before;
  for (let left = urls.length; ; left = Math.max(1, left - 1)) {
    try {
      return await ask(urls, access, call, fields, Math.min(5000, Math.max(1000, (until - now()) / left)));
    } catch (e) {
      // The server before has done it, or it has expired since this began. An outcome was not recorded.
      if (e.code === "not_found" && call === "Locks/Release" && (before || (began < until && until <= now()))) return {};
      const pause = 100 + 200 * Math.random();
      if (!passing.includes(e.code) || (left === 1 && !(fields.handle && now() + pause < until))) throw e;
      if (left === 1) await sleep(pause);
      before = e;
    }
  }
}

export class Lock {
  #servers; #ttl; #handle; #until; #why; #timer; #held = true; #ended = new AbortController();
  constructor(key, servers, ttl, sent, answer) {
    [this.#servers, this.#ttl, this.#handle, this.#until] = [servers, ttl, answer.handle, sent + answer.remaining_ms];
    Object.assign(this, { key, token: BigInt(answer.token), attempts: Number(answer.attempts ?? 1), signal: this.#ended.signal });
    this.#after(ttl / 3);
  }

  #after(pause) { this.#timer = setTimeout(() => this.#renew(), Math.max(0, Math.min(pause, this.#until - now()))); }

  async #renew() {
    let pause = this.#ttl / 3;
    if (this.#until - now() > grain) {
      try {
        const sent = now();
        const { remaining_ms: left, handle } = await ask(...this.#servers, "Locks/Renew", { handle: this.#handle }, Math.min(5000, this.#ttl / 4, this.#until - now()));
        this.#until = Math.max(this.#until, sent + (left || 0));
        this.#handle = handle || this.#handle; // the secret of the servers is being replaced
      } catch (e) {
        [this.#why, pause] = [e, this.#ttl / 12]; // soon again, if no server answers
        if (!passing.includes(e.code)) this.#until = 0;
      }
    }
    if (this.signal.aborted) return; // it was unlocked meanwhile
    this.#until - now() > grain ? this.#after(pause) : this.#end(`the lock ${JSON.stringify(this.key)} has ended${this.#why ? `: ${this.#why.message}` : ""}`);
  }

  #end(why) {
    clearTimeout(this.#timer);
    this.#until = 0;
    this.#ended.abort(new Lost("lost", why)); // the first reason stays
  }

  check() {
    const left = this.#until - now() - grain;
    if (left <= 0) this.#end(`the lock ${JSON.stringify(this.key)} has ended`);
    this.signal.throwIfAborted();
    return left;
  }

  unlock() { return this.end("Locks/Release"); }
  async end(call, outcome) {
    if (!this.#held) return;
    this.#held = false;
    const until = this.#until, over = this.signal.aborted || until <= now() + grain;
    this.#end(over ? `the lock ${JSON.stringify(this.key)} has ended` : "it was unlocked");
    const end = answered(...this.#servers, call, { handle: this.#handle, ...outcome }, until);
    if (!over || outcome) await end; // what was recorded of an operation stands
    else await end.finally(() => { throw this.signal.reason; });
  }
  [Symbol.asyncDispose]() { return this.unlock(); }
}

const serversOf = ({ urls, access }) => {
  const named = (urls ?? (process.env.BATON_SERVER || "http://127.0.0.1:7420").split(",")).map((url) => url.trim().replace(/\/+$/, ""));
  const wrong = named.find((url) => !/^https?:\/\//.test(url));
  if (wrong === undefined && named.length > 0) return [named, access];
  throw new BatonError("bad", `${JSON.stringify(wrong ?? urls)} is no URL of a server, such as http://127.0.0.1:7420`);
};

// Waits in turns for a lock, or an attempt. Resolves to the answer, and when the call was sent that got it.
async function obtain(call, servers, { key, wait = Infinity, ttl = 15_000, value: owner }, kind) {
  const what = { key, ttl_ms: milliseconds("ttl", ttl), ...kind };
  if (!what.ttl_ms) throw new BatonError("bad", `ttl is ${ttl}: it must be a number of milliseconds above 0`);
  const draw = () => randomBytes(16).toString("base64url");
  const began = now(), limit = milliseconds("wait", wait) ?? Infinity;
  let op = draw(), retry = false;
  try {
    for (let heard = began, silent = 0; ;) {
      const sent = now(), rest = Math.max(0, began + limit - sent);
      const turn = Math.min(rest, 1000); // of a client that dies between two calls the position ends after a second and a half
      let error;
      try {
        const answer = await ask(...servers, call, { ...what, op, owner, retry, wait_ms: Math.ceil(turn) }, turn + 5000);
        const believed = !["HELD", "RUN"].includes(answer?.state) || (/^\d+$/.test(answer.token) && Number.isInteger(answer.remaining_ms) && answer.handle);
        if (!believed || typeof answer?.state !== "string") throw new BatonError("unavailable", `what answers there is not baton serve${help.unavailable}`);
        if (!["WAITING", "REFUSED", "BUSY"].includes(answer.state)) return { answer, lock: () => new Lock(key, servers, ttl, sent, answer) };
        const who = (answer.holders ?? []).map((holder) => holder.owner).join(", ") || "another client";
        [error, heard, retry, silent] = [new Held("held", `${JSON.stringify(key)} is held by ${who}`), now(), true, 0];
      } catch (e) {
        [error, silent] = [e, silent + 1];
        if (e.code === "aborted") [op, retry] = [draw(), false]; // a lease came and went while its answer was lost
        else if (e.code === "unavailable") retry = true;
        else throw e;
        await sleep(Math.min(100, rest));
      }
      if ((rest <= turn && !(silent > 0 && silent < servers[0].length)) || now() > heard + 30_000) throw error; // or no server answers
    }
  } catch (e) {
    const once = call === "Once/Begin" || undefined;
    if (retry || !(e instanceof BatonError)) await answered(...servers, "Locks/Cancel", { ...what, op, once }, now() + 2000).catch(() => {}); // a server may have a position, or a lease
    throw e;
  }
}

export async function lock(key, { shared, permits, ...options } = {}) {
  return (await obtain("Locks/Acquire", serversOf(options), { key, ...options }, { shared, permits: permits?.[0], of: permits?.[1] })).lock();
}
export const tryLock = (key, options) => orNull(lock(key, { ...options, wait: 0 }));
export const withLock = async (key, options, work) => under(await lock(key, options), work);

export async function once(key, options, work) {
  const { answer, lock } = await obtain("Once/Begin", serversOf(options), { key, ...options });
  const recorded = Buffer.from(answer.result ?? "", "base64").toString();
  if (answer.state === "FAILED") throw new Failed(recorded);
  if (answer.state !== "RUN") return recorded;
  const attempt = lock();
  const finish = (text, failed) => attempt.end("Once/Finish", { result: Buffer.from(`${text}`).toString("base64"), failed });
  const result = await Promise.resolve(attempt).then(work).catch(async (e) => {
    await (e instanceof Failed ? finish(e.message, true).catch((why) => { throw Object.assign(why, { cause: e }); }) : attempt.unlock().catch(() => {}));
    throw e;
  }) ?? "";
  return closed(finish(result), result);
}

export async function take(rule, key = "", { cost, tier, also, reserve, ...options } = {}) {
  const call = [{ cost }, ...(also ?? [])].some((r) => r.cost < 0) ? ask : answered; // what was given back is not given back again
  const answer = await call(...serversOf(options), "/v1/limit", { rule, key, tier, also, reserve, cost: whole(cost) });
  return taken(answer.ok, answer);
}

export async function settle(reservation, cost, options = {}) {
  await answered(...serversOf(options), "Limits/Settle", { reservation, cost: whole(cost) });
}

export async function leader(key, options = {}) {
  const { led, value, token } = await answered(...serversOf(options), "Locks/Leader", { key });
  return led ? { value, token: BigInt(token) } : null;
}
