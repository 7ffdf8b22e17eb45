package lab

import (
	"slices"
	"testing"
)

func TestSpread(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		wanted, want []float64
	}{
		{"none", nil, nil},
		{"with room", []float64{50, 20, 80}, []float64{50, 20, 80}},
		{"two at one place", []float64{50, 50}, []float64{45, 55}},
		{"too near, in another order", []float64{54, 50, 90}, []float64{57, 47, 90}},
		{"at the top", []float64{3, 1}, []float64{10, 0}},
		{"at the bottom", []float64{99, 100}, []float64{90, 100}},
		{"without room", make([]float64, 12), []float64{0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110}},
	} {
		if got := spread(c.wanted, 10, 0, 100); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestLength(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{1: "1", -0.25: "-0.3", 12.04: "12", 1e3 / 3: "333.3"} {
		if got := length(v); got != want {
			t.Errorf("%v is %s, want %s", v, got, want)
		}
	}
}
