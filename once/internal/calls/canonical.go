package calls

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// canonical encodes a message so that servers with different versions of its type agree:
// the fields are in the order of their numbers, even those unknown to this version. A
// field that only one version knows is compared as the client encoded it, so the client
// must encode it in that order, too, and without maps.
func canonical(m proto.Message) ([]byte, error) {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	return sorted(text, m.ProtoReflect().Descriptor())
}

// sorted puts the fields of a message, and of the messages in it, into the order of their
// numbers. Values of one field keep their order.
func sorted(text []byte, of protoreflect.MessageDescriptor) ([]byte, error) {
	type field struct {
		number protowire.Number
		text   []byte
	}
	var fields []field
	for len(text) > 0 {
		number, kind, head := protowire.ConsumeTag(text)
		if head < 0 {
			return nil, protowire.ParseError(head)
		}
		length := protowire.ConsumeFieldValue(number, kind, text[head:])
		if length < 0 {
			return nil, protowire.ParseError(length)
		}
		one := text[:head+length]
		if known := of.Fields().ByNumber(number); known != nil && known.Message() != nil && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(text[head:])
			inner, err := sorted(value, known.Message())
			if err != nil {
				return nil, err
			}
			one = protowire.AppendBytes(slices.Clone(text[:head]), inner)
		}
		fields, text = append(fields, field{number, one}), text[head+length:]
	}
	slices.SortStableFunc(fields, func(a, b field) int { return int(a.number) - int(b.number) })
	var out []byte
	for _, f := range fields {
		out = append(out, f.text...)
	}
	return out, nil
}
