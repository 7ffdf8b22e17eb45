import { BatonError, Held, Lost } from "./baton.mjs";

/** Times are in milliseconds. */
export interface Options {
  /** How long to wait: 0 is not at all, without it as long as it takes. */
  wait?: number;
  /** How long the lock outlives a client that dies. Defaults to 15 seconds. */
  ttl?: number;
  /** A read lock. */
  shared?: boolean;
  /** n of so many permits: [2, 10]. */
  permits?: [n: number, of: number];
  /** What is shown to people as the holder. */
  owner?: string;
  /** Of servers that share a store and a secret. Defaults to the variable BATON_SERVER, with commas between. */
  urls?: string[];
  /** An access token of theirs. */
  access?: string;
}

/** A lock that is held, and that is renewed while the event loop is free. */
export class Lock implements AsyncDisposable {
  private constructor();
  readonly key: string;
  /** It rises with every lock of the key. */
  readonly token: bigint;
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

/** Runs work under a lock, and unlocks. Rejects with a Lost if the lock has ended before work did. */
export function withLock<T>(key: string, options: Options, work: (lock: Lock) => T | Promise<T>): Promise<T>;

/** Makes a call, such as "Locks/List". If the first server does not answer, it becomes the last of urls. */
export function ask(urls: string[], access: string | undefined, call: string, fields?: object, patience?: number): Promise<Record<string, any>>;
