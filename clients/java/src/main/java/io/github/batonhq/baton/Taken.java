package io.github.batonhq.baton;

import java.time.Duration;
import java.util.Map;
import java.util.function.Function;

/**
 * What a limit has decided. If it is not ok, nothing was taken. reset is the time until all that was taken has come back. Wait for the
 * time of delay before you act. After retry the same cost will be allowed; null is never.
 */
public record Taken(boolean ok, long limit, long remaining, Duration reset, Duration delay, Duration retry) {
    static Taken of(boolean ok, Map<String, Object> answer) {
        Function<String, Long> number = name -> Long.parseLong("" + answer.getOrDefault(name, "0"));
        long after = number.apply("retry_ms");
        return new Taken(ok, number.apply("limit"), number.apply("remaining"), Duration.ofMillis(number.apply("reset_ms")),
            Duration.ofMillis(number.apply("wait_ms")), ok ? Duration.ZERO : after > 0 ? Duration.ofMillis(after) : null);
    }
}
