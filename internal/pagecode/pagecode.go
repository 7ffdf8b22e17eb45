// Package pagecode reads the fenced code of pages in Markdown.
package pagecode

import "strings"

const fence = "```"

// A Block is fenced code. Its fences stand at the starts of lines.
type Block struct {
	Language string // "" if the page names none
	Marks    string // what follows the language
	Text     string
	Line     int // of the first line of Text
}

// All are the blocks of a page. One that no fence ends reaches to the end of the page.
func All(page string) []Block {
	_, blocks := read(page)
	return blocks
}

// Blocks are the texts of the blocks of a language in a page.
func Blocks(page, language string) (texts []string) {
	for _, b := range All(page) {
		if b.Language == language {
			texts = append(texts, b.Text)
		}
	}
	return texts
}

// Marked is the text of the block that stands below the line <!-- name -->.
func Marked(page, name string) (text string, found bool) {
	_, below, found := strings.Cut(page, "<!-- "+name+" -->\n"+fence)
	if !found {
		return "", false
	}
	return All(fence + below)[0].Text, true
}

// Prose is a page without its blocks: their lines are empty, so that all others keep their
// numbers.
func Prose(page string) string {
	prose, _ := read(page)
	return prose
}

func read(page string) (prose string, blocks []Block) {
	var rest strings.Builder
	inside := false
	n := 0
	for line := range strings.Lines(page) {
		n++
		bare := strings.TrimSuffix(line, "\n")
		info, begins := strings.CutPrefix(bare, fence)
		switch {
		case inside && bare == fence:
			inside = false
		case inside:
			blocks[len(blocks)-1].Text += line
		case begins:
			inside = true
			language, marks, _ := strings.Cut(info, " ")
			blocks = append(blocks, Block{Language: language, Marks: marks, Line: n + 1})
		default:
			rest.WriteString(line)
			continue
		}
		if bare != line {
			rest.WriteByte('\n')
		}
	}
	return rest.String(), blocks
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
