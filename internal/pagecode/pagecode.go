// Package pagecode compares the Go code of pages with files that the compiler reads.
package pagecode

import "strings"

// Blocks are the fenced blocks of a language in a page.
func Blocks(page, language string) (blocks []string) {
	for _, rest := range strings.Split(page, "```"+language+"\n")[1:] {
		block, _, _ := strings.Cut(rest, "```")
		blocks = append(blocks, block)
	}
	return blocks
}

// Plain is code without comments at the ends of lines, and with single spaces: a page and a
// file may differ in both.
func Plain(code string) string {
	var lines []string
	for line := range strings.Lines(code) {
		line, _, _ = strings.Cut(line, " // ")
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}
