"use strict";
// All that comes from a store reaches the document as text, by textContent: the policy of
// the page forbids everything else.
(() => {
const $ = (id) => document.getElementById(id);
const words = JSON.parse($("words").textContent);

// What the user chose is remembered, where the browser allows that.
const kept = (place, key, value) => {
  try {
    const store = window[place]; // a browser that allows no storage throws here
    if (value === undefined) return store.getItem(key);
    value === null ? store.removeItem(key) : store.setItem(key, value);
  } catch { /* not allowed */ }
  return null;
};

const tabs = ["locks", "limits", "once", "events"];
const orders = { locks: ["", "waiting", "longest", "oldest", "ends"], limits: ["", "used", "share", "reset"], once: ["", "newest", "attempts"], events: [""] };
const state = {
  tab: "locks", prefix: "", from: 0, open: "", seq: 0, start: "",
  order: { locks: "", limits: "share", once: "newest", events: "" },
  lang: Object.hasOwn(words, kept("localStorage", "baton.lang") || "") ? kept("localStorage", "baton.lang") : document.documentElement.lang,
  theme: kept("localStorage", "baton.theme") || "auto",
  token: kept("sessionStorage", "baton.token") || "",
};
// A server may give its token in the fragment, which browsers do not send.
const given = /^#token=([\w.~+/=-]+)$/.exec(location.hash);
if (given) {
  state.token = given[1];
  kept("sessionStorage", "baton.token", state.token);
  history.replaceState(null, "", location.pathname + location.search);
}

let model = empty();
let kinds = ["locks"];
function empty() { return { rows: new Map(), keys: [], list: null, hot: [], detail: null, failed: "", fresh: new Set() }; }
let events = [];
let clock = 0; // that of the server less ours, in ms
const now = () => performance.now() + clock;

// Words.

function t(word, values) {
  const text = words[state.lang][word] ?? words.en[word] ?? word;
  return values ? text.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "") : text;
}
const number = (n) => new Intl.NumberFormat(state.lang).format(n);

function span(ms, exact) {
  if (ms < 1000 && exact) return t("ms", { n: Math.max(0, Math.round(ms)) });
  const s = Math.max(0, ms) / 1000;
  if (s < 9.95) return t("s", { n: s.toFixed(1) });
  if (s < 60) return t("s", { n: Math.floor(s) });
  if (s < 3600) return t("min", { n: Math.floor(s / 60), rest: String(Math.floor(s % 60)).padStart(2, "0") });
  if (s < 86400) return t("h", { n: Math.floor(s / 3600), rest: String(Math.floor(s % 3600 / 60)).padStart(2, "0") });
  return t("d", { n: Math.floor(s / 86400), rest: Math.floor(s % 86400 / 3600) });
}

function period(ms) {
  for (const [unit, size] of [["day", 86400000], ["hour", 3600000], ["minute", 60000], ["second", 1000]]) {
    if (ms % size === 0) return new Intl.NumberFormat(state.lang, { style: "unit", unit, unitDisplay: "narrow" }).format(ms / size);
  }
  return t("ms", { n: ms });
}

// Spaces at the ends, and several together, are shown: keys that differ in them differ.
const shown = (text) => text.replace(/^ +| +$| {2,}/g, (s) => "␣".repeat(s.length));
const label = (of) => shown(of.name ?? of.key);

// The document.

function put(node, text) { if (node.textContent !== text) node.textContent = text; }
function el(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}
function toggle(node, className, on) { node.classList.toggle(className, !!on); }

// fill gives parent one child for each item, keeps those that have the same key, and the
// focus where it is.
function fill(parent, items, keyOf, make, update) {
  const focus = document.activeElement;
  const old = new Map();
  for (const node of parent.children) old.set(node.dataset.key, node);
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let node = old.get(key);
    if (node) old.delete(key); else { node = make(item); node.dataset.key = key; }
    if (node === at) at = at.nextElementSibling; else parent.insertBefore(node, at);
    update(node, item);
  }
  for (const node of old.values()) node.remove();
  if (focus && focus !== document.activeElement && focus.isConnected) focus.focus({ preventScroll: true });
}

