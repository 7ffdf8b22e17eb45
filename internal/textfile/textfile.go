// Package textfile keeps metrics and writes them in the text format of Prometheus: to a
// file for the textfile collector of node_exporter, or for a program that serves them.
package textfile

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/batonhq/baton/adapters/metrics"
)

// Metrics is a metrics.Meter that keeps its values. It is safe for concurrent use.
type Metrics struct {
	own string // the label of every series: `file="nightly.prom"`; "": none

	mu      sync.Mutex
	all     map[string]*family
	sampled []sampled
}

// sampled is an instrument whose values are read when the text is made.
type sampled struct {
	metrics.Instrument
	look func(series func(value float64, values ...string))
}

// New returns Metrics for the file at path. The collector refuses all files if two of
// them have the same series, so every series has a label with the name of its file.
// Metrics that a program serves itself have no path, and no such label.
func New(path string) *Metrics {
	m := &Metrics{all: make(map[string]*family)}
	if path != "" {
		m.own = label("file", filepath.Base(path))
	}
	return m
}

// family is an instrument with its series, by their labels.
type family struct {
	metrics.Instrument
	series map[string]*series
}

// series has the value of a counter or gauge, or the sum and the counts of a histogram;
// the last count is that of the infinite bucket.
type series struct {
	value  float64
	counts []uint64
}

// Make implements metrics.Meter.
func (m *Metrics) Make(i metrics.Instrument) (metrics.Vector, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := i.Prometheus()
	if m.all[name] != nil {
		return nil, fmt.Errorf("there is a %s already", name)
	}
	f := &family{i, make(map[string]*series)}
	m.all[name] = f
	return func(values ...string) metrics.Series {
		labels := m.labels(i, values)
		m.mu.Lock()
		defer m.mu.Unlock()
		s := f.series[labels]
		if s == nil {
			s = &series{}
			if i.Kind == metrics.Histogram {
				s.counts = make([]uint64, len(i.Buckets)+1)
			}
			f.series[labels] = s
		}
		return func(_ context.Context, value float64) {
			m.mu.Lock()
			defer m.mu.Unlock()
			s.value += value
			if s.counts != nil {
				at, _ := slices.BinarySearch(i.Buckets, value) // the first bound that is not less
				s.counts[at]++
			}
		}
	}, nil
}

// Sample implements metrics.Meter.
func (m *Metrics) Sample(i metrics.Instrument, look func(series func(value float64, values ...string))) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sampled = append(m.sampled, sampled{i, look})
	return nil
}

func (m *Metrics) labels(i metrics.Instrument, values []string) string {
	labels := ""
	for n, l := range i.Labels {
		if values[n] != "" {
			labels += label(l.Prometheus(), values[n]) + ","
		}
	}
	return strings.TrimSuffix(labels+m.own, ",")
}

// A Value is the value of a gauge without labels.
type Value struct {
	Of    metrics.Instrument
	Value float64
}

// Text is everything measured so far, and the values, in the text format of Prometheus,
// sorted by names and labels. Of several values of one gauge it has the last.
func (m *Metrics) Text(values ...Value) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	texts := make(map[string]string)
	for name, f := range m.all {
		if len(f.series) > 0 {
			texts[name] = f.text(name)
		}
	}
	for _, s := range m.sampled {
		f := family{s.Instrument, make(map[string]*series)}
		s.look(func(value float64, values ...string) {
			f.series[m.labels(s.Instrument, values)] = &series{value: value}
		})
		if name := s.Prometheus(); len(f.series) > 0 {
			texts[name] = f.text(name)
		}
	}
	for _, v := range values {
		name := v.Of.Prometheus()
		f := family{v.Of, map[string]*series{m.own: {value: v.Value}}}
		texts[name] = f.text(name)
	}
	var b bytes.Buffer
	for _, name := range sorted(texts) {
		b.WriteString(texts[name])
	}
	return b.Bytes()
}

func (f *family) text(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %[1]s %[3]v\n", name, helpEscapes.Replace(f.Help), f.Kind)
	for _, labels := range sorted(f.series) {
		s := f.series[labels]
		if s.counts == nil {
			fmt.Fprintf(&b, "%s{%s} %s\n", name, labels, number(s.value))
			continue
		}
		count := uint64(0)
		for i, n := range s.counts {
			count += n
			bound := math.Inf(1)
			if i < len(f.Buckets) {
				bound = f.Buckets[i]
			}
			of := strings.TrimPrefix(labels+","+label("le", number(bound)), ",")
			fmt.Fprintf(&b, "%s_bucket{%s} %d\n", name, of, count)
		}
		fmt.Fprintf(&b, "%s_sum{%s} %s\n%[1]s_count{%[2]s} %[4]d\n", name, labels, number(s.value), count)
	}
	return b.String()
}

func sorted[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func number(v float64) string {
	if math.IsInf(v, 1) {
		return "+Inf"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

var (
	helpEscapes  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func label(name, value string) string {
	return name + `="` + labelEscapes.Replace(strings.ToValidUTF8(value, "\ufffd")) + `"`
}

// Find returns the value of a gauge without labels in the output of Text.
func Find(text []byte, of metrics.Instrument) (value float64, ok bool) {
	for line := range bytes.Lines(text) {
		labels, has := bytes.CutPrefix(line, []byte(of.Prometheus()+"{"))
		if !has {
			continue
		}
		// Values contain no space, but labels may.
		at := bytes.LastIndexByte(labels, ' ')
		value, err := strconv.ParseFloat(string(bytes.TrimSpace(labels[at+1:])), 64)
		return value, err == nil && !math.IsNaN(value) && !math.IsInf(value, 0)
	}
	return 0, false
}

// maxOld is the longest file that Replace reads.
const maxOld = 1 << 20

// Replace replaces the file at path by the result of next, which gets the old text: nil
// if there is none. Readers see the old file or the new one, never a part; of several
// writers the last one wins. Everybody may read the file. A symbolic link at path is
// replaced, not followed. No other file of the directory is written to, even if other
// users may write there.
//
// Replace does not wait for the disk: after a failure of the machine the file may be the
// old one, or empty.
func Replace(path string, next func(old []byte) []byte) error {
	// Everything below is about this directory, even if another one gets its name.
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	name := filepath.Base(path)
	text := next(read(dir, name))
	temp := ".baton-" + rand.Text() + ".new" // the collector ignores such names
	f, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(0o644) // whatever the umask: the collector is another user
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = dir.Rename(temp, name)
	}
	if err != nil {
		_ = dir.Remove(temp) // the error is reported
	}
	return err
}

// read returns the text of a file, or nil if it cannot be read.
func read(dir *os.Root, name string) []byte {
	info, err := dir.Lstat(name)
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	// A pipe without a writer may have replaced it meanwhile.
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxOld))
	if err != nil {
		return nil
	}
	return text
}
