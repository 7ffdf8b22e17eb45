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
    public function __construct(public readonly string $reason, string $message) { parent::__construct($message); }
}
/** Another process has the lock, and the wait is over. */
final class Held extends Failure {}
/** The session has ended, and all its locks: another process may have them. */
final class Lost extends Failure {}

/** A connection to the agent. Its end is that of all its locks. */
final class Session {
    private $stream; // a resource, null once it is closed
    private readonly int $pid;
    private int $id = 0;

    public function __construct(?string $path = null) {
        [$this->pid, $path] = [getmypid(), $path ?? (getenv('BATON_AGENT') ?: '/run/baton/agent.sock')];
        $this->stream = @stream_socket_client("unix://$path", $code, $why) ?: throw new Failure('agent', "no agent at $path: $why: "
            . ($code === 13 ? 'see --group and --mode of the agent, and the directory' : 'start baton agent --socket, or set BATON_AGENT'));
        stream_set_timeout($this->stream, -1); // a wait may be longer than default_socket_timeout
        try { $this->read(0); } // the greeting
        catch (Lost $e) { throw new Failure('agent', "no agent at $path: {$e->getMessage()}"); }
    }

    /** Sends a request of the protocol, and returns its answer. Fields that are null are left out. */
    public function ask(string $do, mixed ...$fields): array {
        getmypid() === $this->pid || throw new Failure('bad', 'the session is that of the process that forked: open another');
        $fields = array_filter($fields, fn ($value) => $value !== null);
        $line = json_encode(['id' => ++$this->id, 'do' => $do] + $fields, JSON_THROW_ON_ERROR) . "\n";
        $this->stream && @fwrite($this->stream, $line); // if that fails, the agent has ended the session and said why
        return $this->read($this->id);
    }

    private function read(int $asked): array {
        $line = $this->stream ? (string) @fgets($this->stream) : '';
        $answer = str_ends_with($line, "\n") ? json_decode($line, true) : null;
        [$ok, $about] = [$answer['ok'] ?? null, $answer['id'] ?? 0]; // 0: about the session
        is_bool($ok) && ($about === $asked || !$ok && $about === 0) || $this->disbelieve();
        if ($ok) { return $answer; }
        if ($about === 0) { $this->close(); } // it has ended
        $kind = ['held' => Held::class, 'lost' => Lost::class, 'closing' => Lost::class][$answer['error']] ?? Failure::class;
        throw new $kind($answer['error'], $answer['message']);
    }

    /** @internal */
    public function disbelieve(): never {
        $this->close();
        throw new Lost('lost', 'the agent has gone, or has answered what was not asked');
    }

    /** For proc_open: descriptors that keep the connection, and so the locks, from the child. Needs /proc. */
    public function descriptors(array $others = []): array {
        $own = fn ($fd) => @readlink("/proc/self/fd/$fd") === 'socket:[' . fstat($this->stream)['ino'] . ']';
        return $others + array_fill_keys(array_filter(scandir('/proc/self/fd'), $own), ['file', '/dev/null', 'r']);
    }

    public function close(): void {
        $this->stream && fclose($this->stream);
        $this->stream = null;
    }
}

/** A lock that is held, in a session of its own unless one is given. token rises with every lock of the key. */
final class Lock {
    public readonly int $token;
    public readonly Session $session;
    private readonly int $id;
    private readonly bool $alone;
    private bool $held = true;

    /** wait, maxHold: seconds; a wait of 0 is none, of null as long as it takes. permits: n, of. */
    public function __construct(public readonly string $key, ?float $wait = null, bool $shared = false,
            ?array $permits = null, ?float $maxHold = null, ?Session $session = null) {
        [$this->alone, $this->session] = [!$session, $session ??= new Session()];
        [$mode, $n, $of] = $permits ? ['permits', ...$permits] : [$shared ? 'shared' : null, null, null];
        $ms = fn (?float $seconds) => $seconds === null ? null : ceil($seconds * 1000);
        $answer = $session->ask('lock', key: $key, wait_ms: $ms($wait), max_hold_ms: $ms($maxHold), mode: $mode, n: $n, of: $of);
        [$this->id, $token] = [$answer['id'], (string) ($answer['token'] ?? '')];
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

/** Runs work under a lock, unlocks, and returns what work did. Throws Lost if the lock had ended before. */
function withLock(string $key, callable $work, mixed ...$kind): mixed {
    $lock = new Lock($key, ...$kind);
    try { $result = $work($lock); }
    catch (\Throwable $e) {
        try { $lock->unlock(); } catch (Failure) {} // the error of the work is the one that counts
        throw $e;
    }
    $lock->unlock();
    return $result;
}