function keyButton(onOpen) {
  const button = el("button", "key");
  button.type = "button";
  button.addEventListener("click", () => onOpen(button.dataset.lock));
  return button;
}
const openLock = (key) => look({ open: key, tab: state.tab === "events" ? "events" : "locks" }, true);

// Columns of each list. make builds a cell, show fills it.

function owner(cell, row) {
  if (!cell.firstChild) cell.append(el("span", "name"), el("span", "tag"));
  const [name, tag] = cell.children;
  const unknown = !row.owner;
  put(name, unknown ? (row.holders === 0 ? "–" : t("unknownOwner")) : shown(row.owner));
  toggle(name, "muted", unknown);
  let more = row.holders > 1 ? t("and", { n: number(row.holders - 1) }) : "";
  if (row.foreign) more = more ? t("foreign") + ", " + more : t("foreign");
  put(tag, more);
  tag.hidden = !more;
}
const mode = (m) => m === "exclusive" || m === "shared" ? t("mode." + m) : m;

const columns = {
  locks: [
    ["key", "", (cell, row) => {
      const [key, tag] = keyCell(cell, row);
      const special = row.asksFor !== undefined ? t("request") : row.mode && row.mode !== "exclusive" ? mode(row.mode) : "";
      put(tag, special);
      tag.hidden = !special;
      toggle(tag, "ask", row.asksFor !== undefined);
      key.setAttribute("aria-expanded", String(state.open === row.key));
    }],
    ["heldBy", "wide", owner],
    ["heldFor", "num", (cell, row) => put(cell, row.since ? span(now() - row.since) : "–")],
    ["timeLeft", "num", (cell, row) => {
      const left = row.ends ? row.ends - now() : 0;
      put(cell, !row.ends ? "–" : left <= 0 ? t("ended") : span(left));
      toggle(cell, "soon", row.ends && left < 2000);
    }],
    ["waiting", "num", (cell, row) => {
      put(cell, !row.waiters ? "–" : row.longest ? t("waitingSince", { n: number(row.waiters), time: span(now() - row.longest) }) : number(row.waiters));
      toggle(cell, "many", row.waiters > 0);
      toggle(cell, "muted", !row.waiters);
    }],
    ["token", "num mono wide", (cell, row) => put(cell, row.token ?? "–")],
  ],
  limits: [
    ["key", "", (cell, row) => { const [, tag] = keyCell(cell, row, true); put(tag, t("kind." + row.kind)); }],
    ["used", "num wide", (cell, row) => {
      if (!cell.firstChild) {
        const use = el("div", "use"), gauge = el("div", "gauge");
        gauge.append(el("i"));
        use.append(el("span"), gauge);
        cell.append(use);
      }
      const [figure, gauge] = cell.firstChild.children;
      put(figure, row.of ? t("ofAll", { n: number(row.used), of: number(row.of) }) : row.used ? number(row.used) : "–");
      gauge.hidden = !row.of;
      if (row.of) {
        gauge.firstChild.style.width = Math.min(100, 100 * row.used / row.of) + "%";
        toggle(gauge, "full", row.used >= row.of);
      }
    }],
    ["rate", "num", (cell, row) => put(cell, row.n && row.period ? t("perPeriod", { n: number(row.n), time: period(row.period) }) : "–")],
    ["fresh", "num", (cell, row) => put(cell, row.reset ? span(row.reset - now()) : "–")],
  ],
  once: [
    ["key", "", (cell, row) => {
      const [, tag] = keyCell(cell, row, true);
      tag.hidden = true;
      if (!cell.children[1]) cell.append(el("div", "why"));
      put(cell.children[1], row.why ?? "");
      cell.children[1].hidden = !row.why;
    }],
    ["state", "", (cell, row) => {
      if (!cell.firstChild) cell.append(el("span", "tag"));
      put(cell.firstChild, t("state." + row.state) + (row.exit ? " · " + t("exit", { n: row.exit }) : ""));
      toggle(cell.firstChild, "good", row.state === "done");
      toggle(cell.firstChild, "bad", row.state === "failed" || row.state === "final");
    }],
    ["attempts", "num", (cell, row) => { put(cell, number(row.attempts)); toggle(cell, "many", row.attempts > 1 && (row.state === "begun" || row.state === "failed")); }],
    ["lastBy", "wide", owner],
    ["took", "num", (cell, row) => put(cell, row.took ? span(row.took, true) : "–")],
    ["last", "num", (cell, row) => put(cell, row.last ? t("ago", { time: span(Date.now() - row.last) }) : "–")],
    ["keptFor", "num", (cell, row) => put(cell, row.until ? span(row.until - now()) : "–")],
  ],
  events: [],
};

