package codec

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/batonhq/baton/internal/mutants"
	"github.com/batonhq/baton/server/batonv1"
)

func TestJSONIsStrict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what, text string
		legal      bool
	}{
		{"a request", `{"key":"k","wait_ms":5000}`, true},
		{"lower camel case", `{"key":"k","waitMs":5000}`, true},
		{"nothing", `{}`, true},
		{"blanks", " {\n} ", true},
		{"a field in full", `{"key":"\u0061/z"}`, true},
		{"an unknown field", `{"key":"k","wait":5000}`, false},
		{"a field in another case", `{"KEY":"k"}`, false},
		{"a field twice", `{"key":"a","key":"b"}`, false},
		{"a field under both names", `{"wait_ms":1,"waitMs":2}`, false},
		{"a text that is no UTF-8", "{\"key\":\"\xff\"}", false},
		{"half of a pair", `{"key":"\ud800"}`, false},
		{"a number as text", `{"key":1}`, false},
		{"a negative time", `{"wait_ms":-1}`, false},
		{"a time that is too long", `{"wait_ms":4294967296}`, false},
		{"a fraction", `{"wait_ms":1.5}`, false},
		{"two objects", `{}{}`, false},
		{"no object", `[]`, false},
		{"nothing at all", ``, false},
		{"a comment", `{/* */}`, false},
	} {
		err := (JSON{}).Unmarshal([]byte(c.text), &batonv1.AcquireRequest{})
		if (err == nil) != c.legal {
			t.Errorf("%s: %v, legal is %v", c.what, err, c.legal)
		}
	}
}

// The text of an error is the same in every build, and has the names of the documentation.
func TestJSONErrors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"ttl_ms":-1}`: `field ttl_ms: -1`,
		`{"wait":1}`:    `unknown field "wait"`,
		`{"key":1}`:     `field key: 1`,
		`{"key":"`:      ``,
	} {
		err := (JSON{}).Unmarshal([]byte(text), &batonv1.AcquireRequest{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "proto:") || strings.Contains(err.Error(), "\u00a0") {
			t.Errorf("%s: %q, want %q", text, err, want)
		}
	}
}

func TestJSONShowsZeros(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		message proto.Message
		want    string
	}{
		{&batonv1.TakeResponse{}, `{"ok":false,"limit":"0","remaining":"0","reset_ms":"0","wait_ms":"0","retry_ms":"0","reservation":"","each":[]}`},
		{&batonv1.RenewResponse{}, `{"remaining_ms":0,"asked":[],"handle":""}`},
		{
			&batonv1.AcquireResponse{State: batonv1.AcquireResponse_REFUSED},
			`{"state":"REFUSED","handle":"","token":"0","remaining_ms":0,"holders":[],"waiting":0,"tokens":{}}`,
		},
		{
			&batonv1.AcquireResponse{State: batonv1.AcquireResponse_HELD, Token: 1 << 60, Handle: "<&>"},
			`{"state":"HELD","handle":"<&>","token":"1152921504606846976","remaining_ms":0,"holders":[],"waiting":0,"tokens":{}}`,
		},
	} {
		for range 20 { // protojson adds blanks at random
			got, err := JSON{}.Marshal(c.message)
			if err != nil || string(got) != c.want {
				t.Fatalf("%s, %v, want %s", got, err, c.want)
			}
		}
	}
}

// FuzzJSON reads requests: what is accepted comes back when it is written and read again,
// and is UTF-8 without unknown fields.
func FuzzJSON(f *testing.F) {
	for _, text := range []string{`{"key":"k","op":"op x of 16 bytes","ttl_ms":1,"wait_ms":0,"shared":true}`, `{"permits":1,"of":"2"}`, `{"key":null}`, `{"key":"\ud83d\ude00"}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		mutants.Of(text, func(text []byte) { checkJSON(t, text) })
	})
}

func checkJSON(t *testing.T, text []byte) {
	var codec JSON
	for _, m := range []proto.Message{&batonv1.AcquireRequest{}, &batonv1.TakeRequest{}, &batonv1.BreakRequest{}, &batonv1.Holder{}} {
		if !readMessage(text, m.ProtoReflect()) {
			continue
		}
		long := m.ProtoReflect().New().Interface()
		if err := unmarshalAny(text, long); err != nil || !proto.Equal(m, long) {
			t.Errorf("%q: %v the short way, %v, %v the long way", text, m, long, err)
		}
		checkMarshal(t, m)
		checkMarshal(t, &batonv1.AcquireResponse{Holders: []*batonv1.Holder{{Owner: string(text)}, {Token: -int64(len(text)), AgeMs: uint32(len(text))}}})
	}
	read := &batonv1.AcquireRequest{}
	if codec.Unmarshal(text, read) != nil {
		return
	}
	if len(read.ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("%q has unknown fields", text)
	}
	written, err := codec.Marshal(read)
	if err != nil {
		t.Fatalf("%q cannot be written: %v", text, err)
	}
	again := &batonv1.AcquireRequest{}
	if err := codec.Unmarshal(written, again); err != nil || !proto.Equal(read, again) {
		t.Errorf("%q became %s and then %v, %v", text, written, again, err)
	}
	if strings.Contains(string(written), "\n") {
		t.Errorf("%q has a line end", written)
	}
}

// checkMarshal looks whether a message is written alike in both ways.
func checkMarshal(t *testing.T, m proto.Message) {
	short, ok := appendMessage(nil, m.ProtoReflect())
	if !ok {
		return
	}
	if long, err := marshalAny(m); err != nil || string(short) != string(long) {
		t.Errorf("%v: %s the short way, %s, %v the long way", m, short, long, err)
	}
}

// All messages of the API are written alike in both ways, and those that are asked for most
// by the short one.
func TestMessagesOfTheAPI(t *testing.T) {
	t.Parallel()
	for i := range batonv1.File_server_batonv1_baton_proto.Messages().Len() {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(batonv1.File_server_batonv1_baton_proto.Messages().Get(i).FullName())
		if err != nil {
			t.Fatal(err)
		}
		checkMarshal(t, kind.New().Interface())
	}
	for _, m := range []proto.Message{
		&batonv1.AcquireResponse{State: batonv1.AcquireResponse_HELD, Handle: "bh1.x", Token: 1 << 60, RemainingMs: math.MaxUint32},
		&batonv1.RenewResponse{}, &batonv1.ReleaseResponse{}, &batonv1.TakeResponse{Ok: true, Limit: math.MinInt64},
		&batonv1.ListResponse{Locks: []*batonv1.Lock{{Key: "k", Holders: []*batonv1.Holder{{Shared: true}, {}}}, {}}},
	} {
		if _, ok := appendMessage(nil, m.ProtoReflect()); !ok {
			t.Errorf("%v is not written the short way", m)
		}
		checkMarshal(t, m)
	}
}
