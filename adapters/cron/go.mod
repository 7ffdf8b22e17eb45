module github.com/batonhq/baton/adapters/cron

go 1.26.0

replace github.com/batonhq/baton => ../../

require (
	github.com/batonhq/baton v0.0.0-00010101000000-000000000000
	github.com/robfig/cron/v3 v3.0.1
)