function keyCell(cell, row, plain) {
  if (!cell.firstChild) {
    const box = el("div", "keycell");
    box.append(plain ? el("span", "key") : keyButton(openLock), el("span", "tag"));
    cell.append(box);
  }
  const [key, tag] = cell.firstChild.children;
  put(key, label(row));
  key.dataset.lock = row.key;
  return [key, tag];
}

function drawTable() {
  const cols = columns[state.tab];
  fill($("head"), cols, ([name]) => state.tab + name, () => { const th = el("th"); th.setAttribute("role", "columnheader"); th.scope = "col"; return th; },
    (th, [name, className]) => { put(th, t(name)); th.className = className.includes("num") ? "num" : className; });
  const rows = model.keys.map((key) => model.rows.get(key)).filter(Boolean);
  fill($("rows"), rows, (row) => state.tab + "\n" + row.key, () => {
    const tr = el("tr");
    tr.setAttribute("role", "row");
    for (const [, className] of cols) {
      const td = el("td", className);
      td.setAttribute("role", "cell");
      tr.append(td);
    }
    return tr;
  }, (tr, row) => {
    toggle(tr, "open", state.tab === "locks" && row.key === state.open);
    if (model.fresh.has(row.key)) { tr.classList.remove("changed"); void tr.offsetWidth; tr.classList.add("changed"); }
    cols.forEach(([name, , show], i) => {
      const td = tr.children[i];
      if (td.dataset.label !== t(name)) td.dataset.label = t(name);
      show(td, row);
      toggle(td, "none", td.textContent === "–");
    });
  });
  model.fresh.clear();
  const list = model.list, read = list && list.read;
  put($("caption"), t(state.tab));
  $("table").hidden = !rows.length; // a table without rows is none for a screen reader
  $("empty").hidden = rows.length > 0 || state.tab === "events";
  put($("empty"), !read ? (list && list.soFar ? t("readingSoFar", { n: number(list.soFar) }) : t("reading"))
    : state.prefix ? t("emptyPrefix", { prefix: shown(state.prefix) }) : t("empty." + state.tab));
  $("pager").hidden = !read || list.total <= 50;
  if (read) {
    put($("range"), t("range", { from: number(list.from + 1), to: number(list.from + rows.length), total: number(list.total) }));
    $("prev").disabled = list.from === 0;
    $("next").disabled = list.from + 50 >= list.total;
  }
}

