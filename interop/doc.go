// Package interop runs the software of others beside Baton: the locks and limits of other
// libraries on the same servers, Envoy's client, web frameworks, proxies, and Prometheus and
// OpenTelemetry together. It is a module of its own, so that nobody who imports Baton gets
// what it requires. All of its tests are long: make test-long runs them.
package interop
