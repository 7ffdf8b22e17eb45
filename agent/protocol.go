package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/flatjson"
	"github.com/batonhq/baton/internal/suggest"
	"github.com/batonhq/baton/ratelimit/rules"
)

// The protocol: a line is a JSON object and a newline. The client sends requests. The
// agent sends a greeting, one answer to each request (watch, observe and asked: further
// lines), and a last line with the reason if it ends the session. docs/agent.md describes
// the protocol for authors of clients.

// Version is the version of the protocol in the greeting.
const Version = 1

// MaxLine is the longest line that the agent reads, with its newline, in bytes.
const MaxLine = 4096

// Values of request.Do.
const (
	doLock   = "lock"
	doUnlock = "unlock"
	doCheck  = "check"
	doWho    = "who"
	doPing   = "ping"
	doLeader = "leader"
	doTake   = "take"
	doSettle = "settle"
	doWatch  = "watch"
	doOnce   = "once"
	doFinish = "finish"

	doObserve  = "observe"
	doProclaim = "proclaim"
	doAsked    = "asked"
)

// Modes of a lock.
const (
	modeExclusive = "exclusive"
	modeShared    = "shared"
	modePermits   = "permits"
)

// A request is a line from a client.
type request struct {
	ID        int64
	Do        string
	Key       string
	Keys      []string // of one lock of several keys
	Mode      string
	N, Of     int64
	WaitMS    int64
	MaxHoldMS int64
	Lock      int64
	Take      int64
	Value     string
	Rule      string
	Tier      string
	Cost      int64
	Also      []rules.Part
	Reserve   bool
	Request   string
	Result    string
	Failed    string

	has fields
}

// fields is a set of the fields of a request.
type fields uint32

const (
	fieldID fields = 1 << iota
	fieldDo
	fieldKey
	fieldMode
	fieldN
	fieldOf
	fieldWait
	fieldMaxHold
	fieldLock
	fieldValue
	fieldRule
	fieldTier
	fieldCost
	fieldRequest
	fieldResult
	fieldFailed
	fieldKeys
	fieldAlso
	fieldReserve
	fieldTake
)

// fieldNames has the names of the fields, in the order of their bits.
var fieldNames = []string{
	"id", "do", "key", "mode", "n", "of", "wait_ms", "max_hold_ms", "lock", "value", "rule", "tier", "cost", "request", "result", "failed", "keys", "also", "reserve", "take",
}

// verbs has, for each request, the fields beside id and do: the required ones, and the
// optional ones.
var verbs = map[string]struct{ needs, may fields }{
	doLock:   {0, fieldKey | fieldKeys | fieldMode | fieldN | fieldOf | fieldWait | fieldMaxHold | fieldValue},
	doUnlock: {fieldLock, 0},
	doCheck:  {fieldLock, 0},
	doWho:    {0, fieldKey},
	doPing:   {0, 0},
	doWatch:  {0, fieldKey},
	doLeader: {fieldKey, 0},

	doObserve:  {fieldKey, 0},
	doProclaim: {fieldLock | fieldValue, 0},
	doAsked:    {fieldLock, 0},

	doTake:   {fieldRule | fieldKey, fieldTier | fieldCost | fieldAlso | fieldReserve},
	doSettle: {fieldTake | fieldCost, 0},
	doOnce:   {fieldKey, fieldWait | fieldMaxHold | fieldRequest},
	doFinish: {fieldLock, fieldResult | fieldFailed},
}

const (
	// maxID is the largest ID: JavaScript has no larger exact number.
	maxID = 1<<53 - 1

	// maxAlso is the largest number of further rules in one take.
	maxAlso = 15

	// maxMS is the longest time in a request, a year, in milliseconds.
	maxMS = 366 * 24 * 3600 * 1000
)

// A badRequest refuses a line that the agent does not understand.
type badRequest struct {
	reason string
	fatal  bool // the agent cannot tell what follows the line: the session ends
}

func (e *badRequest) Error() string { return e.reason }

func bad(format string, args ...any) error { return &badRequest{fmt.Sprintf(format, args...), false} }

