package envoy

import (
	"fmt"
	"slices"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/batonhq/baton/internal/testserver"
)

// messages pairs Baton's messages with Envoy's.
var messages = map[protoreflect.FullName]protoreflect.FullName{
	"baton.rls.v1.RateLimitRequest":                      "envoy.service.ratelimit.v3.RateLimitRequest",
	"baton.rls.v1.RateLimitResponse":                     "envoy.service.ratelimit.v3.RateLimitResponse",
	"baton.rls.v1.RateLimitResponse.RateLimit":           "envoy.service.ratelimit.v3.RateLimitResponse.RateLimit",
	"baton.rls.v1.RateLimitResponse.DescriptorStatus":    "envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus",
	"baton.rls.v1.RateLimitDescriptor":                   "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor",
	"baton.rls.v1.RateLimitDescriptor.Entry":             "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry",
	"baton.rls.v1.RateLimitDescriptor.RateLimitOverride": "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride",
	"baton.rls.v1.UInt32Value":                           "google.protobuf.UInt32Value",
	"baton.rls.v1.UInt64Value":                           "google.protobuf.UInt64Value",
	"baton.rls.v1.Duration":                              "google.protobuf.Duration",
	"baton.rls.v1.HeaderValue":                           "envoy.config.core.v3.HeaderValue",
}

// enums pairs enumerations: Baton has one of units, and Envoy two.
var enums = map[protoreflect.FullName][]protoreflect.FullName{
	"baton.rls.v1.RateLimitResponse.Code": {"envoy.service.ratelimit.v3.RateLimitResponse.Code"},
	"baton.rls.v1.Unit":                   {"envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit", "envoy.type.v3.RateLimitUnit"},
}

func find[T protoreflect.Descriptor](t *testing.T, name protoreflect.FullName) (d T) {
	t.Helper()
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return found.(T)
}

// What Baton sends Envoy reads, and the other way round. That this program runs shows,
// too, that both may be in one: a name that is registered twice ends it at the start.
func TestWire(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	file := find[protoreflect.MessageDescriptor](t, "baton.rls.v1.RateLimitRequest").ParentFile()
	var check func(all protoreflect.MessageDescriptors)
	checked := 0
	check = func(all protoreflect.MessageDescriptors) {
		for i := range all.Len() {
			checked++
			ours := all.Get(i)
			theirs := find[protoreflect.MessageDescriptor](t, messages[ours.FullName()])
			for k := range ours.Fields().Len() {
				our := ours.Fields().Get(k)
				their := theirs.Fields().ByNumber(our.Number())
				if their == nil {
					t.Errorf("%s has no field %d", theirs.FullName(), our.Number())
					continue
				}
				if a, b := describe(our), describe(their); a != b {
					t.Errorf("%s: %s, and Envoy's is %s", our.FullName(), a, b)
				}
				switch {
				case our.Message() != nil && messages[our.Message().FullName()] != their.Message().FullName():
					t.Errorf("%s is a %s, and Envoy's a %s", our.FullName(), our.Message().FullName(), their.Message().FullName())
				case our.Enum() != nil && !slices.Contains(enums[our.Enum().FullName()], their.Enum().FullName()):
					t.Errorf("%s is a %s, and Envoy's a %s", our.FullName(), our.Enum().FullName(), their.Enum().FullName())
				}
			}
			check(ours.Messages())
		}
	}
	check(file.Messages())
	if checked != len(messages) {
		t.Errorf("%d messages were compared, of %d", checked, len(messages))
	}
	for name, all := range enums {
		ours := find[protoreflect.EnumDescriptor](t, name)
		for _, other := range all {
			theirs := find[protoreflect.EnumDescriptor](t, other)
			for i := range theirs.Values().Len() {
				their := theirs.Values().Get(i)
				if our := ours.Values().ByNumber(their.Number()); our == nil || our.Name() != their.Name() {
					t.Errorf("%s has %s = %d, and %s has %v", other, their.Name(), their.Number(), name, our)
				}
			}
		}
	}
	if ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName != "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" {
		t.Error(ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName)
	}
}

// describe is all of a field that decides how it is sent.
func describe(f protoreflect.FieldDescriptor) string {
	return fmt.Sprintf("%s = %d, %v %v, packed %v", f.Name(), f.Number(), f.Cardinality(), f.Kind(), f.IsPacked())
}
