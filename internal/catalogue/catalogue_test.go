package catalogue

import (
	"fmt"
	"slices"
	"testing"
)

func TestAll(t *testing.T) {
	t.Parallel()
	const text = "# a remark\nof two lines\n\na b\n=\n甲\n乙\n\n\nas it is\nRedis\netcd\n\nc\nd = e\n=\n丙 = 丁\n"
	want := []string{`"a b" "甲\n乙"`, `"Redis" "Redis"`, `"etcd" "etcd"`, `"c\nd = e" "丙 = 丁"`}
	var got []string
	for english, other := range All(text) {
		got = append(got, fmt.Sprintf("%q %q", english, other))
	}
	if !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
	for n := range want { // a loop may end early
		seen := 0
		for range All(text) {
			if seen++; seen > n {
				break
			}
		}
	}
}
