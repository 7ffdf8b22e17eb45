// What the tests tell a process to do, in Java: see drive in language_test.go.

import io.github.batonhq.baton.Baton;
import io.github.batonhq.baton.Session;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;

public final class Driver {
    private static Baton.Lock held;

    public static void main(String[] args) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null;) {
            String answer;
            try {
                answer = "ok " + run(line.split(" "));
            } catch (Baton.Held e) {
                answer = "held " + e.getMessage();
            } catch (Baton.Lost e) {
                answer = "lost " + e.getMessage();
            } catch (Baton.Failure e) {
                answer = "error " + e.code + " " + e.getMessage();
            }
            System.out.println(answer.strip());
        }
    }

    private static Object run(String[] args) throws Exception {
        switch (args[0]) {
            case "lock" -> {
                var kind = new Baton.Kind();
                if (!args[2].equals("-")) kind.within(Duration.ofMillis(Long.parseLong(args[2])));
                if (!args[3].equals("-")) kind.maxHold(Duration.ofMillis(Long.parseLong(args[3])));
                if (args[4].equals("shared")) {
                    kind.shared();
                } else if (!args[4].equals("-")) {
                    String[] permits = args[4].split("/");
                    kind.permits(Integer.parseInt(permits[0]), Integer.parseInt(permits[1]));
                }
                held = Baton.lock(args[1], kind);
                return held.token;
            }
            case "check" -> {
                return held.check().toMillis();
            }
            case "unlock" -> held.close();
            case "spawn" -> {
                return new ProcessBuilder("cat", args[1]).redirectOutput(ProcessBuilder.Redirect.DISCARD).start().pid();
            }
            case "count" -> {
                for (int i = 0; i < Integer.parseInt(args[3]); i++) {
                    try (var lock = Baton.lock(args[1], new Baton.Kind())) {
                        String[] file = Files.readString(Path.of(args[2])).strip().split(" ");
                        must(lock.token > Long.parseLong(file[1]), "the token does not rise");
                        Files.writeString(Path.of(args[2]), (Long.parseLong(file[0]) + 1) + " " + lock.token + "\n");
                    }
                }
            }
            case "api" -> api(args[1]);
            default -> throw new IllegalArgumentException(args[0]);
        }
        return "";
    }

    private static void api(String key) {
        var soon = new Baton.Kind().within(Duration.ofSeconds(5));
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
