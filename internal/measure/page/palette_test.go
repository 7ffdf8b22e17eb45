package page

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
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

// The colours of the page's style.
func TestPalette(t *testing.T) {
	t.Parallel()
	for _, problem := range palette(t, style) {
		t.Error(problem)
	}
}

// palette says what is wrong with the colours of a style: any two of the ten differ for
// everybody, on the light page, on the dark one and on paper, by 12 of CIEDE2000 (2 is
// noticed at a glance), and stand out from the page as WCAG asks of lines.
func palette(t *testing.T, style string) (problems []string) {
	t.Helper()
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	hex := regexp.MustCompile(`--c(\d): #([0-9a-f]{6})\b`)
	_, dark, _ := strings.Cut(style, "prefers-color-scheme: dark")
	light, _, _ := strings.Cut(style, "@media")
	dark, print, _ := strings.Cut(dark, "@media print")
	print, _, _ = strings.Cut(print, "body {")
	for name, of := range map[string]struct{ css, paper string }{"light": {light, "ffffff"}, "dark": {dark, "16181b"}, "print": {print, "ffffff"}} {
		var all []linearRGB
		for _, c := range hex.FindAllStringSubmatch(of.css, -1) {
			if c[1] != strconv.Itoa(len(all)) {
				problem("%s: colour %s stands at place %d", name, c[1], len(all))
			}
			all = append(all, parse(t, c[2]))
		}
		if len(all) != colours {
			problem("%s: %d colours, want %d", name, len(all), colours)
		}
		if paper := regexp.MustCompile(`--paper: #(\w+)`).FindStringSubmatch(of.css); paper == nil || !strings.HasPrefix(of.paper, paper[1]) {
			problem("%s: the paper is %v, want %s", name, paper, of.paper)
		}
		for i, c := range all {
			if got := contrast(c, parse(t, of.paper)); got < 3 {
				problem("%s: colour %d has contrast %.2f, want 3", name, i, got)
			}
			for sight, matrix := range sights {
				for j := range i {
					if got := ciede2000(lab(seen(matrix, c)), lab(seen(matrix, all[j]))); got < 12 {
						problem("%s, %s: colours %d and %d differ by %.1f, want 12", name, sight, j, i, got)
					}
				}
			}
		}
	}
	return problems
}

// TestPaletteCatches plants colours that are wrong, and sees them found.
func TestPaletteCatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, old, new, want string }{
		{"two that are alike", "--c1: #ed39a9", "--c1: #0000d0", "trichromacy: colours 0 and 1 differ"},
		{"two that are alike without the cones for long waves", "--c9: #969481", "--c9: #a9446b", "protanopia: colours 7 and 9 differ"},
		{"one that does not stand out", "--c9: #969481", "--c9: #dddddd", "light: colour 9 has contrast"},
		{"one that does not stand out of the dark", "--c8: #14715b", "--c8: #1c2a26", "dark: colour 8 has contrast"},
		{"one too few", "; --c9: #969481", "", "9 colours, want 10"},
		{"a place that is taken twice", "--c9: #969481", "--c8: #969481", "colour 8 stands at place 9"},
		{"another paper", "--paper: #16181b", "--paper: #333333", "the paper is"},
	} {
		if !strings.Contains(style, c.old) {
			t.Fatalf("%s: the style has no %q", c.name, c.old)
		}
		if problems := strings.Join(palette(t, strings.ReplaceAll(style, c.old, c.new)), "\n"); !strings.Contains(problems, c.want) {
			t.Errorf("%s: found %q, want %q", c.name, problems, c.want)
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

func parse(t *testing.T, hex string) (c linearRGB) {
	t.Helper()
	for i := range c {
		n, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		if v := float64(n) / 255; v <= 0.04045 {
			c[i] = v / 12.92
		} else {
			c[i] = math.Pow((v+0.055)/1.055, 2.4)
		}
	}
	return c
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

func lab(c linearRGB) [3]float64 {
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
