package main

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/batonhq/baton/internal/roles"
)

// A volume is a folder as Kubernetes keeps it: each file is a link below ..data, which is a
// link to the folder of one version, and is replaced by renaming another one.
type volume struct {
	t       *testing.T
	dir     string
	version int
}

// swap replaces all files at once, and returns their paths.
func (v *volume) swap(files map[string]string) {
	v.t.Helper()
	must := func(err error) {
		v.t.Helper()
		if err != nil {
			v.t.Fatal(err)
		}
	}
	v.version++
	version := "..version-" + strconv.Itoa(v.version)
	must(os.Mkdir(filepath.Join(v.dir, version), 0o755))
	for name, text := range files {
		must(os.WriteFile(filepath.Join(v.dir, version, name), []byte(text), 0o600))
		if v.version == 1 {
			must(os.Symlink(filepath.Join("..data", name), filepath.Join(v.dir, name)))
		}
	}
	must(os.Symlink(version, filepath.Join(v.dir, "..data_tmp")))
	must(os.Rename(filepath.Join(v.dir, "..data_tmp"), filepath.Join(v.dir, "..data")))
	if v.version > 1 {
		must(os.RemoveAll(filepath.Join(v.dir, "..version-"+strconv.Itoa(v.version-1))))
	}
}

func newSecret(t *testing.T) string {
	t.Helper()
	b := make([]byte, 32)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b) + "\n"
}

// Files that change are read again without a signal, all that are replaced together at once,
// and a broken one changes nothing.
func TestServeReadsChangedFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	read := func(paths ...string) (texts []string) {
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, string(text))
		}
		return texts
	}
	files := func(of *authority, roles, secrets string) map[string]string {
		cert, key := of.server()
		all := read(cert, key, filepath.Join(of.dir, "ca.crt"))
		return map[string]string{"tls.crt": all[0], "tls.key": all[1], "ca.crt": all[2], "roles": roles, "secret": secrets}
	}
	a, b := newSecret(t), newSecret(t)
	before := "team-a " + roles.Credential(tokenA) + " a/=lock\ncart cn:cart.example cart/=lock\n"
	after := strings.ReplaceAll(before, "a/=lock", "a/=lock,list")
	v := &volume{t: t, dir: filepath.Join(dir, "volume")}
	if err := os.Mkdir(v.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	v.swap(files(ours, before, a))
	at := func(name string) string { return filepath.Join(v.dir, name) }
	s := startServe(t, dir, "--roles", at("roles"), "--secret-file", at("secret"), "--tls-cert", at("tls.crt"), "--tls-key", at("tls.key"), "--client-ca", at("ca.crt"))
	old, cart := s.as(t, ours.pool()), s.as(t, ours.pool(), ours.client("cart.example", nil))
	renew := fmt.Sprintf(`{"handle":%q}`, old.held(tokenA, `{"key":"a/1","ttl_ms":60000}`).Handle)
	cart.held("", `{"key":"cart/1"}`)
	old.wants(http.StatusForbidden, tokenA, "Locks/List", `{"prefix":"a/"}`)

	v.swap(files(theirs, after, b+a))
	s.errs.await(t, "roles: 0 callers added, 0 removed, 1 changed")
	s.errs.await(t, "the secrets were read")
	s.errs.await(t, "the certificates were read")
	next := s.as(t, theirs.pool(), theirs.client("cart.example", nil))
	next.held("", `{"key":"cart/2"}`)
	next.wants(http.StatusOK, tokenA, "Locks/List", `{"prefix":"a/"}`)
	next.wants(http.StatusOK, tokenA, "Locks/Renew", renew) // by the secret before
	later := fmt.Sprintf(`{"handle":%q}`, next.held(tokenA, `{"key":"a/2","ttl_ms":60000}`).Handle)
	old.http.CloseIdleConnections()
	old.refusedTLS("a client that trusts the CA of the certificate before")
	cart.wants(http.StatusUnauthorized, "", "Locks/Acquire", `{"key":"cart/3"}`)

	v.swap(map[string]string{"tls.crt": "x", "tls.key": "y", "ca.crt": "z", "roles": "team-a x", "secret": b + "c2hvcnQ=\n"})
	for _, what := range []string{"roles stay in force: .*line 1", "secrets stay in use: .*line 2 has no 32 bytes", "certificates stay in use: .*tls.crt"} {
		s.errs.await(t, "the previous "+what)
	}
	s.wrote("the previous secrets stay in use", "line 2")
	if text := s.errs.String() + s.audit(); strings.Contains(text, "c2hvcnQ") || strings.Contains(text, strings.TrimSpace(b)) {
		t.Errorf("a secret is shown:\n%s", text)
	}
	next.wants(http.StatusOK, tokenA, "Locks/Renew", renew)

	good := files(theirs, after, b)
	v.swap(good)
	s.errs.await(t, "(?s)stay in use.*the secrets were read.*the certificates were read")
	next.wants(http.StatusBadRequest, tokenA, "Locks/Renew", renew) // of a secret that is gone
	next.wants(http.StatusOK, tokenA, "Locks/Renew", later)

	// What is no file, or has no end, is refused as at the start.
	if err := os.Remove(at("secret")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(at("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.errs.await(t, "the previous secrets stay in use: .*no regular file")
	if err := os.Remove(at("roles")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", at("roles")); err != nil {
		t.Fatal(err)
	}
	s.errs.await(t, "the previous roles stay in force: .*no regular file")
	next.wants(http.StatusOK, tokenA, "Locks/Renew", later)
}

// What base64 makes of a long secret is not two secrets.
func TestReadSecrets(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secret")
	for text, want := range map[string]string{
		newSecret(t):                                   "1",
		newSecret(t) + newSecret(t) + "\n":             "2",
		strings.TrimSpace(newSecret(t)):                "1",
		strings.ReplaceAll(newSecret(t), "\n", "\r\n"): "1",
		"":                                 "line 1 has no 32 bytes",
		newSecret(t) + "\n" + newSecret(t): "line 2 has no 32 bytes",
		strings.Repeat("A", 76) + "\n" + strings.Repeat("A", 44): "line 1 may be the beginning of a longer secret",
		"c2hvcnQ=\n" + newSecret(t):                              "line 1 has no 32 bytes",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		all, err := readSecrets(path)
		if got := fmt.Sprint(len(all)); err == nil && got != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s secrets, %v, want %s", text, got, err, want)
		}
	}
}

// The agent reads its roles when they change.
func TestAgentReadsChangedRoles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, socket := filepath.Join(dir, "roles"), filepath.Join(dir, "socket")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	uid := "uid:" + strconv.Itoa(os.Getuid())
	write(uid + " - a/=lock\n")
	_, errs := startBaton(t, dir, "agent", "--socket", socket, "--roles", path)
	errs.await(t, "listens at")
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(`{"id":1,"do":"lock","key":"a/x"}` + "\n")); err != nil {
		t.Fatal(err)
	}
	write(uid + " - a/=\n")
	errs.await(t, "roles: 0 callers added, 0 removed, 1 changed")
	s := &servedProcess{t: t}
	if back, _ := s.raw(conn, ""); !strings.Contains(back, `"ok":true`) { // and the session ends
		t.Errorf("the session says %q", back)
	}
}
