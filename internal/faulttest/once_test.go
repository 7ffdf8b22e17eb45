//go:build linux

package faulttest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/open"
)

const onceEnv = "BATON_FAULTTEST_ONCE"

// onceMain runs the operation key and reports on standard output:
//
//	effect TOKEN ATTEMPTS   (its effects have happened: it waits for a line of input)
//	late OUTCOME            (of an effect after that)
//	result TOKEN            (what is recorded)
//	unrecorded TOKEN LAST-TOKEN DONE
//
// The effect without a guard is a line in the file "effects" of the folder, that
// with a guard the content of "guarded".
func onceMain(url, key, ttl, dir string) error {
	d, err := time.ParseDuration(ttl)
	if err != nil {
		return err
	}
	ctx := context.Background()
	store, err := open.Store(ctx, url)
	if err != nil {
		return err
	}
	ops, err := once.New(store, once.Config{Lock: baton.Config{TTL: d}})
	if err != nil {
		return err
	}
	input := bufio.NewReader(os.Stdin)
	text, err := ops.Do(ctx, key, func(_ context.Context, a once.Attempt) ([]byte, error) {
		token := strconv.FormatInt(a.Token, 10)
		// Not with the context of the attempt: this one does not look whether
		// it still holds the lock.
		write := func() error {
			return guard.WriteFile(ctx, filepath.Join(dir, "guarded"), []byte(token), 0o600, guard.Of(a.Lease))
		}
		if err := errors.Join(appendLine(dir, token), write()); err != nil {
			return nil, err
		}
		fmt.Println("effect", token, a.Attempts)
		if _, err := input.ReadString('\n'); err != nil {
			os.Exit(0) // the test has ended
		}
		switch err := write(); {
		case err == nil:
			fmt.Println("late accepted")
		case errors.Is(err, guard.ErrStale):
			fmt.Println("late refused")
		default:
			return nil, err
		}
		return []byte(token), nil
	})
	if lost, ok := errors.AsType[*once.UnrecordedError](err); ok && lost.Instead != nil {
		fmt.Println("unrecorded", string(lost.Result), lost.Instead.Token, lost.Instead.Done)
		return nil
	}
	if err == nil {
		fmt.Println("result", string(text))
	}
	return err
}

// crowdMain runs ten orders by five goroutines each. The effect is a line.
func crowdMain(url, key, dir string) error {
	ctx := context.Background()
	store, err := open.Store(ctx, url)
	if err != nil {
		return err
	}
	ops, err := once.New(store, once.Config{})
	if err != nil {
		return err
	}
	results := make([]string, 50)
	errs := make([]error, 50)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() {
			order := fmt.Sprint(key, "/", i%10)
			var text []byte
			text, errs[i] = ops.Do(ctx, order, func(_ context.Context, a once.Attempt) ([]byte, error) {
				receipt := fmt.Sprint(i%10, "-", a.Token)
				return []byte(receipt), appendLine(dir, receipt)
			})
			results[i] = string(text)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Println("results", strings.Join(results, " "))
	return nil
}

func appendLine(dir, line string) error {
	f, err := os.OpenFile(filepath.Join(dir, "effects"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}

func effects(t *testing.T, dir string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "effects"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}

// operator is a process that runs an operation.
type operator struct {
	*child
	in io.Writer
}

func startOperator(t *testing.T, url string, args ...string) *operator {
	t.Helper()
	o := &operator{child: &child{Cmd: exec.Command(os.Args[0], args...)}}
	o.Env = append(os.Environ(), onceEnv+"="+url)
	o.Stderr = os.Stderr
	in, err := o.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := o.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	o.in, o.out = in, bufio.NewReader(out)
	if err := o.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		o.Process.Kill()
		o.Wait()
	})
	return o
}

func (o *operator) proceed(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(o.in, "\n"); err != nil {
		t.Fatal(err)
	}
}

// begun reads that the operator's effects have happened.
func (o *operator) begun(t *testing.T, attempt string) (token string) {
	t.Helper()
	told := o.expect(t, "effect")
	if told[1] != attempt {
		t.Errorf("it is attempt %s, want %s", told[1], attempt)
	}
	return told[0]
}

func (o *operator) wants(t *testing.T, word, want string) {
	t.Helper()
	if got := strings.Join(o.expect(t, word), " "); got != want {
		t.Errorf("%s %s, want %s", word, got, want)
	}
}

// onRecords runs f on every store that processes share, but for redlock, which
// keeps no records.
func onRecords(t *testing.T, f func(t *testing.T, url string, records driver.Records)) {
	all := maps.Clone(stores)
	delete(all, "redlock")
	all["zookeeper"] = func(t *testing.T) string { return "zk://" + testserver.SharedZooKeeper(t).Addr + "/once?session=4s" }
	for name, url := range all {
		t.Run(name, func(t *testing.T) {
			mostlyLong(t, name)
			t.Parallel()
			url := url(t)
			records, ok := openStore(t, url).(driver.Records)
			if !ok {
				t.Fatal("it keeps no records")
			}
			f(t, url, records)
		})
	}
}

// endsWith demands what is left of an operation: one recorded result, that of the
// last attempt, whose guarded effect stands; without a guard every attempt's.
func endsWith(t *testing.T, records driver.Records, dir string, tokens ...string) {
	t.Helper()
	last := tokens[len(tokens)-1]
	rec, err := records.FindRecord(t.Context(), t.Name())
	if err != nil || !rec.Done || rec.Failed || string(rec.Result) != last || strconv.FormatInt(rec.Token, 10) != last || rec.Attempts != int64(len(tokens)) {
		t.Errorf("the record is %+v, %v", rec, err)
	}
	if got := effects(t, dir); strings.Join(got, " ") != strings.Join(tokens, " ") {
		t.Errorf("effects of %v, want of %v", got, tokens)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "guarded")); err != nil || string(text) != last {
		t.Errorf("the guarded effect is that of %s, %v; want that of %s", text, err, last)
	}
	for i, token := range tokens[1:] {
		if number(t, token) <= number(t, tokens[i]) {
			t.Errorf("tokens %v do not rise", tokens)
		}
	}
}

