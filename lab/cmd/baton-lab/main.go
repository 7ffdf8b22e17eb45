// Command baton-lab is for trying locks and limits out: it answers questions by experiments,
// tries to break the promises of a store, measures stores side by side, and replays requests
// through limits. The command for production is baton.
package main

import (
	"os"

	"github.com/redis/go-redis/v9/logging"

	"github.com/batonhq/baton/lab/scale"
	"github.com/batonhq/baton/lab/verify"
)

func main() {
	logging.Disable() // go-redis writes messages of Sentinels to standard error
	verify.Main()     // in a client of baton-lab verify it does not return
	scale.Main()      // nor does this in a part of baton-lab scale
	os.Exit(run(os.Args[1:]))
}
