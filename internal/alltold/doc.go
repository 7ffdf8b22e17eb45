// Package alltold tests what no adapter can alone: Prometheus, OpenTelemetry and a
// logger that are told of the same locks at once. It is a module of its own, because
// it requires both adapters. It has no code but its tests.
package alltold
