// Gift is the program of docs/tutorials/points.md: each order for a gift takes 999 points
// once, however often it is sent.
//
//	go run ./examples/gift A-1
package main
