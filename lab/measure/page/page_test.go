package page

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/batonhq/baton/internal/textwidth"
	"github.com/batonhq/baton/lab/language"
	"github.com/batonhq/baton/lab/measure"
)

// sample has all that is awkward: names with marks, gaps, what is infinite or
// not known, more targets than colours.
func sample() Page {
	r := &measure.Result{Goroutines: []int{1, 2, 256}}
	p := Page{Report: &measure.Report{Result: r, Build: `"care" & <patience>`}}
	for i := range 10 {
		name := fmt.Sprintf("store <%d> & co", i)
		r.Targets = append(r.Targets, name)
		p.Report.Stores = append(p.Report.Stores, measure.Store{Name: name, About: "redis://***@h" + strconv.Itoa(i)})
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
	return p
}

func write(t *testing.T, p Page) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestPageIsWellFormed(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]Page{"full": sample(), "empty": {Report: &measure.Report{Result: &measure.Result{}}}} {
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
		if name == "full" && (count["figure"] < 9 || count["polyline"] < 10*9 || count["table"] != count["figure"]+count["p"]) {
			t.Errorf("%s: %v", name, count)
		}
	}
}

// All points are numbers within the picture.
func TestPointsAreWithinThePicture(t *testing.T) {
	t.Parallel()
	text := write(t, sample())
	lines := regexp.MustCompile(`points="([^"]*)"`).FindAllStringSubmatch(text, -1)
	if len(lines) == 0 {
		t.Fatal("no lines")
	}
	for _, line := range lines {
		for point := range strings.FieldsSeq(line[1]) {
			x, y, ok := strings.Cut(point, ",")
			px, err1 := strconv.ParseFloat(x, 64)
			py, err2 := strconv.ParseFloat(y, 64)
			if !ok || err1 != nil || err2 != nil || px < left || px > wide || py < top || py > leastBottom {
				t.Errorf("point %q", point)
			}
		}
	}
	if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") || strings.Contains(text, "ZgotmplZ") {
		t.Error("something that is no number, or that the template refused, is on the page")
	}
}

// The page needs nothing that it does not have.
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

func TestScale(t *testing.T) {
	t.Parallel()
	s := decades(3e-6, 4e-3)
	if s.place(1e-6) != 0 || s.place(1e-2) != 1 || !(s.place(1e-4) > s.place(1e-5)) {
		t.Errorf("from %v to %v", s.place(1e-6), s.place(1e-2))
	}
	for _, s := range []scale{decades(1, 1), decades(math.Inf(1), 0), decades(1e-9, 1e9), linear()} {
		if len(s.ticks) < 2 || len(s.ticks) > 12 {
			t.Errorf("%d ticks: %v", len(s.ticks), s.ticks)
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

// Labels stand within the picture, in the order of the lines, and not upon each other.
func TestLabelsAreApart(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 10, 25} {
		r := &measure.Result{Goroutines: []int{1, 2}}
		for i := range n {
			name := strings.Repeat("long name ", 3) + strconv.Itoa(i)
			r.Targets = append(r.Targets, name)
			// All lines end at the lowest or at the highest value.
			r.Cells = append(r.Cells, &measure.Cell{Target: name, Shape: measure.Apart, Goroutines: 2, Repetitions: []measure.Figures{{P50: []float64{1e-6, 1e-3}[i%2]}}})
		}
		p := draw(r, measure.Apart, measure.Metrics[0], language.English)
		var at []float64
		for _, s := range p.Series {
			at = append(at, s.Label.Y)
			if right := s.Label.X + letter*float64(textwidth.Of(s.Label.Text)); right > wide || s.Label.Y < top || s.Label.Y > float64(p.Bottom) {
				t.Errorf("%d: the label %q ends at %v, %v", n, s.Label.Text, right, s.Label.Y)
			}
		}
		slices.Sort(at)
		for i := 1; i < len(at); i++ {
			if at[i]-at[i-1] < apart-1e-6 {
				t.Errorf("%d: labels at %v and %v lie upon each other", n, at[i-1], at[i])
			}
		}
		if len(at) != n {
			t.Errorf("%d labels, want %d", len(at), n)
		}
	}
}

// What shows nothing is not drawn, and said.
func TestAlikeIsNotDrawn(t *testing.T) {
	t.Parallel()
	for most, drawn := range map[float64]bool{1.2: false, 3: true} {
		r := &measure.Result{Goroutines: []int{2}, Targets: []string{"a", "b"}}
		for i, v := range []float64{1, most} {
			r.Cells = append(r.Cells, &measure.Cell{Target: r.Targets[i], Shape: measure.Line, Goroutines: 2, Repetitions: []measure.Figures{{P50: 1, P99: 1, Jitter: 1, Rate: 1, HandOffs: 1, MostOverLeast: v, Jain: 1 / v}}})
		}
		text := write(t, Page{Report: &measure.Report{Result: r}})
		if strings.Contains(text, `aria-label="Most served`) != drawn || strings.Contains(text, "all are about alike: most served ÷ least served, from 1.00 to") == drawn {
			t.Errorf("most over least from 1 to %v is drawn: want %v", most, drawn)
		}
	}
}

// The page in Chinese has no English but names and units.
func TestPageInChinese(t *testing.T) {
	t.Parallel()
	p := sample()
	p.Language = language.Chinese
	text := write(t, p)
	for _, english := range []string{"goroutines", "fairness", "Measured", "How this", "One key", "Not "} {
		if strings.Contains(text, english) {
			t.Errorf("the page in Chinese has %q", english)
		}
	}
	if !strings.Contains(text, `lang="zh-Hans"`) || !strings.Contains(text, "goroutine 数") {
		t.Error("it is not in Chinese")
	}
}
