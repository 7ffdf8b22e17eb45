"""A client of baton-lab verify in Python: it locks through the agent of its host, or over HTTP, and writes down what it sees.

It gets orders from standard input, and speaks on standard output, as client.go does. Times are in nanoseconds.
"""
import http.client
import json
import os
import random
import secrets
import signal
import socket
import sys
import threading
import time

import baton

MS, S = 10**6, 10**9
BRIEF = 5 * MS
SLICE = 5 * S  # the longest wait of one call over HTTP
ORDERS = json.loads(sys.stdin.readline())
TTL, PREFIX = ORDERS["ttl"], ORDERS["prefix"]
IGNORES, LATE = (ORDERS.get("defect", "").startswith(s) for s in ("ignores the loss", "counts from the receipt"))  # planted by tests
WAIT = ORDERS["wait"]  # the longest of one attempt
WIDTH = min(ORDERS["goroutines"], 4)  # threads


def now():
    """The clock of the history."""
    return time.monotonic_ns() + ORDERS["ahead"]


def pause(d):
    time.sleep(max(d, 0) / S)


class Held(Exception):
    """It was held until the wait was over. certain: nothing was left behind."""

    def __init__(self, text, certain):
        super().__init__(text)
        self.certain = certain


class Lost(Exception):
    """The lease has ended."""


class Failed(Exception):
    """certain: nothing was done."""

    def __init__(self, text, certain=False):
        super().__init__(text)
        self.certain = certain


class AgentLease:
    """A lock of the agent, in a session of its own."""

    def __init__(self, h, wait):
        kind = {"shared": True} if h["mode"] == "shared" else {"permits": (h["weight"], h["of"])} if h["mode"] == "permits" else {}
        try:
            self.lock = baton.lock(h["key"], wait / S, path=ORDERS["socket"], **kind)
        except baton.Held as e:
            raise Held(e.args[1], wait == 0) from e
        except baton.Lost as e:
            raise Failed(e.args[1]) from e
        except baton.Error as e:
            raise Failed(f"{e.args[0]}: {e.args[1]}", e.args[0] in ("agent", "busy")) from e
        self.token, self.until = self.lock.token, 0
        if LATE:
            self.until = self.lock.session.until

    def renew(self):
        sent = now()
        try:
            self.until = sent + int(self.lock.check() * S)
        except baton.Lost as e:
            self.lock.session.close()
            if not IGNORES:
                raise Lost(e.args[1]) from e
            self.until = now() + TTL
        except baton.Error as e:  # it says that the agent has no such lock
            raise Lost(e.args[1]) from e
        if LATE:
            self.until = self.lock.session.until

    def unlock(self):
        try:
            self.lock.unlock()
        except baton.Lost as e:
            raise Lost(e.args[1]) from e
        except baton.Error as e:  # the store has not answered
            raise Failed(e.args[1]) from e

    def hang_up(self):
        self.lock.session.close()


if LATE:
    ask = baton.Session.ask

    def noting(self, do, needs=None, **fields):
        answer = ask(self, do, needs, **fields)
        if "remaining_ms" in answer:
            self.until = now() + answer["remaining_ms"] * MS
        return answer

    baton.Session.ask = noting


class Api:
    """The HTTP API, for one thread. A call goes to one server, and after a failure to the next."""

    def __init__(self):
        self.at, self.conn = ORDERS.get("first", 0), None

    def call(self, method, body, patience=0):
        """Returns the status and the answer, or None and why there is none."""
        try:
            if self.conn is None:
                replicas = ORDERS["replicas"]
                self.conn = http.client.HTTPConnection(replicas[self.at % len(replicas)], timeout=1)
                self.conn.connect()
            self.conn.sock.settimeout((patience + max(TTL / 4, S)) / S)
            self.conn.request("POST", "/baton.v1." + method, json.dumps(body), {"Content-Type": "application/json"})
            response = self.conn.getresponse()
            status, answer = response.status, json.loads(response.read())
            if status < 500:
                return status, answer
            why = answer.get("message", status)
        except (OSError, ValueError, http.client.HTTPException) as e:
            why = repr(e)
        self.close()
        self.at += 1
        return None, why

    def close(self):
        self.conn and self.conn.close()
        self.conn = None

    def until_answered(self, method, body, end):
        """Calls again until there is an answer, or end. repeated: an earlier call may have taken effect."""
        repeated = False
        while True:
            status, answer = self.call(method, body)
            if status or now() >= end:
                return status, answer, repeated
            repeated = True
            pause(20 * MS)


