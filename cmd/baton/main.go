// Command baton runs commands under distributed locks. It shows and manages the locks of
// every store that package open knows. "baton help" is its manual.
package main

import (
	"os"

	"github.com/redis/go-redis/v9/logging"
)

func main() {
	logging.Disable() // otherwise go-redis prints messages of Sentinels on standard error
	os.Exit(run(os.Args[1:]))
}
