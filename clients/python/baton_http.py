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
from typing import Any, Optional

import baton


def now() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))  # goes on while the machine is suspended


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None  # the access token is for the servers that were named, and no other


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stay)  # nor is it for a proxy of the environment


def ask(urls: list[str], access: Optional[str], call: str, wait: float = 0, patience: float = 5, **fields: Any) -> dict[str, Any]:
    """Make a call, such as "Locks/List". If the first server does not answer the next call goes to the second, and so on."""
    first = urls[0]
    head = {"Content-Type": "application/json", **({"Authorization": "Bearer " + access} if access else {})}
    request = urllib.request.Request(f"{first}/baton.v1.{call}", json.dumps(fields).encode(), head)
    try:
        with _direct.open(request, timeout=wait + patience) as answer:
            return json.load(answer)
    except (OSError, ValueError, http.client.HTTPException) as e:
        error = {}
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            error = json.load(e) if isinstance(e, urllib.error.HTTPError) else error
        if (code := error.get("code", "unavailable")) == "unavailable":
            urls[:] = [url for url in urls if url != first] + [first]  # at once, as another thread may read it
        kind = baton.Lost if code == "not_found" else baton.Error
        raise kind(code, f"{request.full_url}: {error.get('message', e)}") from e


class Lock(baton.Lock):
    """A lock that is held, and which a thread renews. Its methods are for all threads."""

    def __init__(self, key: str, ask: Any, ttl: float, sent: float, answer: dict[str, Any]) -> None:
        self.key, self.token, self._until = key, int(answer["token"]), sent + answer["remaining_ms"] / 1000
        self._ask, self._ttl, self._handle, self._ended = ask, ttl, answer["handle"], threading.Event()
        self._why: Optional[baton.Error] = None
        threading.Thread(target=self._renew, daemon=True).start()

    def _renew(self) -> None:
        pause = self._ttl / 3
        while not self._ended.wait(pause) and self._until > now():
            try:
                sent, pause = now(), self._ttl / 12  # soon again, if no server answers
                answer = self._ask("Locks/Renew", patience=min(5, self._ttl / 4), handle=self._handle)
                self._until, pause = max(self._until, sent + answer["remaining_ms"] / 1000), self._ttl / 3
                self._why = None
            except baton.Error as e:
                self._why = e
                if e.args[0] not in ("unavailable", "resource_exhausted"):
                    self._until = 0

    def check(self) -> float:
        """The seconds for which the lock is certain from now. Asks no server. Raises Lost."""
        if self._ended.is_set() or (left := self._until - now()) <= 0:
            raise baton.Lost("lost", f"the lock {self.key!r} has ended" + (f": {self._why}" if self._why else ""))
        return left

    def unlock(self) -> None:
        """Unlock. Raises Lost if the lock had ended before. A second call does nothing."""
        if not self._ended.is_set():
            self._ended.set()
            self._ask("Locks/Release", handle=self._handle)


def lock(key: str, wait: Optional[float] = None, *, ttl: float = 15, urls: Optional[list[str]] = None, access: Optional[str] = None,
         **kind: Any) -> Lock:
    """Lock a key. wait: seconds, 0 is not at all, None as long as it takes. ttl: how long the lock outlives a client that dies.
    urls: of servers that share a secret. access: a token of theirs. kind: shared=True; permits=2, of=10; owner="shown"."""
    servers, began = list(urls or os.environ.get("BATON_SERVER", "http://127.0.0.1:7420").split(",")), now()
    call = lambda *args, **fields: ask(servers, access, *args, **fields)  # noqa: E731
    op, retry, heard, silent = secrets.token_urlsafe(16), False, began, 0
    while True:
        sent = now()
        rest = math.inf if wait is None else max(0, began + wait - sent)
        turn = min(rest, 1)  # of a client that dies between two calls the position ends after a second and a half
        try:
            answer = call("Locks/Acquire", turn, key=key, op=op, ttl_ms=math.ceil(ttl * 1000), wait_ms=math.ceil(turn * 1000),
                          retry=retry, **kind)
            if answer["state"] == "HELD":
                return Lock(key, call, ttl, sent, answer)
            error, heard, retry, silent = baton.Held("held", f"{key!r} is held by {answer['holders']}"), now(), True, 0
        except baton.Error as e:
            error, retry, silent = e, True, silent + 1
            if e.args[0] == "aborted":  # a lease came and went while its answer was lost
                op, retry = secrets.token_urlsafe(16), False
            elif e.args[0] != "unavailable":
                raise
            time.sleep(min(0.1, rest))
        if rest <= turn and not 0 < silent < len(servers) or now() > heard + 30:  # no server answers
            with contextlib.suppress(baton.Error):
                call("Locks/Cancel", key=key, op=op, ttl_ms=math.ceil(ttl * 1000), **{k: v for k, v in kind.items() if k != "owner"})
            raise error