// parse reads a line. It is strict: a field that is unknown, repeated, of another type or
// case, or of no use for the request is an error. Otherwise a client that means wait_ms
// and writes wait would wait for ever. Even after an error the ID is right, or 0.
func parse(line []byte) (request, error) {
	if r, ok := parseShort(line); ok {
		return r, nil
	}
	return parseAny(line)
}

// parseShort reads a line without escapes, lists and errors, as nearly all lines are. It
// returns false for other lines.
func parseShort(line []byte) (r request, ok bool) {
	ok = flatjson.Each(line, func(name []byte, v flatjson.Value) bool {
		i := slices.Index(fieldNames, string(name))
		if i < 0 || r.has&(1<<i) != 0 {
			return false
		}
		r.has |= 1 << i
		text, number, least, most := r.field(1 << i)
		switch {
		case text != nil:
			*text = string(v.Text)
			return v.Kind == '"'
		case number != nil:
			*number = v.Number
			return v.Kind == '0' && least <= v.Number && v.Number <= most
		}
		return false
	})
	return r, ok && r.ID != 0 && r.check() == nil
}

func parseAny(line []byte) (r request, err error) {
	if !utf8.Valid(line) || !json.Valid(line) || bytes.TrimSpace(line)[0] != '{' {
		return r, &badRequest{"the line is no JSON object", true}
	}
	err = r.read(line, ^fields(0))
	switch {
	case r.has&fieldID == 0 || r.ID == 0: // the client could not match the answer
		return request{}, &badRequest{"a request has an id, a number from 1 to 2^53-1", true}
	case err == nil && strings.ContainsRune(strings.Join(r.Keys, "")+r.Key+r.Value+r.Rule+r.Tier+r.Request+r.Result+r.Failed+r.alsoText(), utf8.RuneError) && !bytes.ContainsRune(line, utf8.RuneError):
		err = bad("a string has half of a surrogate pair") // two different keys could become the same
	}
	if err == nil {
		err = r.check()
	}
	return r, err
}

// read reads a JSON object with fields out of may. It continues after an error, to find
// the ID.
func (r *request) read(text []byte, may fields) (err error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return bad("it is no object")
	}
	for dec.More() {
		t, e := dec.Token()
		name, _ := t.(string)
		var value json.RawMessage
		if e == nil {
			e = dec.Decode(&value)
		}
		f := fields(1) << max(0, slices.Index(fieldNames, name))
		switch {
		case e != nil:
			return bad("%v", e)
		case !slices.Contains(fieldNames, name) || f&may == 0:
			e = bad("there is no field %q%s", name, meant(name, fieldNames))
		case r.has&f != 0:
			e = bad("the field %q is there twice", name)
		default:
			r.has |= f
			e = r.set(f, name, value)
		}
		if err == nil {
			err = e
		}
	}
	return err
}

// field returns where a text or a number is stored, and the bounds of the number. It
// returns nil for the other types.
func (r *request) field(f fields) (text *string, number *int64, least, most int64) {
	least, most = 1, maxID
	switch f {
	case fieldDo:
		text = &r.Do
	case fieldKey:
		text = &r.Key
	case fieldMode:
		text = &r.Mode
	case fieldValue:
		text = &r.Value
	case fieldRule:
		text = &r.Rule
	case fieldTier:
		text = &r.Tier
	case fieldRequest:
		text = &r.Request
	case fieldResult:
		text = &r.Result
	case fieldFailed:
		text = &r.Failed
	case fieldCost:
		number, least = &r.Cost, -maxID
	case fieldTake:
		number = &r.Take
	case fieldID:
		number = &r.ID
	case fieldLock:
		number = &r.Lock
	case fieldN:
		number = &r.N
	case fieldOf:
		number = &r.Of
	case fieldWait:
		number, least, most = &r.WaitMS, 0, maxMS
	case fieldMaxHold:
		number, most = &r.MaxHoldMS, maxMS
	}
	return text, number, least, most
}

