// Firstlimit is the first limit of docs/index.md: of five mails it sends three.
//
//	go run ./examples/firstlimit
package main