// A process is killed between its effect and the record of it: the next one, which
// waits already, runs again and knows. Later ones do not.
func TestOnceKilled(t *testing.T) {
	t.Parallel()
	onRecords(t, func(t *testing.T, url string, records driver.Records) {
		dir := t.TempDir()
		first := startOperator(t, url, t.Name(), "2s", dir)
		token1 := first.begun(t, "1")
		next := startOperator(t, url, t.Name(), "2s", dir)
		awaitWaiters(t, newLocker(t, url, baton.Config{TTL: 2 * time.Second}), once.LockPrefix+t.Name(), 1)
		first.signal(t, syscall.SIGKILL)
		token2 := next.begun(t, "2")
		next.proceed(t)
		next.wants(t, "late", "accepted")
		next.wants(t, "result", token2)
		startOperator(t, url, t.Name(), "2s", dir).wants(t, "result", token2)
		endsWith(t, records, dir, token1, token2)
	})
}

// A process is stopped there for longer than its lock lasts, and goes on when the
// next one is done, or still runs: it cannot record, nor write where it is guarded.
func TestOnceStopped(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	onRecords(t, func(t *testing.T, url string, records driver.Records) {
		for _, done := range []bool{true, false} {
			t.Run(fmt.Sprint("next done ", done), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				first := startOperator(t, url, t.Name(), "2s", dir)
				token1 := first.begun(t, "1")
				first.signal(t, syscall.SIGSTOP)
				next := startOperator(t, url, t.Name(), "2s", dir)
				token2 := next.begun(t, "2")
				finish := func() {
					next.proceed(t)
					next.wants(t, "late", "accepted")
					next.wants(t, "result", token2)
				}
				if done {
					finish()
				}
				first.signal(t, syscall.SIGCONT)
				first.proceed(t)
				first.wants(t, "late", "refused")
				first.wants(t, "unrecorded", fmt.Sprint(token1, " ", token2, " ", done))
				if !done {
					finish()
				}
				endsWith(t, records, dir, token1, token2)
			})
		}
	})
}

// The same orders are redeemed by many goroutines of many processes: once each, with
// the same receipt for all.
func TestOnceCrowd(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	onRecords(t, func(t *testing.T, url string, _ driver.Records) {
		url = strings.Replace(url, "session=4s", "session=30s", 1) // the default TTL is half of it
		dir := t.TempDir()
		var crowd []*operator
		for range 3 {
			crowd = append(crowd, startOperator(t, url, t.Name(), dir))
		}
		receipts := make(map[string]bool)
		for _, o := range crowd {
			for i, receipt := range o.expect(t, "results") {
				if !strings.HasPrefix(receipt, fmt.Sprint(i%10, "-")) {
					t.Errorf("order %d got the receipt %s", i%10, receipt)
				}
				receipts[receipt] = true
			}
		}
		if got := effects(t, dir); len(got) != 10 || len(receipts) != 10 {
			t.Errorf("10 orders had %d effects and %d receipts", len(got), len(receipts))
		}
	})
}
