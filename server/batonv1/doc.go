// Package batonv1 has the messages of the network API, generated from baton.proto, which
// describes them. docs/server.md explains them with examples.
package batonv1

//go:generate env BATON_LONG=1 BATON_REQUIRE_SERVERS=1 go test . -run Generated -generate -count=1