func (r *request) set(f fields, name string, text json.RawMessage) error {
	if f == fieldAlso {
		return r.setAlso(text)
	}
	var value any
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&value); err != nil {
		return bad("%s: %v", name, err)
	}
	if f == fieldKeys {
		list, _ := value.([]any)
		for _, one := range list {
			s, ok := one.(string)
			if !ok {
				list = nil
				break
			}
			r.Keys = append(r.Keys, s)
		}
		if n := len(list); n < 1 || n > check.MaxTogether {
			return bad("keys is a list of 1 to %d strings", check.MaxTogether)
		}
		return nil
	}
	if f == fieldReserve {
		is, ok := value.(bool)
		if r.Reserve = is; !ok {
			return bad("reserve is true or false")
		}
		return nil
	}
	where, number, least, most := r.field(f)
	if where != nil {
		s, ok := value.(string)
		if !ok {
			return bad("%s is not a string", name)
		}
		*where = s
		return nil
	}
	n, ok := value.(json.Number)
	if !ok {
		return bad("%s is not a number", name)
	}
	i, err := strconv.ParseInt(n.String(), 10, 64)
	if err != nil || i < least || i > most {
		return bad("%s is a whole number from %d to %d, without a fraction or an exponent", name, least, most)
	}
	*number = i
	return nil
}

// alsoText returns the texts of the further rules, joined.
func (r *request) alsoText() (all string) {
	for _, p := range r.Also {
		all += p.Rule + p.Key + p.Tier
	}
	return all
}

func (r *request) setAlso(text json.RawMessage) error {
	var list []json.RawMessage
	if err := json.Unmarshal(text, &list); err != nil || len(list) < 1 || len(list) > maxAlso {
		return bad("also is a list of 1 to %d rules", maxAlso)
	}
	for _, one := range list {
		part := request{Cost: 1}
		if err := part.read(one, fieldRule|fieldKey|fieldTier|fieldCost); err != nil {
			return bad("also has objects such as {\"rule\":\"…\",\"key\":\"…\"}: %v", err)
		}
		r.Also = append(r.Also, rules.Part{Rule: part.Rule, Key: part.Key, Tier: part.Tier, Cost: part.Cost})
	}
	return nil
}

// check refuses a request that no agent can do.
func (r *request) check() error {
	verb, ok := verbs[r.Do]
	if !ok {
		if r.has&fieldDo == 0 {
			return bad(`a request says what to do: {"id":%d,"do":"ping"}`, r.ID)
		}
		names := make([]string, 0, len(verbs))
		for name := range verbs {
			names = append(names, name)
		}
		slices.Sort(names)
		return bad("there is no request %q%s", r.Do, meant(r.Do, names))
	}
	given := r.has &^ (fieldID | fieldDo)
	if missing := verb.needs &^ given; missing != 0 {
		return bad("%s needs %s", r.Do, missing)
	}
	if extra := given &^ (verb.needs | verb.may); extra != 0 {
		return bad("%s has no use for %s", r.Do, extra)
	}
	if keys := given & (fieldKey | fieldKeys); r.Do == doLock && (keys == 0 || keys == fieldKey|fieldKeys) {
		return bad("lock needs a key, or keys")
	}
	permits := r.has & (fieldN | fieldOf)
	switch {
	case r.has&fieldMode != 0 && r.Mode != modeExclusive && r.Mode != modeShared && r.Mode != modePermits:
		return bad("mode %q: it is %s, %s or %s", r.Mode, modeExclusive, modeShared, modePermits)
	case r.Mode == modePermits && (permits != fieldN|fieldOf || r.N > r.Of || r.Of > check.MaxPermits):
		return bad("mode permits needs n and of, n of them: 2 of 10 permits, of at most %d", check.MaxPermits)
	case r.Mode != modePermits && permits != 0:
		return bad("n and of go with mode permits")
	case r.Do == doFinish && (r.has&fieldResult != 0) == (r.has&fieldFailed != 0):
		return bad("finish has a result, or says why the operation has failed for good")
	}
	return nil
}

// String names the first of the fields.
func (f fields) String() string {
	for i, name := range fieldNames {
		if f&(1<<i) != 0 {
			return strconv.Quote(name)
		}
	}
	return "nothing"
}

// meant suggests a known name near to name.
func meant(name string, known []string) string {
	if near := suggest.Nearest(name, known); near != "" {
		return fmt.Sprintf(": did you mean %q?", near)
	}
	return ""
}

