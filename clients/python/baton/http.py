"""Distributed locks through servers ("baton serve"), for where there is no agent:

    with baton.http.lock("invoice/42", wait=10) as lock:
        write(lock.token)            # what the lock protects refuses a lower token
        if lock.check() > 1: pay()   # the seconds that are left for a step that must not happen twice
"""
import base64
import contextlib
import errno
import http.client
import json
import math
import os
import random
import secrets
import socket
import threading
import time
import urllib.parse
import weakref
from typing import Any, Callable, Optional

from .common import Block, Error, Failed, Held, Leader, Lost, Taken, keeping, milliseconds, now

PASSING = ("unavailable", "resource_exhausted")  # of which the next attempt may know nothing
HELP = {
    "unavailable": ": start baton serve, or set BATON_SERVER or urls",
    "unauthenticated": ": give access, a token of the server's --roles",
}


def _cut(conn: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended meanwhile
        socket.socket.shutdown(conn, socket.SHUT_RDWR)


class Servers:
    """Servers that share a store and a secret. A call that one does not answer makes it the last."""

    def __init__(self, urls: Optional[list[str]] = None, access: Optional[str] = None) -> None:
        named = urls or (os.environ.get("BATON_SERVER") or "http://127.0.0.1:7420").split(",")
        self.urls = [url.strip().rstrip("/") for url in named]
        self.head = {"Content-Type": "application/json", "Connection": "close", **({"Authorization": "Bearer " + access} if access else {})}
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise Error("bad", f"{url!r} is no URL of a server, such as http://127.0.0.1:7420")

    def ask(self, call: str, patience: float = 5, **fields: Any) -> dict[str, Any]:
        """Make a call, such as "Locks/List", at the first server. It ends when patience is over, in seconds."""
        first = self.urls[0]
        url = first + (call if call.startswith("/") else f"/baton.v1.{call}")
        answer: Any = None
        try:
            status, text = self._post(url, json.dumps({k: v for k, v in fields.items() if v is not None}).encode(), patience)
            with contextlib.suppress(ValueError):
                answer = json.loads(text)
            if isinstance(answer, dict) and (status == 200 or "ok" in answer):  # a limit that is used up is no error
                return answer
            code, why = "unavailable", f"HTTP {status}, and not from baton serve"
            if isinstance(answer, dict):
                code, why = str(answer.get("code", code)), str(answer.get("message", why))
        except (OSError, UnicodeError, http.client.HTTPException) as e:
            if isinstance(e, OSError) and e.errno is None and not isinstance(e, http.client.HTTPException) and "timed out" not in str(e):
                raise  # a signal handler has raised it
            code, why = "unavailable", str(e) or repr(e)
        if code == "unavailable":
            self.urls = [url for url in self.urls if url != first] + [first]  # at once, as another thread may read it
        there = isinstance(answer, dict) and answer.get("code") == "unavailable"  # it has said what it lacks
        raise (Lost if code == "not_found" else Error)(code, f"{url}: {why}{'' if there else HELP.get(code, '')}")

    def _post(self, url: str, body: bytes, patience: float) -> tuple[int, bytes]:
        """Follows no redirect and asks no proxy of the environment: the access token is for the servers that were named."""
        at, until = urllib.parse.urlsplit(url), now() + patience
        kind = http.client.HTTPSConnection if at.scheme == "https" else http.client.HTTPConnection
        with contextlib.closing(kind(at.netloc.rpartition("@")[2], timeout=patience)) as conn:
            conn.connect()
            sock = conn.sock
            over = threading.Timer(max(0, until - now()), _cut, [sock])  # the timeout is that of one part of the answer
            over.daemon = True
            over.start()
            try:
                conn.request("POST", at.path, body, self.head)
                with conn.getresponse() as answer:
                    return answer.status, answer.read()
            except (OSError, http.client.HTTPException):
                if now() >= until:
                    raise TimeoutError(errno.ETIMEDOUT, "no answer in time") from None
                raise
            finally:
                over.cancel()

    def answer(self, call: str, until: float = math.inf, **fields: Any) -> dict[str, Any]:
        """Make a call at each server, once within the time that remains, until one has answered. A call that ends a lease goes on
        until the lease is over: its handle is good for this lease alone, so a repetition does nothing twice."""
        before: Optional[Error] = None
        began, left = now(), len(self.urls)
        while True:
            try:
                return self.ask(call, min(5, max(1, (until - now()) / left)), **fields)
            except Error as e:
                if e.args[0] == "not_found" and call == "Locks/Release" and (before or began < until <= now()):
                    return {}  # the server before has done it, or it has expired since this began. An outcome was not recorded
                before, pause = e, random.uniform(0.1, 0.3)
                if e.args[0] not in PASSING or left == 1 and not ("handle" in fields and now() + pause < until):
                    raise
            if left == 1:
                time.sleep(pause)
            left = max(1, left - 1)

    def obtain(self, call: str, key: str, wait: Optional[float], ttl: float, owner: Optional[str], kind: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        """Wait in turns for a lock, or an attempt. Returns when the call was sent that got it, and the answer."""
        limit, ttl_ms, began = milliseconds("wait", wait), milliseconds("ttl", ttl), now()
        if not ttl_ms:
            raise Error("bad", f"ttl is {ttl}: it must be a number of seconds above 0")
        op, retry, heard, silent = secrets.token_urlsafe(16), False, began, 0
        try:
            while True:
                sent = now()
                rest = math.inf if limit is None else max(0, began + limit / 1000 - sent)
                turn = min(rest, 1)  # of a client that dies between two calls the position ends after a second and a half
                try:
                    answer = self.ask(call, turn + 5, key=key, op=op, ttl_ms=ttl_ms, wait_ms=math.ceil(turn * 1000), retry=retry, owner=owner, **kind)
                    if _state(answer) not in ("WAITING", "REFUSED", "BUSY"):
                        return sent, answer
                    who = ", ".join(h["owner"] for h in answer.get("holders", [])) or "another client"
                    error, heard, retry, silent = Held("held", f"{key!r} is held by {who}"), now(), True, 0
                except Error as e:
                    error, silent = e, silent + 1
                    if e.args[0] == "aborted":  # a lease came and went while its answer was lost
                        op, retry = secrets.token_urlsafe(16), False
                    elif e.args[0] == "unavailable":
                        retry = True
                    else:
                        raise
                    time.sleep(min(0.1, rest))
                if rest <= turn and not 0 < silent < len(self.urls) or now() > heard + 30:  # no server answers
                    raise error
        except BaseException as e:  # an interrupt, too
            if retry or not isinstance(e, Error):  # a server may have a position, or a lease
                with contextlib.suppress(Error):
                    once = True if call == "Once/Begin" else None
                    self.answer("Locks/Cancel", now() + 2, key=key, op=op, ttl_ms=ttl_ms, once=once, **kind)
            raise


def _state(answer: dict[str, Any]) -> str:
    try:
        if answer["state"] in ("HELD", "RUN"):
            answer["remaining_ms"] + int(answer["token"]), answer["handle"]
        return answer["state"] + ""
    except (LookupError, TypeError, ValueError):
        raise Error("unavailable", f"what answers there is not baton serve{HELP['unavailable']}") from None


class Lock(Block):
    """A lock that is held, and which a thread renews. Its methods are for all threads."""

    def __init__(self, key: str, servers: Servers, ttl: float, sent: float, answer: dict[str, Any]) -> None:
        self.key, self.token, self.attempts = key, int(answer["token"]), int(answer.get("attempts", 1))
        self._until, self._handle, self._ended = sent + answer["remaining_ms"] / 1000, answer["handle"], threading.Event()
        self._pid, self._servers, self._ttl = os.getpid(), servers, ttl
        self._why: Optional[Error] = None
        self._lost = False  # and was told so
        threading.Thread(target=_keep, args=(weakref.ref(self), self._ended, servers, ttl / 3, self._handle), daemon=True).start()

    def _renew(self) -> float:
        """Returns the pause until the next time."""
        sent = now()
        try:
            answer = self._servers.ask("Locks/Renew", min(5, self._ttl / 4, self._until - sent), handle=self._handle)
            self._handle = answer.get("handle") or self._handle  # the secret of the servers is being replaced
            if self._until > now():  # else it has ended, whatever the store says
                self._until, self._why = max(self._until, sent + answer.get("remaining_ms", 0) / 1000), None
            return self._ttl / 3
        except Error as e:
            self._why = e
            if e.args[0] not in PASSING:
                self._until = 0
            return self._ttl / 12  # soon again, if no server answers

    def _own(self) -> None:
        if os.getpid() != self._pid:
            raise Error("bad", f"the lock {self.key!r} belongs to the parent process: take another in this one")

    def check(self) -> float:
        """The seconds for which the lock is certain from now. Asks no server. Raises Lost."""
        self._own()
        if self._lost or self._ended.is_set() or (left := self._until - now()) <= 0:
            self._lost = True
            raise Lost("lost", f"the lock {self.key!r} has ended" + (f": {self._why}" if self._why else ""))
        return left

    def unlock(self) -> None:
        """Unlock, as long as the lock lasts if no server answers. Raises Lost if the lock had ended before. A second call does nothing."""
        self._end("Locks/Release")

    def _end(self, call: str, **fields: Any) -> None:
        self._own()
        if not self._ended.is_set():
            self._ended.set()
            over = self._lost or self._until <= now()
            with contextlib.suppress(Error) if over and not fields else contextlib.nullcontext():
                self._servers.answer(call, self._until, handle=self._handle, **fields)
            if over and not fields:  # what was recorded of an operation stands
                self.check()  # which raises Lost

    def __enter__(self) -> "Lock":
        return self


def _keep(lock: Any, ended: threading.Event, servers: Servers, pause: float, handle: str) -> None:
    while not ended.wait(pause):
        if (held := lock()) is None:  # the program has forgotten it
            with contextlib.suppress(Error):
                servers.answer("Locks/Release", 0, handle=handle)
            return
        if held._lost or held._until - now() < 0.001:
            return
        pause, handle = held._renew(), held._handle
        del held


def lock(key: str, wait: Optional[float] = None, *, ttl: float = 15, urls: Optional[list[str]] = None, access: Optional[str] = None,
         shared: bool = False, permits: Optional[tuple[int, int]] = None, value: Optional[str] = None) -> Lock:
    """Lock a key. wait: seconds, 0 is not at all, None as long as it takes. ttl: how long the lock outlives a client that dies.
    urls: of servers that share a secret. access: a token of theirs. permits: n, of. value: shown as the holder, a leader's name."""
    servers, (n, of) = Servers(urls, access), permits or (None, None)
    return Lock(key, servers, ttl, *servers.obtain("Locks/Acquire", key, wait, ttl, value, {"shared": shared, "permits": n, "of": of}))


def try_lock(key: str, **kind: Any) -> Optional[Lock]:
    """A Lock, or None if another process has it."""
    try:
        return lock(key, 0, **kind)
    except Held:
        return None


def once(key: str, work: Callable[[Lock], Optional[str]], wait: Optional[float] = None, *, ttl: float = 15, urls: Optional[list[str]] = None,
         access: Optional[str] = None, value: Optional[str] = None) -> str:
    """Run an operation unless it has succeeded before, record what work returns, and return what is recorded. If work raises
    Failed, it has failed for good; after any other error the next call runs it. Above 1, attempts of the Lock that work gets
    says that an earlier one was not finished, and may have had effects."""
    servers = Servers(urls, access)
    sent, answer = servers.obtain("Once/Begin", key, wait, ttl, value, {})
    if answer["state"] != "RUN":
        result = base64.b64decode(answer.get("result", "")).decode(errors="replace")
        if answer["state"] == "FAILED":
            raise Failed(result)
        return result
    attempt = Lock(key, servers, ttl, sent, answer)
    try:
        result = work(attempt) or ""
        encoded = base64.b64encode(result.encode()).decode()
    except Failed as e:
        attempt._end("Once/Finish", result=base64.b64encode(e.args[1].encode()).decode(), failed=True)
        raise
    except BaseException:
        with contextlib.suppress(Error):
            attempt.unlock()
        raise
    with keeping(result):
        attempt._end("Once/Finish", result=encoded)
    return result


def take(rule: str, key: str = "", cost: Optional[int] = None, *, tier: Optional[str] = None, also: Optional[list[dict[str, Any]]] = None,
         reserve: bool = False, urls: Optional[list[str]] = None, access: Optional[str] = None) -> Taken:
    """Ask a rule of the servers (--rules) for a cost. If a server does not answer, another one may take it a second time.
    also: further rules, {"rule": …, "key": …, "cost": …}: all allow it, or none is taken from. reserve: the cost is an estimate."""
    if cost is not None and not isinstance(cost, int):
        raise Error("bad", f"cost is {cost}: it must be a whole number")
    servers = Servers(urls, access)
    call = servers.ask if min(r.get("cost") or 0 for r in [{"cost": cost}, *(also or [])]) < 0 else servers.answer  # what was given back is not given back again
    answer = call("/v1/limit", rule=rule, key=key, cost=cost, tier=tier, also=also, reserve=reserve)
    return Taken.of(answer["ok"], answer)


def settle(reservation: str, cost: int, *, urls: Optional[list[str]] = None, access: Optional[str] = None) -> None:
    """Tell, within an hour, what was spent of a take with reserve: the rest comes back, what is missing is taken. Only the first call counts."""
    Servers(urls, access).answer("Limits/Settle", reservation=reservation, cost=cost)


def leader(key: str, *, urls: Optional[list[str]] = None, access: Optional[str] = None) -> Optional[Leader]:
    """Who leads: has the lock of the key. None if nobody does."""
    answer = Servers(urls, access).answer("Locks/Leader", key=key)
    return Leader(answer["value"], int(answer["token"])) if answer["led"] else None
