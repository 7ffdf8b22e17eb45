package scale

import "math"

// bill is how many requests a process sends at each tick for its leases. A test compares
// it with the servers' counts.
type bill struct {
	claims  int     // leases of one batch; 0: all of them
	each    float64 // requests for a batch
	process float64 // requests for the process, with any number of leases
	slots   bool    // a batch has only leases of one slot of Redis Cluster
}

// bills are the bills of the stores.
var bills = map[string]bill{
	"memory":        {each: 1},
	"SQLite":        {each: 1},
	"Redis":         {claims: 200, each: 1},
	"Redis Cluster": {claims: 200, each: 1, slots: true},
	"Redlock":       {claims: 200, each: 5},
	"MariaDB":       {claims: 500, each: 8}, // statements, in two messages
	"PostgreSQL":    {each: 1},
	"ZooKeeper":     {claims: 200, each: 1},
	"etcd":          {claims: 100, each: 1, process: 1},
}

const slots = 16384

// requests is the number that one process sends at a tick for its leases.
func (b bill) requests(leases int) float64 {
	if leases == 0 {
		return 0
	}
	batches := 1.0
	switch {
	case b.slots:
		// Names are distributed at random: this many slots have at least one.
		used := slots * (1 - math.Pow(1-1.0/slots, float64(leases)))
		batches = math.Max(used, math.Ceil(float64(leases)/float64(b.claims)))
	case b.claims > 0:
		batches = math.Ceil(float64(leases) / float64(b.claims))
	}
	return b.process + b.each*batches
}

// background is what a process sends in a second besides renewals: pings of its connections,
// signs of life of its session, its share of the sweep. It is the measured number of one
// process minus its renewals.
func (s *store) background() float64 {
	if len(s.Processes) == 0 || s.Processes[0].N != 1 {
		return 0
	}
	one := s.Processes[0]
	return math.Max(0, one.Requests-bills[s.Name].requests(one.Leases)) / (full.ttl.Seconds() / 3)
}

// requests is the number that these processes send in some seconds with one tick, for their
// leases and besides.
func (s *store) requests(processes, leases int, seconds float64) float64 {
	return float64(processes) * (bills[s.Name].requests(leases) + s.background()*seconds)
}

// perHour is the number of requests that keep one of a process's leases for an hour, with a
// TTL of ttl seconds.
func (s *store) perHour(leases int, ttl float64) float64 {
	return s.requests(1, leases, ttl/3) / float64(leases) * 3600 / (ttl / 3)
}

// model is the server of a store. A pair takes the inverse of the highest measured rate, and
// an empty renewal command half of that. The cost of each lease in it is from the largest
// measurement with at most upTo leases.
func (s *store) model(upTo int) model {
	m := model{pair: 1 / s.Pairs.Most, batch: 0.5 / s.Pairs.Most, claims: bills[s.Name].claims, floor: s.Pairs.Open[0].Seconds}
	if bills[s.Name].slots {
		m.claims = 1 // few slots have two
	}
	var at *leases
	for _, l := range s.held() {
		if l.N <= upTo {
			at = &l
		}
	}
	if at == nil {
		return m
	}
	commands := 1.0
	if m.claims > 0 {
		commands = math.Ceil(float64(at.N) / float64(m.claims))
	}
	m.claim = math.Max(0, at.Took-commands*m.batch) / float64(at.N)
	if m.claims == 1 { // a tick's commands to a Cluster are sent together
		m.batch, m.claim = at.Took/float64(at.N), 0
	}
	return m
}

// share is the part of a server's time for the renewals of held leases, in processes of each
// leases, with a TTL of ttl seconds.
func (s *store) share(held, each int, ttl float64) float64 {
	m := s.model(math.MaxInt)
	commands := 1.0
	if m.claims > 0 {
		commands = math.Ceil(float64(each) / float64(m.claims))
	}
	return float64(held) / float64(each) * (commands*m.batch + float64(each)*m.claim) / (ttl / 3)
}

// ratio is the error of a prediction, as a factor of at least 1.
func ratio(predicted, measured float64) float64 {
	if predicted <= 0 || measured <= 0 {
		return math.NaN()
	}
	return math.Max(predicted/measured, measured/predicted)
}
