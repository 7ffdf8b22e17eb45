package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/findings"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// Examine implements driver.Examiner. It asks every primary, and the Sentinels that Open
// was given, and judges the settings of a caller's client. A question that a server
// denies is a finding, too.
func (s *Store) Examine(ctx context.Context) ([]driver.Finding, error) {
	var addresses []string
	var found [][]driver.Finding
	err := s.eachPrimary(ctx, func(n wire.Node) error {
		f, err := ask(ctx, n, s.client.Cluster(), s.channel)
		if err != nil {
			return failure(err)
		}
		addresses, found = append(addresses, f.address), append(found, s.judge(f))
		return nil
	})
	all := findings.Table(findings.Merge(addresses, found))
	if err == nil {
		all = append(all, s.examineSubscription(ctx)...)
	}
	if !s.owned {
		all = append(all, judgeSilence(s.client.Silence())...)
	}
	if c := s.server; c != nil {
		if c.Master != "" && err == nil {
			all = append(all, judgeSentinels(s.askSentinels(ctx))...)
		}
		all.Say(c.TLS == nil && !findings.Local(c.Addrs...), "tls", driver.Note, "set up TLS on the server (tls-port, tls-cert-file, tls-key-file), then write rediss:// in the URL",
			"the connection is not encrypted: an attacker on the network path can read the password and take or break locks")
	}
	return all, err
}

// examineSubscription tries to read channels as waiters do.
func (s *Store) examineSubscription(ctx context.Context) (all findings.Table) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := s.client.Subscribe(ctx, []string{s.channel, s.everyone}, cancel, func(string) {})
	if e, said := errors.AsType[*wire.ServerError](err); said && denied(err) {
		s.sayNoChannels(&all, "SUBSCRIBE", e.Text)
	}
	return all
}

// ServerTime implements driver.Clock. With several primaries it is the time of one of
// them.
func (s *Store) ServerTime(ctx context.Context) (at time.Time, err error) {
	err = s.eachPrimary(ctx, func(n wire.Node) error {
		if !at.IsZero() {
			return nil
		}
		answer, err := n.Do(ctx, "TIME")
		if err != nil {
			return failure(err)
		}
		t := list(answer)
		if len(t) != 2 {
			return failure(&wire.ServerError{Text: "ERR TIME answered something strange"})
		}
		at = time.Unix(number(t[0]), number(t[1])*1000)
		return nil
	})
	return at, err
}

// facts are one server's answers about itself.
type facts struct {
	address string            // in Cluster
	info    map[string]string // INFO
	config  map[string]string // nil if the server denies it
	slow    []slowCommand     // of the last hour
	open    bool              // a client needs no password
	cluster map[string]string // CLUSTER INFO; nil without Cluster
	alone   bool              // a primary of a Cluster without a replica
	silent  string            // why this user may not publish
	closed  bool              // it denies the question for its replicas
}

type slowCommand struct {
	name string
	took time.Duration
}

// settings are read with CONFIG GET. None is secret.
var settings = []string{
	"maxclients", "appendfsync", "save", "stop-writes-on-bgsave-error",
	"min-replicas-to-write", "min-replicas-max-lag",
	"client-output-buffer-limit", "cluster-require-full-coverage",
}

