<?php
// Distributed locks through servers ("baton serve"), for where there is no agent:
//
//   Baton\Http\withLock('invoice/42', function (Baton\Http\Lock $lock) {
//       write($lock->token);                // what the lock protects refuses a lower token
//       if ($lock->check() > 1) { pay(); }  // the seconds that are left for a step that must not happen twice
//   }, wait: 10, ttl: 60);
//
// PHP has no thread that could renew the lock while the program works: check does that.
declare(strict_types=1);
namespace Baton\Http;
use Baton\{Failed, Failure, Held, Leader, Lost, Taken};
use function Baton\{closed, milliseconds, under};
require_once __DIR__ . '/baton.php';
const PASSING = ['unavailable', 'resource_exhausted']; // of which the next attempt may know nothing
const HELP = ['unavailable' => ': start baton serve, or set BATON_SERVER or urls', 'unauthenticated' => ": give access, a token of the server's --roles"];
const GRAIN = 0.01; // of the clock, in seconds

/** @internal Linux' uptime goes on while the machine is suspended, as hrtime does not. It has hundredths of a second. */
function now(): float {
    static $linux = null;
    $linux ??= (bool) @file_get_contents('/proc/uptime');
    return $linux ? (float) file_get_contents('/proc/uptime') : hrtime(true) / 1e9;
}

/** Servers that share a store and a secret. A call that one does not answer makes it the last. */
final class Servers {
    /** @var list<string> */
    private array $urls;

    /** @param ?list<string> $urls without them those of BATON_SERVER, with commas between */
    public function __construct(?array $urls = null, private readonly ?string $access = null) {
        $this->urls = array_map(fn ($url) => rtrim(trim($url), '/'), $urls ?? explode(',', getenv('BATON_SERVER') ?: 'http://127.0.0.1:7420'));
        foreach ($this->urls ?: [''] as $url) {
            preg_match('~^https?://[^/]~', $url) || throw new Failure('bad', "'$url' is no URL of a server, such as http://127.0.0.1:7420");
        }
    }

    public function count(): int { return count($this->urls); }

    /** Makes a call, such as "Locks/List", at the first server. It ends when patience is over, in seconds. Fields that are null are left out. */
    public function ask(string $call, array $fields, float $patience = 5): array {
        $url = $this->urls[0] . ($call[0] === '/' ? $call : "/baton.v1.$call");
        $body = json_encode((object) array_filter($fields, fn ($value) => $value !== null), JSON_THROW_ON_ERROR);
        try {
            [$status, $text] = $this->post($url, $body, $patience);
            $answer = json_decode($text, true);
            if (is_array($answer) && ($status === 200 || isset($answer['ok']))) { return $answer; } // a limit that is used up is no error
            [$code, $why] = [$answer['code'] ?? 'unavailable', $answer['message'] ?? "HTTP $status, and not from baton serve"];
        } catch (Failure $e) {
            [$code, $why] = [$e->reason, $e->getMessage()];
        }
        $code === 'unavailable' && $this->urls[] = array_shift($this->urls); // the next call goes to the next server
        throw new ($code === 'not_found' ? Lost::class : Failure::class)($code, "$url: $why" . (($answer['code'] ?? '') === 'unavailable' ? '' : HELP[$code] ?? '')); // it has said what it lacks
    }

    /** Follows no redirect, and asks no proxy: the access token is for the servers that were named. */
    private function post(string $url, string $body, float $patience): array {
        $until = hrtime(true) / 1e9 + $patience;
        ['scheme' => $scheme, 'host' => $host] = $at = parse_url($url) + ['host' => ''];
        $tls = $scheme === 'https';
        $port = $at['port'] ?? ($tls ? 443 : 80);
        error_clear_last();
        $stream = @stream_socket_client(($tls ? 'tls' : 'tcp') . "://$host:$port", $code, $why, $patience)
            ?: throw new Failure('unavailable', $why ?: (error_get_last()['message'] ?? 'it cannot be reached'));
        stream_set_blocking($stream, false);
        $request = "POST {$at['path']} HTTP/1.1\r\nHost: $host:$port\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: "
            . strlen($body) . ($this->access === null ? '' : "\r\nAuthorization: Bearer $this->access") . "\r\n\r\n$body";
        for ($text = ''; !($answer = self::parse($text)) && !feof($stream); ) {
            [$read, $write, $none, $left] = [[$stream], $request === '' ? [] : [$stream], [], $until - hrtime(true) / 1e9];
            $left > 0 || throw new Failure('unavailable', 'no answer in time');
            if (!@stream_select($read, $write, $none, (int) $left, (int) (fmod($left, 1) * 1e6))) { continue; } // over, or a signal
            if ($write) { $request = substr($request, (int) @fwrite($stream, $request)); }
            if ($read) { $text .= @fread($stream, 65536); }
        }
        fclose($stream);
        return $answer ?? throw new Failure('unavailable', 'it has closed the connection');
    }

