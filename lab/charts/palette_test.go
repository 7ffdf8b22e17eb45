package charts

import (
	"math"
	"strings"
	"testing"
)

func TestProblems(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		colours, paper, want string
	}{
		{"0000c0 ed39a9 00ad0d", "ffffff", ""},
		{"0000c0 0000d0", "ffffff", "trichromacy: colours 0 and 1 differ by 2."},
		{"027676 a9446b", "ffffff", "protanopia: colours 0 and 1 differ by 9.0"},
		{"dddddd", "ffffff", "colour 0 has contrast 1.36, want 3"},
		{"0000c0", "16181b", "colour 0 has contrast 1."},
		{"0000c", "ffffff", `colour 0 is "0000c"`},
		{"0000c0", "fff0ff0f", `the paper is "fff0ff0f": it has 4 parts`},
	} {
		got := strings.Join(Problems(strings.Fields(c.colours), c.paper), "\n")
		if !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s on %s: found %q, want %q", c.colours, c.paper, got, c.want)
		}
	}
}

// ciede2000 is right for pairs of Sharma, Wu and Dalal (2005).
func TestCIEDE2000(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b [3]float64
		want float64
	}{
		{[3]float64{50, 2.6772, -79.7751}, [3]float64{50, 0, -82.7485}, 2.0425},
		{[3]float64{50, 2.5, 0}, [3]float64{73, 25, -18}, 27.1492},
		{[3]float64{50, 2.5, 0}, [3]float64{58, 24, 15}, 19.4535},
		{[3]float64{60.2574, -34.0099, 36.2677}, [3]float64{60.4626, -34.1751, 39.4387}, 1.2644},
	} {
		if got := ciede2000(c.a, c.b); math.Abs(got-c.want) > 1e-4 {
			t.Errorf("%v and %v differ by %.4f, want %v", c.a, c.b, got, c.want)
		}
	}
}
