package io.github.batonhq.baton;

/** Who leads. The token is 0 if the store does not tell. */
public record Leader(String value, long token) {}
