// Package wire is the little that redisstore needs of a Redis client, so that
// it works with any.
package wire

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"strings"
	"sync"
	"time"
)

// A Script is Lua that runs on the server.
type Script struct {
	Name string

	made func() (text, sha string)
}

// NewScript names a script, whose text is read when it is needed: a program that only links
// the store starts without it.
func NewScript(name string, read func() string) *Script {
	return &Script{name, sync.OnceValues(func() (text, sha string) {
		text = read()
		sum := sha1.Sum([]byte(text))
		return text, hex.EncodeToString(sum[:])
	})}
}

// Text is what the server runs.
func (s *Script) Text() string {
	text, _ := s.made()
	return text
}

// SHA is the digest by which servers know the text.
func (s *Script) SHA() string {
	_, sha := s.made()
	return sha
}

// A Call is one run of a script. All keys are of one slot in Cluster.
type Call struct {
	Script *Script
	Keys   []string
	Args   []string
	Full   bool // send the text: the server does not know the digest
	Loose  bool // it may overtake other calls, and they may overtake it

	// Locks are the keys for which calls keep their order; nil: the first of Keys.
	Locks []string

	Acks *Acks // if not nil, the client asks for them behind the call and sets what was said
}

// Acks are what a primary says of its replicas right after a call. The client asks on the
// connection of the call.
type Acks struct {
	Await  func(node string) int  // how many replicas the primary is to wait for; node is its address in Cluster, else ""
	Lacks  func(*Acks) bool       // whether to wait for one more: those that have acknowledged may be others than needed
	Within time.Duration          // for how long at most
	Who    bool                   // ask for Server, too
	Nodes  func(node string) bool // whether to ask for Cluster, too; nil: no

	Node     string
	Server   string           // run_id
	Offset   int64            // in the stream of replication: the call's own, or a later one
	Replicas map[string]int64 // the offsets that replicas have acknowledged, by their addresses
	Cluster  string           // CLUSTER NODES
	Err      error            // what kept the primary from saying all that
}

// Answered sets what was said.
func (a *Acks) Answered(said Acks) {
	a.Node, a.Server, a.Offset, a.Replicas, a.Cluster, a.Err = said.Node, said.Server, said.Offset, said.Replicas, said.Cluster, said.Err
}

// Late reports whether a replica has not acknowledged the call.
func (a *Acks) Late(addr string) bool {
	offset, connected := a.Replicas[addr]
	return !connected || offset < a.Offset
}

// Acknowledged is how many replicas have acknowledged the call.
func (a *Acks) Acknowledged() (n int) {
	for addr := range a.Replicas {
		if !a.Late(addr) {
			n++
		}
	}
	return n
}

func (c Call) locks() []string {
	if c.Locks == nil {
		return c.Keys[:1]
	}
	return c.Locks
}

// A Result is the answer to one of several calls or commands.
type Result struct {
	Value any
	Err   error
}

// Client is a connection pool to Redis. Answers are int64, string, nil or []any
// of these. Errors are a *ServerError, or wrap ErrNotSent or a context error,
// or come from the network after the request may have left.
//
// A Client obeys contexts and never sends a script twice, except after a
// MOVED or ASK, as these had no effect.
type Client interface {
	// Run runs one script. Unless the call is Loose, it runs after every earlier call
	// of Run that is not Loose and has one of the same Locks, also after one that was
	// abandoned when its context ended.
	Run(ctx context.Context, c Call) (any, error)

	// RunAll runs scripts independently of each other, pipelined where they go to the
	// same server, and with their text if that server does not know them. A server that
	// does not answer spoils no answer of another.
	RunAll(ctx context.Context, calls []Call) []Result

	// Primaries calls f for every server that accepts writes, one after
	// the other, until it fails.
	Primaries(ctx context.Context, f func(Node) error) error

	// Subscribe reads channels on a connection of its own. It calls ready each time the
	// subscription is active, also after a reconnection, and message for each message,
	// from one goroutine. It returns when the connection is lost or ctx ends, never
	// nil.
	Subscribe(ctx context.Context, channels []string, ready func(), message func(text string)) error

	// Cluster reports whether keys are spread over slots.
	Cluster() bool

	// FollowsPrimary reports whether the client finds the primary by
	// itself, so that a replica is only a passing state.
	FollowsPrimary() bool

	// Silence is how long the client waits on a connection on which nothing
	// comes back, before it makes another one: 0 if that is not known, and
	// Endless if it does so for ever.
	Silence() time.Duration

	// Close closes what is behind the client.
	Close()
}

// Endless is a Silence that no client ends.
const Endless time.Duration = -1

// Node runs plain commands on one server.
type Node interface {
	Do(ctx context.Context, args ...string) (any, error)
	DoAll(ctx context.Context, commands [][]string) []Result
}

// ErrNotSent marks errors after which the server has certainly not seen the
// request.
var ErrNotSent = errors.New("not sent")

// NotSent marks err, and leaves its text.
func NotSent(err error) error { return notSent{err} }

type notSent struct{ error }

func (n notSent) Is(target error) bool { return target == ErrNotSent }
func (n notSent) Unwrap() error        { return n.error }

// ServerError is an error that the server answered.
type ServerError struct{ Text string }

func (e *ServerError) Error() string { return e.Text }

// Code is the error's first word: "READONLY". Redis 6.2 puts before it where in a script it
// arose, and has no such word for a command that the user may not run.
func (e *ServerError) Code() string {
	text := e.Text
	if _, inside, ok := strings.Cut(text, "@user_script: "); ok {
		if _, said, ok := strings.Cut(inside, ": "); ok {
			text = strings.TrimPrefix(said, "-")
		}
	}
	if strings.HasPrefix(text, "The user executing the script can't ") {
		return "NOPERM"
	}
	code, _, _ := strings.Cut(text, " ")
	return code
}

// Answered reports whether err is none, or what a server answered.
func Answered(err error) bool {
	if err == nil {
		return true
	}
	_, said := errors.AsType[*ServerError](err)
	return said
}

// IsNoScript reports whether the server does not know a script's digest.
func IsNoScript(err error) bool {
	var e *ServerError
	return errors.As(err, &e) && e.Code() == "NOSCRIPT"
}

// WithText runs calls, and with their text those that the server did not know.
func WithText(calls []Call, run func([]Call) []Result) []Result {
	results := run(calls)
	var again []Call
	var at []int
	for i, r := range results {
		if r.Err != nil && IsNoScript(r.Err) {
			c := calls[i]
			c.Full = true
			again, at = append(again, c), append(at, i)
		}
	}
	if again != nil {
		for n, r := range run(again) {
			results[at[n]] = r
		}
	}
	return results
}
