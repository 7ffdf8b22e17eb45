package lab

import (
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"testing"
)

// A linearRGB is a colour whose parts are amounts of light, from 0 to 1.
type linearRGB [3]float64

// sights are how people see colours: all of them, and without the cones for long, middle and
// short waves (Machado, Oliveira and Fernandes, 2009).
var sights = map[string][3][3]float64{
	"trichromacy":  {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
	"protanopia":   {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
	"deuteranopia": {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
	"tritanopia":   {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}},
}

// The least that is good.
const (
	leastApart    = 12 // of CIEDE2000: 2 is noticed at a glance
	leastContrast = 3  // what WCAG asks of lines
)

// problemsOf says what is wrong with the colours of lines on a paper, all in six hexadecimal
// digits: two that look alike to people with some sight of colours, and those that do not
// stand out from the paper. It names colours by their places, from 0.
func problemsOf(colours []string, paper string) (problems []string) {
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	on, err := linear(paper)
	if err != nil {
		problem("the paper is %q: %v", paper, err)
	}
	var all []linearRGB
	for i, text := range colours {
		c, err := linear(text)
		if err != nil {
			problem("colour %d is %q: %v", i, text, err)
		}
		all = append(all, c)
		if got := contrast(c, on); got < leastContrast {
			problem("colour %d has contrast %.2f, want %d", i, got, leastContrast)
		}
		for sight, matrix := range sights {
			for j, other := range all[:i] {
				if got := ciede2000(cielab(seen(matrix, c)), cielab(seen(matrix, other))); got < leastApart {
					problem("%s: colours %d and %d differ by %.1f, want %d", sight, j, i, got, leastApart)
				}
			}
		}
	}
	return problems
}

func linear(text string) (c linearRGB, err error) {
	parts, err := hex.DecodeString(text)
	if err == nil && len(parts) != len(c) {
		err = fmt.Errorf("it has %d parts", len(parts))
	}
	if err != nil {
		return c, err
	}
	for i, part := range parts {
		if v := float64(part) / 255; v <= 0.04045 {
			c[i] = v / 12.92
		} else {
			c[i] = math.Pow((v+0.055)/1.055, 2.4)
		}
	}
	return c, nil
}

func seen(by [3][3]float64, c linearRGB) (out linearRGB) {
	for i, row := range by {
		out[i] = min(max(row[0]*c[0]+row[1]*c[1]+row[2]*c[2], 0), 1)
	}
	return out
}

func contrast(a, b linearRGB) float64 {
	light := func(c linearRGB) float64 { return 0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2] + 0.05 }
	return max(light(a), light(b)) / min(light(a), light(b))
}

func cielab(c linearRGB) [3]float64 {
	f := func(v float64) float64 {
		if v > 216.0/24389 {
			return math.Cbrt(v)
		}
		return (24389.0/27*v + 16) / 116
	}
	x := f((0.4124564*c[0] + 0.3575761*c[1] + 0.1804375*c[2]) / 0.95047)
	y := f(0.2126729*c[0] + 0.7151522*c[1] + 0.0721750*c[2])
	z := f((0.0193339*c[0] + 0.1191920*c[1] + 0.9503041*c[2]) / 1.08883)
	return [3]float64{116*y - 16, 500 * (x - y), 200 * (y - z)}
}

// ciede2000 is how different two colours look.
func ciede2000(p, q [3]float64) float64 {
	const degree = math.Pi / 180
	seventh := func(c float64) float64 { c = math.Pow(c, 7); return math.Sqrt(c / (c + math.Pow(25, 7))) }
	g := 1.5 - 0.5*seventh((math.Hypot(p[1], p[2])+math.Hypot(q[1], q[2]))/2)
	c1, c2 := math.Hypot(g*p[1], p[2]), math.Hypot(g*q[1], q[2])
	h1, h2 := math.Atan2(p[2], g*p[1])/degree, math.Atan2(q[2], g*q[1])/degree
	turn := math.Mod(h2-h1+540+360, 360) - 180 // of the hue, the shorter way
	if c1*c2 == 0 {
		turn = 0
	}
	light, chroma, hue := (p[0]+q[0])/2, (c1+c2)/2, h1+turn/2
	cos := func(times, less float64) float64 { return math.Cos((times*hue - less) * degree) }
	t := 1 - 0.17*cos(1, 30) + 0.24*cos(2, 0) + 0.32*cos(3, -6) - 0.20*cos(4, 63)
	dl := (q[0] - p[0]) / (1 + 0.015*(light-50)*(light-50)/math.Sqrt(20+(light-50)*(light-50)))
	dc := (c2 - c1) / (1 + 0.045*chroma)
	dh := 2 * math.Sqrt(c1*c2) * math.Sin(turn/2*degree) / (1 + 0.015*chroma*t)
	from275 := (math.Mod(hue+720, 360) - 275) / 25
	twist := -2 * seventh(chroma) * math.Sin(60*degree*math.Exp(-from275*from275))
	return math.Sqrt(dl*dl + dc*dc + dh*dh + twist*dc*dh)
}

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
		got := strings.Join(problemsOf(strings.Fields(c.colours), c.paper), "\n")
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
