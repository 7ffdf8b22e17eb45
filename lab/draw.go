package lab

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"unicode"

	"github.com/batonhq/baton/internal/cli"
	"github.com/batonhq/baton/internal/textwidth"
	"github.com/batonhq/baton/lab/language"
	"github.com/batonhq/baton/lab/markup"
)

// wide is the width of a picture in pixels.
const wide = 760

// PictureName is the name of the file of a question's picture.
func PictureName(question string, l language.Language) string {
	return question + "." + string(l) + ".svg"
}

// Draw writes the record's picture as an SVG file that needs no other file. It follows the
// reader's choice of light or dark.
func (r *Record) Draw(w io.Writer, title string, l language.Language) error {
	c := &canvas{m: markup.New(w), in: l, wide: wide}
	var body func()
	height := 0.0
	switch {
	case r.Timeline != nil:
		height, body = c.timeline(r.Timeline)
	case r.Chart != nil && len(r.Chart.Lines) > 0:
		height, body = c.lines(r.Chart)
	case r.Chart != nil:
		height, body = c.bars(r.Chart)
	case r.Flow != nil:
		height, body = c.flow(r.Flow)
	default:
		return fmt.Errorf("the record of %q has no picture", r.Question)
	}
	titles := c.wrap(title, 15*bold, wide-24)
	top := 14 + 20*float64(len(titles))
	c.m.Start("svg", "xmlns", "http://www.w3.org/2000/svg", "viewBox", fmt.Sprintf("0 0 %d %s", wide, length(top+height)),
		"width", wide, "height", length(top+height), "role", "img", "aria-label", title, "lang", l)
	c.m.Raw("\n<style>" + Style + "</style>\n")
	c.m.Empty("rect", "width", wide, "height", length(top+height), "class", "paper")
	for i, line := range titles {
		c.m.Element("text", line, "x", 12, "y", length(22+20*float64(i)), "class", "title")
	}
	c.m.Raw("\n")
	c.m.Start("g", "transform", "translate(0 "+length(top)+")")
	body()
	c.m.End()
	c.m.Raw("\n")
	c.m.End()
	c.m.Raw("\n")
	return c.m.Flush()
}

// Style is the style of all pictures. Kinds have the colours of Okabe and Ito, which people
// with any colour vision can tell apart, and a pattern or a shape each. TestPalette checks
// that any two of the ten lines can be told apart, too.
const Style = `
svg { font: 13px system-ui, sans-serif } text { fill: #1a1a1a } .paper { fill: #fff }
.title { font-weight: 600; font-size: 15px } .small { font-size: 12px } .soft { fill: #555 } .bold { font-weight: 600 }
.rule { stroke: #888; stroke-opacity: .35; fill: none } .lane { stroke: #888; stroke-opacity: .5 }
.holds { fill: #0072b2 } .shares { fill: #56b4e9 } .waits { fill: #e4e4e4; stroke: #888 } .wrong { fill: #d55e00 } .works { fill: #009e73 }
.paused { fill: #f0e442; stroke: #8a8200 } .down { fill: #777 } .in { fill: #fff } .in-waits, .in-paused, .in-shares { fill: #1a1a1a }
.good { fill: #007a59 } .bad { fill: #c44900 } .plain { fill: #333 } text.bad { fill: #b34300 } path.good, path.bad, path.plain { stroke: #fff; stroke-width: 3; paint-order: stroke }
.s0 { --c: #0000c0 } .s1 { --c: #ed39a9 } .s2 { --c: #00ad0d } .s3 { --c: #3f173d } .s4 { --c: #865900 } .s5 { --c: #7c8bff } .s6 { --c: #661200 } .s7 { --c: #027676 } .s8 { --c: #484441 } .s9 { --c: #969481 }
.line { fill: none; stroke: var(--c); stroke-width: 2 } .dot { fill: var(--c) } text.name { fill: var(--c) }
.range { stroke: var(--c); opacity: .55 } .lead { fill: none; stroke: var(--c); stroke-width: .8; stroke-dasharray: 2 1.5 }
@media (prefers-color-scheme: dark) {
 text { fill: #e8e6e3 } .paper { fill: #15181c } .soft { fill: #aaa } .rule, .lane { stroke: #999 }
 .holds { fill: #3b9fdc } .waits { fill: #33383e } .wrong { fill: #ff8540 } .works { fill: #2cc295 } .down { fill: #999 } .in { fill: #000 } .in-waits { fill: #e8e6e3 } .in-paused, .in-shares { fill: #000 }
 .good { fill: #2cc295 } .bad, text.bad { fill: #ff8540 } .plain { fill: #ccc } path.good, path.bad, path.plain { stroke: #15181c }
 .s0 { --c: #8912fb } .s1 { --c: #f2548d } .s2 { --c: #a7ffc0 } .s3 { --c: #eef511 } .s4 { --c: #b39519 } .s5 { --c: #958cff } .s6 { --c: #a24b09 } .s7 { --c: #0db5ae } .s8 { --c: #14715b } .s9 { --c: #e5ebff }
}
`

