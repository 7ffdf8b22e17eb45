<?php
// Distributed locks through the agent of this host ("baton agent"):
//
//   Baton\withLock('invoice/42', function (Baton\Lock $lock) {
//       write($lock->token);                // what the lock protects refuses a lower token
//       if ($lock->check() > 1) { pay(); }  // the seconds that are left for a step that must not happen twice
//   }, wait: 10);
declare(strict_types=1);
namespace Baton;
/** The agent refused the request, or cannot be reached. reason: a word of the protocol, such as busy, or agent. */
class Failure extends \RuntimeException {
    public mixed $result = null; // of withLock and once: what the work returned, if the call that ends the lock, or records the result, has failed
    public function __construct(public readonly string $reason, string $message, public readonly array $answer = []) { parent::__construct($message); }
}
/** Another process has the lock, and the wait is over. */
final class Held extends Failure {}
/** The session has ended, and all its locks: another process may have them. */
final class Lost extends Failure {}
/** The operation of once has failed for good. Throw it in the work to record that: new Baton\Failed('the card was refused'). */
final class Failed extends Failure { public function __construct(string $why) { parent::__construct('failed', $why); } }
/** What a limit has decided. Times are seconds. If it is not ok, nothing was taken. */
final class Taken {
    /** reset: until all that was taken has come back. wait: wait so long before you act. retry: when the same cost will be allowed, INF for never. reservation: for Http\settle. */
    private function __construct(public readonly bool $ok, public readonly int $limit, public readonly int $remaining,
        public readonly float $reset, public readonly float $wait, public readonly float $retry, public readonly ?string $reservation) {}
    /** @internal */
    public static function of(bool $ok, array $answer): self {
        [$reset, $wait, $retry] = array_map(fn ($name) => ($answer[$name] ?? 0) / 1000, ['reset_ms', 'wait_ms', 'retry_ms']);
        return new self($ok, (int) $answer['limit'], (int) $answer['remaining'], $reset, $wait, $ok ? 0 : ($retry ?: INF), $answer['reservation'] ?? null);
    }
}
/** Who leads. token: 0 if the store does not tell. */
final class Leader { public function __construct(public readonly string $value, public readonly int $token) {} }
/** @internal null, and infinity, are no bound. */
function milliseconds(string $name, ?float $seconds): ?int {
    $seconds === null || $seconds >= 0 || throw new Failure('bad', "$name is $seconds: it must be a number of seconds, 0 or more");
    return $seconds === null || $seconds === INF ? null : (int) ceil(min($seconds * 1000, 31_622_400_000));
}
const SILENCE = 3; // seconds, after which the agent is asked for a sign of life; it hangs after as many more
const PING = 2 ** 53 - 1; // the id of these requests

/** A connection to the agent. Its end is that of all its locks. */
final class Session {
    private $stream; // a resource, null once it is closed
    private readonly int $pid;
    private int $id = 0;
    private float $until = 0; // what is held is certain until then, as far as the agent has told

    public function __construct(?string $path = null) {
        [$this->pid, $path] = [getmypid(), $path ?? (getenv('BATON_AGENT') ?: '/run/baton/agent.sock')];
        $this->stream = @stream_socket_client("unix://$path", $code, $why, 2 * SILENCE) ?: throw new Failure('agent', "no agent at $path: $why: "
            . ($code === 13 ? 'see --group and --mode of the agent, and the directory' : 'start baton agent --socket, or set BATON_AGENT'));
        stream_set_timeout($this->stream, SILENCE);
        try { $this->read(0); } // the greeting
        catch (Lost $e) { throw new Failure('agent', "no agent at $path: {$e->getMessage()}"); }
    }

