package questions

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab"
	"github.com/batonhq/baton/lab/language"
)

var pictures = flag.String("pictures", "", "write the records and pictures of the experiments into this `folder`")

// TestQuestions makes all experiments. Each fails by itself if it does not see what its answer
// says.
func TestQuestions(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	command := testserver.Baton(t) // experiments kill it
	for _, q := range All() {
		t.Run(q.Name, func(t *testing.T) {
			t.Parallel()
			need(t, q)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			record, err := lab.Do(ctx, q, lab.Options{Baton: command})
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range textsOf(record) {
				if e, c := figuresOf(x.EN), figuresOf(x.ZH); !slices.Equal(e, c) {
					t.Errorf("%q has the figures %q in English and %q in Chinese", x.EN, e, c)
				}
			}
			var stored bytes.Buffer
			if err := record.Write(&stored); err != nil {
				t.Fatal(err)
			}
			again, err := lab.ReadRecord(bytes.NewReader(stored.Bytes()))
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range language.All {
				first, second := draw(t, q, record, l), draw(t, q, again, l)
				if !bytes.Equal(first, second) {
					t.Errorf("the picture of the record, in %s, changes when it is stored", l)
				}
				if *pictures != "" {
					write(t, lab.PictureName(q.Name, l), first)
				}
				var text bytes.Buffer
				if err := record.Print(&text, l, 100); err != nil {
					t.Fatal(err)
				}
				t.Logf("%s\n%s", q.Ask.In(l), text.Bytes())
			}
			if *pictures != "" {
				write(t, q.Name+".json", stored.Bytes())
			}
		})
	}
}

// need skips the test if it may not start a server of the experiment.
func need(t *testing.T, q *lab.Question) {
	for _, s := range q.Needs {
		switch s {
		case lab.Redis:
			testserver.NeedRedis(t)
		case lab.ZooKeeper:
			testserver.NeedZooKeeper(t)
		case lab.Postgres:
			testserver.NeedPostgres(t)
		case lab.Faketime:
			testserver.NewClock(t)
		}
	}
}

func draw(t *testing.T, q *lab.Question, r *lab.Record, l language.Language) []byte {
	var b bytes.Buffer
	if err := r.Draw(&b, q.Ask.In(l), l); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func write(t *testing.T, name string, b []byte) {
	if err := os.WriteFile(filepath.Join(*pictures, name), b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestWords checks what people read of a question without making its experiment.
func TestWords(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	name := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	han := regexp.MustCompile(`\p{Han}`)
	for _, q := range All() {
		if !name.MatchString(q.Name) || seen[q.Name] {
			t.Errorf("%q is no name, or is there twice", q.Name)
		}
		seen[q.Name] = true
		for _, x := range append(q.Answer[:], q.Ask) {
			if x.EN == "" || han.MatchString(x.EN) || !han.MatchString(x.ZH) {
				t.Errorf("%s: %q is not in both languages", q.Name, x)
			}
			if e, c := figuresOf(x.EN), figuresOf(x.ZH); !slices.Equal(e, c) {
				t.Errorf("%s: %q has the figures %q in English and %q in Chinese", q.Name, x.EN, e, c)
			}
		}
		if len(q.Tests) == 0 {
			t.Errorf("%s: no test fails if its answer is wrong", q.Name)
		}
		for _, test := range q.Tests {
			folder, name, _ := strings.Cut(test, ": ")
			files, _ := filepath.Glob(filepath.Join("../..", strings.TrimPrefix(folder, "baton"), "*.go")) // the pattern is right
			if !slices.ContainsFunc(files, func(file string) bool {
				text, err := os.ReadFile(file)
				return err == nil && bytes.Contains(text, []byte(name))
			}) {
				t.Errorf("%s: there is no test %q", q.Name, test)
			}
		}
	}
}

var figure = regexp.MustCompile(`\d+([.,:]\d+)*`)

// figuresOf are the numbers of a text, in an order that does not depend on its language.
func figuresOf(s string) []string {
	all := figure.FindAllString(s, -1)
	slices.Sort(all)
	return all
}

// textsOf are the cells and the sentences of a record.
func textsOf(r *lab.Record) []lab.Text {
	all := slices.Clone(r.Says)
	for _, t := range r.Tables {
		all = append(all, slices.Concat(t.Rows...)...)
		all = append(all, t.Columns...)
	}
	return all
}
