// Firstlock is the first lock of docs/index.md: two of it work one after the other.
//
//	go run ./examples/firstlock & go run ./examples/firstlock
package main
