package rules_test

import (
	"context"
	"fmt"
	"log"

	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/store/memstore"
)

// The same rule has other numbers for those who pay.
func Example() {
	ctx := context.Background()
	all, err := rules.Parse("rules.yaml", []byte(`
rules:
  - name: api
    limits:
      - {requests: 2, period: 1h}
    tiers:
      pro: {requests: 100}
`))
	if err != nil {
		log.Fatal(err) // every mistake, with line and column
	}
	limiter, err := rules.New(memstore.New(), all)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range []rules.Request{
		{Rule: "api", Key: "user/1"},
		{Rule: "api", Key: "user/1"},
		{Rule: "api", Key: "user/1"},
		{Rule: "api", Key: "user/2", Tier: "pro"},
	} {
		d, err := limiter.Allow(ctx, r)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Key, d.OK, d.Remaining)
	}
	// Output:
	// user/1 true 1
	// user/1 true 0
	// user/1 false 0
	// user/2 true 99
}
