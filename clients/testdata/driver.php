<?php
// What the tests tell a process to do, in PHP: see drive in language_test.go.
declare(strict_types=1);

require __DIR__ . '/../php/baton.php';
require __DIR__ . '/../php/baton_http.php';

use Baton\{Failed, Failure, Held, Lock, Lost, Session};
use function Baton\withLock;

define('HTTP', (bool) getenv('BATON_SERVER'));
const DOOR = HTTP ? 'Baton\Http\\' : 'Baton\\';
define('USUAL', HTTP ? ['ttl' => getenv('TTL') / 1000] : []);

final class OfTheWork extends Exception {}

set_error_handler(function (int $level, string $message, string $file, int $line) {
    if (error_reporting() & $level) { // it is not one that @ expects
        throw new ErrorException($message, 0, $level, $file, $line);
    }
    return true;
});

function check(bool $right, string $what): void {
    $right || throw new LogicException($what);
}

/** @param class-string $kind */
function throws(string $kind, callable $f, string $reason = ''): Throwable {
    try {
        $f();
    } catch (Throwable $e) {
        check($e instanceof $kind && ($reason === '' || $e->reason === $reason), "it throws $e");
        return $e;
    }
    throw new LogicException("it does not throw $kind");
}

function overHTTP(string $key): void {
    $lock = Baton\Http\lock($key, ttl: 4);
    throws(Held::class, fn () => Baton\Http\lock($key, wait: 0.0004));
    $lock->unlock();
    $lock->unlock();
    throws(Lost::class, fn () => $lock->check());
    foreach ([['127.0.0.1:1'], []] as $urls) {
        throws(Failure::class, fn () => Baton\Http\lock($key, urls: $urls), 'bad');
    }
    check(Baton\Http\withLock($key, fn () => 7) === 7, 'the result is another');
    $e = throws(Lost::class, fn () => Baton\Http\withLock($key, fn () => usleep(400_000) ?? 7, ttl: 0.3));
    check($e->result === 7, "the result of the work is $e->result");
}

function api(string $key): void {
    if (HTTP) {
        overHTTP($key);
        return;
    }
    withLock($key, function (Lock $lock) use ($key) {
        $session = new Session();
        $who = $session->ask('who', key: $key)['locks'];
        check(array_column($who, 'token') === [(string) $lock->token], json_encode($who));
        $e = throws(Held::class, fn () => new Lock($key, wait: 0, session: $session));
        check(!str_contains($e->getMessage(), 'the wait is over'), (string) $e);
        $e = throws(Held::class, fn () => new Lock($key, wait: 0.0004, session: $session));
        check(str_contains($e->getMessage(), 'the wait is over'), (string) $e);
        $a = new Lock("$key/a", session: $session);
        $b = new Lock("$key/bé\"\\", session: $session);
        throws(Failure::class, fn () => new Lock("$key/a", session: $session), 'nested');
        $e = throws(Failure::class, fn () => $session->ask('lock', key: 'x', wait: 5), 'bad');
        check(str_contains($e->getMessage(), 'wait_ms'), (string) $e);
        throws(JsonException::class, fn () => new Lock("\xff", session: $session));
        $a->unlock();
        $session->close();
        throws(Lost::class, fn () => $b->check());
        $lock->unlock();
        $lock->unlock();
    }, wait: 5, maxHold: 60);
    withLock("$key/bé\"\\", fn () => null, wait: 5);
    check(withLock($key, fn () => 7) === 7, 'the result is another');
    throws(RangeException::class, fn () => withLock($key, function (Lock $lock) {
        $lock->session->close(); // a loss while the work fails
        throw new RangeException('of the work');
    }));
    $e = throws(Lost::class, fn () => withLock($key, function (Lock $lock) {
        $lock->session->close();
        return 7;
    }, wait: 5));
    check($e->result === 7, "the result of the work is $e->result");
}

$held = null;

function seconds(string $ms): float {
    return ['NaN' => NAN, 'inf' => INF][$ms] ?? $ms / 1000;
}

