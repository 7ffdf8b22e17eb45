// Leader is the program of docs/election.md: of several that run, one leads.
//
//	go run ./examples/leader & go run ./examples/leader
package main
