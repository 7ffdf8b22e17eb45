# What the tests tell a process to do, in Python: see drive in language_test.go.
import gc
import os
import signal
import subprocess
import sys
import threading

import baton
import baton_http

held = None


def take(key, **kind):
    if "BATON_SERVER" not in os.environ:
        return baton.lock(key, **kind)
    if "permits" in kind:
        kind["permits"], kind["of"] = kind["permits"]
    return baton_http.lock(key, ttl=4, **kind)


def kind(wait, max_hold, mode):
    kind = {}
    if wait != "-":
        kind["wait"] = int(wait) / 1000
    if max_hold != "-":
        kind["max_hold"] = int(max_hold) / 1000
    if mode == "shared":
        kind["shared"] = True
    elif mode != "-":
        kind["permits"] = tuple(int(n) for n in mode.split("/"))
    return kind


def do(verb, *args):
    global held
    if verb == "lock":
        held = take(args[0], **kind(*args[1:]))
        return held.token
    if verb == "check":
        return int(held.check() * 1000)
    if verb == "unlock":
        return held.unlock()
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


def over_http(key):
    for fields in ({"wait": float("nan")}, {"wait": -1}, {"ttl": float("nan")}, {"ttl": 0}, {"ttl": float("inf")}):
        refuses("bad", baton_http.lock, key, **fields)
    slashes = [url + "/" for url in os.environ["BATON_SERVER"].split(",")]
    lock = baton_http.lock(key, float("inf"), urls=slashes)
    refuses("held", baton_http.lock, key, 0, urls=slashes)
    lock.unlock()
    lock.unlock()
    refuses("lost", lock.check)
    forgotten = baton_http.lock(key, ttl=30)
    forgotten.check()
    del forgotten
    baton_http.lock(key, wait=20).unlock()  # long before its time is over


def api(key):
    if "BATON_SERVER" in os.environ:
        return over_http(key)
    for wait in (float("nan"), -1):
        refuses("bad", baton.lock, key, wait)
    baton.lock(key, float("inf"), max_hold=float("inf")).unlock()
    threads(key)

    def alarm(*_):
        raise TimeoutError("of the program")

    signal.signal(signal.SIGALRM, alarm)
    with baton.lock(key):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            baton.lock(key)
            raise AssertionError("it does not wait")
        except TimeoutError as e:
            assert e.args == ("of the program",), e
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
    try:
        baton.Lock(session, key + "/a")
        assert False, "a lock waits for itself"
    except baton.Error as e:
        assert e.args[0] == "nested", e
    try:
        session.ask("lock", key="x", wait=5)
        assert False, "a field that is unknown is accepted"
    except baton.Error as e:
        assert e.args[0] == "bad" and "wait_ms" in e.args[1], e
    a.unlock()
    session.close()
    try:
        b.check()
        assert False, "a lock outlives its session"
    except baton.Lost:
        pass
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


def threads(key):
    """All threads may use a session."""
    session, wrong = baton.Session(), []

    def use(name):
        try:
            for _ in range(50):
                lock = baton.Lock(session, name)
                lock.check()
                lock.unlock()
        except BaseException as e:
            wrong.append(e)

    all = [threading.Thread(target=use, args=(f"{key}/{i}",)) for i in range(4)]
    for thread in all:
        thread.start()
    for thread in all:
        thread.join()
    assert not wrong, wrong


signal.signal(signal.SIGINT, signal.default_int_handler)
for line in sys.stdin:
    try:
        result = do(*line.split())
        print("ok", "" if result is None else result, flush=True)
    except baton.Held as e:
        print("held", e, flush=True)
    except baton.Lost as e:
        print("lost", e, flush=True)
    except baton.Error as e:
        print("error", *e.args, flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
