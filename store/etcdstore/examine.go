package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/batonhq/baton/driver"
)

// Beyond these values Examine reports a finding.
const (
	nearlyFull    = 0.8                   // of the quota
	longRoundTrip = 50 * time.Millisecond // of a read that asks the leader
	manyRevisions = 1_000_000             // that were never compacted
	endpointTime  = 2 * time.Second       // for one member to tell about itself
)

// Examine implements driver.Examiner. It asks for a lease and revokes it, to learn how
// short a lease may be; it does not touch locks or data.
func (s *Store) Examine(ctx context.Context) ([]driver.Finding, error) {
	return s.examine(ctx, manyRevisions)
}

func (s *Store) examine(ctx context.Context, many int64) ([]driver.Finding, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	var all []driver.Finding
	var errs []error
	ask := func(what string, f func() ([]driver.Finding, error)) {
		found, err := f()
		all = append(all, found...)
		if err != nil && !notTold(err) {
			errs = append(errs, fmt.Errorf("%s: %w", what, readFailure(ctx, err)))
		}
	}
	ask("endpoints", func() ([]driver.Finding, error) { return s.examineEndpoints(ctx), nil })
	ask("members", func() ([]driver.Finding, error) {
		resp, err := s.client.MemberList(ctx)
		if err != nil {
			return nil, err
		}
		return judgeMembers(resp.Members), nil
	})
	ask("alarms", func() ([]driver.Finding, error) {
		resp, err := s.client.AlarmList(ctx)
		if err != nil {
			return nil, err
		}
		return judgeAlarms(resp.Alarms), nil
	})
	ask("leases", func() ([]driver.Finding, error) { return s.examineLeases(ctx) })
	ask("revisions", func() ([]driver.Finding, error) { return s.examineRevisions(ctx, many) })
	ask("round trip", func() ([]driver.Finding, error) { return s.examineRoundTrip(ctx) })
	ask("authentication", func() ([]driver.Finding, error) {
		resp, err := s.client.AuthStatus(ctx)
		if err != nil || resp.Enabled {
			return nil, err
		}
		return []driver.Finding{{
			Name: "auth", Severity: driver.Note,
			What: "the servers ask for no password: any client that reaches them can take and break locks, and read their IDs",
			Mend: "etcdctl user add root, then etcdctl auth enable, and a role that may read and write " + strconv.Quote(s.prefix) + " alone",
		}}, nil
	})
	if c := s.server; c != nil && c.TLS == nil && !onlyHere(c.Endpoints) {
		all = append(all, driver.Finding{
			Name: "tls", Severity: driver.Note,
			What: "the connections are not encrypted: an attacker on the network can read the password and take or break locks",
			Mend: "give the servers certificates and write etcds://",
		})
	}
	return all, errors.Join(errs...)
}

// notTold reports whether the server is alive but forbids the question, or does not
// know it.
func notTold(err error) bool {
	if errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) {
		return true
	}
	st, ok := status.FromError(err)
	return ok && (st.Code() == codes.Unimplemented || st.Code() == codes.PermissionDenied)
}

// examineEndpoints asks each endpoint for itself.
func (s *Store) examineEndpoints(ctx context.Context) []driver.Finding {
	endpoints := s.client.Endpoints()
	type told struct {
		status *clientv3.StatusResponse
		err    error
	}
	answers := make([]told, len(endpoints))
	var work sync.WaitGroup
	for i, e := range endpoints {
		work.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, endpointTime)
			defer cancel()
			answers[i].status, answers[i].err = s.client.Status(ctx, e)
		})
	}
	work.Wait()
	var all []driver.Finding
	clusters := map[uint64]bool{}
	for i, a := range answers {
		at := " " + endpoints[i]
		switch {
		case a.err != nil && notTold(a.err):
		case a.err != nil:
			all = append(all, driver.Finding{
				Name: "endpoint-unreachable", Severity: driver.Slow,
				What: "endpoint" + at + " does not answer: requests that try it first take longer, and there is one less to fall back to",
				Mend: "start that member again, or take it out of the URL",
			})
		default:
			clusters[a.status.Header.ClusterId] = true
			all = append(all, judgeStatus(at, (*pb.StatusResponse)(a.status))...)
		}
	}
	if len(clusters) > 1 {
		all = append(all, driver.Finding{
			Name: "clusters", Severity: driver.Unsafe,
			What: fmt.Sprintf("the endpoints belong to %d different clusters, each of which grants the same lock", len(clusters)),
			Mend: "name the members of one cluster only",
		})
	}
	return all
}

