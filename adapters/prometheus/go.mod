module github.com/batonhq/baton/adapters/prometheus

go 1.26.0

require (
	github.com/batonhq/baton v0.1.0
	github.com/prometheus/client_golang v1.25.0
)
