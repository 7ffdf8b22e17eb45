package page

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/batonhq/baton/lab/measure"
)

// sample has everything awkward: names with markup, gaps, infinite and unknown figures, more
// targets than colours.
func sample() *measure.Report {
	r := &measure.Result{Goroutines: []int{1, 2, 256}}
	report := &measure.Report{Result: r, Build: `"care" & <patience>`}
	for i := range 10 {
		name := fmt.Sprintf("store <%d> & co", i)
		r.Targets = append(r.Targets, name)
		report.Stores = append(report.Stores, measure.Store{Name: name, About: "redis://***@h" + strconv.Itoa(i)})
		for _, s := range measure.Shapes {
			for _, n := range r.Goroutines {
				if i == 3 && n == 2 {
					continue // a gap
				}
				f := measure.Figures{P50: 1e-6 * float64(n*(i+1)), P99: 1e-3, Jitter: math.NaN(), Rate: 1000 / float64(i+1), HandOffs: 1, MostOverLeast: math.Inf(1), Jain: 0.5}
				g := f
				g.P50 *= 2
				r.Cells = append(r.Cells, &measure.Cell{Target: name, Shape: s, Goroutines: n, Repetitions: []measure.Figures{f, g}})
			}
		}
	}
	return report
}

func write(t *testing.T, p *measure.Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestPageIsWellFormed(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]*measure.Report{"full": sample(), "empty": {Result: &measure.Result{}}} {
		d := xml.NewDecoder(strings.NewReader(write(t, p)))
		count := map[string]int{}
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if e, ok := token.(xml.StartElement); ok {
				count[e.Name.Local]++
			}
		}
		if name == "full" && (count["figure"] < 9 || count["table"] < count["figure"]) {
			t.Errorf("%s: %v", name, count)
		}
	}
}

// All coordinates are numbers within the picture, and a target without a point takes no
// other's colour.
func TestPointsAreWithinThePicture(t *testing.T) {
	t.Parallel()
	text := write(t, sample())
	points := regexp.MustCompile(`[ML]([0-9.-]+) ([0-9.-]+)`).FindAllStringSubmatch(strings.Join(regexp.MustCompile(`class="line" d="M[^H"]*"`).FindAllString(text, -1), ""), -1)
	if len(points) < 10*9 {
		t.Fatalf("%d points", len(points))
	}
	for _, p := range points {
		x, err1 := strconv.ParseFloat(p[1], 64)
		y, err2 := strconv.ParseFloat(p[2], 64)
		if err1 != nil || err2 != nil || x < 0 || x > wide || y < 0 || y > 320 {
			t.Errorf("point %q", p[0])
		}
	}
	if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
		t.Error("something that is no number is on the page")
	}
}

// The page is self-contained.
func TestPageIsSelfContained(t *testing.T) {
	t.Parallel()
	text := write(t, sample())
	for _, forbidden := range []string{"<script", "<link", "<img", "http:", "https:", "url(", "@import", "src="} {
		if strings.Contains(text, forbidden) {
			t.Errorf("the page has %q", forbidden)
		}
	}
	for _, wanted := range []string{"prefers-color-scheme: dark", "@media print", "color-scheme: light dark", "store &lt;9&gt; &amp; co"} {
		if !strings.Contains(text, wanted) {
			t.Errorf("the page lacks %q", wanted)
		}
	}
}

func TestShortLabels(t *testing.T) {
	t.Parallel()
	for label, want := range map[string]string{"1.00 µs": "1 µs", "10.0k": "10k", "0.250": "0.250", "1.000": "1", "100 ms": "100 ms", "1.00M": "1M", "1.05 s": "1.05 s"} {
		if got := short(label); got != want {
			t.Errorf("short(%q) = %q, want %q", label, got, want)
		}
	}
}

// A picture that would show no difference is replaced by a sentence.
func TestAlikeIsNotDrawn(t *testing.T) {
	t.Parallel()
	for most, drawn := range map[float64]bool{1.2: false, 3: true} {
		r := &measure.Result{Goroutines: []int{2}, Targets: []string{"a", "b"}}
		for i, v := range []float64{1, most} {
			r.Cells = append(r.Cells, &measure.Cell{Target: r.Targets[i], Shape: measure.Line, Goroutines: 2, Repetitions: []measure.Figures{{P50: 1, P99: 1, Jitter: 1, Rate: 1, HandOffs: 1, MostOverLeast: v, Jain: 1 / v}}})
		}
		text := write(t, &measure.Report{Result: r})
		if strings.Contains(text, `aria-label="Most served`) != drawn || strings.Contains(text, "all are about alike: most served ÷ least served, from 1.00 to") == drawn {
			t.Errorf("most over least from 1 to %v is drawn: want %v", most, drawn)
		}
	}
}