class HttpLease:
    def __init__(self, h, wait, api):
        self.api, self.token = api, 0
        wish = {"key": h["key"], "ttl_ms": TTL // MS}
        if h["mode"] == "shared":
            wish["shared"] = True
        if h["mode"] == "permits":
            wish |= {"permits": h["weight"], "of": h["of"]}
        body = wish | {"owner": f"baton-lab verify, client {ORDERS['client']}"}
        op, retry = secrets.token_hex(8), False
        end = now() + (wait or TTL)
        while True:
            left = max(0, min(SLICE, end - now())) if wait else 0
            sent = now()
            status, answer = api.call("Locks/Acquire", body | {"op": op, "retry": retry, "wait_ms": left // MS}, left)
            if status == 200 and answer["state"] == "HELD":
                self.token, self.handle = int(answer["token"]), answer["handle"]
                self.counts(sent, answer)
                return
            if status == 200 and answer["state"] == "REFUSED":
                raise Held("it is held", not wait)
            if status == 409 and wait:  # it was not asked for in time
                op, retry = secrets.token_hex(8), False
            elif status == 409:
                raise Failed(answer["message"])
            elif status and status != 200:
                say("failed", f"{status} {answer}")
                raise Failed(str(answer))
            else:
                retry = True
            if now() >= end:
                api.until_answered("Locks/Cancel", wish | {"op": op}, now() + TTL)
                raise Held("the wait is over", False) if status else Failed(f"no answer: {answer}")
            if status is None:
                pause(20 * MS)

    def counts(self, sent, answer):
        if LATE:
            sent = now()
        self.until = sent + answer["remaining_ms"] * MS

    def renew(self):
        sent = now()
        status, answer = self.api.call("Locks/Renew", {"handle": self.handle})
        if status == 200:
            self.counts(sent, answer)
        elif status and IGNORES:
            self.until = now() + TTL
        elif status:
            raise Lost(answer["message"])
        elif IGNORES:
            self.until = max(self.until, now() + TTL)
        elif now() >= self.until:
            raise Lost(f"not renewed in time: {answer}")

    def unlock(self):
        status, answer, repeated = self.api.until_answered("Locks/Release", {"handle": self.handle}, now() + WAIT)
        if status == 404 and not repeated:
            raise Lost(answer["message"])
        if status != 200:
            raise Failed(str(answer))

    def hang_up(self):
        self.unlock()


class Log:
    """Writes each event in one call, so that a kill loses no earlier one."""

    def __init__(self):
        self.file = os.open(ORDERS["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self.lock, self.next = threading.Lock(), 0

    def put(self, event, op, at=None, **fields):
        with self.lock:
            self.write(event, op, now() if at is None else at, fields)

    def write(self, event, op, at, fields):
        line = {"event": event, "at": at, "client": ORDERS["client"], "op": op, **fields}
        os.write(self.file, json.dumps(line).encode() + b"\n")

    def acquires(self, h):
        with self.lock:
            self.next += 1
            self.write("acquires", self.next, now(), h)
            return self.next


class Client:
    def __init__(self):
        self.lock, self.holding, self.restive = threading.Lock(), 0, 0
        self.calm = self.drain = self.stop_next = False

    def holds(self, change):
        with self.lock:
            before, self.holding = self.holding, self.holding + change
            if not before and self.holding:
                say("holds")
            if before and not self.holding:
                say("free")

    def calmed(self):
        with self.lock:
            self.restive -= 1
            self.restive == 0 and say("calm")

    def acquires(self, h):
        """Begins an attempt, or returns None in the drain."""
        with self.lock:
            return None if self.drain else LOG.acquires(h)

    def stops(self):
        with self.lock:
            stops, self.stop_next = self.stop_next, False
        if stops:
            say("stops")
            os.kill(os.getpid(), signal.SIGSTOP)


saying = threading.Lock()


def say(word, text=""):
    with saying:
        print(json.dumps({"say": word, "text": text}), flush=True)


class Worker(threading.Thread):
    def __init__(self, n, keeps=False):
        super().__init__(daemon=True)
        self.rng, self.keeps, self.calm_seen = random.Random(f"{ORDERS['seed']} {ORDERS['client']} {n}"), keeps, False
        self.api, self.register = Api(), None

    def run(self):
        try:
            while True:
                if CLIENT.calm and not self.calm_seen:
                    self.calm_seen = True
                    self.keeps or CLIENT.calmed()
                if not self.hold(self.wish()):
                    return
                pause(self.rng.random() * (60 if self.keeps or not self.rng.randrange(4) else 5) * MS)
        except Exception as e:
            say("failed", repr(e))
            raise
        finally:
            self.api.close()
            self.register and self.register.close()

    def wish(self):
        if self.keeps:
            return {"key": f"{PREFIX}own/{ORDERS['client']}", "mode": "exclusive", "waits": True}
        h = {"key": f"{PREFIX}lock/{self.rng.randrange(ORDERS['keys'])}", "mode": "exclusive", "waits": True}
        n = self.rng.randrange(95)
        if 60 <= n < 75:
            del h["waits"]
        elif 75 <= n < 85 and ORDERS.get("shared"):
            h["mode"] = "shared"
        elif 85 <= n and ORDERS.get("permitted"):
            i = self.rng.randrange(len(ORDERS["permits"]))
            of = ORDERS["permits"][i]
            h |= {"key": f"{PREFIX}permits/{i}", "mode": "permits", "of": of, "weight": 1 + self.rng.randrange(of)}
        return h

    def how_long(self):
        kind, d = self.rng.randrange(20), self.rng.random()
        if self.calm_seen or ORDERS.get("brief"):
            return d * BRIEF
        if self.keeps:
            return (2 + 4 * d) * TTL
        return d * (20 * MS if kind < 12 else TTL / 4 if kind < 17 else TTL * 3 / 2)

    def ask(self, h, wait):
        """Returns the number of the operation and the lease, if it got one. The number is None in the drain."""
        op = CLIENT.acquires(h)
        if op is None:
            return None, None
        try:
            lease = HttpLease(h, wait, self.api) if ORDERS["way"] == "http" else AgentLease(h, wait)
        except Held as e:
            LOG.put("acquired", op, result="refused" if e.certain else "unknown", error=str(e))
        except Failed as e:
            LOG.put("acquired", op, result="failed" if e.certain else "unknown", error=str(e))
            pause(20 * MS)
        else:
            LOG.put("acquired", op, result="granted", token=lease.token)
            return op, lease
        return op, None

    def hold(self, h):
        until, wait = self.how_long(), WAIT if h.get("waits") else 0
        if wait and not self.calm_seen and self.rng.randrange(10) == 0:  # not all callers are patient
            wait = 1 + int(self.rng.random() * TTL)
        op, lease = self.ask(h, wait)
        if lease:
            CLIENT.holds(1)
            if self.believe(op, h, lease, until):
                self.release(op, lease)
            CLIENT.holds(-1)
        return op is not None

    def release(self, op, lease, may_hang_up=True):
        LOG.put("releases", op)
        try:
            if not may_hang_up or ORDERS["way"] == "http" or self.rng.randrange(10):
                lease.unlock()
                LOG.put("released", op, result="granted")
            else:  # what is closed without an unlock is free as well
                lease.hang_up()
                LOG.put("released", op, result="unknown", error="hung up")
        except Lost as e:
            LOG.put("released", op, result="refused", error=str(e))
        except Failed as e:
            LOG.put("released", op, result="unknown", error=str(e))

    def believe(self, op, h, lease, hold):
        """Holds a lease for that long, and writes. Returns whether it is still valid."""
        if IGNORES or LATE:
            hold = max(hold, 2 * TTL)  # or there is seldom a loss to ignore
        end = now() + hold
        while True:
            try:
                if lease.until - now() < TTL * 0.6:
                    lease.renew()
                at = now()  # the belief lasts at least until then
                if at >= lease.until:
                    lease.renew()
                    at = now()
                    if at >= lease.until:
                        raise Lost("the time is over")
            except Lost as e:
                LOG.put("loses", op, error=str(e))
                try:
                    lease.hang_up()
                except (Lost, Failed):
                    pass  # as is to be expected
                return False
            LOG.put("believes", op, at)
            if h["mode"] == "exclusive":
                CLIENT.stops()
                self.write({"client": ORDERS["client"], "op": op, "key": h["key"], "token": lease.token})
            left = end - now()
            if left <= 0 or CLIENT.calm and hold > BRIEF:
                return True
            pause(min(left, (5 + 15 * self.rng.random()) * MS * (4 if self.keeps else 1)))

    def write(self, x):
        if self.register is None:
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(ORDERS["register"])
                self.register = s.makefile("rwb")
        self.register.write(json.dumps(x).encode() + b"\n")
        self.register.flush()
        self.register.readline()


def work(workers):
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    say("drained")


def count():
    """Takes all permits of every key with permits, one by one, and then one more."""
    w = Worker("count")
    for i, of in enumerate(ORDERS["permits"] if ORDERS.get("permitted") else []):
        h = {"key": f"{PREFIX}permits/{i}", "mode": "permits", "weight": 1, "of": of, "waits": True}
        held = {}

        def look(ahead=0.6):
            for op, lease in list(held.items()):
                try:
                    if lease.until - now() < TTL * ahead:
                        lease.renew()
                    LOG.put("believes", op, now())
                except Lost as e:
                    LOG.put("loses", op, error=str(e))
                    del held[op]

        CLIENT.drain = False  # nobody else works any more
        for _ in range(of):
            op, lease = w.ask(h, WAIT)
            if lease is None:
                break
            held[op] = lease
            look()
        look()
        op, lease = w.ask({k: v for k, v in h.items() if k != "waits"}, 0)
        if lease:
            held[op] = lease
        look()
        for op, lease in held.items():
            w.release(op, lease, may_hang_up=False)
    w.api.close()
    say("counted")


LOG, CLIENT = Log(), Client()
workers = [Worker(n) for n in range(WIDTH)] + [Worker("keeper", keeps=True)]
say("ready")
for line in sys.stdin:
    do = json.loads(line)["do"]
    if do == "begin":
        threading.Thread(target=work, args=[workers], daemon=True).start()
    elif do == "stop-at-write":
        CLIENT.stop_next = True
    elif do == "do-not-stop":
        CLIENT.stop_next = False
        say("goes-on")
    elif do == "calm":
        with CLIENT.lock:
            CLIENT.calm, CLIENT.restive = True, WIDTH
    elif do == "drain":
        with CLIENT.lock:
            CLIENT.drain = True
        say("draining")
    elif do == "count":
        threading.Thread(target=count, daemon=True).start()
    elif do == "close":
        os.close(LOG.file)
        say("closed")
os._exit(0)  # without waiting for threads that still work
