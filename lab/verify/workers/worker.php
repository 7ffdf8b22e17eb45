<?php
// A client of baton-lab verify in PHP: it locks through the agent of its host, does one thing at a time, and writes down what it
// sees. It gets orders from standard input, and speaks on standard output, as client.go does. Times are in nanoseconds.
declare(strict_types=1);
require $argv[1];

const MS = 1_000_000;
const S = 1_000_000_000;
const BRIEF = 5 * MS;

$orders = json_decode(fgets(STDIN), true, flags: JSON_THROW_ON_ERROR);
stream_set_blocking(STDIN, false); // from now on orders are read between two steps
mt_srand(crc32("{$orders['seed']} {$orders['client']}"));

function draw(int $below): int { return mt_rand(0, $below - 1); }
function part(): float { return mt_rand() / (mt_getrandmax() + 1); }

final class Worker {
    private bool $calm = false, $calmSeen = false, $drain = false, $stopNext = false, $begun = false;
    private int $next = 0;
    private string $unread = '';
    private $log, $register = null;

    public function __construct(private readonly array $orders) {
        $this->log = fopen($orders['log'], 'a');
        stream_set_write_buffer($this->log, 0); // each event is one write call, so that a kill loses no earlier one
        $this->say('ready');
    }

    public function run(): never {
        while (!$this->begun) { $this->pause(S); }
        while ($this->hold($this->wish())) {
            $this->pause((int) (part() * (draw(4) ? 5 : 60) * MS));
            if ($this->calm && !$this->calmSeen) {
                $this->calmSeen = true;
                $this->say('calm');
            }
        }
        $this->say('drained');
        while (true) { $this->pause(S); }
    }

    /** The clock of the history. */
    private function now(): int { return hrtime(true) + $this->orders['ahead']; }

    private function say(string $word, string $text = ''): void { fwrite(STDOUT, json_encode(['say' => $word, 'text' => $text]) . "\n"); }

    private function put(string $event, int $op, array $fields = [], ?int $at = null): void {
        $line = ['event' => $event, 'at' => $at ?? $this->now(), 'client' => $this->orders['client'], 'op' => $op] + $fields;
        fwrite($this->log, json_encode($line, JSON_THROW_ON_ERROR | JSON_INVALID_UTF8_SUBSTITUTE) . "\n");
    }

    /** Waits for that long, and obeys meanwhile. */
    private function pause(int $d): void {
        $end = $this->now() + $d;
        do {
            $left = max(0, intdiv($end - $this->now(), 1000));
            [$in, $none] = [[STDIN], null];
            if (!stream_select($in, $none, $none, 0, $left)) { return; }
            $more = fread(STDIN, 8192);
            if (($more === '' || $more === false) && feof(STDIN)) { exit(0); }
            $lines = explode("\n", $this->unread . $more);
            $this->unread = array_pop($lines);
            foreach ($lines as $line) { $this->obey(json_decode($line, true)['do']); }
        } while ($this->now() < $end);
    }

    private function obey(string $do): void {
        switch ($do) {
            case 'begin': $this->begun = true; break;
            case 'stop-at-write': $this->stopNext = true; break;
            case 'do-not-stop': $this->stopNext = false; $this->say('goes-on'); break;
            case 'calm': $this->calm = true; break;
            case 'drain': $this->drain = true; $this->say('draining'); break;
            case 'close': $this->say('closed'); break;
        }
    }

    private function wish(): array {
        $h = ['key' => "{$this->orders['prefix']}lock/" . draw($this->orders['keys']), 'mode' => 'exclusive', 'waits' => true];
        $n = draw(95);
        if ($n >= 85 && ($this->orders['permitted'] ?? false)) {
            $i = draw(count($this->orders['permits']));
            $of = $this->orders['permits'][$i];
            return ['key' => "{$this->orders['prefix']}permits/$i", 'mode' => 'permits', 'waits' => true, 'weight' => 1 + draw($of), 'of' => $of];
        }
        if ($n >= 75 && $n < 85 && ($this->orders['shared'] ?? false)) { $h['mode'] = 'shared'; }
        if ($n >= 60 && $n < 75) { $h['waits'] = false; }
        return $h;
    }

