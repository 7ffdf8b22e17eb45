/** The agent refused the request, or cannot be reached. */
export class BatonError extends Error {
  /** A word of the protocol, such as "busy", or "agent" if there is none. */
  readonly code: string;
}

/** Another process has the lock, and the wait is over. */
export class Held extends BatonError {}

/** The session has ended, and all its locks: another process may have them. */
export class Lost extends BatonError {}

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