    /** Sends a request of the protocol, and returns its answer. Fields that are null are left out. */
    public function ask(string $do, mixed ...$fields): array {
        getmypid() === $this->pid || throw new Failure('bad', 'the session belongs to the parent process: open another in this one');
        $fields = array_filter($fields, fn ($value) => $value !== null);
        $line = json_encode(['id' => ++$this->id, 'do' => $do] + $fields, JSON_THROW_ON_ERROR) . "\n";
        $sent = hrtime(true) / 1e9;
        $this->stream && @fwrite($this->stream, $line); // if that fails, the agent has ended the session and said why
        $answer = $this->read($this->id);
        $left = $answer['remaining_ms'] ?? 0;
        $this->until = max($this->until, $sent + (is_int($left) ? $left / 1000 : 0));
        return $answer;
    }

    private function read(int $asked): array {
        do {
            $answer = json_decode($this->line(), true);
            [$ok, $about] = [$answer['ok'] ?? null, $answer['id'] ?? 0]; // 0: about the session
        } while ($ok === true && $about === PING);
        is_bool($ok) && ($about === $asked || !$ok && $about === 0) || $this->disbelieve();
        if ($ok) { return $answer; }
        if ($about === 0) { $this->close(); } // it has ended
        $kinds = ['held' => Held::class, 'lost' => Lost::class, 'closing' => Lost::class, 'bad' => Failure::class];
        $kind = $kinds[$answer['error']] ?? ($about < $asked ? Lost::class : Failure::class);
        throw $answer['error'] === 'failed' ? new Failed($answer['message']) : new $kind($answer['error'], $answer['message'], $answer);
    }

    private function line(): string {
        for ($line = '', $silent = false; $this->stream; $silent = true) {
            $line .= @fgets($this->stream);
            if (str_ends_with($line, "\n")) { return $line; }
            if (!stream_get_meta_data($this->stream)['timed_out']) { break; }
            if ($silent && hrtime(true) / 1e9 > $this->until) { $this->disbelieve('the agent does not answer'); }
            $silent || @fwrite($this->stream, json_encode(['id' => PING, 'do' => 'ping']) . "\n");
        }
        return '';
    }

    /** @internal */
    public function disbelieve(string $why = 'the agent has gone, or what answers is not baton agent'): never {
        $this->close();
        throw new Lost('lost', $why);
    }

    /** For proc_open: descriptors that keep the connection, and so the locks, from the child. Needs /proc. */
    public function descriptors(array $others = []): array {
        $own = fn ($fd) => @readlink("/proc/self/fd/$fd") === 'socket:[' . fstat($this->stream)['ino'] . ']';
        return $others + array_fill_keys(array_filter(scandir('/proc/self/fd'), $own), ['file', '/dev/null', 'r']);
    }

    public function close(): void {
        if ($this->stream) { fclose($this->stream); $this->stream = null; }
    }
}

/** A lock that is held, in a session of its own unless one is given. token rises with every lock of the key. */
final class Lock {
    public readonly int $token;
    public readonly Session $session;
    public readonly int $attempts; // of once. Above 1, an earlier one was not finished, and may have had effects
    private readonly int $id;
    private readonly bool $alone;
    private bool $held = true;

    /** wait, maxHold: seconds; a wait of 0 is none, of null as long as it takes. permits: n, of. value: shown as the holder, a leader's name. */
    public function __construct(public readonly string $key, ?float $wait = null, bool $shared = false, ?array $permits = null,
            ?float $maxHold = null, ?Session $session = null, ?string $value = null, ?string $path = null, ?array $answer = null) {
        [$this->alone, $this->session] = [!$session, $session ??= new Session($path)];
        [$mode, $n, $of] = $permits ? ['permits', ...$permits] : [$shared ? 'shared' : null, null, null];
        $answer ??= $session->ask('lock', key: $key, wait_ms: milliseconds('wait', $wait), max_hold_ms: milliseconds('maxHold', $maxHold),
            mode: $mode, n: $n, of: $of, value: $value);
        [$this->id, $this->attempts, $token] = [$answer['id'], $answer['attempts'] ?? 1, (string) ($answer['token'] ?? '')];
        $this->token = preg_match('/^\d+$/D', $token) ? (int) $token : $session->disbelieve();
    }