    private function howLong(): int {
        [$kind, $d, $ttl] = [draw(20), part(), $this->orders['ttl']];
        if ($this->calmSeen || ($this->orders['brief'] ?? false)) { return (int) ($d * BRIEF); }
        return (int) ($d * ($kind < 12 ? 20 * MS : ($kind < 17 ? $ttl / 4 : $ttl * 3 / 2)));
    }

    private function hold(array $h): bool {
        $hold = $this->howLong();
        $wait = $h['waits'] ? $this->orders['wait'] : 0;
        if ($wait && !$this->calmSeen && draw(10) === 0) { $wait = 1 + (int) (part() * $this->orders['ttl']); } // not all callers are patient
        $this->pause(0);
        if ($this->drain) { return false; }
        $op = ++$this->next;
        $this->put('acquires', $op, $h);
        try {
            $session = new Baton\Session($this->orders['socket']);
            $lock = new Baton\Lock($h['key'], $wait / S, $h['mode'] === 'shared',
                $h['mode'] === 'permits' ? [$h['weight'], $h['of']] : null, null, $session);
        } catch (Baton\Failure $e) {
            $result = match (true) {
                $e instanceof Baton\Held => $wait ? 'unknown' : 'refused',
                in_array($e->reason, ['agent', 'busy'], true) => 'failed',
                default => 'unknown',
            };
            $this->put('acquired', $op, ['result' => $result, 'error' => $e->getMessage()]);
            if ($result !== 'refused') { $this->pause(20 * MS); }
            return true;
        }
        $this->put('acquired', $op, ['result' => 'granted', 'token' => $lock->token]);
        $this->say('holds');
        if ($this->believe($op, $h, $lock, $hold)) {
            $this->put('releases', $op);
            try {
                if (draw(10)) {
                    $lock->unlock();
                    $this->put('released', $op, ['result' => 'granted']);
                } else { // what is closed without an unlock is free as well
                    $this->put('released', $op, ['result' => 'unknown', 'error' => 'hung up']);
                }
            } catch (Baton\Lost $e) {
                $this->put('released', $op, ['result' => 'refused', 'error' => $e->getMessage()]);
            } catch (Baton\Failure $e) { // the store has not answered
                $this->put('released', $op, ['result' => 'unknown', 'error' => $e->getMessage()]);
            }
        }
        $session->close();
        $this->say('free');
        return true;
    }

    /** Holds a lock for that long, and writes. Returns whether it is still valid. */
    private function believe(int $op, array $h, Baton\Lock $lock, int $hold): bool {
        $ignores = str_starts_with($this->orders['defect'] ?? '', 'ignores the loss'); // planted by tests
        if ($ignores) { $hold = max($hold, 2 * $this->orders['ttl']); }
        [$end, $until] = [$this->now() + $hold, 0];
        while (true) {
            if ($until - $this->now() < 0.6 * $this->orders['ttl']) {
                $sent = $this->now();
                try { $until = $sent + (int) ($lock->check() * S); }
                catch (Baton\Failure $e) {
                    if (!$ignores) {
                        $this->put('loses', $op, ['error' => $e->getMessage()]);
                        return false;
                    }
                    $until = $this->now() + $this->orders['ttl'];
                }
            }
            $at = $this->now(); // the belief lasts at least until then
            if ($at >= $until) {
                $this->pause(MS);
                continue;
            }
            $this->put('believes', $op, at: $at);
            if ($h['mode'] === 'exclusive') {
                if ($this->stopNext) {
                    $this->stopNext = false;
                    $this->say('stops');
                    posix_kill(getmypid(), SIGSTOP);
                }
                $this->write(['client' => $this->orders['client'], 'op' => $op, 'key' => $h['key'], 'token' => $lock->token]);
            }
            $left = $end - $this->now();
            if ($left <= 0 || $this->calm && $hold > BRIEF) { return true; }
            $this->pause(min($left, 5 * MS + draw(15 * MS)));
        }
    }

    private function write(array $x): void {
        $this->register ??= stream_socket_client("unix://{$this->orders['register']}");
        fwrite($this->register, json_encode($x) . "\n");
        fgets($this->register);
    }
}

(new Worker($orders))->run();
