package fault

import (
	"slices"
	"strings"

	"github.com/batonhq/baton/lab/verify/check"
)

// A Verdict is the claim about a kind of store under a fault: a sign for each of the
// promises E, F, L and B.
type Verdict struct{ E, F, L, B Sign }

// A Sign is the claim about one promise.
type Sign byte

const (
	Holds   Sign = '+' // a violation is a defect
	Breaks  Sign = '-' // it may break, and that is documented
	Bounded Sign = 'b' // it may break for a stated time only
	NoSuch  Sign = '.' // the kind has no part that could break like this
)

func (v Verdict) String() string {
	if v.E == NoSuch {
		return string(NoSuch)
	}
	return string([]byte{byte(v.E), byte(v.F), byte(v.L)})
}

// Of returns the claim about one promise.
func (v Verdict) Of(p check.Promise) Sign {
	switch p {
	case check.Exclusive:
		return v.E
	case check.Bounded:
		return v.B
	case check.Fenced:
		return v.F
	case check.Lively:
		return v.L
	}
	return 0
}

// expected has a line for each fault, and a column for stores with the same claims.
const expected = `
	      memory sqlite mariadb,postgres redis redis-nopersist sentinel,cluster redlock5 zookeeper3 etcd3 etcd
	f01   +++    +++    +++              +++   +++             +++              +++      +++        +++   +++
	f02   +++    +++    +++              +++   +++             +++              +++      +++        +++   +++
	f03   +++    +++    +++              +++   +++             +++              +++      +++        +++   +++
	f04   +++    ++b    +++              +++   +++             +++              +++      +++        +++   +++
	f05   +++    +++    +++              +++   +++             +++              +++      +++        +++   +++
	f06   .      .      +++              +++   +++             +++              +++      +++        +++   +++
	f07   .      .      +++              +++   +++             +++              +++      +++        +++   +++
	f08   .      .      +++              +++   +++             +++              +++      +++        +++   +++
	f09   .      .      +++              +++   +++             +++              +++      +++        +++   +++
	f10   .      .      +++              +++   -++             -++              +++      +++        +++   +++
	f11   .      .      +++              +++   +++             -++              +++      +++        +++   +++
	f12   .      .      .                .     .               -++              .        +++        +++   .
	f13   .      .      .                .     .               --+              .        +++        +++   .
	f14   .      .      .                .     .               ++b              ++b      ++b        ++b   .
	f15   +++    +++    -++              -++   -++             -++              +++      +++        +++   +++
	f16   +++    +++    ++-              ++-   ++-             ++-              +++      +++        +++   +++
	f17   +++    +++    +++              +++   +++             +++              +++      +++        +++   +++
	f18   .      ++b    ++b              ++b   .               ++b              +++      ++b        ++b   ++b
	f19   .      .      .                +++   +++             +++              +++      .          .     .
	f20   b++    b++    b++              b++   b++             b++              b++      b++        b++   b++
	f21   +++    +++    +++              +++   +++             +++              +++      +++        +++   +++
	f22   .      .      +++              +++   +++             +++              +++      +++        +++   +++
	f23   .      .      .                .     .               +++              .        +++        +++   .
	f24   +++    +++    +++              +++   +++             +++              +++      +++        +++   +++
	f25   .      --+    --+              --+   .               --+              b++      --+        --+   --+
	f26   .      .      +++              +++   +++             +++              +++      +++        +++   +++
	f27   .      .      +++              +++   +++             +++              +++      +++        +++   +++
	f28   .      .      +++              +++   +++             +++              +++      +++        +++   +++
	f29   +++    +++    -++              -++   -++             -++              +++      +++        +++   +++
	f30   .      .      .                +++   +++             +++              +++      .          .     .
	f31   .      .      +++              +++   -++             -++              +++      +++        +++   +++
	f32   .      .      .                .     .               .                .        +++        +++   .
	f33   .      .      .                .     .               .                +++      +++        +++   .
`

// counted are the cells in which the claim about counts differs from that about locks. Elsewhere B
// has the sign of E.
var counted = map[[2]string]Sign{
	{"postgres", "f10"}: Breaks, // decisions do not wait for the disk
}

// kept are the faults that cost no lease, and the kinds with that claim; all kinds, if none is named.
// A database has few connections and each new one takes several round trips; a Redlock waits a second
// for a server.
const kept = `
	f01
	f26 redis redis-nopersist redlock5
	f27 redis redis-nopersist sentinel cluster zookeeper3 etcd3 etcd
	f28 redis redis-nopersist sentinel cluster redlock5 zookeeper3 etcd3 etcd
	f30
	f32 zookeeper3 etcd3
	f33
`

