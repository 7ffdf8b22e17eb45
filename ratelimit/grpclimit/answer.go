package grpclimit

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/internal/front"
)

// refuse is the error of a refused call, with the reason and the time to try again.
func refuse(r front.Answer) error {
	s := status.New(codes.ResourceExhausted, "the call exceeds the quota")
	var details []protoadapt.MessageV1
	switch {
	case r.By.Fallback():
		s = status.New(codes.Unavailable, "the quota is reduced at present")
	case r.RetryAfter == ratelimit.Never:
		s = status.New(codes.ResourceExhausted, "the call costs more than is ever allowed at once")
	}
	if r.RetryAfter != ratelimit.Never {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.RetryAfter)})
	}
	if !r.By.Fallback() {
		failure := new(errdetails.QuotaFailure)
		for _, l := range r.Violated() {
			name := front.Name(l.Name)
			failure.Violations = append(failure.Violations, &errdetails.QuotaFailure_Violation{
				Subject: name, QuotaId: name, QuotaValue: l.Limit, Description: fmt.Sprintf("%d per %v", l.Limit, l.Period),
			})
		}
		details = append(details, failure)
	}
	if with, err := s.WithDetails(details...); err == nil {
		s = with
	}
	return s.Err()
}

// pushback is the time in milliseconds until a client may retry; -1 if it must not.
func pushback(r ratelimit.Result) string {
	if r.RetryAfter == ratelimit.Never {
		return "-1"
	}
	return strconv.FormatInt(min(max(front.Up(r.RetryAfter, time.Millisecond), 1), math.MaxInt32), 10)
}

func fail(ctx context.Context, _ string, _ error) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Unavailable, "the quota cannot be checked at present")
}
