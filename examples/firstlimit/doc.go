// Firstlimit limits mails: of five it sends three.
//
//	go run ./examples/firstlimit
package main