// A canvas is a picture that is being drawn.
type canvas struct {
	m    *markup.Writer
	in   language.Language
	wide float64 // pixels
}

func wideRune(r rune) bool { return textwidth.OfRune(r) == 2 }

// breadth estimates the width of a text in pixels, rather too wide than too narrow.
func breadth(s string, size float64) float64 {
	w := 0.0
	for _, r := range s {
		switch {
		case wideRune(r):
			w += 1
		case r == 'm' || r == 'w' || r == 'M' || r == 'W' || r == '%' || r == '@':
			w += .86
		case r == 'i' || r == 'l' || r == 'j' || r == '.' || r == ',' || r == ' ' || r == '\'' || r == ':' || r == '|':
			w += .31
		case unicode.IsUpper(r):
			w += .68
		default:
			w += .56
		}
	}
	return w * size
}

// bold is the factor by which a bold text may be wider.
const bold = 1.15

// wrap breaks a text into lines of at most width.
func (c *canvas) wrap(s string, size, width float64) []string {
	return cli.Broken(s, func(line string) bool { return breadth(line, size) <= width })
}

// shapes are the paths of marks around 0,0, and their classes.
var shapes = map[MarkKind][2]string{
	Granted:  {"good", "M-5 5L0-5L5 5z"},
	Released: {"plain", "M-5-5L0 5L5-5z"},
	Renewed:  {"plain", "M-1-6h2v12h-2z"},
	Told:     {"plain", "M0-6L6 0L0 6L-6 0zM-1-3h2v3.4h-2zM-1 1.4h2v2h-2z"},
	Crashed:  {"bad", "M-5.5-3.5L-3.5-5.5L0-2L3.5-5.5L5.5-3.5L2 0L5.5 3.5L3.5 5.5L0 2L-3.5 5.5L-5.5 3.5L-2 0z"},
	Accepted: {"good", "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z"},
	Rejected: {"plain", "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0zM-3.2-1v2h6.4v-2z"},
	Harm:     {"bad", "M-1.5-7h3l-.6 9h-1.8zM-1.5 4h3v3h-3z"},
	Noted:    {"plain", "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z"},
}

func (c *canvas) shape(k MarkKind, x, y float64) {
	s := shapes[k]
	c.m.Empty("path", "class", s[0], "fill-rule", "evenodd", "d", s[1], "transform", "translate("+length(x)+" "+length(y)+")")
}

// ticks are round values from 0 to most.
func ticks(most float64, want int) (all []float64) {
	if most <= 0 {
		return []float64{0}
	}
	step := math.Pow(10, math.Floor(math.Log10(most/float64(want))))
	for _, f := range []float64{1, 2, 5, 10} {
		if most/(step*f) <= float64(want) {
			step *= f
			break
		}
	}
	for i := 0; float64(i)*step <= most*1.0001; i++ {
		all = append(all, float64(i)*step)
	}
	return all
}

// short writes a number for an axis.
func short(f float64) string {
	for _, u := range []struct {
		of   float64
		unit string
	}{{1e6, " M"}, {1e3, " k"}} {
		if math.Abs(f) >= 10*u.of || math.Abs(f) >= u.of && math.Mod(f, u.of) == 0 {
			return strconv.FormatFloat(f/u.of, 'g', 4, 64) + u.unit
		}
	}
	return strconv.FormatFloat(f, 'g', 4, 64)
}
