package jsonlist

import (
	"encoding/json"
	"testing"
	"time"
)

type named struct {
	Names []string
}

type value struct {
	named
	Inner  *value           `json:",omitempty"`
	List   []*value         `json:"list"`
	None   []int            `json:",omitempty"`
	Map    map[string][]int `json:"map"`
	Any    any
	Raw    json.RawMessage
	At     time.Time
	Text   []byte
	Nested [][]string
	hidden []int
}

func TestFilled(t *testing.T) {
	t.Parallel()
	const empty = `"Names":[],"list":[],"map":{},"Any":null,"Raw":null,"At":"0001-01-01T00:00:00Z","Text":"","Nested":[]`
	v := value{Inner: &value{}, List: []*value{nil, {}}, Map: map[string][]int{"k": nil}, Any: []int(nil), Raw: json.RawMessage("7"), Nested: [][]string{nil, {"x"}}}
	for _, c := range []struct {
		v    any
		want string
	}{
		{nil, "null"},
		{[]int(nil), "[]"},
		{(*value)(nil), "null"},
		{map[string]int(nil), "{}"},
		{value{}, "{" + empty + "}"},
		{&value{}, "{" + empty + "}"},
		{v, `{"Names":[],"Inner":{` + empty + `},"list":[null,{` + empty + `}],"map":{"k":[]},"Any":[],"Raw":7,"At":"0001-01-01T00:00:00Z","Text":"","Nested":[[],["x"]]}`},
	} {
		text, err := json.Marshal(Filled(c.v))
		if err != nil || string(text) != c.want {
			t.Errorf("%+v is\n%s, %v, want\n%s", c.v, text, err, c.want)
		}
	}
	if v.Inner.List != nil || v.Map["k"] != nil || v.Nested[0] != nil || v.hidden != nil {
		t.Errorf("the value itself has changed: %+v", v)
	}
}
