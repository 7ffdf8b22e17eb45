// Package codec reads and writes the messages of package server as JSON.
package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/batonhq/baton/internal/flatjson"
)

// JSON is stricter than connect's codec, which ignores unknown fields: a client that means
// wait_ms and writes wait must not be refused at once. Repeated fields and text that is
// not UTF-8 are errors, too. An answer has every field, also those of value zero, by its
// name in batonv1/baton.proto.
type JSON struct{ ContentType string }

// Name returns the content type of the codec, without "application/".
func (c JSON) Name() string { return c.ContentType }

// Marshal writes an answer. Equal answers have equal texts.
func (JSON) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("a %T is no message", message)
	}
	if text, ok := appendMessage(make([]byte, 0, 512), m.ProtoReflect()); ok {
		return text, nil
	}
	return marshalAny(m)
}

func marshalAny(m proto.Message) ([]byte, error) {
	text, err := protojson.MarshalOptions{EmitUnpopulated: true, UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer // removes the blanks that protojson adds at random
	if err := json.Compact(&b, text); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func (JSON) Unmarshal(text []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("a %T is no message", message)
	}
	if proto.Reset(m); readMessage(text, m.ProtoReflect()) {
		return nil
	}
	return unmarshalAny(text, m)
}

func unmarshalAny(text []byte, m proto.Message) error {
	if err := (protojson.UnmarshalOptions{}).Unmarshal(text, m); err != nil {
		return errors.New(plain(err.Error(), m.ProtoReflect().Descriptor().Fields()))
	}
	return nil
}

// plain returns the text of a protojson error without the blanks that differ between
// builds, and with the field names of batonv1/baton.proto.
func plain(text string, fields protoreflect.FieldDescriptors) string {
	text = strings.ReplaceAll(text, "\u00a0", " ")
	text = strings.TrimPrefix(text, "proto: ")
	for i := range fields.Len() {
		f := fields.Get(i)
		text = strings.Replace(text, "field "+f.JSONName()+":", "field "+string(f.Name())+":", 1)
	}
	return text
}

// appendMessage writes an answer as protojson does, in a fraction of the time. It returns
// false for rare content: fields with presence, maps that are not empty, bytes, and text
// that needs escapes.
func appendMessage(b []byte, m protoreflect.Message) ([]byte, bool) {
	fields := m.Descriptor().Fields()
	b = append(b, '{')
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.HasPresence() || f.IsMap() && m.Get(f).Map().Len() > 0 {
			return nil, false
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), f.TextName()...), `":`...)
		ok := true
		switch {
		case f.IsMap():
			b = append(b, "{}"...)
		case !f.IsList():
			b, ok = appendValue(b, f, m.Get(f))
		default:
			b = append(b, '[')
			for list, k := m.Get(f).List(), 0; ok && k < list.Len(); k++ {
				if k > 0 {
					b = append(b, ',')
				}
				b, ok = appendValue(b, f, list.Get(k))
			}
			b = append(b, ']')
		}
		if !ok {
			return nil, false
		}
	}
	return append(b, '}'), true
}

func appendValue(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) ([]byte, bool) {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return strconv.AppendBool(b, v.Bool()), true
	case protoreflect.Uint32Kind:
		return strconv.AppendUint(b, v.Uint(), 10), true
	case protoreflect.Int64Kind:
		return append(strconv.AppendInt(append(b, '"'), v.Int(), 10), '"'), true
	case protoreflect.EnumKind:
		if name := f.Enum().Values().ByNumber(v.Enum()); name != nil {
			return append(append(append(b, '"'), name.Name()...), '"'), true
		}
	case protoreflect.MessageKind:
		return appendMessage(b, v.Message())
	case protoreflect.StringKind:
		text := v.String()
		for i := range len(text) {
			if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
				return nil, false
			}
		}
		return append(append(append(b, '"'), text...), '"'), true
	}
	return nil, false
}

// readMessage reads a request into an empty message as protojson does. It returns false
// for rare content; then the message may be filled in part.
func readMessage(text []byte, m protoreflect.Message) bool {
	fields := m.Descriptor().Fields()
	seen := uint64(0)
	return flatjson.Each(text, func(name []byte, v flatjson.Value) bool {
		f := fields.ByTextName(string(name))
		if f == nil {
			f = fields.ByJSONName(string(name))
		}
		if f == nil || f.Cardinality() == protoreflect.Repeated || f.ContainingOneof() != nil || f.Index() > 63 || seen&(1<<f.Index()) != 0 {
			return false
		}
		seen |= 1 << f.Index()
		switch kind := f.Kind(); {
		case kind == protoreflect.StringKind && v.Kind == '"':
			m.Set(f, protoreflect.ValueOfString(string(v.Text)))
		case kind == protoreflect.BoolKind && (v.Kind == 't' || v.Kind == 'f'):
			m.Set(f, protoreflect.ValueOfBool(v.Kind == 't'))
		case kind == protoreflect.Uint32Kind && v.Kind == '0' && v.Number <= math.MaxUint32:
			m.Set(f, protoreflect.ValueOfUint32(uint32(v.Number)))
		case kind == protoreflect.Int64Kind && v.Kind == '0':
			m.Set(f, protoreflect.ValueOfInt64(v.Number))
		default:
			return false
		}
		return true
	})
}
