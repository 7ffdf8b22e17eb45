package agent

import (
	"time"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/rules"
)

// take asks a rule of the agent's rules. A refusal is an answer, and has taken nothing.
func (s *session) take(r request) answer {
	limiter := s.server.cfg.Limits
	if limiter == nil {
		return answer{Error: codeCannot, Message: "this agent has no rules: start it with --rules FILE"}
	}
	d, err := limiter.Allow(s.ctx, rules.Request{Rule: r.Rule, Key: r.Key, Tier: r.Tier, Cost: r.Cost})
	if err != nil {
		return failure(err)
	}
	limit, remaining := min(d.Limit, maxID), min(d.Remaining, maxID)
	a := answer{OK: d.OK, Limit: &limit, Remaining: &remaining, WaitMS: ceil(d.Wait), ResetMS: ceil(d.ResetAfter)}
	if !d.OK {
		a.Error, a.Message = codeLimited, "the limit is used up"
		if d.RetryAfter != ratelimit.Never {
			a.RetryMS = max(1, ceil(d.RetryAfter))
		} else {
			a.Message = "the limit never allows that much"
		}
	}
	return a
}

// ceil rounds up to milliseconds, so that no client comes too early.
func ceil(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > time.Duration(ms)*time.Millisecond {
		ms++
	}
	return ms
}
