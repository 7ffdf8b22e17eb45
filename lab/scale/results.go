package scale

import (
	"encoding/json"
	"os"
	"slices"
)

// results is lab/results/scale.json.
type results struct {
	Date    string  `json:"date"`
	Machine machine `json:"machine"`
	Stores  []store `json:"stores"`
}

// machine describes the machine.
type machine struct {
	CPU        string  `json:"cpu"`
	CPUs       int     `json:"cpus"`
	MemoryGiB  float64 `json:"memory_gib"`
	Kernel     string  `json:"kernel"`
	Go         string  `json:"go"`
	LoadBefore float64 `json:"load_before"` // of the last minute before the measurement; the greatest, if stores were measured at several times
	LoadAfter  float64 `json:"load_after"`  // includes the measurement itself
}

// store has the figures of one store.
type store struct {
	Name  string `json:"name"`
	About string `json:"about"` // the server and its version
	Setup string `json:"setup"` // its settings

	Pairs     *rates      `json:"pairs,omitempty"`
	Limits    []rates     `json:"limits,omitempty"`
	Leases    []leases    `json:"leases,omitempty"`
	Waiters   []waiters   `json:"waiters,omitempty"`
	Processes []processes `json:"processes,omitempty"`
}

// rates is the speed of requests that need not wait for others: locking and unlocking a key,
// or a decision of a limiter.
type rates struct {
	Keys      int      `json:"keys"`       // names are drawn from that many
	Most      float64  `json:"most"`       // per second, by 64 callers that work as fast as they can
	ServerCPU float64  `json:"server_cpu"` // seconds of the server for one request, at that rate
	Open      []opened `json:"open"`
}

// opened is an open-loop measurement, see openLoop.
type opened struct {
	Load    float64   `json:"load"` // as a fraction of rates.Most
	Rate    float64   `json:"rate"` // per second
	N       int64     `json:"n"`
	Failed  int64     `json:"failed"`
	Seconds []float64 `json:"seconds"` // the latencies at each of quantiles
}

// quantiles are the quantiles of opened.Seconds.
var quantiles = []float64{0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 1}

// at returns the latency at one of quantiles.
func (o *opened) at(q float64) float64 { return o.Seconds[slices.Index(quantiles, q)] }

// leases is the cost of holding N leases at a time, in one process.
type leases struct {
	N           int     `json:"n"`
	Acquired    float64 `json:"acquired"`         // per second, by 64 callers
	Requests    float64 `json:"requests"`         // that the server counted in one renewal period
	Commits     float64 `json:"commits"`          // of these, writes to the server's log; 0: not counted
	Took        float64 `json:"took"`             // seconds from the tick to the last answer, at most
	ClientCPU   float64 `json:"client_cpu"`       // seconds in one renewal period
	ServerCPU   float64 `json:"server_cpu"`       // the same
	ClientBytes float64 `json:"client_bytes"`     // of the heap, for one lease
	ServerBytes float64 `json:"server_bytes"`     // growth of the server's memory for one lease; 0: not known
	Lost        int64   `json:"lost"`             // in total until then
	Beside      *opened `json:"beside,omitempty"` // pairs on other keys at the same time
	Failed      string  `json:"failed,omitempty"` // the reason why other figures are missing
}

// waiters is the cost of N waiters for one key.
type waiters struct {
	N        int     `json:"n"`
	How      string  `json:"how"`       // apart: each has a position; local: in one local queue; agent: as clients of one agent
	Requests float64 `json:"requests"`  // per second, while all wait
	HandOver float64 `json:"hand_over"` // seconds from one holder to the next, without work in between
	Cost     float64 `json:"cost"`      // requests for one acquisition, while the lock goes round
	Served   int     `json:"served"`    // how many acquisitions were counted
	Failed   string  `json:"failed,omitempty"`
}

// processes is the cost of N processes that hold a few leases each.
type processes struct {
	N           int     `json:"n"`
	Leases      int     `json:"leases"`       // of each
	Requests    float64 `json:"requests"`     // in one renewal period
	ServerCPU   float64 `json:"server_cpu"`   // seconds in one renewal period
	ServerBytes float64 `json:"server_bytes"` // for each process
	ClientBytes float64 `json:"client_bytes"` // resident memory of one process
}

func load(file string) (*results, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := new(results)
	return r, json.Unmarshal(text, r)
}

// text is the content of lab/results/scale.json.
func (r *results) text() ([]byte, error) {
	text, err := json.MarshalIndent(r, "", "  ")
	return append(text, '\n'), err
}

func (r *results) save(file string) error {
	text, err := r.text()
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// put adds the figures of a store and replaces its older ones. Stores stay in the order of
// kinds.
func (r *results) put(s store) {
	place := func(name string) int {
		return slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
	}
	r.Stores = append(slices.DeleteFunc(r.Stores, func(o store) bool { return o.Name == s.Name }), s)
	slices.SortFunc(r.Stores, func(a, b store) int { return place(a.Name) - place(b.Name) })
}

// of returns the figures of a store, or nil.
func (r *results) of(name string) *store {
	for i := range r.Stores {
		if r.Stores[i].Name == name {
			return &r.Stores[i]
		}
	}
	return nil
}

// sound reports whether enough hand-overs were counted for a figure.
func (w *waiters) sound() bool { return w.Failed == "" && (w.Served == w.N || w.Served >= 100) }

// held are the figures of the measurements that ended without a lost lease.
func (s *store) held() (all []leases) {
	for _, l := range s.Leases {
		if l.Failed == "" && l.Lost == 0 {
			all = append(all, l)
		}
	}
	return all
}

// counted are the figures of the most leases to which the formula of requests applies: the
// server renewed them well within a period. If a renewal takes nearly the entire period, the
// next one begins before its end, and asks again for the same leases.
func (s *store) counted() (most *leases) {
	for _, l := range s.held() {
		if l.Took < 0.8*full.ttl.Seconds()/3 {
			most = &l
		}
	}
	return most
}

func (s *store) leases(n int) *leases {
	for i := range s.Leases {
		if s.Leases[i].N == n {
			return &s.Leases[i]
		}
	}
	return nil
}