// judgeStatus judges what one member says of itself. at names it, after a
// space.
func judgeStatus(at string, st *pb.StatusResponse) (all []driver.Finding) {
	if f, ok := judgeVersion(at, st.Version); ok {
		all = append(all, f)
	}
	if st.Leader == 0 {
		all = append(all, driver.Finding{
			Name: "no-leader", Severity: driver.Unsafe,
			What: "member" + at + " has no leader: it grants, renews and releases nothing",
			Mend: "bring back a majority of the members, and look at the network between them",
		})
	}
	if st.IsLearner {
		all = append(all, driver.Finding{
			Name: "learner", Severity: driver.Unsafe,
			What: "endpoint" + at + " is a learner, which refuses most requests",
			Mend: "take it out of the URL, or etcdctl member promote it",
		})
	}
	if q := st.DbSizeQuota; q > 0 && float64(st.DbSize) > nearlyFull*float64(q) {
		all = append(all, driver.Finding{
			Name: "quota", Severity: driver.Unsafe,
			What: fmt.Sprintf("member%s has used %d of %d MB: when the rest is gone, nothing is granted", at, st.DbSize>>20, q>>20),
			Mend: "compact and defragment (etcdctl compact, etcdctl defrag), set --auto-compaction-retention, or raise --quota-backend-bytes",
		})
	}
	return all
}

// judgeVersion judges a server's version. ok is false if there is nothing to
// say.
func judgeVersion(at, v string) (f driver.Finding, ok bool) {
	var n [3]int
	for i, part := range strings.SplitN(strings.TrimPrefix(v, "v"), ".", 3) {
		digits := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' })
		if digits >= 0 {
			part = part[:digits]
		}
		n[i], _ = strconv.Atoi(part)
	}
	minor, patch := n[0]*100+n[1], n[2]
	f = driver.Finding{Name: "version", Mend: "upgrade to a version that is maintained"}
	switch {
	case minor == 0:
		return f, false
	case minor < 304:
		f.Severity = driver.Unsafe
		f.What = "member" + at + " is version " + v + ", at least 3.4 is needed"
	case minor == 305 && patch < 3:
		f.Severity = driver.Unsafe
		f.What = "member" + at + " is version " + v + ", which can lose or mix up data when it is killed"
		f.Mend = "upgrade to the latest 3.5, or to a later version"
	case minor == 304 && patch < 31, minor == 305 && patch < 13:
		// https://github.com/etcd-io/etcd/issues/15247; 3.6 never had it.
		f.Severity = driver.Unsafe
		f.What = "member" + at + " is version " + v + ", which can end all leases, and so give locks away that are held, when its disk has hung"
		f.Mend = "upgrade to 3.5.13 or later, or to 3.4.31 or later"
	case minor < 305:
		f.What = "member" + at + " is version " + v + ", which gets no corrections any more"
	default:
		return f, false
	}
	return f, true
}

func judgeMembers(members []*pb.Member) []driver.Finding {
	voters := 0
	for _, m := range members {
		if !m.IsLearner {
			voters++
		}
	}
	switch {
	case voters == 1:
		return []driver.Finding{{
			Name: "single-member", Severity: driver.Note,
			What: "the cluster has one member: while that is down, nothing is granted",
			Mend: "add members until there are three",
		}}
	case voters%2 == 0:
		return []driver.Finding{{
			Name: "even-members", Severity: driver.Note,
			What: fmt.Sprintf("the cluster has %d members: it survives the loss of no more of them than with %d, and is slower", voters, voters-1),
			Mend: "add a member, or remove one",
		}}
	}
	return nil
}

