// Distributed locks through the agent of this host ("baton agent"); baton.d.mts describes what is exported:
//
//   await withLock("invoice/42", { wait: 10_000 }, async (lock) => {
//     await write(lock.token); // what the lock protects refuses a lower token
//     if ((await lock.check()) > 1000) await pay(); // the milliseconds that are left for a step that must not happen twice
//   });
import { connect } from "node:net";
import { uptime } from "node:os";

export class BatonError extends Error {
  constructor(code, message) {
    super(message);
    Object.assign(this, { name: new.target.name, code });
  }
}
export class Held extends BatonError {}
export class Lost extends BatonError {}
export class Failed extends BatonError {
  constructor(reason) { super("failed", reason); }
}
const kinds = new Map([["held", Held], ["lost", Lost], ["closing", Lost], ["bad", BatonError]]);
const failure = (answer, other = BatonError) => Object.assign(answer.error === "failed" ? new Failed(answer.message)
  : new (kinds.get(answer.error) ?? other)(answer.error, answer.message), { answer });
const help = (why) => (/EACCES/.test(why) ? "see --group and --mode of the agent, and the directory" : "start baton agent --socket, or set BATON_AGENT");
const unasked = "what it answers is not of baton agent";
const silence = 3000; // after which the agent is asked for a sign of life; it hangs after as many more
const ping = Number.MAX_SAFE_INTEGER; // the id of these requests

export function milliseconds(name, time) { // null, and infinity, are no bound
  if (time != null && !(time >= 0)) throw new BatonError("bad", `${name} is ${time}: it must be a number of milliseconds, 0 or more`);
  return time == null || time === Infinity ? undefined : Math.min(Math.ceil(time), 31_622_400_000); // a year
}

export function taken(ok, answer) {
  const [limit, remaining, reset, wait, retry] = ["limit", "remaining", "reset_ms", "wait_ms", "retry_ms"].map((name) => Number(answer[name] ?? 0));
  return { ok, limit, remaining, reset, wait, retry: ok ? 0 : retry || Infinity, reservation: answer.reservation };
}

export function whole(cost) {
  if (cost === undefined || Number.isSafeInteger(cost)) return cost;
  throw new BatonError("bad", `cost is ${cost}: it must be a whole number`);
}

const times = (wait, maxHold) => ({ wait_ms: milliseconds("wait", wait), max_hold_ms: milliseconds("maxHold", maxHold) });

export class Session {
  #socket; #timer; #id = 0; #ended = new AbortController();
  until = 0; // what is held is certain until then, as far as the agent has told
  #requests = new Map(); // those without an answer, by id; the greeting is the answer to 0
  signal = this.#ended.signal;

