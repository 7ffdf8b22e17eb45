<?php
// What the tests tell a process to do, in PHP: see drive in language_test.go.
declare(strict_types=1);

require __DIR__ . '/../php/baton.php';

use Baton\{Failure, Held, Lock, Lost, Session};
use function Baton\withLock;

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

function api(string $key): void {
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
        throws(Failure::class, fn () => new Lock('x', wait: NAN, session: $session), 'bad');
        throws(Failure::class, fn () => new Lock('x', wait: -1, session: $session), 'bad');
        (new Lock('x', wait: INF, maxHold: INF, session: $session))->unlock();
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
    throws(Lost::class, fn () => withLock($key, fn (Lock $lock) => $lock->session->close(), wait: 5));
    $lock = new Lock($key, wait: 5);
    unset($lock); // its end is that of its session
    (new Lock($key, wait: 5))->unlock();
}

$held = null;

function run(string $verb, string ...$args): mixed {
    global $held;
    switch ($verb) {
        case 'lock':
            [$key, $wait, $maxHold, $mode] = $args;
            $held = new Lock($key, $wait === '-' ? null : $wait / 1000, $mode === 'shared',
                str_contains($mode, '/') ? array_map('intval', explode('/', $mode)) : null, $maxHold === '-' ? null : $maxHold / 1000);
            return $held->token;
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
                withLock($args[0], function (Lock $lock) use ($args) {
                    [$n, $last] = explode(' ', file_get_contents($args[1]));
                    check($lock->token > (int) $last, 'the token does not rise');
                    file_put_contents($args[1], $n + 1 . " $lock->token\n");
                });
            }
            return null;
        case 'api':
            return api($args[0]);
    }
    throw new LogicException($verb);
}

while (($line = fgets(STDIN)) !== false) {
    try {
        $answer = trim('ok ' . run(...explode(' ', rtrim($line))));
    } catch (Held $e) {
        $answer = 'held ' . $e->getMessage();
    } catch (Lost $e) {
        $answer = 'lost ' . $e->getMessage();
    } catch (Failure $e) {
        $answer = "error $e->reason " . $e->getMessage();
    }
    echo "$answer\n";
}