// Keeps reports whether the claim is that a kind of store loses no lease by a fault, or by several
// together.
func Keeps(kind, fault string) bool {
	for f := range strings.SplitSeq(fault, "+") {
		if !slices.ContainsFunc(strings.Split(strings.TrimSpace(kept), "\n"), func(l string) bool {
			words := strings.Fields(l)
			return words[0] == f && (len(words) == 1 || slices.Contains(words[1:], kind))
		}) {
			return false
		}
	}
	return true
}

// Expect returns the claim about a kind of store under a fault, or under several, as in
// Fault.ID. ok is false if the kind or the fault is not known.
func Expect(kind, fault string) (v Verdict, ok bool) {
	if all := strings.Split(fault, "+"); len(all) > 1 {
		return expectAll(kind, all)
	}
	lines := strings.Split(strings.TrimSpace(expected), "\n")
	column := slices.IndexFunc(strings.Fields(lines[0]), func(kinds string) bool { return slices.Contains(strings.Split(kinds, ","), kind) })
	if column >= 0 && slices.ContainsFunc(frontFaults, func(f Fault) bool { return f.ID == fault }) {
		return Verdict{Holds, Holds, Holds, Holds}, true // the fault does not break the store
	}
	for _, l := range lines[1:] {
		cells := strings.Fields(l)
		if cells[0] != fault || column < 0 {
			continue
		}
		c := cells[column+1]
		if c == string(NoSuch) {
			return Verdict{NoSuch, NoSuch, NoSuch, NoSuch}, true
		}
		v = Verdict{Sign(c[0]), Sign(c[1]), Sign(c[2]), Sign(c[0])}
		if b, ok := counted[[2]string{kind, fault}]; ok {
			v.B = b
		}
		return v, true
	}
	return Verdict{}, false
}

// A Gap is a cell of the table with a claim that the verification does not check.
type Gap struct {
	Fault string
	Kinds []string // empty: all kinds
	Why   string
}

// Left are the gaps.
var Left = []Gap{
	{"f12", []string{"cluster"}, "its primaries have no replicas: what a promotion does is seen on sentinel"},
	{"f13", []string{"cluster"}, "its primaries have no replicas: what a promotion does is seen on sentinel"},
	{"f14", []string{"sentinel", "cluster"}, "there is no majority: each part has one server that decides"},
	{"f15", []string{"sqlite", "memory"}, "its time is that of the client's machine"},
	{"f16", []string{"sqlite", "memory"}, "its time is that of the client's machine"},
	{"f15", []string{"zookeeper3"}, "Java does not run with a clock that is preloaded; sessions count on one that does not jump"},
	{"f16", []string{"zookeeper3"}, "Java does not run with a clock that is preloaded; sessions count on one that does not jump"},
	{"f15", []string{"etcd", "etcd3"}, "a program in Go does not take the time from a library; leases count on a clock that does not jump"},
	{"f16", []string{"etcd", "etcd3"}, "a program in Go does not take the time from a library; leases count on a clock that does not jump"},
	{"f29", []string{"sqlite", "memory"}, "its time is that of the client's machine"},
	{"f29", []string{"zookeeper3"}, "Java does not run with a clock that is preloaded; sessions count on one that does not jump"},
	{"f29", []string{"etcd", "etcd3"}, "a program in Go does not take the time from a library; leases count on a clock that does not jump"},
	{"f17", nil, "a program in Go does not take the time from a library; that no request tells the client's time is a test of its own"},
	{"f18", []string{"redlock5", "sentinel", "cluster"}, "its servers keep nothing on a disk"},
	{"f20", []string{"memory"}, "no other process gets at it"},
	{"f21", []string{"memory"}, "those who wait are woken by a channel of the program"},
	{"f21", []string{"mariadb"}, "those who wait poll"},
	{"f21", []string{"zookeeper3"}, "what wakes those who wait ends with its connection, which is f08"},
	{"f23", []string{"sentinel"}, "it has one part"},
	{"f23", []string{"zookeeper3"}, "its servers are listed in their configuration"},
	{"f25", []string{"redlock5", "sentinel", "cluster"}, "its servers keep nothing on a disk"},
}

// WhyLeft returns why a cell is not checked, or "" if it is.
func WhyLeft(kind, fault string) string {
	for _, g := range Left {
		if slices.Contains(strings.Split(fault, "+"), g.Fault) && (g.Kinds == nil || slices.Contains(g.Kinds, kind)) {
			return g.Why
		}
	}
	return ""
}
