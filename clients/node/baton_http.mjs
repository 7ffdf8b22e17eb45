// Distributed locks through servers ("baton serve"), for where there is no agent; baton_http.d.mts describes what is exported:
//
//   await withLock("invoice/42", { wait: 10_000 }, async (lock) => {
//     await write(lock.token); // what the lock protects refuses a lower token
//     if (lock.check() > 1000) await pay(); // the milliseconds that are left for a step that must not happen twice
//   });
import { randomBytes } from "node:crypto";
import { uptime } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { BatonError, Held, Lost, under } from "./baton.mjs";

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

export class Lock {
  #ask; #ttl; #handle; #until; #why; #timer; #held = true; #ended = new AbortController();
  constructor(key, ask, ttl, sent, answer) {
    [this.#ask, this.#ttl, this.#handle, this.#until] = [ask, ttl, answer.handle, sent + answer.remaining_ms];
    Object.assign(this, { key, token: BigInt(answer.token), signal: this.#ended.signal });
    this.#after(ttl / 3);
  }

  #after(pause) { this.#timer = setTimeout(() => this.#renew(), Math.max(0, Math.min(pause, this.#until - now()))); }

  async #renew() {
    let pause = this.#ttl / 3;
    if (this.#until - now() > grain) {
      try {
        const sent = now();
        const { remaining_ms: left } = await this.#ask("Locks/Renew", { handle: this.#handle }, Math.min(5000, this.#ttl / 4));
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
    this.#end("it was unlocked");
    await this.#ask("Locks/Release", { handle: this.#handle });
  }
  [Symbol.asyncDispose]() { return this.unlock(); }
}

export async function lock(key, { wait = Infinity, ttl = 15_000, shared, permits, owner, urls, access } = {}) {
  const servers = [...(urls ?? (process.env.BATON_SERVER ?? "http://127.0.0.1:7420").split(","))];
  const call = (...args) => ask(servers, access, ...args);
  const kind = { key, ttl_ms: Math.ceil(ttl), shared, permits: permits?.[0], of: permits?.[1] };
  const draw = () => randomBytes(16).toString("base64url");
  const began = now();
  for (let op = draw(), retry = false, heard = began, silent = 0; ;) {
    const sent = now(), rest = Math.max(0, began + wait - sent);
    const turn = Math.min(rest, 1000); // of a client that dies between two calls the position ends after a second and a half
    let error;
    try {
      const answer = await call("Locks/Acquire", { ...kind, op, owner, retry, wait_ms: Math.ceil(turn) }, turn + 5000);
      if (answer.state === "HELD") return new Lock(key, call, ttl, sent, answer);
      [error, heard, retry, silent] = [new Held("held", `${JSON.stringify(key)} is held by ${JSON.stringify(answer.holders)}`), now(), true, 0];
    } catch (e) {
      [error, retry, silent] = [e, true, silent + 1];
      if (e.code === "aborted") [op, retry] = [draw(), false]; // a lease came and went while its answer was lost
      else if (e.code !== "unavailable") throw e;
      await sleep(Math.min(100, rest));
    }
    if ((rest <= turn && !(silent > 0 && silent < servers.length)) || now() > heard + 30_000) { // or no server answers
      await call("Locks/Cancel", { ...kind, op }).catch(() => {});
      throw error;
    }
  }
}

export const withLock = async (key, options, work) => under(await lock(key, options), work);
