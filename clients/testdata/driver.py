# What the tests tell a process to do, in Python: see process in language_test.go.
import gc
import os
import signal
import subprocess
import sys
import threading

import baton
import baton.http

HTTP = "BATON_SERVER" in os.environ
door = baton.http if HTTP else baton
held = None


def number(text):  # of milliseconds
    return float(text) / 1000


def kind(wait, bound, mode, value="-"):
    kind = {"ttl": number(os.environ["TTL"])} if HTTP else {}
    if wait != "-":
        kind["wait"] = number(wait)
    if bound != "-":
        kind["ttl" if HTTP else "max_hold"] = number(bound)
    if mode == "shared":
        kind["shared"] = True
    elif mode != "-":
        kind["permits"] = tuple(int(n) for n in mode.split("/"))
    if value != "-":
        kind["value"] = value
    return kind


def take(key):
    return door.lock(key, **kind("-", "-", "-"))


class OfTheWork(Exception):
    pass


def interrupt(*_):
    raise TimeoutError("of the program")


def do(verb, *args):
    global held
    if verb == "lock":
        held = door.lock(args[0], **kind(*args[1:]))
        return held.token
    if verb == "try":
        held = door.try_lock(args[0], **kind("-", "-", "-")) or held
        return held.token if held and held.key == args[0] else "none"
    if verb == "check":
        return int(held.check() * 1000)
    if verb == "unlock":
        return held.unlock()
    if verb == "forget":
        held = None
        return gc.collect() and None
    if verb == "once":
        ran = 0

        def work(attempt):
            nonlocal ran
            assert attempt.check() > 0
            ran = attempt.attempts
            if args[2] == "fail":
                raise baton.Failed(args[3])
            if args[2] == "raise":
                raise OfTheWork
            if args[2] == "block":
                print("ok runs", flush=True)
                open(args[3]).read()
            return args[3]

        return f"{door.once(args[0], work, **kind(args[1], '-', '-'))} {ran}"
    if verb == "take":
        taken = door.take(args[0], args[1], *([] if args[2] == "-" else [float(args[2]) if not args[2].lstrip("-").isdigit() else int(args[2])]))
        return f"{str(bool(taken)).lower()} {taken.remaining} {-1 if taken.retry is None else int(taken.retry * 1000)}"
    if verb == "settle":
        rule, key, cost, spent = args[0], args[1], int(args[2]), int(args[3])
        taken = door.take(rule, key, cost, reserve=True, also=[{"rule": rule, "key": key + "-also", "cost": cost}])
        door.settle(taken.reservation, spent)
        door.settle(taken.reservation, 0)
        return f"{taken.remaining} {door.take(rule, key, 0).remaining} {door.take(rule, key + '-also', 0).remaining}"
    if verb == "leader":
        led = door.leader(args[0])
        return f"{led.value} {led.token}" if led else "none"
    if verb == "raise":
        with take(args[0]):
            raise OfTheWork
    if verb == "interrupt":
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            take(args[0])
        except TimeoutError as e:
            assert e.args == ("of the program",), e
            return None
        raise AssertionError("it is not interrupted")
    if verb == "threads":
        return threads(args[0])
    if verb == "spawn":
        return subprocess.Popen(["cat", args[0]], stdout=subprocess.DEVNULL).pid
    if verb == "fork":
        if (pid := os.fork()) == 0:
            refuses("bad", held.check)
            refuses("bad", held.unlock)
            with held:
                held = None
                gc.collect()
                sys.exit()  # through the end of the block, and what Python does at exit
        assert os.waitpid(pid, 0)[1] == 0, "the child used the lock"
        return None
    if verb == "count":
        for _ in range(int(args[2])):
            with take(args[0]) as lock, open(args[1], "r+") as f:
                n, last = map(int, f.read().split())
                assert lock.token > last, "the token does not rise"
                f.seek(0)
                f.write(f"{n + 1} {lock.token}\n")
                f.truncate()
        return None
    if verb == "api":
        return api(args[0])
    raise ValueError(verb)


def refuses(code, call, *args, **fields):
    try:
        call(*args, **fields)
    except baton.Error as e:
        assert e.args[0] == code and str(e).startswith(f"{code}: "), e
        return
    raise AssertionError(f"it is not refused with {code}")


def threads(key):
    """All threads may use a session, or a lock."""
    wrong = []
    session = None if HTTP else baton.Session()
    lock = take(key)

    def use(name):
        try:
            for _ in range(5):
                assert lock.check() > 0
                if HTTP:
                    take(name).unlock()
                else:
                    own = baton.Lock(session, name)
                    own.check()
                    own.unlock()
        except BaseException as e:
            wrong.append(e)

    all = [threading.Thread(target=use, args=(f"{key}/{i}",)) for i in range(4)]
    for thread in all:
        thread.start()
    for thread in all:
        thread.join()
    assert not wrong, wrong
    lock.unlock()


def api(key):
    if HTTP:
        lock = take(key)
        lock.unlock()
        lock.unlock()
        refuses("lost", lock.check)
        refuses("bad", door.lock, key, urls=["127.0.0.1:1"])
        return
    with baton.lock(key, wait=5, max_hold=60) as lock:
        session = baton.Session()
        who = session.ask("who", key=key)["locks"]
        assert [w["token"] for w in who] == [str(lock.token)], who
        for wait in (0, 0.0004):  # which is not 0, but no wait to speak of
            try:
                baton.Lock(session, key, wait)
                assert False, "the lock is held twice"
            except baton.Held as e:
                assert e.args[0] == "held" and ("the wait is over" in e.args[1]) == (wait > 0), e
        lock.unlock()
        lock.unlock()
    a, b = baton.Lock(session, key + "/a"), baton.Lock(session, key + "/b\u00e9\"\\")
    refuses("nested", baton.Lock, session, key + "/a")
    try:
        session.ask("lock", key="x", wait=5)
        assert False, "a field that is unknown is accepted"
    except baton.Error as e:
        assert e.args[0] == "bad" and "wait_ms" in e.args[1], e
    a.unlock()
    session.close()
    refuses("lost", b.check)
    baton.lock(key + "/b\u00e9\"\\", wait=5).unlock()
    try:
        with baton.lock(key) as lock:
            lock.session.close()  # a loss while the work fails
            raise KeyError("of the work")
    except KeyError:
        pass
    try:
        with baton.lock(key, wait=5) as lock:
            lock.session.close()
        assert False, "the loss is not told"
    except baton.Lost:
        pass


signal.signal(signal.SIGINT, signal.default_int_handler)
for line in sys.stdin:
    try:
        result = do(*line.split())
        print("ok", "" if result is None else result, flush=True)
    except baton.Error as e:
        code = {baton.Held: "held", baton.Lost: "lost", baton.Failed: "failed"}.get(type(e), f"error {e.args[0]}")
        print("" if e.result is None else f"kept {e.result} ", f"{code} {e.args[1]}", sep="", flush=True)
    except OfTheWork:
        print("raised", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
