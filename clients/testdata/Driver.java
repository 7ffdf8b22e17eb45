// What the tests tell a process to do, in Java: see process in language_test.go.

import io.github.batonhq.baton.Baton;
import io.github.batonhq.baton.BatonHttp;
import io.github.batonhq.baton.Leader;
import io.github.batonhq.baton.Session;
import io.github.batonhq.baton.Taken;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

public final class Driver {
    private static final boolean HTTP = System.getenv("BATON_SERVER") != null;
    private static final BatonHttp SERVERS = HTTP ? new BatonHttp() : null;
    private static Baton.Lock held;

    private static final class OfTheWork extends Exception {}

    public static void main(String[] args) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null;) {
            String answer;
            try {
                answer = "ok " + run(line.split(" "));
            } catch (OfTheWork e) {
                answer = "raised";
            } catch (Baton.Failure e) {
                String kind = e instanceof Baton.Held ? "held" : e instanceof Baton.Lost ? "lost" : e instanceof Baton.Failed ? "failed" : "error " + e.code;
                answer = (e.result == null ? "" : "kept " + e.result + " ") + kind + " " + e.getMessage();
            }
            System.out.println(answer.strip());
        }
    }

    private static Baton.Kind usual() { return HTTP ? new Baton.Kind().ttl(time(System.getenv("TTL"))) : new Baton.Kind(); }

    private static Baton.Lock lock(String key, Baton.Kind kind) { return HTTP ? SERVERS.lock(key, kind) : Baton.lock(key, kind); }

    private static Duration time(String ms) { return Duration.ofMillis((long) Double.parseDouble(ms)); }

    private static Object run(String[] args) throws Exception {
        switch (args[0]) {
            case "lock" -> {
                Baton.Kind kind = usual();
                if (!args[2].equals("-")) kind.within(time(args[2]));
                if (!args[3].equals("-")) {
                    if (HTTP) {
                        kind.ttl(time(args[3]));
                    } else {
                        kind.maxHold(time(args[3]));
                    }
                }
                if (args[4].equals("shared")) {
                    kind.shared();
                } else if (!args[4].equals("-")) {
                    String[] permits = args[4].split("/");
                    kind.permits(Integer.parseInt(permits[0]), Integer.parseInt(permits[1]));
                }
                if (args.length > 5) kind.value(args[5]);
                held = lock(args[1], kind);
                return held.token;
            }
            case "try" -> {
                Baton.Lock lock = HTTP ? SERVERS.tryLock(args[1], usual()) : Baton.tryLock(args[1], usual());
                if (lock == null) return "none";
                held = lock;
                return held.token;
            }
            case "check" -> {
                return held.check().toMillis();
            }
            case "unlock" -> held.close();
            case "forget" -> {
                held = null;
                System.gc();
            }
            case "once" -> {
                Baton.Kind kind = usual();
                if (!args[2].equals("-")) kind.within(time(args[2]));
                var ran = new AtomicLong();
                Baton.Work<Exception> work = attempt -> {
                    must(!attempt.check().isNegative(), "the attempt has no time");
                    ran.set(attempt.attempts);
                    switch (args[3]) {
                        case "fail" -> throw new Baton.Failed(args[4]);
                        case "raise" -> throw new OfTheWork();
                        case "block" -> {
                            System.out.println("ok runs");
                            Files.readAllBytes(Path.of(args[4]));
                        }
                        default -> { }
                    }
                    return args[4];
                };
                String result = HTTP ? SERVERS.once(args[1], kind, work) : Baton.once(args[1], kind, work);
                return result + " " + ran;
            }
            case "take" -> {
                long cost = args[3].equals("-") ? 1 : Long.parseLong(args[3]);
                Taken taken = HTTP ? SERVERS.take(args[1], args[2], cost) : Baton.take(args[1], args[2], cost);
                return taken.ok() + " " + taken.remaining() + " " + (taken.retry() == null ? -1 : taken.retry().toMillis());
            }
            case "leader" -> {
                return (HTTP ? SERVERS.leader(args[1]) : Baton.leader(args[1])).map((Leader led) -> led.value() + " " + led.token()).orElse("none");
            }
            case "raise" -> {
                try (Baton.Lock lock = lock(args[1], usual())) {
                    throw new OfTheWork();
                }
            }
            case "interrupt" -> {
                Thread self = Thread.currentThread();
                var alarm = new Thread(() -> {
                    try {
                        Thread.sleep(300);
                    } catch (InterruptedException e) {
                        return;
                    }
                    self.interrupt();
                });
                alarm.start();
                try (Baton.Lock lock = lock(args[1], usual())) {
                    throw new AssertionError("it is not interrupted");
                } catch (Baton.Failure e) {
                    must(Thread.interrupted() && e.getMessage().contains("interrupted"), e.getMessage());
                }
            }
            case "threads" -> threads(args[1]);
            case "spawn" -> {
                return new ProcessBuilder("cat", args[1]).redirectOutput(ProcessBuilder.Redirect.DISCARD).start().pid();
            }
            case "count" -> {
                for (int i = 0; i < Integer.parseInt(args[3]); i++) {
                    try (var lock = lock(args[1], usual())) {
                        String[] file = Files.readString(Path.of(args[2])).strip().split(" ");
                        must(lock.token > Long.parseLong(file[1]), "the token does not rise");
                        Files.writeString(Path.of(args[2]), (Long.parseLong(file[0]) + 1) + " " + lock.token + "\n");
                    }
                }
            }
            case "api" -> {
                if (HTTP) {
                    overHTTP(args[1]);
                } else {
                    api(args[1]);
                }
            }
            default -> throw new IllegalArgumentException(args[0]);
        }
        return "";
    }

    private static void threads(String key) throws InterruptedException {
        Session session = HTTP ? null : new Session(System.getenv("BATON_AGENT"));
        var wrong = new AtomicReference<Throwable>();
        try (Baton.Lock shared = lock(key, usual())) {
            var all = new ArrayList<Thread>();
            for (int i = 0; i < 4; i++) {
                String own = key + "/" + i;
                all.add(new Thread(() -> {
                    try {
                        for (int n = 0; n < 5; n++) {
                            must(!shared.check().isNegative(), "there is no time");
                            try (Baton.Lock lock = HTTP ? lock(own, usual()) : session.lock(own, usual())) {
                                lock.check();
                            }
                        }
                    } catch (Throwable e) {
                        wrong.set(e);
                    }
                }));
            }
            for (Thread t : all) t.start();
            for (Thread t : all) t.join();
        }
        if (session != null) session.close();
        if (wrong.get() != null) throw new AssertionError(wrong.get());
    }

    private static void overHTTP(String key) {
        var lock = SERVERS.lock(key, usual());
        fails(Baton.Held.class, () -> SERVERS.lock(key, usual().within(Duration.ofNanos(400_000))));
        Thread.currentThread().interrupt();
        lock.close(); // an interrupt does not keep the lock
        must(Thread.interrupted(), "the interrupt is gone");
        lock.close();
        fails(Baton.Lost.class, lock::check);
        SERVERS.lock(key, usual().within(Duration.ZERO)).close();
        must(fails(Baton.Failure.class, () -> SERVERS.lock(key, usual().maxHold(Duration.ofSeconds(1)))).code.equals("bad"), "maxHold");
        must(fails(Baton.Failure.class, () -> new BatonHttp(List.of("127.0.0.1:1"), null)).code.equals("bad"), "no URL");
    }

    private static void api(String key) {
        var soon = new Baton.Kind().within(Duration.ofSeconds(5));
        must(fails(Baton.Failure.class, () -> Baton.lock(key, new Baton.Kind().ttl(Duration.ofSeconds(1)))).code.equals("bad"), "ttl");
        try (var session = new Session(System.getenv("BATON_AGENT"));
                var lock = Baton.lock(key, new Baton.Kind().within(Duration.ofSeconds(5)).maxHold(Duration.ofMinutes(1)))) {
            var who = (List<?>) session.ask("who", Map.of("key", key)).get("locks");
            must(((Map<?, ?>) who.get(0)).get("token").equals("" + lock.token), "who: " + who);
            for (var wait : List.of(Duration.ZERO, Duration.ofNanos(400_000))) { // which is not 0, but no wait to speak of
                var e = fails(Baton.Held.class, () -> session.lock(key, new Baton.Kind().within(wait)));
                must(e.getMessage().contains("the wait is over") == !wait.isZero(), e.getMessage());
            }
            var a = session.lock(key + "/a", soon);
            var b = session.lock(key + "/b\u00e9\"\\", soon);
            must(fails(Baton.Failure.class, () -> session.lock(key + "/a", soon)).code.equals("nested"), "it is another error");
            must(fails(Baton.Failure.class, () -> session.lock("half \ud83d", soon)).code.equals("bad"), "half a character is a key");
            var e = fails(Baton.Failure.class, () -> session.ask("lock", Map.of("key", "x", "wait", 5)));
            must(e.code.equals("bad") && e.getMessage().contains("wait_ms"), e.getMessage());
            var all = session.ask("lock", Map.of("keys", List.of(key + "/c", key + "/d")));
            must(((Map<?, ?>) all.get("tokens")).size() == 2, "tokens: " + all);
            a.close();
            session.close();
            fails(Baton.Lost.class, b::check);
            lock.close(); // once more at the end of the block
        }
        Baton.lock(key + "/b\u00e9\"\\", soon).close();
        try (var session = new Session(System.getenv("BATON_AGENT")); var lock = session.lock(key, soon)) {
            session.close();
            throw new UnsupportedOperationException("of the work");
        } catch (UnsupportedOperationException e) {
            must(e.getSuppressed()[0] instanceof Baton.Lost, "the loss is not suppressed");
        }
    }

    private static <E extends Baton.Failure> E fails(Class<E> kind, Runnable what) {
        try {
            what.run();
        } catch (Baton.Failure e) {
            return kind.cast(e);
        }
        throw new AssertionError("it does not fail");
    }

    private static void must(boolean right, String what) {
        if (!right) throw new AssertionError(what);
    }
}
