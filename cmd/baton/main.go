// Command baton runs commands under distributed locks, and shows and manages
// the locks, over the stores that package open knows. "baton help" is its
// manual.
package main

import (
	"os"

	"github.com/redis/go-redis/v9/logging"
)

func main() {
	logging.Disable() // go-redis writes what it hears of Sentinels to standard error
	os.Exit(run(os.Args[1:]))
}
