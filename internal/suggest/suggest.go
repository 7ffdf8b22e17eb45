// Package suggest finds the word that was probably meant by a mistyped one.
package suggest

// Nearest returns the candidate with the fewest edits from word, or "" if none is near:
// one edit in three characters, but always two. A candidate that begins with word counts
// as one edit.
func Nearest(word string, candidates []string) string {
	best, nearest := max(2, len(word)/3)+1, ""
	for _, c := range candidates {
		d := distance(word, c)
		if len(word) > 2 && len(c) > len(word) && c[:len(word)] == word {
			d = min(d, 1)
		}
		if d < best && d < len(c) {
			best, nearest = d, c
		}
	}
	return nearest
}

// distance counts the insertions, deletions, replacements and swaps of neighbours that
// turn a into b.
func distance(a, b string) int {
	var before []int // the row before the last one, for swaps
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
