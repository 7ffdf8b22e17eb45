import { Leader, Taken } from "./baton.mjs";
export { BatonError, Failed, Held, Lost } from "./baton.mjs";

/** Which servers. */
export interface Servers {
  /** Of servers that share a store and a secret. Defaults to the variable BATON_SERVER, with commas between. */
  urls?: string[];
  /** An access token of theirs. */
  access?: string;
}

/** Times are in milliseconds. */
export interface Lasting extends Servers {
  /** How long to wait: 0 is not at all, without it as long as it takes. */
  wait?: number;
  /** How long the lock outlives a client that dies. Defaults to 15 seconds. */
  ttl?: number;
  /** What is shown to people as the holder: the name of a leader. */
  value?: string;
}

export interface Options extends Lasting {
  /** A read lock. */
  shared?: boolean;
  /** n of so many permits: [2, 10]. */
  permits?: [n: number, of: number];
}

/** A lock that is held, and that is renewed while the event loop is free. */
export class Lock implements AsyncDisposable {
  private constructor();
  readonly key: string;
  /** It rises with every lock of the key. */
  readonly token: bigint;
  /** Of once. Above 1, an earlier one was not finished, and may have had effects. */
  readonly attempts: number;
  /** Aborts with a Lost when the lock ends, or is unlocked. */
  readonly signal: AbortSignal;
  /** The milliseconds for which the lock is certain from now. Asks no server. Throws a Lost if it has ended. */
  check(): number;
  /** Unlocks. Rejects with a Lost if the lock had ended before. A second call does nothing. */
  unlock(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Rejects with a Held when the wait is over, and with a BatonError if no server answers. */
export function lock(key: string, options?: Options): Promise<Lock>;

/** Resolves to null if another process has the lock. */
export function tryLock(key: string, options?: Omit<Options, "wait">): Promise<Lock | null>;

/** Runs work under a lock, and unlocks. Rejects with a Lost if the lock has ended before work did. */
export function withLock<T>(key: string, options: Options, work: (lock: Lock) => T | Promise<T>): Promise<T>;

/**
 * Runs an operation unless it has succeeded before, records the text that work returns, and resolves to what is recorded. If work throws
 * a Failed, it has failed for good; after anything else that it throws the next call runs it.
 */
export function once(key: string, options: Lasting, work: (attempt: Lock) => string | void | Promise<string | void>): Promise<string>;

/**
 * Asks a rule of the servers (--rules). If a server does not answer, another one may take the cost a second time. also: further rules; all
 * allow it, or none is taken from. reserve: the cost is an estimate.
 */
export function take(rule: string, key?: string, options?: Servers & { cost?: number; tier?: string; reserve?: boolean;
  also?: { rule: string; key: string; tier?: string; cost?: number }[] }): Promise<Taken>;

/** Tells, within an hour, what was spent of a take with reserve: the rest comes back, what is missing is taken. Only the first call counts. */
export function settle(reservation: string, cost: number, options?: Servers): Promise<void>;

/** Who leads: has the lock of the key. Null if nobody does. */
export function leader(key: string, options?: Servers): Promise<Leader | null>;

/** Makes a call, such as "Locks/List". If the first server does not answer, it becomes the last of urls. */
export function ask(urls: string[], access: string | undefined, call: string, fields?: object, patience?: number): Promise<Record<string, any>>;
