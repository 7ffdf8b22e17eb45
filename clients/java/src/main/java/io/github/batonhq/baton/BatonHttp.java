package io.github.batonhq.baton;

import java.math.BigInteger;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;

/**
 * Distributed locks through servers ("baton serve"), for where there is no agent. Its methods are for all threads, also virtual ones.
 *
 * <pre>{@code
 * var servers = new BatonHttp(List.of("http://127.0.0.1:7420"), null);
 * try (Baton.Lock lock = servers.lock("invoice/42", new Baton.Kind().within(Duration.ofSeconds(10)))) {
 *     write(lock.token);                          // what the lock protects refuses a lower token
 *     if (lock.check().toMillis() > 1000) pay();  // the time that is left for a step that must not happen twice
 * }
 * }</pre>
 */
public final class BatonHttp {
    // It follows no redirect, and asks no proxy: the access token is for the servers that were named.
    private static final HttpClient CLIENT = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).proxy(HttpClient.Builder.NO_PROXY).build();
    private static final SecureRandom RANDOM = new SecureRandom();
    private static final List<String> PASSING = List.of("unavailable", "resource_exhausted"); // of which the next attempt may know nothing
    private static final Map<String, String> HELP = Map.of("unavailable", ": start baton serve, or set BATON_SERVER or urls",
        "unauthenticated", ": give access, a token of the server's --roles");
    private static final boolean LINUX = Baton.uptime() > 0; // nanoTime stands still while the machine is suspended
    private static final long S = 1_000_000_000, GRAIN = LINUX ? S / 100 : 0;
    private final String access;
    private volatile List<String> urls;
    /** The servers of the variable BATON_SERVER, with commas between. */
    public BatonHttp() { this(List.of(Objects.requireNonNullElse(System.getenv("BATON_SERVER"), "http://127.0.0.1:7420").split(",")), null); }

    /** Servers that share a store and a secret. If one does not answer, the next is asked. access is a token of theirs, or null. */
    public BatonHttp(List<String> urls, String access) {
        this.urls = urls.stream().map(url -> url.strip().replaceAll("/+$", "")).toList();
        this.access = access;
        for (String url : urls.isEmpty() ? List.of("") : this.urls) {
            if (!url.matches("https?://[^/].*")) throw new Baton.Failure("bad", "\"" + url + "\" is no URL of a server, such as http://127.0.0.1:7420");
        }
    }

    private static long now() { return LINUX ? Baton.uptime() : System.nanoTime(); }
    /** Makes a call, such as "Locks/List", at the first server. It ends when patience is over. */
    public Map<String, Object> ask(String call, Map<String, ?> fields, Duration patience) { return ask(call, fields, patience.toNanos()); }

    private Map<String, Object> ask(String call, Map<String, ?> fields, long patience) {
        String first = urls.get(0), url = first + (call.startsWith("/") ? call : "/baton.v1." + call), code = "unavailable", why = "";
        var request = HttpRequest.newBuilder(URI.create(url)).header("Content-Type", "application/json").POST(HttpRequest.BodyPublishers.ofString(Json.write(fields)));
        if (access != null) request.header("Authorization", "Bearer " + access);
        boolean there = false;
        var sent = CLIENT.sendAsync(request.build(), HttpResponse.BodyHandlers.ofString(StandardCharsets.UTF_8));
        try {
            HttpResponse<String> answer = sent.get(patience, TimeUnit.NANOSECONDS); // the timeout of HttpClient ends with the header
            why = "HTTP " + answer.statusCode() + ", and not from baton serve";
            Map<String, Object> body = Json.read(answer.body().strip());
            if (answer.statusCode() == 200 || body.containsKey("ok")) return body; // a limit that is used up is no error
            there = Objects.equals(body.get("code"), code); // it has said what it lacks
            code = "" + body.getOrDefault("code", code);
            why = "" + body.getOrDefault("message", why);
        } catch (TimeoutException e) {
            why = "no answer in time";
        } catch (ExecutionException e) {
            why = Objects.requireNonNullElse(e.getCause().getMessage(), "it cannot be reached (" + e.getCause().getClass().getSimpleName() + ")");
        } catch (IllegalArgumentException e) {
            // why says so
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new Baton.Failure("interrupted", url + ": the thread was interrupted");
        } finally {
            sent.cancel(true);
        }
        if (code.equals("unavailable")) { // the next call goes to the next server
            var next = new ArrayList<>(urls);
            if (next.remove(first)) next.add(first);
            urls = next;
        }
        throw Baton.failure(code, url + ": " + why + (there ? "" : HELP.getOrDefault(code, "")));
    }

    /**
     * Makes a call at each server, once within the time that remains, until one has answered. A call that ends a lease goes on until the
     * lease is over: its handle is good for this lease alone, so a repetition does nothing twice. An interrupt does not end it.
     */
    private Map<String, Object> answer(String call, Map<String, ?> fields, long until) {
        boolean interrupted = Thread.interrupted();
        try {
            long began = now();
            Baton.Failure before = null;
            for (int left = urls.size();; left = Math.max(1, left - 1)) {
                try {
                    return ask(call, fields, Math.min(5 * S, Math.max(S, (until - now()) / left)));
                } catch (Baton.Failure e) {
                    // The server before has done it, or it has expired since this began. An outcome was not recorded.
                    if (e instanceof Baton.Lost && call.equals("Locks/Release") && (before != null || began < until && until <= now())) return Map.of();
                    boolean again = e.code.equals("interrupted") && Thread.interrupted();
                    long pause = S / 10 + RANDOM.nextInt((int) S / 5);
                    if (!again && (!PASSING.contains(e.code) || left == 1 && !(fields.containsKey("handle") && now() + pause < until))) throw e;
                    if (!again && left == 1) pause(pause);
                    interrupted |= again;
                    left += again ? 1 : 0;
                    before = e;
                }
            }
        } finally {
            if (interrupted) Thread.currentThread().interrupt();
        }
    }

    private static String draw() { return new BigInteger(128, RANDOM).setBit(128).toString(36); }

    /** What a call has got that was sent then. */
    private record Got(Map<String, Object> answer, long sent, long ttl) {}

    private Got obtain(String call, String key, Baton.Kind kind) { // waits in turns
        Map<String, Object> what = new HashMap<>(Map.of("key", key));
        long ttl = (kind.ttl == null ? Duration.ofSeconds(15) : kind.ttl).toNanos(), began = now(), heard = began;
        what.put("ttl_ms", Baton.Kind.milliseconds(Duration.ofNanos(ttl)));
        if (ttl == 0) throw new Baton.Failure("bad", "ttl is 0: it must be above 0");
        if (kind.fields.containsKey("max_hold_ms")) throw new Baton.Failure("bad", "maxHold is for the agent: the ttl bounds a lock over HTTP");
        if ("shared".equals(kind.fields.get("mode"))) what.put("shared", true);
        if ("permits".equals(kind.fields.get("mode"))) what.putAll(Map.of("permits", kind.fields.get("n"), "of", kind.fields.get("of")));
        long limit = kind.fields.get("wait_ms") instanceof Long ms ? ms * (S / 1000) : Long.MAX_VALUE / 2;
        String op = draw();
        boolean retry = false;
        try {
            for (int silent = 0;;) {
                long sent = now(), rest = Math.max(0, limit - (sent - began)), turn = Math.min(rest, S); // of a client that dies between two calls
                Map<String, Object> request = new HashMap<>(what); // the position ends after a second and a half
                request.putAll(Map.of("op", op, "retry", retry, "wait_ms", (turn + 999_999) / 1_000_000));
                if (kind.fields.containsKey("value")) request.put("owner", kind.fields.get("value"));
                Baton.Failure failure;
                try {
                    Map<String, Object> answer = ask(call, request, turn + 5 * S);
                    Object state = answer.get("state");
                    if ("HELD".equals(state) || "RUN".equals(state)) {
                        if (!(answer.get("remaining_ms") instanceof Long && answer.get("handle") instanceof String) || !("" + answer.get("token")).matches("\\d{1,18}")) state = null;
                    }
                    if (!(state instanceof String)) throw new Baton.Failure("unavailable", "what answers there is not baton serve" + HELP.get("unavailable"));
                    if (!List.of("WAITING", "REFUSED", "BUSY").contains(state)) return new Got(answer, sent, ttl);
                    String who = ((List<?>) answer.getOrDefault("holders", List.of())).stream().map(h -> "" + ((Map<?, ?>) h).get("owner")).collect(Collectors.joining(", "));
                    failure = new Baton.Held("\"" + key + "\" is held by " + (who.isEmpty() ? "another client" : who));
                    heard = now();
                    retry = true;
                    silent = 0;
                } catch (Baton.Failure e) {
                    failure = e;
                    silent++;
                    switch (e.code) {
                        case "aborted" -> { op = draw(); retry = false; } // a lease came and went while its answer was lost
                        case "unavailable" -> retry = true;
                        case "interrupted" -> { retry = true; throw e; }
                        default -> throw e;
                    }
                    pause(Math.min(S / 10, rest));
                }
                if (rest <= turn && !(silent > 0 && silent < urls.size()) || now() > heard + 30 * S) throw failure; // or no server answers
            }
        } catch (RuntimeException e) {
            if (retry) { // a server may have a position, or a lease
                what.put("op", op);
                if (call.equals("Once/Begin")) what.put("once", true);
                try {
                    answer("Locks/Cancel", what, now() + 2 * S);
                } catch (Baton.Failure left) {
                    e.addSuppressed(left);
                }
            }
            throw e;
        }
    }

    private static void pause(long nanos) {
        try {
            TimeUnit.NANOSECONDS.sleep(nanos);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt(); // which the next call sees
        }
    }

    /** A lock, which a thread renews until it is closed. */
    public Baton.Lock lock(String key, Baton.Kind kind) { return new Lease(key, obtain("Locks/Acquire", key, kind)); }

    /** A lock, or null if another process has it. */
    public Baton.Lock tryLock(String key, Baton.Kind kind) { return Baton.orNull(() -> lock(key, kind.copy().within(Duration.ZERO))); }

    /**
     * Runs an operation unless it has succeeded before, records the text that work returns, and returns what is recorded. If work
     * throws Failed, it has failed for good; after anything else that it throws the next call runs it.
     */
    public <E extends Exception> String once(String key, Baton.Kind kind, Baton.Work<E> work) throws E {
        Got got = obtain("Once/Begin", key, kind);
        if (!"RUN".equals(got.answer.get("state"))) {
            String recorded = new String(Base64.getDecoder().decode((String) got.answer.getOrDefault("result", "")), StandardCharsets.UTF_8);
            if ("FAILED".equals(got.answer.get("state"))) throw new Baton.Failed(recorded);
            return recorded;
        }
        try (Lease attempt = new Lease(key, got)) { // whose end gives up an attempt that is not finished
            return Baton.run(work, attempt, (failed, text) -> attempt.end("Once/Finish",
                Map.of("failed", failed, "result", Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8)))));
        }
    }

    /** Asks a rule of the servers (--rules) for a cost. If a server does not answer, another one may take it a second time. */
    public Taken take(String rule, String key, long cost) {
        var asked = Map.of("rule", rule, "key", key, "cost", cost);
        var answer = cost < 0 ? ask("/v1/limit", asked, 5 * S) : answer("/v1/limit", asked, Long.MAX_VALUE); // it is not given back again
        return Taken.of(Objects.equals(answer.get("ok"), true), answer);
    }

    /** Who leads: has the lock of the key. */
    public Optional<Leader> leader(String key) {
        var said = answer("Locks/Leader", Map.of("key", key), Long.MAX_VALUE);
        return Objects.equals(said.get("led"), true) ? Optional.of(new Leader("" + said.get("value"), Long.parseLong("" + said.get("token")))) : Optional.empty();
    }

    private final class Lease extends Baton.Lock {
        private final long ttl;
        private final CountDownLatch ended = new CountDownLatch(1);
        private final AtomicBoolean held = new AtomicBoolean(true);
        private volatile String handle;
        private volatile long until;
        private volatile Baton.Failure why;

        Lease(String key, Got got) {
            super(key, got.answer, name -> Long.parseLong("" + got.answer.get(name)));
            handle = (String) got.answer.get("handle");
            ttl = got.ttl;
            until = got.sent + (Long) got.answer.get("remaining_ms") * (S / 1000);
            Thread keeper = new Thread(this::keep, "baton " + key);
            keeper.setDaemon(true);
            keeper.start();
        }

        private void keep() {
            try {
                for (long pause = ttl / 3; !ended.await(pause, TimeUnit.NANOSECONDS) && until - now() > GRAIN;) pause = renew();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt(); // nothing interrupts it
            }
        }

        private long renew() {
            long sent = now(), end = until;
            try {
                Map<String, Object> answer = ask("Locks/Renew", Map.of("handle", handle), Math.min(Math.min(5 * S, ttl / 4), end - sent));
                if (answer.get("handle") instanceof String next && !next.isEmpty()) handle = next; // the secret of the servers is being replaced
                if (end > now() && answer.get("remaining_ms") instanceof Long left) until = Math.max(end, sent + left * (S / 1000));
                return ttl / 3;
            } catch (Baton.Failure e) {
                why = e;
                if (!PASSING.contains(e.code)) until = now() - S;
                return ttl / 12; // soon again, if no server answers
            }
        }

        private Baton.Lost lost() { return new Baton.Lost("the lock \"" + key + "\" has ended" + (why == null ? "" : ": " + why.getMessage())); }

        @Override
        public Duration check() {
            long left = until - now() - GRAIN;
            if (left <= 0) until = now() - S; // it stays lost
            if (left <= 0 || !held.get()) throw lost();
            return Duration.ofNanos(left);
        }

        @Override
        public void close() { end("Locks/Release", Map.of()); }

        void end(String call, Map<String, ?> outcome) {
            if (!held.getAndSet(false)) return;
            ended.countDown();
            boolean over = until <= now() + GRAIN;
            Map<String, Object> fields = new HashMap<>(outcome);
            fields.put("handle", handle);
            try {
                answer(call, fields, until);
            } catch (Baton.Failure e) {
                if (!over || !outcome.isEmpty()) throw e;
            }
            if (over && outcome.isEmpty()) throw lost(); // what was recorded of an operation stands
        }
    }
}
