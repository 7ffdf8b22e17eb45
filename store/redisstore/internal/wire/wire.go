// Package wire is the interface between redisstore and a Redis client.
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

type Script struct {
	Name string

	made func() (text, sha string)
}

// NewScript makes a Script. The text is read at its first use, so a program that only
// links the store starts without it.
func NewScript(name string, read func() string) *Script {
	return &Script{name, sync.OnceValues(func() (text, sha string) {
		text = read()
		sum := sha1.Sum([]byte(text))
		return text, hex.EncodeToString(sum[:])
	})}
}

func (s *Script) Text() string {
	text, _ := s.made()
	return text
}

// SHA is the digest of the text for EVALSHA.
func (s *Script) SHA() string {
	_, sha := s.made()
	return sha
}

// A Call is one run of a script. In Cluster all keys share a slot.
type Call struct {
	Script *Script
	Keys   []string
	Args   []string
	Full   bool // send the text: the server does not know the digest
	Loose  bool // the order of this and other calls does not matter

	// Locks are the keys whose calls keep their order; nil: the first of Keys.
	Locks []string

	Acks *Acks // if not nil, the client asks for them after the call and sets the answers
}

// Acks are what a primary says of its replicas right after a call, on the connection of
// the call.
type Acks struct {
	Await  func(node string) int  // how many replicas the primary must wait for; node is its address in Cluster, else ""
	Lacks  func(*Acks) bool       // whether to wait for one more: others than the required ones may have acknowledged
	Within time.Duration          // the longest wait
	Who    bool                   // ask for Server, too
	Nodes  func(node string) bool // whether to ask for Cluster, too; nil: no

	Node     string
	Server   string           // run_id
	Offset   int64            // in the replication stream: of the call, or later
	Replicas map[string]int64 // the offsets that replicas have acknowledged, by their addresses
	Cluster  string           // CLUSTER NODES
	Err      error            // why some of these are missing
}

func (a *Acks) Answered(said Acks) {
	a.Node, a.Server, a.Offset, a.Replicas, a.Cluster, a.Err = said.Node, said.Server, said.Offset, said.Replicas, said.Cluster, said.Err
}

// Late reports whether a replica has not acknowledged the call.
func (a *Acks) Late(addr string) bool {
	offset, connected := a.Replicas[addr]
	return !connected || offset < a.Offset
}

// Acknowledged is the number of replicas that have acknowledged the call.
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

// Client is a connection pool to Redis. Answers are int64, string, nil or []any of these.
// An error is a *ServerError, wraps ErrNotSent or a context error, or comes from the
// network after the request may have been sent.
//
// A Client obeys contexts. It never sends a script twice, except after a MOVED or ASK,
// which had no effect.
type Client interface {
	// Run runs one script. Unless the call is Loose, it runs after every earlier call of
	// Run that is not Loose and shares one of its Locks, even an abandoned one.
	Run(ctx context.Context, c Call) (any, error)

	// RunAll runs independent scripts, pipelined for each server, and with their text if
	// that server does not know them. A server without an answer does not affect the
	// answers of others.
	RunAll(ctx context.Context, calls []Call) []Result

	// Primaries calls f for every server that accepts writes, one after the other, until
	// f fails.
	Primaries(ctx context.Context, f func(Node) error) error

	// Subscribe reads channels on a connection of its own. It calls ready each time the
	// subscription becomes active, also after a reconnection, and message for each
	// message, on one goroutine. It returns when the connection is lost or ctx ends,
	// never nil.
	Subscribe(ctx context.Context, channels []string, ready func(), message func(text string)) error

	// Cluster reports whether keys are spread over slots.
	Cluster() bool

	// FollowsPrimary reports whether the client finds the primary by itself, so that a
	// replica is only a passing state.
	FollowsPrimary() bool

	// Silence is how long the client waits on a silent connection before it makes another
	// one: 0 if unknown, Endless if for ever.
	Silence() time.Duration

	// Close closes the client's connections.
	Close()
}

// Endless is the Silence of a client that never gives up.
const Endless time.Duration = -1

// Node runs plain commands on one server.
type Node interface {
	Do(ctx context.Context, args ...string) (any, error)
	DoAll(ctx context.Context, commands [][]string) []Result
}

// ErrNotSent says that the server has certainly not received the request.
var ErrNotSent = errors.New("not sent")

// NotSent makes err an ErrNotSent with the same text.
func NotSent(err error) error { return notSent{err} }

type notSent struct{ error }

func (n notSent) Is(target error) bool { return target == ErrNotSent }
func (n notSent) Unwrap() error        { return n.error }

// ServerError is an error that the server answered.
type ServerError struct{ Text string }

func (e *ServerError) Error() string { return e.Text }

// Code is the error's first word: "READONLY". In Redis 6.2 an error of a script has a
// position before it, and the denial of a command has no such word.
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

// Answered reports whether err is nil or an answer of a server.
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

// WithText runs calls, and again with their text those that the server did not know.
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
