package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/batonhq/baton/internal/cli"
	"github.com/batonhq/baton/internal/suggest"
	"github.com/batonhq/baton/lab"
	"github.com/batonhq/baton/lab/language"
	"github.com/batonhq/baton/lab/questions"
)

const exitTableAsk = `Exit codes:
  0         every experiment saw what its answer says
  64        wrong usage
  69        a server that an experiment needs is not installed (the others were made)
  125       baton-lab itself failed, or an experiment did not see what its answer says
  130       interrupted
`

// asking is one run of baton-lab ask.
type asking struct {
	*app
	all  bool
	svg  string
	save string
}

func (a *app) askCommand() *cobra.Command {
	l := &asking{app: a}
	cmd := &cobra.Command{
		Use:   "ask [NAME… | --all]",
		Short: "Answer questions about locks and limits by experiments",
		Long: `Without a NAME, lists the questions, a line each. With one, answers it by an experiment
with real servers on this machine: it shows the answer in three lines, what was seen, a
table, and which test stands behind it. The picture is written as SVG into the user's cache
directory, or where --svg says. An experiment fails if it did not see what its answer says.

It needs no network. Servers, where an experiment needs them, are started for it on
127.0.0.1, on free ports, and end with it; redis-server, ZooKeeper and the others have to
be installed. Stores that you have are not touched.

--save DIRECTORY keeps what was seen, NAME.json, from which baton-lab draw makes the same
pictures again. With -o json that is printed, one line for each experiment; of the list,
name, topic, question, answer (three lines), needs and tests, each text in English and
Chinese.

` + exitTableAsk,
		Example: `  baton-lab ask
  baton-lab ask setnx-expire
  baton-lab ask --all --svg pictures --save records`,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return questionNames(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	f := cmd.Flags()
	f.BoolVar(&l.all, "all", false, "make all experiments")
	f.StringVar(&l.svg, "svg", "", "write pictures into this `DIRECTORY`, which is made if it is missing")
	f.StringVar(&l.save, "save", "", "keep what was seen in this `DIRECTORY`, which is made if it is missing")
	a.outputFlag(cmd)
	cmd.RunE = cli.Does(func(ctx context.Context, args []string) error {
		asJSON, err := a.json()
		if err != nil {
			return err
		}
		if len(args) == 0 && !l.all {
			if l.svg != "" || l.save != "" {
				return usage("NAME is missing: baton-lab ask lists them; --all makes all")
			}
			return a.listQuestions(asJSON)
		}
		chosen, err := l.choose(args)
		if err != nil {
			return err
		}
		for _, dir := range []string{l.svg, l.save} {
			if dir != "" {
				if err := makeFolder(dir); err != nil {
					return err
				}
			}
		}
		return l.run(ctx, chosen, asJSON)
	})
	return cmd
}

func (a *app) listQuestions(asJSON bool) error {
	all := questions.All()
	if asJSON {
		return cli.JSON(a.stdout, listedQuestions(all), true)
	}
	w := bufio.NewWriter(a.stdout)
	wide := 0
	for _, q := range all {
		wide = max(wide, len(q.Name))
	}
	topic := lab.Topic(-1)
	for _, q := range all {
		if q.Topic != topic {
			if topic >= 0 {
				fmt.Fprintln(w)
			}
			topic = q.Topic
			fmt.Fprintln(w, topic.Title().In(language.English))
		}
		fmt.Fprintf(w, "  %-*s  %s\n", wide, q.Name, q.Ask.In(language.English))
	}
	return w.Flush()
}

type listedQuestion struct {
	Name     string       `json:"name"`
	Topic    lab.Text     `json:"topic"`
	Question lab.Text     `json:"question"`
	Answer   [3]lab.Text  `json:"answer"`
	Needs    []lab.Server `json:"needs"`
	Tests    []string     `json:"tests"`
}

func listedQuestions(all []*lab.Question) (listed []listedQuestion) {
	for _, q := range all {
		listed = append(listed, listedQuestion{q.Name, q.Topic.Title(), q.Ask, q.Answer, append([]lab.Server{}, q.Needs...), q.Tests})
	}
	return listed
}

func questionNames() (names []string) {
	for _, q := range questions.All() {
		names = append(names, q.Name)
	}
	return names
}

// choose are the questions with these names.
func (l *asking) choose(names []string) (chosen []*lab.Question, err error) {
	switch {
	case l.all && len(names) > 0:
		return nil, usage("--all makes all of them: name none")
	case l.all:
		return questions.All(), nil
	}
	for _, name := range names {
		q := questionOf(name)
		if q == nil {
			if near := suggest.Nearest(strings.ToLower(name), questionNames()); near != "" {
				return nil, usage("there is no question %q: did you mean %q?", name, near)
			}
			return nil, usage("there is no question %q: baton-lab ask lists them", name)
		}
		chosen = append(chosen, q)
	}
	return chosen, nil
}

func (l *asking) run(ctx context.Context, chosen []*lab.Question, asJSON bool) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal does not wait for servers to end
	var failed, missing []string
	for i, q := range chosen {
		l.say("%s (%d of %d) …", q.Name, i+1, len(chosen))
		record, err := lab.Do(ctx, q, lab.Options{})
		if ctx.Err() != nil {
			return &exit{Code: cli.ExitSignal + int(syscall.SIGINT), Err: errors.New("interrupted")}
		}
		if err != nil {
			l.complain("%s", cli.Safe(err.Error()))
			failed = append(failed, q.Name)
			if errors.Is(err, lab.ErrNotInstalled) {
				missing = append(missing, q.Name)
			}
			continue
		}
		kept := l.keep(q, record)
		if asJSON {
			err = cli.JSON(l.stdout, record, false)
		} else {
			err = l.show(q, record, kept == nil)
		}
		if err = cmp.Or(err, kept); err != nil {
			return err
		}
	}
	switch {
	case len(failed) == 0:
		return nil
	case len(failed) == len(missing):
		return &exit{Code: cli.ExitUnavailable, Err: fmt.Errorf("%d of %d experiments were not made: their servers are not installed: %s", len(missing), len(chosen), strings.Join(missing, ", "))}
	}
	return &exit{Code: cli.ExitFailed, Err: fmt.Errorf("%d of %d experiments failed: %s", len(failed), len(chosen), strings.Join(failed, ", "))}
}

// show prints an experiment for people. kept reports whether keep has written its files.
func (l *asking) show(q *lab.Question, record *lab.Record, kept bool) error {
	width, _, err := term.GetSize(int(l.stdout.Fd()))
	if err != nil || width < 20 {
		width = 100
	}
	width = max(min(width, 120), 30)
	w := bufio.NewWriter(l.stdout)
	fmt.Fprintf(w, "%s\n\n", cli.Fold(q.Ask.In(language.English), "", width))
	for _, line := range q.Answer {
		fmt.Fprintln(w, cli.Fold(line.In(language.English), "  ", width))
	}
	fmt.Fprintln(w)
	if err := record.Print(w, language.English, width); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if path := l.picture(q, record, kept); path != "" {
		fmt.Fprintf(w, "picture: %s\n", cli.Safe(path))
	}
	for _, test := range q.Tests {
		fmt.Fprintf(w, "test: %s\n", test)
	}
	fmt.Fprintln(w)
	return w.Flush()
}

// picture writes the picture for a terminal that cannot show it. The path is "" if there is
// no picture.
func (l *asking) picture(q *lab.Question, record *lab.Record, kept bool) (path string) {
	name := lab.PictureName(q.Name, language.English)
	if l.svg != "" {
		if !kept {
			return ""
		}
		return filepath.Join(l.svg, name)
	}
	dir, err := os.UserCacheDir()
	if err == nil {
		path = filepath.Join(dir, "baton", "lab", name)
		if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
			err = drawInto(path, q.Ask, record, language.English)
		}
	}
	if err != nil {
		l.say("there is no picture: %s; --svg DIRECTORY takes another place", cli.Safe(err.Error()))
		return ""
	}
	return path
}

