package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// A reading has the values of one moment.
type reading struct {
	Goroutines  float64 `json:"goroutines"`
	Heap        float64 `json:"heap"`
	Files       float64 `json:"files"`
	Connections float64 `json:"connections"`

	Ops    int64    `json:"ops,omitempty"`
	Failed int64    `json:"failed,omitempty"`
	Lost   int64    `json:"lost,omitempty"`
	Texts  []string `json:"texts,omitempty"`

	Keys         float64 `json:"keys"`
	ServerMemory float64 `json:"server_memory,omitempty"`
	ServerFiles  float64 `json:"server_files,omitempty"`
}

func (r reading) of(name string) float64 {
	return map[string]float64{
		goroutines: r.Goroutines, heap: r.Heap, files: r.Files, connections: r.Connections,
		keys: r.Keys, serverMemory: r.ServerMemory, serverFiles: r.ServerFiles,
	}[name]
}

// read reads the values of this process.
func read() (r reading, err error) {
	runtime.GC()
	runtime.GC() // the first collection keeps the content of pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	r.Goroutines, r.Heap = float64(runtime.NumGoroutine()), float64(m.HeapAlloc)
	r.Files, r.Connections, err = openFiles(os.Getpid())
	return r, err
}

// openFiles counts the open files of a process, and the connections among them.
func openFiles(pid int) (all, sockets float64, err error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, 0, err
	}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // closed meanwhile, like the directory's descriptor
		}
		all++
		if strings.HasPrefix(target, "socket:") {
			sockets++
		}
	}
	return all, sockets, nil
}

// readServers measures processes and all their descendants, except those that end meanwhile.
func readServers(pids []int) (memory, open float64, err error) {
	children, err := descent()
	if err != nil {
		return 0, 0, err
	}
	for len(pids) > 0 {
		pid := pids[0]
		pids = append(pids[1:], children[pid]...)
		memory += resident(pid)
		all, _, _ := openFiles(pid) // 0 if it has ended
		open += all
	}
	return memory, open, nil
}

// descent returns the children of each process.
func descent() (map[int][]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := make(map[int][]int)
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path))) // it is a number
		// The name in parentheses may contain anything.
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(fields) < 2 {
			continue
		}
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	return children, nil
}

// resident is the memory of a process, with its share of shared memory.
func resident(pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0
	}
	for l := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(l, "Pss:"); ok {
			kb, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64) // the kernel writes a number
			return kb * 1024
		}
	}
	return 0
}
