// Distributed locks through servers ("baton serve"), for where there is no agent; baton_http.d.mts describes what is exported:
//
//   await withLock("invoice/42", { wait: 10_000 }, async (lock) => {
//     await write(lock.token); // what the lock protects refuses a lower token
//     if (lock.check() > 1000) await pay(); // the milliseconds that are left for a step that must not happen twice
//   });
import { randomBytes } from "node:crypto";
import { uptime } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { BatonError, Held, Lost, milliseconds, under } from "./baton.mjs";

// Node's clock stands still while the machine is suspended. Linux' uptime goes on; it has hundredths of a second.
const [now, grain] = process.platform === "linux" ? [() => uptime() * 1000, 10] : [() => performance.now(), 0];
const passing = ["unavailable", "resource_exhausted"]; // of which the next attempt may know nothing

export async function ask(urls, access, call, fields = {}, patience = 5000) {
  const url = `${urls[0]}/baton.v1.${call}`, first = urls[0];
  let answer, why;
  try {
    const response = await fetch(url, {
      method: "POST", body: JSON.stringify(fields), signal: AbortSignal.timeout(Math.ceil(patience)),
      redirect: "error", // the access token is for the servers that were named, and no other
      headers: { "Content-Type": "application/json", ...(access && { Authorization: `Bearer ${access}` }) },
    });
    const text = await response.text();
    why = `it answers ${response.status}`;
    answer = JSON.parse(text);
    if (response.ok) return answer;
  } catch (e) {
    why ??= e.cause?.message || e.message;
  }
  const { code = "unavailable", message = why } = answer ?? {};
  if (code === "unavailable" && urls[0] === first) urls.push(urls.shift()); // the next call goes to the next server
  throw new (code === "not_found" ? Lost : BatonError)(code, `${url}: ${message}`);
}

// Makes a call that ends something at each server, once within the time that remains, until one has answered.
async function end(urls, access, call, until, fields) {
  const began = now();
  let before;
  for (let left = urls.length; left > 0; left--) {
    try {
      return await ask(urls, access, call, fields, Math.min(5000, Math.max(1000, (until - now()) / left)));
    } catch (e) {
      if (e.code === "not_found" && (before || (began < until && until <= now()))) return; // the server before has done it, or it has expired since this began
      if (!passing.includes(e.code)) throw e;
      before = e;
    }
  }
  throw before;
}

export class Lock {
  #servers; #ttl; #handle; #until; #why; #timer; #held = true; #ended = new AbortController();
  constructor(key, servers, ttl, sent, answer) {
    [this.#servers, this.#ttl, this.#handle, this.#until] = [servers, ttl, answer.handle, sent + answer.remaining_ms];
    Object.assign(this, { key, token: BigInt(answer.token), signal: this.#ended.signal });
    this.#after(ttl / 3);
  }

  #after(pause) { this.#timer = setTimeout(() => this.#renew(), Math.max(0, Math.min(pause, this.#until - now()))); }

  async #renew() {
    let pause = this.#ttl / 3;
    if (this.#until - now() > grain) {
      try {
        const sent = now();
        const { remaining_ms: left } = await ask(...this.#servers, "Locks/Renew", { handle: this.#handle }, Math.min(5000, this.#ttl / 4, this.#until - now()));
        this.#until = Math.max(this.#until, sent + left);
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

  async unlock() {
    if (!this.#held) return;
    this.#held = false;
    const until = this.#until, over = this.signal.aborted || until <= now() + grain;
    this.#end(over ? `the lock ${JSON.stringify(this.key)} has ended` : "it was unlocked");
    await end(...this.#servers, "Locks/Release", until, { handle: this.#handle });
    if (over) throw this.signal.reason;
  }
  [Symbol.asyncDispose]() { return this.unlock(); }
}

export async function lock(key, { wait = Infinity, ttl = 15_000, shared, permits, owner, urls, access } = {}) {
  const servers = [(urls ?? (process.env.BATON_SERVER || "http://127.0.0.1:7420").split(",")).map((url) => url.trim().replace(/\/+$/, "")), access];
  const kind = { key, ttl_ms: milliseconds("ttl", ttl), shared, permits: permits?.[0], of: permits?.[1] };
  if (!kind.ttl_ms) throw new BatonError("bad", `ttl is ${ttl}: it is a number of milliseconds above 0`);
  const draw = () => randomBytes(16).toString("base64url");
  const began = now(), limit = milliseconds("wait", wait) ?? Infinity;
  let op = draw(), retry = false;
  try {
    for (let heard = began, silent = 0; ;) {
      const sent = now(), rest = Math.max(0, began + limit - sent);
      const turn = Math.min(rest, 1000); // of a client that dies between two calls the position ends after a second and a half
      let error;
      try {
        const answer = await ask(...servers, "Locks/Acquire", { ...kind, op, owner, retry, wait_ms: Math.ceil(turn) }, turn + 5000);
        if (answer.state === "HELD") return new Lock(key, servers, ttl, sent, answer);
        [error, heard, retry, silent] = [new Held("held", `${JSON.stringify(key)} is held by ${JSON.stringify(answer.holders)}`), now(), true, 0];
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
    if (retry || !(e instanceof BatonError)) await end(...servers, "Locks/Cancel", now() + 2000, { ...kind, op }).catch(() => {}); // a server may have a position, or a lease
    throw e;
  }
}

export const withLock = async (key, options, work) => under(await lock(key, options), work);
