// Package lines keeps values in a file, one line of JSON for each. A process that adds values may be
// killed at any time: earlier values stay.
package lines

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Load reads all values, none if there is no file. It skips a last line that is truncated; any other
// invalid line is an error.
func Load[T any](path string) (all []T, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(strings.NewReader(string(b)))
	lines.Buffer(nil, 1<<20)
	torn := error(nil)
	for n := 1; lines.Scan(); n++ {
		if torn != nil {
			return nil, torn
		}
		var x T
		if err := json.Unmarshal(lines.Bytes(), &x); err != nil {
			torn = fmt.Errorf("%s, line %d: %w", path, n, err)
			continue
		}
		all = append(all, x)
	}
	return all, lines.Err()
}

// Add adds values to the file. It makes the file, and its folder, if they are missing.
func Add[T any](path string, all ...T) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, x := range all {
		b, err := json.Marshal(x)
		if err != nil {
			return err
		}
		if _, err := f.Write(append(b, '\n')); err != nil {
			return err
		}
	}
	return f.Close()
}

// Replace replaces all values of the file, atomically.
func Replace[T any](path string, all ...T) error {
	next := path + ".new"
	if err := os.RemoveAll(next); err != nil {
		return err
	}
	if err := Add(next, all...); err != nil {
		return err
	}
	return os.Rename(next, path)
}
