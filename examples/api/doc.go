// Api is the program of docs/tutorials/api.md: each user has three requests in ten seconds.
//
//	go run ./examples/api
package main
