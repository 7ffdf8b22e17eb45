"""Distributed locks through servers ("baton serve"), for where there is no agent:

    with baton_http.lock("invoice/42", wait=10) as lock:
        write(lock.token)            # what the lock protects refuses a lower token
        if lock.check() > 1: pay()   # the seconds that are left for a step that must not happen twice
"""
import contextlib
import http.client
import json
import math
import os
import secrets
import threading
import time
import urllib.error
import urllib.request
import weakref
from typing import Any, Optional

import baton
from baton import now

PASSING = ("unavailable", "resource_exhausted")  # of which the next attempt may know nothing


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None  # the access token is for the servers that were named, and no other


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stay)  # nor is it for a proxy of the environment


def ask(urls: list[str], access: Optional[str], call: str, wait: float = 0, patience: float = 5, **fields: Any) -> dict[str, Any]:
    """Make a call, such as "Locks/List". If the first server does not answer the next call goes to the second, and so on."""
    first = urls[0]
    head = {"Content-Type": "application/json", **({"Authorization": "Bearer " + access} if access else {})}
    url = f"{first}/baton.v1.{call}"
    try:
        request = urllib.request.Request(url, json.dumps(fields).encode(), head)
        with _direct.open(request, timeout=wait + patience) as answer:
            return json.load(answer)
    except (OSError, ValueError, http.client.HTTPException) as e:
        error = {}
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            error = json.load(e) if isinstance(e, urllib.error.HTTPError) else error
        if (code := error.get("code", "unavailable")) == "unavailable":
            urls[:] = [url for url in urls if url != first] + [first]  # at once, as another thread may read it
        kind = baton.Lost if code == "not_found" else baton.Error
        raise kind(code, f"{url}: {error.get('message', e)}") from e


def end(urls: list[str], access: Optional[str], call: str, until: float, **fields: Any) -> None:
    """Make a call that ends something at each server, once within the time that remains, until one has answered."""
    before: Optional[baton.Error] = None
    began = now()
    for left in range(len(urls), 0, -1):
        try:
            ask(urls, access, call, patience=min(5, max(1, (until - now()) / left)), **fields)
            return
        except baton.Error as e:
            if e.args[0] == "not_found" and (before or began < until <= now()):
                return  # the server before has done it, or it has expired since this began
            before = e
            if e.args[0] not in PASSING:
                raise
    raise before or baton.Error("bad", "there is no server")


class Lock(baton.Lock):
    """A lock that is held, and which a thread renews. Its methods are for all threads."""

    def __init__(self, key: str, servers: tuple[list[str], Optional[str]], ttl: float, sent: float, answer: dict[str, Any]) -> None:
        self.key, self.token, self._until = key, int(answer["token"]), sent + answer["remaining_ms"] / 1000
        self._pid, self._servers, self._ttl, self._handle, self._ended = os.getpid(), servers, ttl, answer["handle"], threading.Event()
        self._why: Optional[baton.Error] = None
        self._lost = False  # and was told so
        threading.Thread(target=_keep, args=(weakref.ref(self), self._ended, servers, ttl / 3, self._handle), daemon=True).start()

    def _renew(self) -> float:
        """Returns the pause until the next time."""
        sent = now()
        try:
            answer = ask(*self._servers, "Locks/Renew", patience=min(5, self._ttl / 4, self._until - sent), handle=self._handle)
            if self._until > now():  # else it has ended, whatever the store says
                self._until, self._why = max(self._until, sent + answer["remaining_ms"] / 1000), None
            return self._ttl / 3
        except baton.Error as e:
            self._why = e
            if e.args[0] not in PASSING:
                self._until = 0
            return self._ttl / 12  # soon again, if no server answers

    def _own(self) -> None:
        if os.getpid() != self._pid:
            raise baton.Error("bad", f"the lock {self.key!r} is that of the process that forked: take another")

    def check(self) -> float:
        """The seconds for which the lock is certain from now. Asks no server. Raises Lost."""
        self._own()
        if self._lost or self._ended.is_set() or (left := self._until - now()) <= 0:
            self._lost = True
            raise baton.Lost("lost", f"the lock {self.key!r} has ended" + (f": {self._why}" if self._why else ""))
        return left

    def unlock(self) -> None:
        """Unlock, at another server if one does not answer. Raises Lost if the lock had ended before. A second call does nothing."""
        self._own()
        if not self._ended.is_set():
            self._ended.set()
            over = self._lost or self._until <= now()
            end(*self._servers, "Locks/Release", self._until, handle=self._handle)
            if over:
                self.check()  # which raises Lost


def _keep(lock: Any, ended: threading.Event, servers: Any, pause: float, handle: str) -> None:
    while not ended.wait(pause):
        if (held := lock()) is None:  # the program has forgotten it
            with contextlib.suppress(baton.Error):
                end(*servers, "Locks/Release", 0, handle=handle)
            return
        if held._lost or held._until - now() < 0.001:
            return
        pause = held._renew()
        del held


def lock(key: str, wait: Optional[float] = None, *, ttl: float = 15, urls: Optional[list[str]] = None, access: Optional[str] = None,
         **kind: Any) -> Lock:
    """Lock a key. wait: seconds, 0 is not at all, None as long as it takes. ttl: how long the lock outlives a client that dies.
    urls: of servers that share a secret. access: a token of theirs. kind: shared=True; permits=2, of=10; owner="shown"."""
    named = urls or (os.environ.get("BATON_SERVER") or "http://127.0.0.1:7420").split(",")
    servers = [url.strip().rstrip("/") for url in named], access
    limit, ttl_ms, began = baton.milliseconds("wait", wait), baton.milliseconds("ttl", ttl), now()
    if not ttl_ms:
        raise baton.Error("bad", f"ttl is {ttl}: it is a number of seconds above 0")
    op, retry, heard, silent = secrets.token_urlsafe(16), False, began, 0
    try:
        while True:
            sent = now()
            rest = math.inf if limit is None else max(0, began + limit / 1000 - sent)
            turn = min(rest, 1)  # of a client that dies between two calls the position ends after a second and a half
            try:
                answer = ask(*servers, "Locks/Acquire", turn, key=key, op=op, ttl_ms=ttl_ms, wait_ms=math.ceil(turn * 1000), retry=retry, **kind)
                if answer["state"] == "HELD":
                    return Lock(key, servers, ttl, sent, answer)
                error, heard, retry, silent = baton.Held("held", f"{key!r} is held by {answer['holders']}"), now(), True, 0
            except baton.Error as e:
                error, silent = e, silent + 1
                if e.args[0] == "aborted":  # a lease came and went while its answer was lost
                    op, retry = secrets.token_urlsafe(16), False
                elif e.args[0] == "unavailable":
                    retry = True
                else:
                    raise
                time.sleep(min(0.1, rest))
            if rest <= turn and not 0 < silent < len(servers[0]) or now() > heard + 30:  # no server answers
                raise error
    except BaseException as e:  # an interrupt, too
        if retry or not isinstance(e, baton.Error):  # a server may have a position, or a lease
            with contextlib.suppress(baton.Error):
                end(*servers, "Locks/Cancel", now() + 2, key=key, op=op, ttl_ms=ttl_ms, **{k: v for k, v in kind.items() if k != "owner"})
        raise