// Values of answer.Error.
const (
	codeBad       = "bad"         // the request makes no sense
	codeBusy      = "busy"        // a bound is reached: of sessions, locks, reservations, requests or watches
	codeCancelled = "cancelled"   // the client, or the end of its session, ended the wait
	codeClosing   = "closing"     // the agent is being stopped; the session ends
	codeDenied    = "denied"      // the user may not do that
	codeHeld      = "held"        // the wait is over: another holder has the lock, or the store is silent
	codeFailed    = "failed"      // the operation has failed for good, now or before
	codeLimited   = "limited"     // the limit refuses
	codeLost      = "lost"        // the lock has ended
	codeNested    = "nested"      // the session holds this lock, or waits for it, already
	codeOther     = "other"       // the operation is recorded with another fingerprint of its request
	codeStore     = "store"       // the store did not answer, or failed
	codeUnkept    = "unrecorded"  // the operation was run, but its result is not recorded
	codeCannot    = "unsupported" // the store, or this agent, cannot do that
)

// An answer is a line from the agent.
type answer struct {
	ID      int64  `json:"id,omitempty"` // 0: answers no request
	OK      bool   `json:"ok"`
	Error   string `json:"error,omitempty"`   // a code
	Message string `json:"message,omitempty"` // for people
	Lost    int64  `json:"lost,omitempty"`    // the lock whose loss ends the session
	Cause   string `json:"cause,omitempty"`   // of the loss: expired, gone, overheld

	// Of the greeting.
	V     int    `json:"v,omitempty"`
	Store string `json:"store,omitempty"`

	// Of a lock. The token is a string, because it may exceed 2⁵³.
	Token       string            `json:"token,omitempty"`
	Tokens      map[string]string `json:"tokens,omitempty"` // by key, of a lock of several
	RemainingMS *int64            `json:"remaining_ms,omitempty"`
	MaxHoldMS   int64             `json:"max_hold_ms,omitempty"`

	// Of take. WaitMS is how long the client waits before it acts.
	Limit     *int64 `json:"limit,omitempty"`
	Remaining *int64 `json:"remaining,omitempty"`
	WaitMS    int64  `json:"wait_ms,omitempty"`
	RetryMS   int64  `json:"retry_ms,omitempty"` // 0: never
	ResetMS   int64  `json:"reset_ms,omitempty"`
	Each      []each `json:"each,omitempty"`   // of several rules
	Before    bool   `json:"before,omitempty"` // of settle: it was settled before

	// Of once.
	Run      bool    `json:"run,omitempty"` // the client must run the operation, under the lock of the token
	Attempts int64   `json:"attempts,omitempty"`
	Result   *string `json:"result,omitempty"`

	// Of leader and observe.
	Led     *bool  `json:"led,omitempty"`
	Value   string `json:"value,omitempty"`
	Unknown bool   `json:"unknown,omitempty"` // the store does not answer

	Reason string `json:"reason,omitempty"` // of asked
}

// each is the state of one of several rules.
type each struct {
	Rule      string `json:"rule"`
	OK        bool   `json:"ok"`
	Limit     int64  `json:"limit"`
	Remaining int64  `json:"remaining"`
	ResetMS   int64  `json:"reset_ms,omitempty"`
	RetryMS   int64  `json:"retry_ms,omitempty"`
}

// A whoAnswer lists the processes that hold and want locks through this agent.
type whoAnswer struct {
	ID    int64   `json:"id"`
	OK    bool    `json:"ok"`
	Locks []party `json:"locks"`
	More  int     `json:"more,omitempty"` // the number of those left out
}

// A party is a process that holds or wants a lock.
type party struct {
	Key     string `json:"key"`
	State   string `json:"state"` // held, waiting
	Mode    string `json:"mode"`
	Token   string `json:"token,omitempty"`
	ForMS   int64  `json:"for_ms"`
	PID     int    `json:"pid,omitempty"`
	UID     *int64 `json:"uid,omitempty"` // nil: the system does not tell
	Program string `json:"program,omitempty"`
}

// line returns an answer as a line.
func line(a any) []byte {
	text, err := json.Marshal(a)
	if err != nil { // cannot be: all answers have a JSON form
		panic(err)
	}
	return append(text, '\n')
}