// keep writes what --svg and --save ask for.
func (l *asking) keep(q *lab.Question, record *lab.Record) error {
	if l.svg != "" {
		if err := drawAll(l.svg, q.Ask, record); err != nil {
			return err
		}
	}
	if l.save == "" {
		return nil
	}
	var b bytes.Buffer
	if err := record.Write(&b); err != nil {
		return err
	}
	return replace(filepath.Join(l.save, q.Name+".json"), b.Bytes())
}

// drawAll draws a record in both languages.
func drawAll(dir string, title lab.Text, record *lab.Record) error {
	for _, l := range language.All {
		if err := drawInto(filepath.Join(dir, lab.PictureName(record.Question, l)), title, record, l); err != nil {
			return err
		}
	}
	return nil
}

func drawInto(path string, title lab.Text, record *lab.Record, l language.Language) error {
	var b bytes.Buffer
	if err := record.Draw(&b, title.In(l), l); err != nil {
		return err
	}
	return replace(path, b.Bytes())
}

// makeFolder makes a directory if it is missing. It returns an error if a file cannot be
// made in it.
func makeFolder(dir string) error {
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(dir, ".baton-"); err == nil {
			err = errors.Join(f.Close(), os.Remove(f.Name()))
		}
	}
	if err != nil {
		return &exit{Code: cli.ExitConfig, Err: cli.OfFile(err)}
	}
	return nil
}

// replace writes a file. If that fails, the old content stays.
func replace(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".baton-")
	if err != nil {
		return cli.OfFile(err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("%s: %w", cli.RedactURL(path), err)
	}
	return nil
}

func (a *app) drawCommand() *cobra.Command {
	svg := ""
	cmd := &cobra.Command{
		Use:   "draw --svg DIRECTORY FILE…",
		Short: "Draw the pictures of experiments that were made before",
		Long: `Draws what baton-lab ask --save has kept: of each FILE the picture in English and in
Chinese. The same FILE gives the same pictures, byte by byte, on any machine.`,
		Example: `  baton-lab draw --svg pictures records/*.json`,
		Args:    cobra.MinimumNArgs(1),
	}
	cmd.Flags().StringVar(&svg, "svg", "", "write pictures into this `DIRECTORY`, which is made if it is missing")
	_ = cmd.MarkFlagRequired("svg")
	cmd.RunE = cli.Does(func(_ context.Context, args []string) error {
		var records []*lab.Record
		for _, path := range args {
			record, err := readRecord(path)
			if err != nil {
				return err
			}
			records = append(records, record)
		}
		if err := makeFolder(svg); err != nil {
			return err
		}
		for _, record := range records {
			if err := drawAll(svg, questionOf(record.Question).Ask, record); err != nil {
				return err
			}
		}
		return nil
	})
	return cmd
}

// readRecord reads the record of an existing question.
func readRecord(path string) (*lab.Record, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, usage("%w", cli.OfFile(err))
	}
	defer f.Close()
	record, err := lab.ReadRecord(bufio.NewReader(f))
	if err != nil {
		return nil, usage("%s: %w", cli.Safe(path), err)
	}
	if questionOf(record.Question) == nil {
		return nil, usage("%s: there is no question %q in this version", cli.Safe(path), record.Question)
	}
	return record, nil
}

// questionOf is the question with that name, or nil.
func questionOf(name string) *lab.Question {
	for _, q := range questions.All() {
		if q.Name == name {
			return q
		}
	}
	return nil
}