    private static function parse(string $text): ?array { // status, body, once they are complete
        [$head, $body] = explode("\r\n\r\n", $text, 2) + [1 => null];
        if ($body === null || !preg_match('~^HTTP/1\.\d (\d+)~', $head, $status)) { return null; }
        if (preg_match('/^content-length: *(\d+)/im', $head, $length)) {
            return strlen($body) < $length[1] ? null : [(int) $status[1], substr($body, 0, (int) $length[1])];
        }
        for ($all = ''; preg_match('/^([0-9a-f]{1,7})[^\r\n]*\r\n/i', $body, $size); $body = substr($body, strlen($size[0]) + $n + 2)) { // chunks
            $n = hexdec($size[1]);
            if ($n === 0) { return [(int) $status[1], $all]; }
            $all .= substr($body, strlen($size[0]), $n);
        }
        return null;
    }

    /**
     * Makes a call at each server, once within the time that remains, until one has answered. A call that ends a lease goes on until the
     * lease is over: its handle is good for this lease alone, so a repetition does nothing twice.
     */
    public function answer(string $call, array $fields, float $until = INF): array {
        [$began, $before] = [now(), null];
        for ($left = count($this->urls); ; $left = max(1, $left - 1)) {
            try { return $this->ask($call, $fields, min(5, max(1, ($until - now()) / $left))); }
            catch (Failure $e) {
                // The server before has done it, or it has expired since this began. An outcome was not recorded.
                if ($e->reason === 'not_found' && $call === 'Locks/Release' && ($before || $began < $until && $until <= now())) { return []; }
                [$before, $pause] = [$e, mt_rand(100, 300) / 1000];
                if (!in_array($e->reason, PASSING, true) || $left === 1 && !(isset($fields['handle']) && now() + $pause < $until)) { throw $e; }
                if ($left === 1) { usleep((int) ($pause * 1e6)); }
            }
        }
    }

    /** Waits in turns for a lock, or an attempt. Returns when the call was sent that got it, and the answer. */
    public function obtain(string $call, string $key, ?float $wait, float $ttl, ?string $owner, array $kind = []): array {
        [$limit, $began] = [milliseconds('wait', $wait), now()];
        $what = ['key' => $key, 'ttl_ms' => milliseconds('ttl', $ttl)] + $kind;
        $what['ttl_ms'] || throw new Failure('bad', "ttl is $ttl: it must be a number of seconds above 0");
        [$op, $retry, $heard, $silent] = [bin2hex(random_bytes(16)), false, $began, 0];
        try {
            while (true) {
                $sent = now();
                $rest = $limit === null ? INF : max(0, $began + $limit / 1000 - $sent);
                $turn = min($rest, 1); // of a client that dies between two calls the position ends after a second and a half
                try {
                    $answer = $this->ask($call, $what + ['op' => $op, 'owner' => $owner, 'retry' => $retry, 'wait_ms' => (int) ceil($turn * 1000)], $turn + 5);
                    $state = $answer['state'] ?? null;
                    $got = in_array($state, ['HELD', 'RUN'], true);
                    if (!is_string($state) || $got && !(is_int($answer['remaining_ms'] ?? null) && is_string($answer['handle'] ?? 0) && is_numeric($answer['token'] ?? null))) {
                        throw new Failure('unavailable', 'what answers there is not baton serve' . HELP['unavailable']);
                    }
                    if (!in_array($state, ['WAITING', 'REFUSED', 'BUSY'], true)) { return [$sent, $answer]; }
                    $who = implode(', ', array_column($answer['holders'] ?? [], 'owner')) ?: 'another client';
                    [$error, $heard, $retry, $silent] = [new Held('held', "'$key' is held by $who"), now(), true, 0];
                } catch (Failure $error) {
                    $silent++;
                    if ($error->reason === 'aborted') { [$op, $retry] = [bin2hex(random_bytes(16)), false]; } // a lease came and went while its answer was lost
                    elseif ($error->reason === 'unavailable') { $retry = true; }
                    else { throw $error; }
                    usleep((int) (min(0.1, $rest) * 1e6));
                }
                if ($rest <= $turn && !($silent > 0 && $silent < count($this->urls)) || now() > $heard + 30) { throw $error; } // or no server answers
            }
        } catch (\Throwable $e) { // of a signal, too
            if ($retry || !$e instanceof Failure) { // a server may have a position, or a lease
                try { $this->answer('Locks/Cancel', $what + ['op' => $op, 'once' => $call === 'Once/Begin' ?: null], now() + 2); } catch (Failure) {}
            }
            throw $e;
        }
    }
}

