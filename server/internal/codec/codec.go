// Package codec reads and writes the messages of package server as JSON.
package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// JSON is stricter than the one of connect, which ignores unknown fields: a client
// that means wait_ms and writes wait is not to be refused at once. A field that is there
// twice, and text that is no UTF-8, are errors, too. In answers each field is there, also
// if it is zero, under the name that batonv1/baton.proto has.
type JSON struct{ ContentType string }

// Name is the content type that the codec is for, behind "application/".
func (c JSON) Name() string { return c.ContentType }

// Marshal writes an answer. The same answer is the same text.
func (JSON) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("a %T is no message", message)
	}
	text, err := protojson.MarshalOptions{EmitUnpopulated: true, UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer // protojson adds blanks at random
	if err := json.Compact(&b, text); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Unmarshal reads a request.
func (JSON) Unmarshal(text []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("a %T is no message", message)
	}
	if err := (protojson.UnmarshalOptions{}).Unmarshal(text, m); err != nil {
		return errors.New(plain(err.Error(), m.ProtoReflect().Descriptor().Fields()))
	}
	return nil
}

// plain is the text of an error without what protojson draws for each build, a blank of one
// kind or another, and with the names of fields that batonv1/baton.proto has.
func plain(text string, fields protoreflect.FieldDescriptors) string {
	text = strings.ReplaceAll(text, "\u00a0", " ")
	text = strings.TrimPrefix(text, "proto: ")
	for i := range fields.Len() {
		f := fields.Get(i)
		text = strings.Replace(text, "field "+f.JSONName()+":", "field "+string(f.Name())+":", 1)
	}
	return text
}