function drawHot() {
  const hot = state.tab === "events" ? [] : model.hot;
  $("hot").hidden = !hot.length;
  put($("hotTitle"), t(state.tab === "limits" ? "hot.limits" : "hot.locks"));
  fill($("hotList"), hot, (one) => state.tab + one.key, () => {
    const tab = state.tab; // a click may come when another one was chosen, and is not drawn yet
    const li = el("li"), button = el("button");
    button.type = "button";
    button.append(el("span", "key"), el("b"));
    button.addEventListener("click", () => tab === "locks" ? openLock(button.dataset.lock) : search(button.dataset.lock, tab));
    li.append(button);
    return li;
  }, (li, one) => {
    const button = li.firstChild;
    button.dataset.lock = one.key;
    put(button.firstChild, label(one));
    put(button.lastChild, number(one.n));
    toggle(button.lastChild, "bad", one.refused);
    button.title = state.tab === "limits" ? t("hot.asked", { n: number(one.n), refused: number(one.refused ?? 0) }) : t("hot.waiting", { n: number(one.n) });
  });
}

function facts(parent, all) {
  fill(parent, all.filter(Boolean).map((text, i) => ({ i, text })), (f) => f.i, () => el("span"), (node, f) => put(node, f.text));
}
function person(li) {
  const row = el("div", "row");
  row.append(el("span", "name strong"), el("span", "tag"));
  const box = el("div");
  box.append(row, el("div", "facts"));
  li.append(box);
  return li;
}
function drawPerson(box, one, more) {
  const [name, tag] = box.firstChild.children;
  put(name, one.owner ? shown(one.owner) : t("unknownOwner"));
  put(tag, [mode(one.mode ?? ""), one.foreign ? t("foreign") : ""].filter(Boolean).join(", "));
  tag.hidden = !tag.textContent;
  facts(box.lastChild, [one.since && t("heldFor") + " " + span(now() - one.since), one.ends && t("timeLeft") + " " + (one.ends > now() ? span(one.ends - now()) : t("ended")), one.token && t("token") + " " + one.token, ...more]);
}

function drawDetail() {
  const d = model.detail, open = state.open && state.tab !== "limits" && state.tab !== "once";
  document.body.classList.toggle("opened", !!open);
  $("detail").hidden = !open;
  if (!open) return;
  const known = d && d.key === state.open ? d : { key: state.open, holders: [], waiters: [], asked: [], unknown: true };
  put($("detailKind"), known.asksFor !== undefined ? t("requestFor", { key: known.asksFor }) : t("lock"));
  put($("detailKey"), label(known));
  $("ask").hidden = known.asksFor !== undefined;
  $("ask").disabled = $("break").disabled = !known.holders.length || !!known.denied;
  $("denied").hidden = !known.denied;
  put($("denied"), known.denied ? t("denied", { reason: known.denied }) : "");
  $("asked").hidden = !known.asked.length;
  fill($("asked").lastElementChild, known.asked.map((reason, i) => ({ i, reason })), (a) => a.i, () => el("li", "name"), (li, a) => put(li, shown(a.reason)));
  put($("holdersTitle"), known.holders.length ? t("holders", { n: number(known.holders.length) }) : known.unknown ? t("reading") : t("free"));
  fill($("holders"), known.holders.map((h, i) => ({ i, h })), (x) => x.i + "\n" + x.h.grant, () => person(el("li")), (li, { h }) => drawPerson(li.firstChild, h, []));
  put($("waitersTitle"), known.waiters.length ? t("waiters", { n: number(known.waiters.length) }) : known.unknown ? "" : t("nobodyWaits"));
  fill($("waiters"), known.waiters.map((w, i) => ({ i, w })), (x) => x.i, () => { const li = el("li"); li.append(el("span", "pos")); return person(li); }, (li, { i, w }) => {
    put(li.firstChild, String(i + 1));
    const box = li.lastChild, [name, tag] = box.firstChild.children;
    put(name, w.owner ? shown(w.owner) : t("unknownOwner"));
    put(tag, w.mode && w.mode !== "exclusive" ? mode(w.mode) : "");
    tag.hidden = !tag.textContent;
    facts(box.lastChild, [w.since && t("waiting") + " " + span(now() - w.since)]);
  });
  $("detailMore").hidden = !known.more;
  put($("detailMore"), known.more ? t("notShown", { n: number(known.more) }) : "");
}

