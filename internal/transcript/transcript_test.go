package transcript

import (
	"reflect"
	"testing"
)

func TestComesBack(t *testing.T) {
	t.Parallel()
	for _, want := range []*Transcript{
		{},
		{Exit: 255, Omitted: 1 << 40, Pieces: []Piece{{Stream: 1, Data: []byte("a\nb")}, {Stream: 2, Data: []byte("\x00\xff1 3\n")}, {Stream: 1, Data: []byte("c")}}},
	} {
		got, err := Decode(want.Encode())
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q came back as %+v, %v", want.Encode(), got, err)
		}
	}
	for _, text := range []string{
		"", "{}", "baton-once 1 ", "baton-once 1 0", "baton-once 1 0 0", "baton-once 1 256 0\n", "baton-once 1 0 -1\n", "baton-once 2 0 0\n",
		"baton-once 1 0 0\n1 2\na", "baton-once 1 0 0\n3 1\na", "baton-once 1 0 0\n1 -1\n", "baton-once 1 0 0\n1\n", "baton-once 1 0 0\n1 99999999999999999999\n",
	} {
		if got, err := Decode([]byte(text)); err == nil {
			t.Errorf("%q was read as %+v", text, got)
		}
	}
}