/** A lock that is held. The end of the program releases it, and so does that of its variable. */
final class Lock {
    public readonly int $token;
    public readonly int $attempts; // of once. Above 1, an earlier one was not finished, and may have had effects
    private readonly int $pid;
    private string $handle;
    private float $until;
    private float $due; // when check renews the lock
    private bool $held = true;
    private ?Failure $why = null;
    private static ?\WeakMap $all = null;

    /** @internal lock and once make one */
    public function __construct(public readonly string $key, private readonly Servers $servers, private readonly float $ttl, float $sent, array $answer) {
        [$this->pid, $this->token, $this->handle, $this->attempts] = [getmypid(), (int) $answer['token'], $answer['handle'], (int) ($answer['attempts'] ?? 1)];
        [$this->until, $this->due] = [$sent + $answer['remaining_ms'] / 1000, $sent + $ttl / 3];
        if (!self::$all) { // after a fatal error PHP destroys no object
            register_shutdown_function(static function () { foreach (self::$all as $lock => $_) { $lock->__destruct(); } });
        }
        self::$all ??= new \WeakMap();
        self::$all[$this] = true;
    }

    /** The seconds for which the lock is certain from now. Renews it if a third of its ttl is over: call it more often than that. Throws Lost. */
    public function check(): float {
        $this->own();
        if ($this->held && now() >= $this->due && now() < $this->until) { $this->renew(); }
        $left = $this->until - now() - GRAIN;
        if ($left <= 0) { $this->until = 0; } // it stays lost
        return $this->held && $left > 0 ? $left : throw $this->lost();
    }

    private function renew(): void { // at one server after the other, as nothing tries again before the next check
        for ($left = $this->servers->count(), $over = min($this->until, now() + $this->ttl / 4); $left > 0 && now() < $over; $left--) {
            $sent = now();
            try {
                $answer = $this->servers->ask('Locks/Renew', ['handle' => $this->handle], min(5, ($over - $sent) / $left));
                if ($this->until > now()) { [$this->until, $this->why] = [max($this->until, $sent + (int) ($answer['remaining_ms'] ?? 0) / 1000), null]; }
                $this->due = $sent + $this->ttl / 3;
                $this->handle = ($answer['handle'] ?? '') ?: $this->handle; // the secret of the servers is being replaced
                return;
            } catch (Failure $e) {
                [$this->why, $this->due] = [$e, now() + $this->ttl / 12]; // soon again
                if (in_array($e->reason, PASSING, true)) { continue; }
                $this->until = 0;
                return;
            }
        }
    }

    private function own(): void {
        getmypid() === $this->pid || throw new Failure('bad', "the lock '$this->key' belongs to the parent process: take another in this one");
    }

    private function lost(): Lost { return new Lost('lost', "the lock '$this->key' has ended" . ($this->why ? ": {$this->why->getMessage()}" : '')); }

    /** Unlocks, as long as the lock lasts if no server answers. Throws Lost if the lock had ended before. A second call does nothing. */
    public function unlock(): void { $this->end('Locks/Release'); }

    /** @internal */
    public function end(string $call, array $outcome = []): void {
        $this->own();
        [$held, $this->held, $over] = [$this->held, false, $this->until <= now() + GRAIN];
        if (!$held) { return; }
        try { $this->servers->answer($call, ['handle' => $this->handle] + $outcome, $this->until); }
        catch (Failure $e) { $over && !$outcome || throw $e; }
        if ($over && !$outcome) { throw $this->lost(); } // what was recorded of an operation stands
    }