const clockTime = (ms) => new Date(ms).toLocaleTimeString(state.lang, { hour12: false });

function drawEvents() {
  const only = $("trouble").checked;
  const all = events.filter((e) => !only || e.trouble).slice(-300).reverse();
  $("noEvents").hidden = all.length > 0;
  fill($("eventList"), all, (e) => e.seq, () => {
    const li = el("li"), box = el("div"), line = el("div");
    line.append(el("span", "what"), keyButton(openLock));
    box.append(line, el("div", "facts"), el("div", "why"));
    li.append(el("time"), box);
    return li;
  }, (li, e) => {
    toggle(li, "bad", e.trouble);
    put(li.firstChild, clockTime(e.time));
    const [line, about, why] = li.lastChild.children;
    put(line.firstChild, t("event." + e.what));
    put(line.lastChild, e.key ? label(e) : "");
    line.lastChild.hidden = !e.key;
    line.lastChild.dataset.lock = e.key;
    put(about, [e.took ? t("after", { time: span(e.took, true) }) : "", e.token ? t("token") + " " + e.token : ""].filter(Boolean).join(" · "));
    about.hidden = !about.textContent;
    put(why, e.error ?? "");
    why.hidden = !e.error;
  });
}

let connected = false, trouble = "";
function drawStatus() {
  const s = $("status"), list = model.list;
  const age = list && list.read ? Math.max(0, now() - list.at) : -1;
  toggle(s, "live", connected && !model.failed);
  toggle(s, "gone", !connected && trouble);
  toggle(s, "late", connected && model.failed);
  put($("age"), !connected ? t(trouble ? "gone" : "connecting") : age < 0 ? t("live") : t("age", { age: span(age) }));
  $("alarm").hidden = !(model.failed && connected);
  put($("alarm"), model.failed && connected ? t("failed", { error: model.failed }) : "");
  put($("about"), age < 0 ? "" : [t("about", { age: span(age), took: span(list.took, true), every: span(list.every, true) }), state.tab === "locks" ? t("aboutRows") : "", list.more ? t("aboutMore") : ""].filter(Boolean).join(state.lang === "en" ? " " : ""));
}

function drawTabs() {
  document.body.dataset.tab = state.tab;
  fill($("tabs"), tabs.filter((tab) => tab === "events" || kinds.includes(tab)), (tab) => tab, (tab) => {
    const button = el("button");
    button.type = "button";
    button.id = "tab-" + tab;
    button.setAttribute("role", "tab");
    button.append(el("span"), el("span", "n"));
    button.addEventListener("click", () => look({ tab, from: 0, open: "" }));
    return button;
  }, (button, tab) => {
    const on = tab === state.tab;
    button.setAttribute("aria-selected", String(on));
    button.setAttribute("aria-controls", tab === "events" ? "events" : "panel");
    button.tabIndex = on ? 0 : -1;
    put(button.firstChild, t(tab));
    put(button.lastChild, on && model.list && model.list.read ? number(model.list.total) : "");
  });
  $("panel").setAttribute("aria-labelledby", "tab-" + state.tab);
  fill($("order"), orders[state.tab], (o) => state.tab + o, () => el("option"), (option, o) => { option.value = o; put(option, t("order." + (o || "key"))); });
  $("order").value = state.order[state.tab];
}

