package drivertest

import (
	"fmt"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// origin is the beginning of the timelines, in microseconds since 1970. Every limit has a
// window that begins there.
const origin = int64(1_800_000_000_000_000) / 7_200_000_000 * 7_200_000_000

// whatever stands for a figure that a step does not check.
const whatever = time.Duration(-1)

// A limitStep repeats one request, and has the expected last answer.
type limitStep struct {
	at    time.Duration
	cost  int64
	times int
	ok    bool
	left  int64
	wait  time.Duration
	retry time.Duration
	reset time.Duration
}

// A timeline is a limit with a sequence of steps.
type timeline struct {
	name  string
	why   string
	limit limits.Limit
	steps []limitStep
}

func timelineCases() (all []limitCase) {
	for _, line := range timelines() {
		all = append(all, limitCase{
			name:  "timeline: " + line.name,
			why:   line.why,
			timed: true,
			run: func(t *limitTest) {
				for i, s := range line.steps {
					var d limits.Taken
					for n := range s.times {
						d = t.take(limits.Request{
							Takes: []limits.Take{{Key: "k", Limit: line.limit, Cost: s.cost}},
							Now:   origin + s.at.Microseconds(),
						})
						if d.OK != s.ok {
							t.Fatalf("step %d, at %v, number %d: %+v", i, s.at, n, d)
						}
					}
					x := d.Limits[0]
					if got, want := fmt.Sprint(x.OK, x.Remaining, x.Wait, x.Retry), fmt.Sprint(s.ok, s.left, s.wait, s.retry); got != want {
						t.Errorf("step %d, at %v: allowed, remaining, wait, retry are %s, want %s", i, s.at, got, want)
					}
					if s.reset >= 0 && x.Reset != s.reset {
						t.Errorf("step %d, at %v: reset in %v, want %v", i, s.at, x.Reset, s.reset)
					}
				}
			},
		})
	}
	return all
}

func timelines() []timeline {
	const (
		ms = time.Millisecond
		s  = time.Second
		µs = time.Microsecond
	)
	const boundary = "100 in a minute, 60 of them at 0:50 and 60 at 1:10, is what people ask a limiter about first"
	const edge = "what was taken at the edge of a part is where sliding windows let twice the limit through"
	const fresh = "a fresh key shows all but what was taken; limiters that count with fractions show one less"
	return []timeline{
		{"boundary, fixed window", boundary, fixedWindow(100, 60*s), []limitStep{
			{50 * s, 1, 60, true, 40, 0, 0, 10 * s},
			{70 * s, 1, 60, true, 40, 0, 0, 50 * s},
			{119 * s, 1, 40, true, 0, 0, 0, 1 * s},
			{119 * s, 1, 20, false, 0, 0, 1 * s, whatever},
			{120 * s, 1, 60, true, 40, 0, 0, whatever},
		}},
		{"boundary, log", boundary, slidingLog(100, 60*s), []limitStep{
			{50 * s, 1, 60, true, 40, 0, 0, 60 * s},
			{70 * s, 1, 40, true, 0, 0, 0, 60 * s},
			{70 * s, 1, 20, false, 0, 0, 40 * s, whatever},
			{109 * s, 1, 1, false, 0, 0, 1 * s, whatever},
			{110 * s, 1, 60, true, 0, 0, 0, whatever},
		}},
		{"boundary, strict, 6 parts", boundary, slidingWindow(100, 60*s, 6, false), []limitStep{
			{50 * s, 1, 60, true, 40, 0, 0, 70 * s},
			{70 * s, 1, 40, true, 0, 0, 0, 70 * s},
			{70 * s, 1, 20, false, 0, 0, 50 * s, whatever},
			{109 * s, 1, 1, false, 0, 0, 11 * s, whatever},
			{119 * s, 1, 1, false, 0, 0, 1 * s, whatever},
			{120 * s, 1, 60, true, 0, 0, 0, whatever},
		}},
		{"boundary, strict, 60 parts", boundary, slidingWindow(100, 60*s, 60, false), []limitStep{
			{50 * s, 1, 60, true, 40, 0, 0, 61 * s},
			{70 * s, 1, 40, true, 0, 0, 0, 61 * s},
			{70 * s, 1, 20, false, 0, 0, 41 * s, whatever},
			{110 * s, 1, 1, false, 0, 0, 1 * s, whatever},
			{111 * s, 1, 60, true, 0, 0, 0, whatever},
		}},
		{"boundary, classic, 6 parts", boundary, slidingWindow(100, 60*s, 6, true), []limitStep{
			{50 * s, 1, 60, true, 40, 0, 0, 60 * s},
			{70 * s, 1, 40, true, 0, 0, 0, 60 * s},
			{70 * s, 1, 20, false, 0, 0, 40 * s, whatever},
			{109 * s, 1, 1, false, 0, 0, 1 * s, whatever},
			{110 * s, 1, 60, true, 0, 0, 0, whatever},
		}},
		{"boundary, estimate", boundary, estimated(100, 60*s), []limitStep{
			{50 * s, 1, 60, true, 40, 0, 0, 70 * s},
			{70 * s, 1, 50, true, 0, 0, 0, 110 * s},
			{70 * s, 1, 10, false, 0, 0, 1 * s, whatever},
			{71 * s, 1, 1, true, 0, 0, 0, whatever},
			{71 * s, 1, 1, false, 0, 0, 1 * s, whatever},
			{90 * s, 1, 19, true, 0, 0, 0, whatever},
			{90 * s, 1, 1, false, 0, 0, 1 * s, whatever},
		}},
		{"boundary, token bucket", boundary, tokenBucket(100, 60*s, 100), []limitStep{
			{50 * s, 1, 60, true, 40, 0, 0, 36 * s},
			{70 * s, 1, 60, true, 13, 0, 0, 52 * s},
		}},
		{"boundary, token bucket of 20", boundary, tokenBucket(100, 60*s, 20), []limitStep{
			{50 * s, 1, 20, true, 0, 0, 0, 12 * s},
			{50 * s, 1, 40, false, 0, 0, 600 * ms, 12 * s},
			{70 * s, 1, 20, true, 0, 0, 0, 12 * s},
			{70 * s, 1, 1, false, 0, 0, 600 * ms, 12 * s},
		}},
		{"edge, classic", edge, slidingWindow(100, 60*s, 6, true), []limitStep{
			{9999 * ms, 1, 100, true, 0, 0, 0, whatever},
			{60 * s, 1, 100, true, 0, 0, 0, whatever},
		}},
		{"edge, strict", edge, slidingWindow(100, 60*s, 6, false), []limitStep{
			{9999 * ms, 1, 100, true, 0, 0, 0, whatever},
			{60 * s, 1, 1, false, 0, 0, 10 * s, whatever},
			{69999 * ms, 1, 1, false, 0, 0, 1 * ms, whatever},
			{70 * s, 1, 100, true, 0, 0, 0, whatever},
		}},
		{"edge, estimate", edge, estimated(100, 60*s), []limitStep{
			{59999 * ms, 1, 100, true, 0, 0, 0, whatever},
			{60 * s, 1, 1, false, 0, 0, 600 * ms, whatever},
			{75 * s, 1, 25, true, 0, 0, 0, whatever},
			{75 * s, 1, 1, false, 0, 0, 600 * ms, whatever},
			{90 * s, 1, 25, true, 0, 0, 0, whatever},
			{105 * s, 1, 25, true, 0, 0, 0, whatever},
			{105 * s, 1, 1, false, 0, 0, 600 * ms, whatever},
			{119998 * ms, 1, 24, true, 0, 0, 0, whatever},
			{119998 * ms, 1, 1, false, 0, 0, 2 * ms, whatever},
		}},
		{"token bucket", "tokens come back one by one, and a cost above the burst never", tokenBucket(5, s, 10), []limitStep{
			{0, 1, 1, true, 9, 0, 0, 200 * ms},
			{0, 9, 1, true, 0, 0, 0, 2 * s},
			{0, 1, 1, false, 0, 0, 200 * ms, 2 * s},
			{100 * ms, 1, 1, false, 0, 0, 100 * ms, 1900 * ms},
			{200 * ms, 1, 1, true, 0, 0, 0, 2 * s},
			{200 * ms, 1, 1, false, 0, 0, 200 * ms, 2 * s},
			{s, 3, 1, true, 1, 0, 0, 1800 * ms},
			{s, 5, 1, false, 1, 0, 800 * ms, 1800 * ms},
			{s, 1, 1, true, 0, 0, 0, 2 * s},
			{s, 11, 1, false, 0, 0, limits.Never, 2 * s},
			{3200 * ms, 0, 1, true, 10, 0, 0, 0},
			{3200 * ms, 10, 1, true, 0, 0, 0, 2 * s},
		}},
		{"a rate that does not divide", "3 per second are not one per 333 333 µs, and not one per 333 334", tokenBucket(3, s, 3), []limitStep{
			{0, 1, 1, true, 2, 0, 0, whatever},
			{0, 1, 1, true, 1, 0, 0, whatever},
			{0, 1, 1, true, 0, 0, 0, whatever},
			{0, 1, 1, false, 0, 0, 333_334 * µs, whatever},
			{333_333 * µs, 1, 1, false, 0, 0, 1 * µs, whatever},
			{333_334 * µs, 1, 1, true, 0, 0, 0, whatever},
			{666_666 * µs, 1, 1, false, 0, 0, 1 * µs, whatever},
			{666_667 * µs, 1, 1, true, 0, 0, 0, whatever},
			{s, 1, 1, true, 0, 0, 0, whatever},
			{s + µs, 1, 1, false, 0, 0, 333_333 * µs, whatever},
		}},
		{"leaky bucket", "each in the queue is told his turn, and who does not fit is dropped", leakyBucket(10, s, 20, 0), []limitStep{
			{0, 1, 1, true, 19, 0, 0, whatever},
			{0, 1, 1, true, 18, 100 * ms, 0, whatever},
			{0, 1, 18, true, 0, 1900 * ms, 0, whatever},
			{0, 1, 5, false, 0, 0, 100 * ms, whatever},
			{50 * ms, 1, 1, false, 0, 0, 50 * ms, whatever},
			{100 * ms, 1, 1, true, 0, 1900 * ms, 0, whatever},
			{100 * ms, 1, 1, false, 0, 0, 100 * ms, whatever},
			{550 * ms, 1, 1, true, 3, 1550 * ms, 0, whatever},
			{1950 * ms, 1, 1, true, 16, 250 * ms, 0, whatever},
			{2 * s, 1, 1, true, 16, 300 * ms, 0, whatever},
			{5 * s, 1, 1, true, 19, 0, 0, whatever},
		}},
		{"leaky bucket, five ahead", "a queue may let some out at once", leakyBucket(10, s, 20, 5), []limitStep{
			{0, 1, 6, true, 14, 0, 0, whatever},
			{0, 1, 1, true, 13, 100 * ms, 0, whatever},
			{0, 1, 13, true, 0, 1400 * ms, 0, whatever},
		}},
		{"fresh, 10 in 1 s", fresh, tokenBucket(10, s, 10), []limitStep{{0, 1, 1, true, 9, 0, 0, whatever}}},
		{"fresh, 100 in 1 min", fresh, tokenBucket(100, 60*s, 100), []limitStep{{0, 1, 1, true, 99, 0, 0, whatever}}},
		{"fresh, 1000 in 1 h", fresh, tokenBucket(1000, time.Hour, 1000), []limitStep{{0, 1, 1, true, 999, 0, 0, whatever}}},
		{"fresh, 1000000 in 1 h", fresh, tokenBucket(1_000_000, time.Hour, 1_000_000), []limitStep{{0, 1, 1, true, 999_999, 0, 0, whatever}}},
		{"refill", "a state that is dropped before it is fresh gives a second burst", tokenBucket(10, s, 19), []limitStep{
			{0, 1, 19, true, 0, 0, 0, 1900 * ms},
			{s, 1, 10, true, 0, 0, 0, whatever},
			{s, 1, 1, false, 0, 0, 100 * ms, whatever},
		}},
	}
}
