/** The agent refused the request, or cannot be reached. */
export class BatonError extends Error {
  /** A word of the protocol, such as "busy", or "agent" if there is none. */
  readonly code: string;
  /** Of withLock and once: what the work returned, if the call that ends the lock, or records the result, has failed. */
  readonly result?: any;
}

/** Another process has the lock, and the wait is over. */
export class Held extends BatonError {}

/** The session, or the lease, has ended, and all its locks: another process may have them. */
export class Lost extends BatonError {}

/** The operation of once has failed for good. Throw it in the work to record that. */
export class Failed extends BatonError {
  constructor(reason: string);
}

/** What a limit has decided. Times are in milliseconds. If it is not ok, nothing was taken. */
export interface Taken {
  readonly ok: boolean;
  readonly limit: number;
  readonly remaining: number;
  /** Until all that was taken has come back. */
  readonly reset: number;
  /** Wait so long before you act. */
  readonly wait: number;
  /** When the same cost will be allowed: 0 if ok, Infinity for never. */
  readonly retry: number;
  /** For settle, over HTTP. */
  readonly reservation?: string;
}

/** Who leads. The token is 0 if the store does not tell. */
export interface Leader {
  readonly value: string;
  readonly token: bigint;
}

/** What kind of lock. Times are in milliseconds. */
export interface Kind {
  /** How long to wait: 0 is not at all, without it as long as it takes. */
  wait?: number;
  /** Ends the session if the lock is held for longer: a bound for a process that is stopped. */
  maxHold?: number;
  /** A read lock. */
  shared?: boolean;
  /** n of so many permits: [2, 10]. */
  permits?: [n: number, of: number];
  /** What is shown as the holder: the name of a leader. */
  value?: string;
}

export interface Options extends Kind {
  /** The agent's socket. Defaults to the variable BATON_AGENT, or /run/baton/agent.sock. */
  path?: string;
}

/** A lock that is held. */
export class Lock implements AsyncDisposable {
  private constructor();
  readonly key: string;
  /** It rises with every lock of the key. */
  readonly token: bigint;
  /** Of once. Above 1, an earlier one was not finished, and may have had effects. */
  readonly attempts?: number;
  /** Aborts with a Lost when the session ends: at the loss of a lock of it, or when it is closed. */
  readonly signal: AbortSignal;
  /**
   * The milliseconds for which the lock is certain from now, even if the agent stops. Use them in the same turn of the
   * event loop. Rejects with a Lost if the lock has ended, also if the agent does not answer until what it last told is over.
   */
  check(): Promise<number>;
  /** Unlocks. Rejects with a Lost if the lock had ended before. A second call does nothing. */
  unlock(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** A connection to the agent. Its end is that of all its locks. Requests may overlap. */
export class Session {
  private constructor();
  static open(path?: string): Promise<Session>;
  /** Aborts when the session ends; the reason says why. */
  readonly signal: AbortSignal;
  lock(key: string, kind?: Kind): Promise<Lock>;
  /** Sends a request of the protocol and resolves to its answer. */
  ask(what: string, fields?: Record<string, unknown>): Promise<Record<string, any>>;
  /** Closes the connection: do so when no step under a lock of it is under way any more. */
  close(why?: Error): void;
}

/** A Lock in a session of its own: the loss of another lock does not end it. */
export function lock(key: string, options?: Options): Promise<Lock>;

/** Runs work under a lock, and unlocks. Rejects with a Lost if the lock has ended before work did. */
export function withLock<T>(key: string, options: Options, work: (lock: Lock) => T | Promise<T>): Promise<T>;

/** Resolves to null if another process has the lock. */
export function tryLock(key: string, options?: Omit<Options, "wait">): Promise<Lock | null>;

/**
 * Runs an operation unless it has succeeded before, records the text that work returns, and resolves to what is recorded. If work throws
 * a Failed, it has failed for good; after anything else that it throws the next call runs it. Another request under the key is refused.
 */
export function once(key: string, options: { path?: string; wait?: number; maxHold?: number; request?: string },
  work: (attempt: Lock) => string | void | Promise<string | void>): Promise<string>;

/** Asks a rule of the agent (--rules). */
export function take(rule: string, key?: string, options?: { cost?: number; tier?: string; path?: string }): Promise<Taken>;

/** Who leads: has the lock of the key with a value. Null if nobody does. */
export function leader(key: string, options?: { path?: string }): Promise<Leader | null>;