func judgeAlarms(alarms []*pb.AlarmMember) (all []driver.Finding) {
	seen := map[pb.AlarmType]bool{}
	for _, a := range alarms {
		if seen[a.Alarm] {
			continue
		}
		seen[a.Alarm] = true
		switch a.Alarm {
		case pb.AlarmType_NOSPACE:
			all = append(all, driver.Finding{
				Name: "nospace", Severity: driver.Unsafe,
				What: "the alarm NOSPACE is raised: nothing is granted",
				Mend: "etcdctl compact, etcdctl defrag, then etcdctl alarm disarm; set --auto-compaction-retention",
			})
		case pb.AlarmType_CORRUPT:
			all = append(all, driver.Finding{
				Name: "corrupt", Severity: driver.Unsafe,
				What: "the alarm CORRUPT is raised: the members do not agree on what is stored",
				Mend: "replace the member that is wrong; see etcd's guide to disaster recovery",
			})
		}
	}
	return all
}

// examineLeases has a short lease granted, to see how short it is.
func (s *Store) examineLeases(ctx context.Context) ([]driver.Finding, error) {
	resp, err := s.leaser.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: waiterSeconds})
	if errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace) {
		return nil, nil // examine reports the alarm
	}
	if err != nil {
		return nil, err
	}
	// If this fails the lease ends by itself.
	_, _ = s.leaser.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: resp.ID})
	if resp.TTL <= waiterSeconds {
		return nil, nil
	}
	return []driver.Finding{{
		Name: "lease-floor", Severity: driver.Slow,
		What: fmt.Sprintf("the servers give no lease of less than %d s: a process that died keeps others waiting for that long, whatever its TTL", resp.TTL),
		Mend: "lower --election-timeout: the shortest lease is one and a half of it",
	}}, nil
}

// examineRevisions looks whether an old revision is still there.
func (s *Store) examineRevisions(ctx context.Context, many int64) ([]driver.Finding, error) {
	head, err := s.kv.Range(ctx, &pb.RangeRequest{Key: []byte(s.dir("?"))})
	if err != nil {
		return nil, err
	}
	old := head.Header.Revision - many
	if old < 1 {
		return nil, nil
	}
	_, err = s.kv.Range(ctx, &pb.RangeRequest{Key: []byte(s.dir("?")), Revision: old})
	if errors.Is(rpctypes.Error(err), rpctypes.ErrCompacted) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return []driver.Finding{{
		Name: "compaction", Severity: driver.Slow,
		What: fmt.Sprintf("the last %d revisions were never compacted: every lock adds two, until the quota is used up", many),
		Mend: "start the servers with --auto-compaction-mode=periodic --auto-compaction-retention=1h",
	}}, nil
}

// examineRoundTrip takes the fastest of a few reads.
func (s *Store) examineRoundTrip(ctx context.Context) ([]driver.Finding, error) {
	best := time.Hour
	for range 5 {
		start := time.Now()
		if _, err := s.kv.Range(ctx, &pb.RangeRequest{Key: []byte(s.dir("?"))}); err != nil {
			return nil, err
		}
		best = min(best, time.Since(start))
	}
	if best < longRoundTrip {
		return nil, nil
	}
	return []driver.Finding{{
		Name: "round-trip", Severity: driver.Slow,
		What: fmt.Sprintf("a read takes %v at best: the servers are far away from here, or from each other", best.Round(time.Millisecond)),
		Mend: "run the program near the leader, and the members near each other",
	}}, nil
}

// onlyHere reports whether all endpoints are on this machine.
func onlyHere(endpoints []string) bool {
	for _, e := range endpoints {
		host, _, err := net.SplitHostPort(e)
		if err == nil && host == "localhost" {
			continue
		}
		if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
			return false
		}
	}
	return true
}