// ask puts all questions to one server. Only a missing answer is an error. To find out
// whether it may publish, it publishes an empty message, without meaning, on channel.
func ask(ctx context.Context, n wire.Node, cluster bool, channel string) (facts, error) {
	var f facts
	var err error
	if f.info, err = serverInfo(ctx, n); err != nil {
		return f, err
	}
	commands := [][]string{{"TIME"}, {"SLOWLOG", "GET", "64"}, {"ACL", "GETUSER", "default"}, {"PUBLISH", channel, ""}, {"ROLE"}, {"WAIT", "0", "1"}}
	for _, name := range settings {
		commands = append(commands, []string{"CONFIG", "GET", name})
	}
	if cluster {
		commands = append(commands, []string{"CLUSTER", "INFO"}, []string{"CLUSTER", "NODES"})
	}
	const publish, role, wait = 3, 4, 5
	answers := n.DoAll(ctx, commands)
	for i, r := range answers {
		if r.Err != nil {
			if _, said := r.Err.(*wire.ServerError); !said {
				return f, r.Err
			}
			answers[i].Value = nil // the server denies it: the answer stays unknown
			switch i {
			case publish:
				f.silent = r.Err.Error()
			case role, wait:
				f.closed = f.closed || mayNot(r.Err)
			}
		}
	}
	if t := list(answers[0].Value); len(t) == 2 {
		f.slow = slowSince(answers[1].Value, number(t[0])-3600)
	}
	user := fields(answers[2].Value)
	f.open = slices.Contains(strings.Fields(user["flags"]), "nopass") && slices.Contains(strings.Fields(user["flags"]), "on")
	for i := range settings {
		for name, value := range fields(answers[wait+1+i].Value) {
			if f.config == nil {
				f.config = map[string]string{}
			}
			f.config[name] = value
		}
	}
	if cluster {
		rest := answers[wait+1+len(settings):]
		f.cluster = lines(text(rest[0].Value))
		f.address, f.alone = self(text(rest[1].Value))
	}
	return f, nil
}

// slowSince reads SLOWLOG GET. It ignores the arguments of commands: they may be secret.
func slowSince(answer any, from int64) []slowCommand {
	var all []slowCommand
	for _, entry := range list(answer) {
		e := list(entry)
		if len(e) < 4 || number(e[1]) < from || len(list(e[3])) == 0 {
			continue
		}
		all = append(all, slowCommand{strings.ToUpper(text(list(e[3])[0])), time.Duration(number(e[2])) * time.Microsecond})
	}
	slices.SortStableFunc(all, func(a, b slowCommand) int { return cmp.Compare(b.took, a.took) })
	return all
}

// self finds this server in CLUSTER NODES, and whether it has no replica to take over.
func self(nodes string) (address string, alone bool) {
	replicas := map[string]int{} // of a primary, by its ID
	id := ""
	for line := range strings.Lines(nodes) {
		f := strings.Fields(line)
		if len(f) < 4 {
			continue
		}
		if flags := strings.Split(f[2], ","); slices.Contains(flags, "myself") {
			id = f[0]
			address, _, _ = strings.Cut(f[1], "@")
		} else if slices.Contains(flags, "slave") && !slices.Contains(flags, "fail") {
			replicas[f[3]]++
		}
	}
	return address, id != "" && replicas[id] == 0
}

// lines reads "name:value" lines.
func lines(s string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(s) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			m[k] = v
		}
	}
	return m
}

// fields reads a map in every form of protocols and clients. A list among its values
// becomes words.
func fields(v any) map[string]string {
	m := map[string]string{}
	put := func(k, v any) {
		if words := list(v); words != nil {
			var all []string
			for _, w := range words {
				all = append(all, text(w))
			}
			v = strings.Join(all, " ")
		} else if n, ok := v.(int64); ok {
			v = fmt.Sprint(n)
		}
		m[text(k)] = text(v)
	}
	switch v := v.(type) {
	case []any:
		for i := 0; i+1 < len(v); i += 2 {
			put(v[i], v[i+1])
		}
	case map[string]any:
		for k, v := range v {
			put(k, v)
		}
	case map[any]any:
		for k, v := range v {
			put(k, v)
		}
	}
	return m
}

// sentinelFacts are one Sentinel's answers about the primary.
type sentinelFacts struct {
	address string
	master  map[string]string // nil if it did not answer
}

// askSentinels asks every Sentinel that Open was given.
func (s *Store) askSentinels(ctx context.Context) []sentinelFacts {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var all []sentinelFacts
	for _, address := range s.server.Addrs {
		f := sentinelFacts{address: address}
		client := redis.NewSentinelClient(s.server.sentinel(address, checkTimeout, checkTimeout))
		if master, err := client.Master(ctx, s.server.Master).Result(); err == nil {
			f.master = master
		}
		client.Close()
		all = append(all, f)
	}
	return all
}
