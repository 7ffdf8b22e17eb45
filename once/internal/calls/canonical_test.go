package calls

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// order is the type of a message as one version of a server knows it: a number 1, texts 5, and
// an order 7 within it, of which it knows those named.
func order(t *testing.T, fields ...int32) protoreflect.MessageDescriptor {
	t.Helper()
	one := &descriptorpb.DescriptorProto{Name: proto.String("Order")}
	for _, n := range fields {
		f := &descriptorpb.FieldDescriptorProto{
			Name: proto.String(string('a' + byte(n))), Number: proto.Int32(n),
			Type: descriptorpb.FieldDescriptorProto_TYPE_INT64.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}
		switch n {
		case 5:
			f.Type, f.Label = descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
		case 7:
			f.Type, f.TypeName = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), proto.String(".shop.Order")
		}
		one.Field = append(one.Field, f)
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("shop.proto"), Package: proto.String("shop"), Syntax: proto.String("proto3"), MessageType: []*descriptorpb.DescriptorProto{one},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return file.Messages().Get(0)
}

// encoded is an order as a client sends it that knows all fields.
func encoded(inner []byte, texts ...string) (out []byte) {
	out = protowire.AppendVarint(protowire.AppendTag(out, 1, protowire.VarintType), 42)
	for _, text := range texts {
		out = protowire.AppendString(protowire.AppendTag(out, 5, protowire.BytesType), text)
	}
	if inner != nil {
		out = protowire.AppendBytes(protowire.AppendTag(out, 7, protowire.BytesType), inner)
	}
	return protowire.AppendVarint(protowire.AppendTag(out, 9, protowire.VarintType), 8201)
}

// TestVersionsAgree: the same bytes are the same request to servers with different versions of
// its type, and other ones are another request.
func TestVersionsAgree(t *testing.T) {
	requests := [][]byte{
		encoded(nil), encoded(nil, "a", "b"), encoded(nil, "b", "a"), encoded(nil, "0182"), encoded(nil, "8201"),
		encoded(encoded(nil, "a")), encoded(encoded(nil, "a"), "a"), encoded(encoded(encoded(nil, "x"), "a", "b"), "c"),
	}
	seen := make(map[string]int)
	for i, text := range requests {
		var first []byte
		for j, known := range [][]int32{{1, 5, 7, 9}, {1, 9}, {1, 7, 9}, {9}, {5, 7}, {}} {
			m := dynamicpb.NewMessage(order(t, known...))
			if err := proto.Unmarshal(text, m); err != nil {
				t.Fatal(err)
			}
			got, err := canonical(m)
			if err != nil {
				t.Fatal(err)
			}
			if j == 0 {
				first = got
			} else if !bytes.Equal(got, first) {
				t.Errorf("request %d, by a server that knows %v: %x, by one that knows all %x", i, known, got, first)
			}
		}
		if other, has := seen[string(first)]; has {
			t.Errorf("requests %d and %d are the same: %x", other, i, first)
		}
		seen[string(first)] = i
	}
}
