// Package envoytest asks package rls with the client that Envoy's own project makes of
// its definitions. It is a module of its own, because that client raises the versions
// of gRPC and of protobuf. It has no code but its tests.
package envoytest