    public function __destruct() {
        $this->until = min($this->until, now()); // each server is asked once
        try { $this->held && getmypid() === $this->pid && $this->unlock(); } catch (Failure) {}
    }
}

/**
 * wait: seconds, 0 is not at all, null as long as it takes. ttl: how long the lock lasts without a check. permits: n, of. value: shown as
 * the holder, a leader's name. urls: of servers that share a secret. access: a token of theirs.
 */
function lock(string $key, ?float $wait = null, float $ttl = 60, bool $shared = false, ?array $permits = null, ?string $value = null,
        ?array $urls = null, ?string $access = null): Lock {
    [$servers, [$n, $of]] = [new Servers($urls, $access), $permits ?? [null, null]];
    return new Lock($key, $servers, $ttl, ...$servers->obtain('Locks/Acquire', $key, $wait, $ttl, $value, ['shared' => $shared, 'permits' => $n, 'of' => $of]));
}

/** null if another process has the lock. */
function tryLock(string $key, mixed ...$kind): ?Lock {
    try { return lock($key, 0, ...$kind); } catch (Held) { return null; }
}

/** Runs work under a lock, unlocks, and returns what work did. Throws Lost if the lock had ended before. */
function withLock(string $key, callable $work, mixed ...$kind): mixed { return under(lock($key, ...$kind), $work); }

/**
 * Runs an operation unless it has succeeded before, records the text that work returns, and returns what is recorded. If work throws Failed,
 * it has failed for good; after anything else that it throws the next call runs it.
 */
function once(string $key, callable $work, ?float $wait = null, float $ttl = 60, ?string $value = null, ?array $urls = null, ?string $access = null): string {
    $servers = new Servers($urls, $access);
    [$sent, $answer] = $servers->obtain('Once/Begin', $key, $wait, $ttl, $value);
    if ($answer['state'] !== 'RUN') {
        $recorded = base64_decode($answer['result'] ?? '');
        return $answer['state'] === 'FAILED' ? throw new Failed($recorded) : $recorded;
    }
    $attempt = new Lock($key, $servers, $ttl, $sent, $answer);
    try { $result = (string) $work($attempt); }
    catch (Failed $e) { try { throw $e; } finally { $attempt->end('Once/Finish', ['result' => base64_encode($e->getMessage()), 'failed' => true]); } }
    catch (\Throwable $e) {
        try { $attempt->unlock(); } catch (Failure) {} // the error of the work is the one that counts
        throw $e;
    }
    return closed($result, fn () => $attempt->end('Once/Finish', ['result' => base64_encode($result)]));
}

/**
 * Asks a rule of the servers (--rules) for a cost. If a server does not answer, another one may take it a second time. also: further rules,
 * ['rule' => …, 'key' => …, 'cost' => …]: all allow it, or none is taken from. reserve: the cost is an estimate.
 */
function take(string $rule, string $key = '', ?int $cost = null, ?string $tier = null, ?array $also = null, bool $reserve = false,
        ?array $urls = null, ?string $access = null): Taken {
    $servers = new Servers($urls, $access);
    $call = ['/v1/limit', ['rule' => $rule, 'key' => $key, 'cost' => $cost, 'tier' => $tier, 'also' => $also, 'reserve' => $reserve]];
    $answer = min([$cost ?? 0, ...array_column($also ?? [], 'cost')]) < 0 ? $servers->ask(...$call) : $servers->answer(...$call); // what was given back is not given back again
    return Taken::of($answer['ok'], $answer);
}

/** Tells, within an hour, what was spent of a take with reserve: the rest comes back, what is missing is taken. Only the first call counts. */
function settle(string $reservation, int $cost, ?array $urls = null, ?string $access = null): void {
    (new Servers($urls, $access))->answer('Limits/Settle', ['reservation' => $reservation, 'cost' => $cost]);
}

/** Who leads: has the lock of the key. null if nobody does. */
function leader(string $key, ?array $urls = null, ?string $access = null): ?Leader {
    $answer = (new Servers($urls, $access))->answer('Locks/Leader', ['key' => $key]);
    return $answer['led'] ? new Leader($answer['value'], (int) $answer['token']) : null;
}