  static async open(path = process.env.BATON_AGENT ?? "/run/baton/agent.sock") {
    const session = new Session();
    const greeting = new Promise((resolve, reject) => session.#requests.set(0, { resolve, reject }));
    let part = ""; // of a line
    // Half-open: the agent keeps what check has told until the client closes the connection, which Node would do at once.
    session.#socket = connect({ path, allowHalfOpen: true }).setEncoding("utf8")
      .on("end", () => session.#end("it has closed the connection"))
      .on("error", (e) => session.#end(e.message))
      .on("data", (text) => {
        const lines = (part + text).split("\n");
        part = lines.pop();
        for (const line of lines) session.#read(line);
        session.#watch();
      });
    session.#watch();
    return greeting.then(() => session, (e) => { session.close(); throw e; });
  }

  async ask(what, fields = {}) {
    this.signal.throwIfAborted();
    const id = ++this.#id;
    const sent = performance.now();
    this.#socket.write(JSON.stringify({ ...fields, id, do: what }) + "\n");
    const answer = new Promise((resolve, reject) => this.#requests.set(id, { resolve, reject }));
    if (this.#requests.size === 1) this.#watch();
    const { remaining_ms: left } = await answer;
    if (Number.isInteger(left)) this.until = Math.max(this.until, sent + left);
    return answer;
  }

  #watch(silent = false) { // the agent, while an answer is awaited
    clearTimeout(this.#timer);
    if (this.#requests.size > 0) this.#timer = setTimeout(() => {
      if (silent && performance.now() > this.until) return this.#end("it does not answer"), this.#socket.destroy();
      if (!silent) this.#socket.write(JSON.stringify({ id: ping, do: "ping" }) + "\n");
      this.#watch(true);
    }, silence);
  }

  async lock(key, { wait, maxHold, shared, permits, value } = {}, alone = false) {
    const [mode, n, of] = permits ? ["permits", ...permits] : [shared ? "shared" : undefined];
    return this.locked(key, await this.ask("lock", { key, ...times(wait, maxHold), mode, n, of, value }), alone);
  }

  locked(key, { id, token, attempts }, alone) {
    if (typeof token !== "string" || !/^\d+$/.test(token)) this.#end(unasked);
    this.signal.throwIfAborted();
    return Object.assign(new Lock(this, key, BigInt(token), id, alone), { attempts });
  }

  #read(line) {
    let answer;
    try { answer = JSON.parse(line); } catch {} // then it is none
    const { id = 0, ok } = answer ?? {};
    const request = this.#requests.get(id);
    if (ok === false && id === 0) // it is about the session, which has ended
      return this.#end(failure(answer, this.#requests.has(0) ? BatonError : Lost));
    if (ok === true && id === ping) return;
    if (typeof ok !== "boolean" || !request) return this.#end(unasked);
    this.#requests.delete(id);
    ok ? request.resolve(answer) : request.reject(failure(answer));
  }

  #end(why) {
    const gone = this.#requests.has(0) ? new BatonError("agent", `no agent: ${why}: ${help(why)}`) : new Lost("lost", `the agent has gone: ${why}`);
    this.#ended.abort(why instanceof Error ? why : gone); // the first reason stays
    clearTimeout(this.#timer);
    for (const { reject } of this.#requests.values()) reject(this.signal.reason);
    this.#requests.clear();
  }
  close(why = new Lost("lost", "the session was closed")) {
    this.#end(why);
    this.#socket.destroy();
  }
}

export class Lock {
  #session; #id; #alone; #held = true;
  constructor(session, key, token, id, alone) {
    [this.#session, this.#id, this.#alone] = [session, id, alone];
    Object.assign(this, { key, token, signal: session.signal });
  }

  async check() {
    const [running, up] = [performance.now(), uptime()];
    const { remaining_ms: left } = await this.#session.ask("check", { lock: this.#id });
    if (!Number.isInteger(left)) this.#session.close(new Lost("lost", unasked));
    this.signal.throwIfAborted();
    // Node's clock stands still while the machine is suspended. Linux' uptime goes on; it has hundredths of a second.
    return left - Math.max(performance.now() - running, process.platform === "linux" ? (uptime() - up) * 1000 + 10 : 0);
  }

  async unlock() {
    if (!this.#held) return;
    this.#held = false;
    await this.#session.ask("unlock", { lock: this.#id }).finally(() => this.#alone && this.#session.close());
  }
  [Symbol.asyncDispose]() { return this.unlock(); }
}

export async function lock(key, { path, ...kind } = {}) {
  const session = await Session.open(path);
  return session.lock(key, kind, true).catch((e) => { session.close(); throw e; });
}

export const tryLock = (key, options) => orNull(lock(key, { ...options, wait: 0 }));
export const orNull = (lock) => lock.catch((e) => { if (e instanceof Held) return null; throw e; });

const within = async (path, work) => {
  const session = await Session.open(path);
  return work(session).finally(() => session.close()); // which gives up an attempt
};

export const once = (key, { path, wait, maxHold, request } = {}, work) => within(path, async (session) => {
  const answer = await session.ask("once", { key, request, ...times(wait, maxHold) });
  if (!answer.run) return answer.result ?? "";
  const finish = (outcome) => session.ask("finish", { lock: answer.id, ...outcome });
  const attempt = session.locked(key, answer);
  const result = await Promise.resolve(attempt).then(work).catch(async (e) => {
    if (e instanceof Failed) await finish({ failed: e.message }).catch((why) => { throw Object.assign(why, { cause: e }); });
    throw e;
  }) ?? "";
  return closed(finish({ result: `${result}` }), result);
});

export const take = (rule, key = "", { cost, tier, path } = {}) => within(path, (session) =>
  session.ask("take", { rule, key, tier, cost: whole(cost) }).then((answer) => taken(true, answer), (e) => {
    if (e.code === "limited") return taken(false, e.answer);
    throw e;
  }));

export const leader = (key, { path } = {}) => within(path, async (session) => {
  const { led, value = "", token = 0 } = await session.ask("leader", { key });
  return led ? { value, token: BigInt(token) } : null;
});

export const withLock = async (key, options, work) => under(await lock(key, options), work);
export async function under(held, work) { // that of a lock which is held
  const result = await Promise.resolve(held).then(work).catch(async (e) => {
    await held.unlock().catch(() => {}); // the error of the work is the one that counts
    throw e;
  });
  return closed(held.unlock(), result);
}
// Resolves to the result of the work once the end of the lock has succeeded. If it fails, the error has the result.
export const closed = (end, result) => end.then(() => result, (e) => { throw Object.assign(e, { result }); });