    /** The seconds for which the lock is certain from now, even if the agent stops. Throws Lost. */
    public function check(): float {
        // hrtime stands still while the machine is suspended. Linux' uptime goes on; it has hundredths of a second.
        $clocks = fn () => [hrtime(true) / 1e9, (float) @file_get_contents('/proc/uptime')];
        [$running, $up] = $clocks();
        $left = $this->session->ask('check', lock: $this->id)['remaining_ms'] ?? null;
        is_int($left) || $this->session->disbelieve();
        [$now, $later] = $clocks();
        return $left / 1000 - max($now - $running, $later - $up + 0.01);
    }

    /** Throws Lost if the lock had ended before. A second call does nothing. */
    public function unlock(): void {
        [$held, $this->held] = [$this->held, false];
        try { $held && $this->session->ask('unlock', lock: $this->id); }
        finally { $this->alone && $this->session->close(); }
    }
}

function lock(string $key, mixed ...$kind): Lock { return new Lock($key, ...$kind); }

/** null if another process has the lock. */
function tryLock(string $key, mixed ...$kind): ?Lock { try { return new Lock($key, 0, ...$kind); } catch (Held) { return null; } }

/** Runs work under a lock, unlocks, and returns what work did. Throws Lost if the lock had ended before. */
function withLock(string $key, callable $work, mixed ...$kind): mixed { return under(new Lock($key, ...$kind), $work); }

/** @internal */
function under(Lock|Http\Lock $lock, callable $work): mixed {
    try { $result = $work($lock); }
    catch (\Throwable $e) {
        try { $lock->unlock(); } catch (Failure) {} // the error of the work is the one that counts
        throw $e;
    }
    return closed($result, fn () => $lock->unlock());
}

/** @internal Returns the result of the work once the end of its lock has succeeded. If that fails, what it throws has the result. */
function closed(mixed $result, callable $end): mixed {
    try { $end(); } catch (Failure $e) { $e->result = $result; throw $e; }
    return $result;
}

/**
 * Runs an operation unless it has succeeded before, records the text that work returns, and returns what is recorded. If work throws Failed,
 * it has failed for good; after anything else that it throws the next call runs it. request: another one under this key is refused.
 */
function once(string $key, callable $work, ?float $wait = null, ?float $maxHold = null, ?string $request = null, ?string $path = null): string {
    $session = new Session($path); // whose end gives up an attempt
    try {
        $answer = $session->ask('once', key: $key, wait_ms: milliseconds('wait', $wait), max_hold_ms: milliseconds('maxHold', $maxHold), request: $request);
        if (!($answer['run'] ?? false)) { return $answer['result'] ?? ''; }
        try { $result = (string) $work(new Lock($key, session: $session, answer: $answer)); }
        catch (Failed $e) { try { throw $e; } finally { $session->ask('finish', lock: $answer['id'], failed: $e->getMessage()); } }
        return closed($result, fn () => $session->ask('finish', lock: $answer['id'], result: $result));
    } finally { $session->close(); }
}

/** Asks a rule of the agent (--rules) for a cost. */
function take(string $rule, string $key = '', ?int $cost = null, ?string $tier = null, ?string $path = null): Taken {
    try { return Taken::of(true, (new Session($path))->ask('take', rule: $rule, key: $key, cost: $cost, tier: $tier)); }
    catch (Failure $e) { return $e->reason === 'limited' ? Taken::of(false, $e->answer) : throw $e; }
}

/** Who leads: has the lock of the key with a value. null if nobody does. */
function leader(string $key, ?string $path = null): ?Leader {
    $answer = (new Session($path))->ask('leader', key: $key);
    return $answer['led'] ? new Leader($answer['value'] ?? '', (int) ($answer['token'] ?? 0)) : null;
}
