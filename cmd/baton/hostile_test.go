//go:build unix

package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/clitest"
	"github.com/batonhq/baton/store/sqlitestore"
)

// commands are all that can be run, by their paths without "baton".
func commands() map[string]*cobra.Command {
	all := map[string]*cobra.Command{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Runnable() {
			all[strings.TrimPrefix(strings.TrimPrefix(c.CommandPath(), "baton"), " ")] = c
		}
		for _, below := range c.Commands() {
			walk(below)
		}
	}
	a := newApp(os.Stdin, os.Stdout, os.Stderr)
	walk(a.root())
	return all
}

// invoke runs baton on a store and returns all that it prints.
func invoke(t *testing.T, store string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "baton", args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if len(args) > 0 && args[0] == "watch" { // it ends by a signal, after the look that has begun to print
		cmd.Stdout = writerFunc(func(text []byte) (int, error) {
			_ = cmd.Process.Signal(os.Interrupt)
			return out.Write(text)
		})
	}
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "BATON_STORE="+store, "HOME="+cmd.Dir, "XDG_STATE_HOME="+cmd.Dir)
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if exited, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exited.ExitCode() < 0) {
		t.Fatalf("baton %q: %v\n%s", args, err, errs.String())
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// The URL of a store is given where something else is expected: as every argument and
// as every flag's value of every command.
func TestMisplacedURLsKeepTheirSecrets(t *testing.T) {
	t.Parallel()
	for path, command := range commands() {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			clitest.KeepsSecrets(t, command, func(t *testing.T, args ...string) string {
				// No such scheme: what is right goes no further.
				stdout, stderr, _ := invoke(t, "none:", append(strings.Fields(path), args...)...)
				return stdout + stderr
			})
		})
	}
}

var obeyed = clitest.Obeyed

// What another program writes into the store to harm a user who looks at it.
const (
	hostileText = "\x1b]0;title\x07\x1b[2J\u009b31m\x9b32m\r\nbaton: forged\n\u202etxt.exe\u2066 `touch hit` $(touch hit) '\";touch hit;\x7f\u200b\u2028"
	hostileKey  = "k\u202e\u2066'`touch${IFS}hit`$(touch${IFS}hit)\";touch hit;\\\u200b\ufeff\u2028" // that Baton accepts
)

