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
        getmypid() === $this->pid || throw new Failure('bad', 'the session is that of the process that forked: open another');
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
        $kind = ['held' => Held::class, 'lost' => Lost::class, 'closing' => Lost::class][$answer['error']] ?? Failure::class;
        throw new $kind($answer['error'], $answer['message']);
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
    public function disbelieve(string $why = 'the agent has gone, or has answered what was not asked'): never {
        $this->close();
        throw new Lost('lost', $why);
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
        $ms = function (string $name, ?float $seconds) { // null, and infinity, are no bound
            $seconds === null || $seconds >= 0 || throw new Failure('bad', "$name is $seconds: it is a number of seconds, not below 0");
            return $seconds === null || $seconds === INF ? null : ceil($seconds * 1000);
        };
        $answer = $session->ask('lock', key: $key, wait_ms: $ms('wait', $wait), max_hold_ms: $ms('maxHold', $maxHold), mode: $mode, n: $n, of: $of);
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