function drawWords() {
  const root = document.documentElement;
  root.lang = state.lang;
  state.theme === "auto" ? delete root.dataset.theme : (root.dataset.theme = state.theme);
  for (const node of document.querySelectorAll("[data-t]")) put(node, t(node.dataset.t));
  for (const node of document.querySelectorAll("[data-t-label]")) { node.setAttribute("aria-label", t(node.dataset.tLabel)); node.title = t(node.dataset.tLabel); }
  for (const node of document.querySelectorAll("[data-t-hint]")) node.placeholder = t(node.dataset.tHint);
  const help = $("helpList");
  help.textContent = "";
  for (const [keys, word] of [["/", "search"], ["j k ↓ ↑", "rows"], ["Enter", "open"], ["n p", "pages"], ["1 2 3 4", "tabs"], ["o", "order"], ["a", "ask"], ["b", "break"], ["l", "language"], ["t", "theme"], ["Esc", "close"], ["?", "help"]]) {
    const dt = el("dt");
    keys.split(" ").forEach((key) => dt.append(el("kbd", "", key), " "));
    help.append(dt, el("dd", "", t("keys." + word)));
  }
}

let drawing = false;
function draw() { // once for all changes of one moment
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    // One that fails keeps none of the others from saying what they know.
    for (const one of [drawStatus, drawTabs, drawTable, drawHot, drawDetail, drawEvents, drawAct]) {
      try { one(); } catch (error) { reportError(error); }
    }
  });
}
setInterval(() => { if (!document.hidden) draw(); }, 500);

function say(text) { $("say").textContent = ""; requestAnimationFrame(() => put($("say"), text)); }

// The stream of frames.

let stream = null, pause = 500, lastFrame = 0, acts = 0;

// rest ends the stream. A browser has six connections to a server without TLS, for all its
// tabs together: a tab that is not seen needs none, and an act needs one.
function rest() {
  if (stream) stream.abort();
  stream = null;
}
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    rest();
    connected = false;
    trouble = "";
  } else if (!stream) connect();
  draw();
});

// look changes what is shown, and asks the server for it.
function look(change, focusDetail) {
  const before = state.tab;
  Object.assign(state, change);
  if (before !== state.tab) { const fresh = empty(); fresh.detail = model.detail; fresh.failed = model.failed; model = fresh; }
  connect();
  draw();
  if (focusDetail) requestAnimationFrame(() => { if (!$("detail").hidden) $("detail").focus({ preventScroll: true }); });
}

const headers = () => Object.assign({ "Content-Type": "application/json" }, state.token ? { Authorization: "Bearer " + state.token } : {});

async function connect() {
  rest();
  if (document.hidden || acts) return;
  const mine = stream = new AbortController();
  lastFrame = performance.now();
  try {
    const answer = await fetch("page/watch", {
      method: "POST", headers: headers(), signal: mine.signal, cache: "no-store",
      body: JSON.stringify({ kind: state.tab === "events" ? "" : state.tab, prefix: state.prefix, order: state.order[state.tab], from: state.from, open: state.open, seq: state.seq }),
    });
    if (!answer.ok) {
      const problem = await answer.json().catch(() => ({ error: "gone" }));
      if (answer.status === 401) return login(state.token ? t("error.token") : "");
      throw new Error(problem.message);
    }
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = "", first = true; ;) {
      const { value, done } = await reader.read();
      if (done) break;
      rest += value;
      for (let end; (end = rest.indexOf("\n")) >= 0; rest = rest.slice(end + 1)) {
        apply(JSON.parse(rest.slice(0, end)), first);
        first = false;
      }
    }
  } catch (error) {
    if (mine.signal.aborted) return;
    trouble = String(error);
  }
  if (stream !== mine) return;
  connected = false;
  trouble = trouble || "ended";
  draw();
  setTimeout(() => { if (stream === mine) connect(); }, pause);
  pause = Math.min(5000, pause * 2);
}
// A connection that is silent for longer than the server ever is does not live.
setInterval(() => { if (connected && performance.now() - lastFrame > 15000) connect(); }, 3000);