// hostile makes a store in which all that other programs write is hostile. The keys are
// held, waited for, recorded and counted.
func hostile(t *testing.T) (url string, keys []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "locks.db")
	store, err := sqlitestore.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	long := hostileKey + strings.Repeat("\u202e界", (check.MaxKey-len(hostileKey))/6)
	keys = []string{hostileKey, long, "plain"}
	take := func(key string, queue bool) {
		t.Helper()
		claim := driver.Claim{Key: key, ID: driver.NewID(), Owner: "x", Weight: driver.Whole, Capacity: driver.Whole}
		_, err := store.Acquire(t.Context(), driver.Request{Claim: claim, TTL: time.Hour, Queue: queue})
		if err != nil {
			t.Fatal(err)
		}
	}
	take(baton.AskPrefix+"asked", false)
	for _, key := range append([]string{"replaced"}, keys...) {
		take(key, false)
		take(key, true)
		at := driver.Attempt{Key: key, Token: 1, Owner: "x"}
		if _, err := store.BeginAttempt(t.Context(), at, time.Hour); err != nil {
			t.Fatal(err)
		}
		if _, err := store.FinishAttempt(t.Context(), at, driver.Outcome{Result: []byte(hostileText)}, time.Hour); err != nil {
			t.Fatal(err)
		}
		if err := store.SetOverride(t.Context(), limits.Override{Key: key, N: 1}, time.Hour); err != nil {
			t.Fatal(err)
		}
		one := limits.Take{Key: key, Limit: limits.Limit{Algorithm: limits.FixedWindow, N: 5, Period: 100_000 * time.Hour}, Cost: 1}
		if _, err := store.Take(t.Context(), limits.Request{Takes: []limits.Take{one}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	// Another program writes what Baton would not.
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, q := range []string{
		"UPDATE baton_lock SET owner = ?", "UPDATE baton_claim SET owner = ?",
		`UPDATE baton_kept SET text = CAST('{"state":"succeeded","token":"7","owner":' || json_quote(?1) || '}' || char(10) || ?1 AS BLOB) WHERE CAST(k AS TEXT) LIKE 'records/%'`,
		"UPDATE baton_lock SET k = CAST(? AS BLOB) WHERE k = CAST('replaced' AS BLOB)",
		"UPDATE baton_claim SET k = CAST(? AS BLOB) WHERE k = CAST('replaced' AS BLOB)",
		"UPDATE baton_kept SET k = CAST('records/' || ? AS BLOB) WHERE k = CAST('records/replaced' AS BLOB)",
		"UPDATE baton_kept SET k = CAST('overrides/' || ? AS BLOB) WHERE k = CAST('overrides/replaced' AS BLOB)",
		"UPDATE baton_limit SET state = ? WHERE k = CAST('replaced' AS BLOB)",
		"UPDATE baton_limit SET k = CAST(? AS BLOB) WHERE k = CAST('replaced' AS BLOB)",
	} {
		if _, err := db.Exec(q, hostileText); err != nil {
			t.Fatal(err)
		}
	}
	return "sqlite:" + path, keys
}

// Every command is run on a store in which every key, owner and value is hostile, and
// every byte that it prints is looked at. A command without a row here is an error.
// What a command under a lock prints, and what once replays of it, is the command's own.
func TestNothingHostileIsPrinted(t *testing.T) {
	t.Parallel()
	const key = "KEY" // stands for each of the keys
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	text := strconv.Quote(hostileText) // YAML reads it as Go does
	if err := os.WriteFile(rules, []byte("rules:\n  - name: "+text+"\n    limits:\n      - {requests: 5, period: "+text+"}\n"+text+": 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	roles, good := filepath.Join(t.TempDir(), "roles"+hostileKey[:9]), filepath.Join(t.TempDir(), "good")
	if err := os.WriteFile(roles, []byte("a cn:x "+hostileText+"=lock\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(good, []byte("uid:1 - "+hostileKey+"=lock\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wait := []string{"--wait", "50ms"}
	type lines [][]string
	rows := map[string]lines{
		"limit set":    {{"--rate", "5/1m", "--for", "1h", key}, {"--rate", hostileText, "--for", "1h", key}, {"--rate", "5", "--for", hostileText, key}, {"--rate", "5", "--for", "1h", hostileText}},
		"":             {{}},
		"run":          {{"-n", key, "--", "true"}, {"-v", "-w", "50ms", key, "--", "true"}, {"-w", "50ms", "--permits", "1/2", key, "--", "true"}, {"free", "--", hostileText}, {"-v", "free" + hostileKey, "--", "true"}, {hostileText, "--", "true"}, {"asked", "--", "sleep", "0.3"}, {"--on-ask", hostileText, "asked", "--", "true"}, {"--metrics", "none/" + hostileKey + ".prom", "free", "--", "true"}, {"--metrics", "none/" + hostileText + ".prom", "free", "--", "true"}, {"--metrics", hostileText, "free", "--", "true"}},
		"lock":         {{"-n", key}, {"-w", "50ms", key}, {"-o", "json", "-n", key}, {hostileText}},
		"renew":        {{hostileText}, {"BH1.x"}},
		"unlock":       {{hostileText}, {"BH1.x"}},
		"ls":           {{}, {"k"}, {"-o", "json"}, {hostileText}, {hostileKey}},
		"show":         {{key}, {"-o", "json", key}, {hostileText}, {"-o", "json", hostileText}, {"a", hostileText}, {"-o", hostileText, "a"}},
		"ask":          {append(wait, key, "why"), append(wait, "-o", "json", key, "why"), append(wait, "-v", key, "why"), append(wait, "plain", hostileText), append(wait, "plain", hostileKey), {hostileText, "why"}, {"a", "b", hostileText}},
		"break":        {{key}, {"--yes", hostileText}, {"--yes", key}},
		"watch":        {{}, {"-o", "json"}, {key}, {"--leader", key}, {"--leader", "-o", "json", key}},
		"elect":        {append(wait, key, "--", "true"), {"--value", hostileText, "free", "--", "true"}},
		"once":         {{"--no-replay", key, "--", "true"}, {"--final", hostileText, "x", "--", "true"}, {hostileText, "--", "true"}},
		"once ls":      {{}, {"k"}, {"-o", "json"}, {hostileText}, {hostileKey}, {"--", "true"}},
		"once show":    {{key}, {"-o", "json", key}, {hostileText}, {"-o", "json", hostileText}, {"-o", hostileText, "a"}, {"--", "true"}},
		"once rm":      {{key}, {hostileText}, {"a", hostileText}},
		"limit":        {{"--rate", "1/1h", key}, {"--rate", "1/1h", "--cost", "2", key}, {"--rate", "1/1h", "-o", "json", key}, {"--rate", hostileText, key}, {"-a", hostileText, "--rate", "1/s", key}},
		"limit ls":     {{}, {"k"}, {"-o", "json"}, {hostileText}, {hostileKey}, {"--most", "1"}, {"--most", hostileText}, {"--after", hostileText}, {"--after", key, "--most", "1"}, {"--", "true"}, {"--sort", "used"}, {"--sort", "used", "-o", "json"}, {"--sort", "share", "--of", "1"}, {"--sort", hostileText}, {"--sort", "used", hostileText}, {"--sort", "used", hostileKey}, {"--of", hostileText}, {"--sort", "share"}, {"--overrides"}, {"--overrides", "-o", "json"}, {"--overrides", hostileText}},
		"limit show":   {{key}, {"-o", "json", key}, {"--rate", "1/1h", key}, {"--rules", rules, key}, {"--rules", good, key}, {"--rules", hostileText, key}, {"--rate", hostileText, key}, {"--tier", hostileText, key}, {hostileText}, {"a", hostileText}, {"--", "true"}},
		"limit rm":     {{key}, {"--override", key}, {hostileText}, {"--override", hostileText}, {"--override", "none"}, {"a", hostileText}},
		"limit check":  {{hostileText}, {rules}, {"-o", "json", rules}, {rules, hostileText}},
		"agent":        {{}, {hostileText}, {"--socket", "none/" + hostileText}, {"--socket", "none/x", "--mode", hostileText}, {"--socket", "none/x", "--user", hostileText}, {"--socket", "none/x", "--group", hostileText}, {"--systemd"}, {"--socket", "none/x", "--roles", hostileText}, {"--socket", "none/x", "--roles", roles}, {"--socket", "none/x", "--roles", good, "--audit", "none/" + hostileText}},
		"serve":        {{hostileText}, {"--listen", hostileText}, {"--listen", "127.0.0.1:0", "--roles", hostileText}, {"--listen", "127.0.0.1:0", "--roles", roles}, {"--listen", "127.0.0.1:0", "--roles", good}, {"--listen", "127.0.0.1:0", "--secret-file", hostileText}, {"--listen", "127.0.0.1:0", "--tls-cert", hostileText, "--tls-key", hostileText}, {"--listen", "127.0.0.1:0", "--tls-cert", rules, "--tls-key", roles, "--client-ca", hostileText}, {"--listen", "127.0.0.1:0", "--rules", rules}, {"--listen", "127.0.0.1:0", "--audit", "none/" + hostileText}},
		"token":        {{}, {hostileText}},
		"token new":    {{hostileText}, {"a", hostileText + "=lock"}, {"a", strings.ReplaceAll(hostileKey, " ", "") + "=lock"}, {"-o", "json", "a", strings.ReplaceAll(hostileKey, " ", "") + "=lock"}, {"-o", hostileText, "a"}},
		"token check":  {{hostileText}, {roles}, {good}, {roles, hostileText}},
		"doctor":       {{}, {"-o", "json"}, {hostileText}},
		"schema":       {{}, {hostileText}},
		"schema print": {{}, {hostileText}},
		"schema apply": {{}, {hostileText}},
		"completion":   {{hostileText}, {"bash"}},
		"help":         {{hostileText}, {"stores"}},
		"man":          {{}, {hostileText}},
		"reference":    {{}, {hostileText}},
		"version":      {{}, {hostileText}, {"-o", "json"}},
	}
	for path := range commands() {
		if _, ok := rows[path]; !ok {
			t.Errorf("baton %s: what does it print of a hostile store? Add a row to this table", path)
		}
	}
	for path, invocations := range rows {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			for _, args := range invocations {
				url, keys := hostile(t)
				for _, k := range keys {
					all := strings.Fields(path)
					asJSON, ofKey := false, false
					for _, arg := range args {
						asJSON = asJSON || arg == "json"
						if ofKey = ofKey || arg == key; arg == key {
							arg = k
						}
						all = append(all, arg)
					}
					stdout, stderr, code := invoke(t, url, all...)
					for name, text := range map[string]string{"stdout": stdout, "stderr": stderr} {
						if path == "completion" && code == 0 {
							continue // a program for a shell, of which nothing is from the store
						}
						if bad := obeyed(text); bad != "" {
							t.Errorf("baton %q: %s of %s: %q", all, bad, name, text)
						}
						if name == "stderr" && strings.Contains(text, "\nbaton: forged") {
							t.Errorf("baton %q: a forged line on %s: %q", all, name, text)
						}
					}
					if asJSON && stdout != "" {
						for d := json.NewDecoder(strings.NewReader(stdout)); d.More(); {
							var v any
							if err := d.Decode(&v); err != nil {
								t.Errorf("baton %q: %v: %s", all, err, stdout)
								break
							}
						}
					}
					if !ofKey {
						break
					}
				}
			}
		})
	}
}
