package questions

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unicode"

	"github.com/batonhq/baton/lab"
	"github.com/batonhq/baton/lab/language"
)

var update = flag.Bool("update", false, "write docs/lab.md, docs/zh/lab.md and the pictures of docs/lab from the records there")

// The folder of the records, and of the pictures that are drawn of them.
const folder = "../../docs/lab"

// TestPageIsFresh compares docs/lab.md, docs/zh/lab.md and all pictures with what the records
// in docs/lab give. "make lab" makes the experiments again.
func TestPageIsFresh(t *testing.T) {
	t.Parallel()
	want := map[string][]byte{}
	records := map[string]*lab.Record{}
	for _, q := range All() {
		f, err := os.Open(filepath.Join(folder, q.Name+".json"))
		if err != nil {
			t.Errorf("%v: make lab makes the experiment", err)
			continue
		}
		record, err := lab.ReadRecord(f)
		f.Close()
		if err != nil || record.Question != q.Name {
			t.Errorf("%s: %v", q.Name, err)
			continue
		}
		records[q.Name] = record
		for _, l := range language.All {
			want["lab/"+lab.PictureName(q.Name, l)] = draw(t, q, record, l)
		}
	}
	if t.Failed() {
		return
	}
	want["lab.md"] = pageOf(t, language.English, records)
	want["zh/lab.md"] = pageOf(t, language.Chinese, records)
	there, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range there {
		name := "lab/" + filepath.Base(path)
		question, isRecord := strings.CutSuffix(filepath.Base(path), ".json")
		if want[name] == nil && (!isRecord || records[question] == nil) {
			t.Errorf("docs/%s is of no question", name)
		}
	}
	for name, content := range want {
		path := filepath.Join(folder, "..", name)
		if *update {
			if err := os.WriteFile(path, content, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if is, err := os.ReadFile(path); err != nil || !bytes.Equal(is, content) {
			t.Errorf("docs/%s is stale: go test ./lab/questions -run PageIsFresh -update writes it (%v)", name, err)
		}
	}
}

// pageOf is the page with all questions: answer, command, picture, table, source.
func pageOf(t *testing.T, l language.Language, records map[string]*lab.Record) []byte {
	var b strings.Builder
	top, here := "../", "./lab/"
	if l == language.Chinese {
		top, here = "../../", "../lab/"
	}
	say := func(english, chinese string) { b.WriteString(text(english, chinese).In(l) + "\n\n") }
	say("# Questions, each with a command that shows the answer", "# 面试题 → 一条命令")
	say("[简体中文](zh/lab.md)", "[English](../lab.md)")
	say("Each question has an answer in three lines and one command that shows it: `baton-lab ask NAME` makes the experiment on your machine, with real servers that it starts on 127.0.0.1, and fails if it does not see what the answer says.",
		"每个问题都有三行答案，以及一条把答案演示出来的命令：`baton-lab ask NAME` 在本机上做这个实验，用的是它在 127.0.0.1 上启动的真实服务器；如果没有看到答案所说的情况，命令就以失败结束。")
	say("`baton-lab ask` lists the questions. The command is not part of a release: in a clone `go run ./lab/cmd/baton-lab ask` is the same, and `go install ./lab/cmd/baton-lab` installs it. No experiment needs a network. The pictures on this page were drawn from the records in [docs/lab](lab), by `baton-lab draw`.",
		"`baton-lab ask` 列出所有问题。这个命令不在发行包里：在克隆的仓库里，`go run ./lab/cmd/baton-lab ask` 与之相同，`go install ./lab/cmd/baton-lab` 安装它。任何实验都不需要网络。本页的图片由 `baton-lab draw` 根据 [docs/lab](../lab) 里的记录画出。")
	say("How fast the stores are is another page: [Measured](measured.md). `baton-lab bench` measures yours.",
		"各种存储有多快，见另一页：[测量结果（英文）](../measured.md)。`baton-lab bench` 测你自己的存储。")
	topic := lab.Topic(-1)
	for _, q := range All() {
		if q.Topic != topic {
			topic = q.Topic
			fmt.Fprintf(&b, "- [%s](#%s)\n", topic.Title().In(l), anchor(topic.Title().In(l)))
		}
		fmt.Fprintf(&b, "  - [%s](#%s): `%s`\n", q.Ask.In(l), anchor(q.Ask.In(l)), q.Name)
	}
	b.WriteString("\n")
	topic = -1
	for _, q := range All() {
		record := records[q.Name]
		if q.Topic != topic {
			topic = q.Topic
			fmt.Fprintf(&b, "## %s\n\n", topic.Title().In(l))
		}
		fmt.Fprintf(&b, "### %s\n\n", q.Ask.In(l))
		for i, line := range q.Answer {
			fmt.Fprintf(&b, "%d. %s\n", i+1, line.In(l))
		}
		fmt.Fprintf(&b, "\n```sh\nbaton-lab ask %s\n```\n\n", q.Name)
		fmt.Fprintf(&b, "![%s](%s%s)\n\n", q.Ask.In(l), here, lab.PictureName(q.Name, l))
		for _, table := range record.Tables {
			markdown(&b, table, l)
		}
		for _, s := range record.Says {
			fmt.Fprintf(&b, "%s\n\n", s.In(l))
		}
		made := record.Made
		if len(record.With) > 0 {
			made += ", " + strings.Join(record.With, ", ")
		}
		var tests []string
		for _, test := range q.Tests {
			tests = append(tests, "`"+test+"`")
		}
		run := reflect.ValueOf(q.Run).Pointer()
		file, _ := runtime.FuncForPC(run).FileLine(run)
		source := "lab/questions/" + filepath.Base(file)
		fmt.Fprintf(&b, text("Made on %s. Source: [%s](%s). Tests behind it: %s", "实验于 %s。源码：[%s](%s)。背后的测试：%s").In(l)+"\n\n",
			made, source, top+source, strings.Join(tests, "; "))
	}
	return []byte(strings.TrimRight(b.String(), "\n") + "\n")
}

// anchor is the fragment of a link to a heading.
func anchor(heading string) string {
	return strings.ReplaceAll(strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r) || strings.ContainsRune(" _-", r) {
			return unicode.ToLower(r)
		}
		return -1
	}, heading), " ", "-")
}

func markdown(b *strings.Builder, t *lab.Table, l language.Language) {
	row := func(cells []lab.Text) {
		for _, c := range cells {
			b.WriteString("| " + strings.ReplaceAll(c.In(l), "|", `\|`) + " ")
		}
		b.WriteString("|\n")
	}
	row(t.Columns)
	b.WriteString(strings.Repeat("|---", len(t.Columns)) + "|\n")
	for _, cells := range t.Rows {
		row(cells)
	}
	b.WriteString("\n")
}