function apply(frame, first) {
  connected = true;
  trouble = "";
  pause = 500;
  lastFrame = performance.now();
  clock = frame.now - performance.now();
  if (frame.hello) {
    kinds = frame.hello.kinds;
    put($("store"), frame.hello.store);
    put($("caller"), frame.hello.caller);
    if (state.start && state.start !== frame.hello.start) {
      events = [];
      if (state.seq) { state.start = frame.hello.start; state.seq = 0; return void connect(); }
    }
    state.start = frame.hello.start;
    document.title = "Baton · " + frame.hello.store;
  }
  const before = first ? new Map() : model.rows;
  if (first) model = empty();
  for (const row of frame.rows ?? []) {
    const old = before.get(row.key);
    if (old && changed(old, row)) model.fresh.add(row.key);
    model.rows.set(row.key, row);
  }
  for (const part of ["list", "keys", "hot", "detail", "failed"]) if (part in frame) model[part] = frame[part];
  if (frame.list) state.from = frame.list.from;
  if (frame.keys) {
    const on = new Set(frame.keys);
    for (const key of model.rows.keys()) if (!on.has(key)) model.rows.delete(key);
  }
  for (const e of frame.events ?? []) {
    if (e.seq > state.seq) events.push(e);
    state.seq = Math.max(state.seq, e.seq);
  }
  if (events.length > 600) events = events.slice(-300);
  draw();
}
const changed = (a, b) => a.owner !== b.owner || a.token !== b.token || a.grant !== b.grant || a.holders !== b.holders || a.state !== b.state;

function login(error) {
  connected = false;
  $("loginError").hidden = !error;
  put($("loginError"), error);
  if (!$("login").open) $("login").showModal();
  $("accessToken").focus();
}
$("login").addEventListener("cancel", (e) => e.preventDefault());
$("loginForm").addEventListener("submit", (e) => {
  e.preventDefault();
  state.token = $("accessToken").value.trim();
  kept("sessionStorage", "baton.token", state.token);
  $("accessToken").value = "";
  $("login").close();
  connect();
});

// Break and ask.

let acting = null; // { what, key, holders: as the person saw them }
function act(what) {
  const d = model.detail;
  if (!d || d.key !== state.open || !d.holders.length || d.denied || $(what).hidden) return;
  acting = { what, key: d.key, name: label(d), holders: d.holders };
  for (const [id, word] of [["actTitle", "Title"], ["actAbout", "About"], ["actDo", "Do"]]) put($(id), t(what + word));
  put($("actKey"), acting.name);
  $("actDo").className = what === "break" ? "fill" : "primary";
  $("sureLabel").hidden = what !== "break";
  $("sure").required = what === "break";
  $("sure").checked = false;
  $("reason").value = "";
  actError("");
  $("act").showModal();
  $("reason").focus();
  drawAct();
}
function actError(text) { $("actError").hidden = !text; put($("actError"), text); }

const grants = (holders) => JSON.stringify(holders.map((h) => h.grant));

function drawAct() {
  if (!acting) return;
  const d = model.detail;
  if (d && d.key === acting.key && grants(d.holders) !== grants(acting.holders)) {
    acting.holders = d.holders;
    if ($("sure").checked || acting.what === "break") { $("sure").checked = false; actError(t("breakChanged")); }
  }
  fill($("actHolders"), acting.holders.slice(0, 100).map((h, i) => ({ i, h })), (x) => x.i, () => person(el("li")), (li, { h }) => drawPerson(li.firstChild, h, []));
}
$("actCancel").addEventListener("click", () => $("act").close());
$("act").addEventListener("close", () => { acting = null; });
$("actForm").addEventListener("submit", async (e) => {
  e.preventDefault();
  if (!acting) return;
  const mine = acting;
  $("actDo").disabled = true;
  actError("");
  acts++;
  rest();
  try {
    const answer = await fetch("page/" + mine.what, {
      method: "POST", headers: headers(), cache: "no-store", signal: AbortSignal.timeout(20000), // the server takes half of it
      body: JSON.stringify({ key: mine.key, reason: $("reason").value, grants: mine.holders.map((h) => h.grant) }),
    });
    if (answer.ok) {
      say(t(mine.what + "Done"));
      if (acting === mine) $("act").close();
    } else {
      const problem = await answer.json().catch(() => ({ error: "bad", message: "" }));
      if (acting === mine) actError(t("error." + problem.error, { message: problem.message }));
      $("sure").checked = false;
    }
  } catch {
    if (acting === mine) actError(t("error.gone"));
  }
  acts--;
  connect();
  $("actDo").disabled = false;
});
$("ask").addEventListener("click", () => act("ask"));
$("break").addEventListener("click", () => act("break"));

