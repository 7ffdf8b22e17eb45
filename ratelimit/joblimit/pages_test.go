package joblimit_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/batontest"
	"github.com/batonhq/baton/internal/pagecode"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/joblimit"
)

// TestPageIsCompiled finds every Go block of docs/queues.md in a file that the compiler
// reads: this one, and the examples of the adapters.
func TestPageIsCompiled(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	compiled := ""
	for _, name := range []string{"pages_test.go", "../../adapters/asynq/example_test.go", "../../adapters/river/example_test.go", "../../adapters/temporal/example_test.go"} {
		compiled += pagecode.Plain(read(name)) + "\n"
	}
	blocks := pagecode.Blocks(read("../../docs/queues.md"), "go")
	if len(blocks) < 3 {
		t.Errorf("found %d blocks", len(blocks))
	}
	for _, block := range blocks {
		if !strings.Contains(compiled, pagecode.Plain(block)) {
			t.Errorf("docs/queues.md shows what is compiled nowhere:\n%s", block)
		}
	}
}

func TestPageOfQueues(t *testing.T) {
	s := batontest.New(t)
	locks, rate := locker(t, s), limiter(t, s, ratelimit.TokenBucket(10, time.Second, 10))
	limit, err := joblimit.New(joblimit.Config{
		Locks:   locks,
		Running: 5,
		Rate:    rate,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := limit.Run(t.Context(), "tenant", nothing); err != nil {
		t.Error(err)
	}
}
