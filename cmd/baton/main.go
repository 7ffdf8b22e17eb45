// Command baton runs commands under distributed locks, and shows and manages
// the locks, over the stores that package open knows. "baton help" is its
// manual.
package main

import "os"

func main() { os.Exit(run(os.Args[1:])) }