// Controls.

function close() {
  if (!state.open) return;
  const key = state.open;
  look({ open: "" });
  const button = [...document.querySelectorAll("#rows button.key")].find((b) => b.dataset.lock === key);
  (button ?? $("panel")).focus({ preventScroll: true });
}
$("close").addEventListener("click", close);

let typing = 0;
function search(prefix, tab = state.tab) {
  $("prefix").value = prefix;
  look({ tab, prefix, from: 0 });
}
$("prefix").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => search($("prefix").value), 200); });
$("order").addEventListener("change", () => { state.order[state.tab] = $("order").value; look({ from: 0 }); });
const turn = (by) => {
  const list = model.list;
  const from = state.from + by;
  if (!list || !list.read || from < 0 || from >= list.total) return;
  look({ from });
  scrollTo({ top: 0 });
};
$("prev").addEventListener("click", () => turn(-50));
$("next").addEventListener("click", () => turn(50));
$("trouble").addEventListener("change", draw);

function language() {
  state.lang = state.lang === "en" ? "zh-Hans" : "en";
  kept("localStorage", "baton.lang", state.lang);
  drawWords(); draw();
}
function theme() {
  state.theme = { auto: "light", light: "dark", dark: "auto" }[state.theme] ?? "auto";
  kept("localStorage", "baton.theme", state.theme);
  drawWords();
  say(t({ auto: "themeAuto", light: "themeLight", dark: "themeDark" }[state.theme]));
}
$("lang").addEventListener("click", language);
$("theme").addEventListener("click", theme);
const help = () => $("help").showModal();
$("keys").addEventListener("click", help);
$("helpClose").addEventListener("click", () => $("help").close());

$("tabs").addEventListener("keydown", (e) => {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
  if (!by) return;
  const all = [...$("tabs").children], at = all.findIndex((b) => b === document.activeElement);
  const next = all[(at + by + all.length) % all.length];
  next.focus();
  next.click();
});

function step(by) {
  const all = [...document.querySelectorAll("#rows button.key")];
  if (!all.length) return;
  const at = all.indexOf(document.activeElement);
  const opened = all.findIndex((b) => b.dataset.lock === state.open);
  const from = at >= 0 ? at : opened;
  const next = all[from < 0 ? (by > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, from + by))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (e) => {
  const at = document.activeElement;
  if (e.ctrlKey || e.metaKey || e.altKey || document.querySelector("dialog[open]")) return;
  const field = at && (at.tagName === "INPUT" && at.type !== "checkbox" || at.tagName === "SELECT");
  if (e.key === "Escape") {
    if (field) {
      if (at === $("prefix") && at.value) search("");
      at.blur();
    } else close();
    return;
  }
  if (field) return;
  const todo = {
    "/": () => { $("prefix").focus(); $("prefix").select(); },
    "?": help, l: language, t: theme, a: () => act("ask"), b: () => act("break"),
    j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1),
    n: () => turn(50), p: () => turn(-50), o: () => $("order").focus(),
  }[e.key];
  const tab = "1234".indexOf(e.key) >= 0 && e.key.length === 1 ? tabs[Number(e.key) - 1] : undefined;
  if (tab && (tab === "events" || kinds.includes(tab))) look({ tab, from: 0, open: "" });
  else if (todo) todo();
  else return;
  e.preventDefault();
});

drawWords();
draw();
connect();
})();
