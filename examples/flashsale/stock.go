package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// stock is a number in a file that many processes read and write. Each read and each
// write is atomic, but nothing ties a write to the read before it.
type stock string

const stockDigits = 12

func (s stock) read() (int, error) {
	f, err := os.Open(string(s))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	b := make([]byte, stockDigits)
	if _, err := f.ReadAt(b, 0); err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

func (s stock) write(n int) error {
	f, err := os.OpenFile(string(s), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(f, "%*d", stockDigits, n); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
