//go:build unix

package ownfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		mode   os.FileMode
		secret bool
		want   string // in the error; "": none
	}{
		{"own", 0o600, true, ""},
		{"of a group", 0o640, true, ""},
		{"for all to read", 0o644, false, ""},
		{"a secret for all to read", 0o644, true, "every user can read it: chmod o-r"},
		{"a group could write", 0o660, false, "other users could change it: chmod go-w"},
		{"all could write", 0o602, true, "other users could change it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "f")
			if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, c.mode); err != nil {
				t.Fatal(err)
			}
			link := path + ".link"
			if err := os.Symlink(path, link); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{path, link} {
				text, err := Read(name, 4, c.secret)
				switch {
				case c.want == "" && (err != nil || string(text) != "text"):
					t.Errorf("%q, %v", text, err)
				case c.want != "" && (!errors.As(err, new(*ModeError)) || !strings.Contains(err.Error(), c.want)):
					t.Errorf("the error is %v, want %q", err, c.want)
				}
			}
		})
	}
}

func TestReadWhatIsNoFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe, long := filepath.Join(dir, "pipe"), filepath.Join(dir, "long")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(long, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{dir: "no regular file", pipe: "no regular file", long: "more than 4 bytes", dir + "/none": "no such file"} {
		if _, err := Read(path, 4, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// The file of another user is refused, as that user could change it.
func TestReadOfAnotherUser(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 { // then the files of root are ours to trust, and no others are there
		if _, err := Read("/etc/passwd", 1<<20, false); err != nil {
			t.Errorf("a file of root: %v", err)
		}
		return
	}
	if err := os.Chown(path, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path, 1, false); !errors.As(err, new(*ModeError)) || !strings.Contains(err.Error(), "belongs to user 65534") {
		t.Errorf("the error is %v", err)
	}
}
