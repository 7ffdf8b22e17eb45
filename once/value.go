package once

import (
	"context"
	"encoding/json"
	"fmt"
)

// Do is Runner.Do for results of any type, which are recorded as JSON: every caller,
// including the first, gets the result as decoded from JSON. A type that JSON cannot
// encode is refused before fn runs.
func Do[T any](ctx context.Context, r *Runner, key string, fn func(context.Context, Attempt) (T, error), opts ...Option) (T, error) {
	return do(ctx, r, key, fn, opts, true)
}

// TryDo is Do with Runner.TryDo.
func TryDo[T any](ctx context.Context, r *Runner, key string, fn func(context.Context, Attempt) (T, error), opts ...Option) (T, error) {
	return do(ctx, r, key, fn, opts, false)
}

func do[T any](ctx context.Context, r *Runner, key string, fn func(context.Context, Attempt) (T, error), opts []Option, wait bool) (T, error) {
	var value T
	text, err := r.do(ctx, key, func(ctx context.Context, a Attempt) ([]byte, error) {
		if _, err := json.Marshal(value); err != nil {
			return nil, fmt.Errorf("once: %q was not run: its result cannot be recorded: %w", key, err)
		}
		v, err := fn(ctx, a)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("once: %q has run and its result cannot be recorded: %w", key, err)
		}
		return text, nil
	}, opts, wait)
	if err != nil {
		return value, err
	}
	if err := json.Unmarshal(text, &value); err != nil {
		return value, fmt.Errorf("once: what is recorded of %q is not a %T: %w", key, value, err)
	}
	return value, nil
}
