package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

var periods = map[string]time.Duration{
	"s": time.Second, "sec": time.Second, "second": time.Second,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute,
	"h": time.Hour, "hour": time.Hour, "d": 24 * time.Hour, "day": 24 * time.Hour, "week": 7 * 24 * time.Hour,
}

// Rate parses N/PERIOD.
func Rate(text string) (n int64, period time.Duration, err error) {
	count, per, ok := strings.Cut(text, "/")
	n, err = strconv.ParseInt(strings.ReplaceAll(count, "_", ""), 10, 64)
	if !ok || err != nil || n < 1 {
		return 0, 0, fmt.Errorf("%s: it is N/PERIOD, such as 100/1m or 5/s, with N above zero", Safe(RedactURL(text)))
	}
	if d, known := periods[per]; known {
		return n, d, nil
	}
	d, err := time.ParseDuration(per)
	if err != nil || d <= 0 {
		return 0, 0, fmt.Errorf("%s: %s is no period: write 1m, 30s, 500ms, or one of s, min, h, day, week", Safe(RedactURL(text)), ShellWord(RedactURL(per)))
	}
	return n, d, nil
}
