package lab

import (
	"cmp"
	"math"
	"slices"
	"strconv"
)

// marks are paths, in SVG, around 0,0, that tell lines apart without colours.
var marks = []string{
	"M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",               // disc
	"M-3.2-3.2h6.4v6.4h-6.4z",                                     // square
	"M0-4.4L4.2 3.2H-4.2z",                                        // triangle
	"M0-4.6L4.6 0L0 4.6L-4.6 0z",                                  // diamond
	"M0 4.4L4.2-3.2H-4.2z",                                        // triangle, upside down
	"M-4.4-1.2h3.2v-3.2h2.4v3.2h3.2v2.4h-3.2v3.2h-2.4v-3.2h-3.2z", // cross
	"M-4.4-1.8h8.8v3.6h-8.8z",                                     // horizontal bar
	"M-1.8-4.4h3.6v8.8h-3.6z",                                     // vertical bar
	"M-4-2.6L-2.6-4L0-1.4L2.6-4L4-2.6L1.4 0L4 2.6L2.6 4L0 1.4L-2.6 4L-4 2.6L-1.4 0z", // cross, lying
	"M-4.4 0h3.2L0-4.4L1.2 0h3.2L0 4.4z",                                             // arrows
}

// length formats a length or a coordinate, to a tenth of a pixel.
func length(v float64) string {
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}

// spread moves labels by as little as possible so that any two are at least apart from each
// other and all are between top and bottom. The order stays. If there is not enough space
// for all, the last ones are below bottom.
func spread(wanted []float64, apart, top, bottom float64) []float64 {
	order := make([]int, len(wanted))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(wanted[a], wanted[b]) })
	// Labels that touch are a block, at the mean of the positions that they want.
	type block struct {
		first float64 // the position that the first label of all wants
		n     int
	}
	var blocks []block
	for i, of := range order {
		b := block{wanted[of] - float64(i)*apart, 1}
		for len(blocks) > 0 && blocks[len(blocks)-1].first >= b.first {
			above := blocks[len(blocks)-1]
			n := above.n + b.n
			b = block{(above.first*float64(above.n) + b.first*float64(b.n)) / float64(n), n}
			blocks = blocks[:len(blocks)-1]
		}
		blocks = append(blocks, b)
	}
	places := make([]float64, len(wanted))
	within := bottom - float64(len(order)-1)*apart // so that the last one is not too low
	i := 0
	for _, b := range blocks {
		for range b.n {
			places[order[i]] = max(top, min(b.first, within)) + float64(i)*apart
			i++
		}
	}
	return places
}