function run(string $verb, string ...$args): mixed {
    global $held;
    switch ($verb) {
        case 'lock':
            [$key, $wait, $bound, $mode] = $args;
            $kind = USUAL;
            $wait === '-' || $kind['wait'] = seconds($wait);
            $bound === '-' || $kind[HTTP ? 'ttl' : 'maxHold'] = seconds($bound);
            $mode !== 'shared' || $kind['shared'] = true;
            str_contains($mode, '/') && $kind['permits'] = array_map('intval', explode('/', $mode));
            isset($args[4]) && $kind['value'] = $args[4];
            $held = (DOOR . 'lock')($key, ...$kind);
            return $held->token;
        case 'try':
            $lock = (DOOR . 'tryLock')($args[0], ...USUAL);
            $held = $lock ?? $held;
            return $lock?->token ?? 'none';
        case 'forget':
            $held = null;
            return null;
        case 'once':
            $ran = 0;
            $work = function (object $attempt) use (&$ran, $args) {
                check($attempt->check() > 0, 'the attempt has no time');
                $ran = $attempt->attempts;
                switch ($args[2]) {
                    case 'fail': throw new Failed($args[3]);
                    case 'raise': throw new OfTheWork();
                    case 'block':
                        echo "ok runs\n";
                        file_get_contents($args[3]);
                }
                return $args[3];
            };
            return (DOOR . 'once')($args[0], $work, ...USUAL, ...($args[1] === '-' ? [] : ['wait' => seconds($args[1])])) . " $ran";
        case 'take':
            $taken = (DOOR . 'take')($args[0], $args[1], ...($args[2] === '-' ? [] : ['cost' => (int) $args[2]]));
            return json_encode($taken->ok) . " $taken->remaining " . ($taken->retry === INF ? -1 : (int) ($taken->retry * 1000));
        case 'settle':
            [$rule, $key, $cost, $spent] = $args;
            $taken = Baton\Http\take($rule, $key, (int) $cost, reserve: true, also: [['rule' => $rule, 'key' => "$key-also", 'cost' => (int) $cost]]);
            Baton\Http\settle($taken->reservation, (int) $spent);
            Baton\Http\settle($taken->reservation, 0);
            return "$taken->remaining " . Baton\Http\take($rule, $key, 0)->remaining . ' ' . Baton\Http\take($rule, "$key-also", 0)->remaining;
        case 'leader':
            $led = (DOOR . 'leader')($args[0]);
            return $led ? "$led->value $led->token" : 'none';
        case 'raise':
            return (DOOR . 'withLock')($args[0], fn () => throw new OfTheWork(), ...USUAL);
        case 'interrupt':
            pcntl_async_signals(true);
            pcntl_signal(SIGALRM, fn () => throw new OfTheWork());
            pcntl_alarm(1);
            try { (DOOR . 'lock')($args[0], ...USUAL); } catch (OfTheWork) { return null; }
            throw new LogicException('it is not interrupted');
        case 'check':
            return (int) floor($held->check() * 1000);
        case 'unlock':
            return $held->unlock();
        case 'spawn':
        case 'closed': // the same, with the connection closed for the child
            $descriptors = [1 => ['file', '/dev/null', 'w']];
            if ($verb === 'closed') {
                $descriptors = $held->session->descriptors($descriptors);
                check(count($descriptors) === 2, json_encode($descriptors));
            }
            $GLOBALS['child'] = proc_open(['cat', $args[0]], $descriptors, $pipes);
            return proc_get_status($GLOBALS['child'])['pid'];
        case 'fork':
            $pid = pcntl_fork();
            if ($pid === 0) {
                foreach (['check', 'unlock'] as $method) {
                    throws(Failure::class, [$held, $method], 'bad');
                }
                exit(0); // and destroys what it has
            }
            pcntl_waitpid($pid, $status);
            check($status === 0, 'the child used the session');
            return null;
        case 'count':
            for ($i = 0; $i < $args[2]; $i++) {
                (DOOR . 'withLock')($args[0], function (object $lock) use ($args) {
                    [$n, $last] = explode(' ', file_get_contents($args[1]));
                    check($lock->token > (int) $last, 'the token does not rise');
                    file_put_contents($args[1], $n + 1 . " $lock->token\n");
                }, ...USUAL);
            }
            return null;
        case 'api':
            return api($args[0]);
    }
    throw new LogicException($verb);
}

while (($line = fgets(STDIN)) !== false) {
    $e = null;
    try {
        $answer = trim('ok ' . run(...explode(' ', rtrim($line))));
    } catch (Held $e) {
        $answer = 'held ' . $e->getMessage();
    } catch (Lost $e) {
        $answer = 'lost ' . $e->getMessage();
    } catch (Failed $e) {
        $answer = 'failed ' . $e->getMessage();
    } catch (OfTheWork) {
        $answer = 'raised';
    } catch (Failure $e) {
        $answer = "error $e->reason " . $e->getMessage();
    }
    echo isset($e->result) ? "kept $e->result " : '', "$answer\n";
}
