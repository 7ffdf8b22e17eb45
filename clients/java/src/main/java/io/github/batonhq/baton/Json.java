package io.github.batonhq.baton;

import java.util.*;

/** JSON without spaces between its parts and without fractions, as the agent writes it: Java has none of its own. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) { this.text = text; }

    /** The value is a Map, a List, a String, or what String.valueOf writes as JSON does. */
    static String write(Object value) {
        StringJoiner parts;
        if (value instanceof Map<?, ?> map) {
            parts = new StringJoiner(",", "{", "}");
            map.forEach((name, v) -> parts.add(write(name) + ":" + write(v)));
        } else if (value instanceof List<?> list) {
            parts = new StringJoiner(",", "[", "]");
            list.forEach(v -> parts.add(write(v)));
        } else if (value instanceof String s) {
            parts = new StringJoiner("", "\"", "\"");
            for (char c : s.toCharArray()) { // half of a surrogate pair stays what it is, and the agent refuses it
                parts.add(c < ' ' || c > '~' || c == '"' || c == '\\' ? String.format("\\u%04x", (int) c) : String.valueOf(c));
            }
        } else {
            return String.valueOf(value);
        }
        return parts.toString();
    }

    /** An object of Maps, Lists, Strings, Longs, Booleans and null. Throws an IllegalArgumentException if it is none. */
    static Map<String, Object> read(String text) {
        Json json = new Json(text);
        json.need("{");
        Map<String, Object> object = json.object();
        if (json.at < text.length()) throw json.wrong();
        return object;
    }

    private Map<String, Object> object() { // after its first brace
        Map<String, Object> map = new LinkedHashMap<>();
        for (String comma = ""; !take("}"); comma = ",") {
            need(comma + "\"");
            String name = string();
            need(":");
            map.put(name, value());
        }
        return map;
    }

    private Object value() {
        if (take("{")) return object();
        if (take("[")) {
            List<Object> list = new ArrayList<>();
            for (String comma = ""; !take("]"); comma = ",") {
                need(comma);
                list.add(value());
            }
            return list;
        }
        if (take("\"")) return string();
        if (take("true")) return true;
        if (take("false")) return false;
        if (take("null")) return null;
        int from = at;
        while (at < text.length() && "-0123456789".indexOf(text.charAt(at)) >= 0) at++;
        return Long.valueOf(text.substring(from, at)); // a NumberFormatException is an IllegalArgumentException
    }

    private String string() { // after its first quotation mark
        StringBuilder out = new StringBuilder();
        while (!take("\"")) {
            if (take("\\u")) {
                out.append((char) Integer.parseInt(next(4), 16));
            } else if (take("\\")) {
                String c = next(1);
                int i = "bfnrt".indexOf(c);
                out.append(i < 0 ? c : "\b\f\n\r\t".charAt(i));
            } else {
                out.append(next(1));
            }
        }
        return out.toString();
    }

    private boolean take(String part) {
        if (!text.startsWith(part, at)) return false;
        at += part.length();
        return true;
    }

    private void need(String part) {
        if (!take(part)) throw wrong();
    }

    private String next(int n) {
        if (at + n > text.length()) throw wrong();
        at += n;
        return text.substring(at - n, at);
    }

    private IllegalArgumentException wrong() { return new IllegalArgumentException("no JSON at " + at); }
}
