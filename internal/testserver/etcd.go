package testserver

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// EtcdServer is one etcd process.
type EtcdServer struct {
	Process

	// Addr is where it serves clients, PeerAddr where it serves other members:
	// "127.0.0.1:port". Both survive Restart.
	Addr, PeerAddr string

	// Name is the name of the member.
	Name string

	peerURL string      // for the other members
	tls     *tls.Config // nil: it does not use TLS
}

func (s *EtcdServer) url() string {
	if s.tls != nil {
		return "https://" + s.Addr
	}
	return "http://" + s.Addr
}

// Do sends one request to etcd's JSON gateway, for example to "/v3/kv/compaction". In the
// answer, numbers of 64 bits are strings.
func (s *EtcdServer) Do(path string, request map[string]any) (map[string]any, error) {
	if request == nil {
		request = map[string]any{}
	}
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	client := http.Client{Timeout: answerTimeout, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: s.tls}}
	resp, err := client.Post(s.url()+path, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %s", path, resp.Status, strings.TrimSpace(string(text)))
	}
	answer := map[string]any{}
	return answer, json.Unmarshal(text, &answer)
}

// serves makes a linearizable read, which only a member of a working cluster answers, and
// checks that the server is ours.
func (s *EtcdServer) serves() error {
	_, err := s.Do("/v3/kv/range", map[string]any{"key": "AA=="})
	if err != nil && strings.Contains(err.Error(), "user name is empty") {
		return nil // it wants a password, which only the test knows
	}
	if err != nil {
		return err
	}
	members, err := s.Do("/v3/cluster/member/list", nil)
	if err != nil {
		return err
	}
	list, _ := members["members"].([]any)
	for _, m := range list {
		if m, ok := m.(map[string]any); ok && m["name"] == s.Name {
			return nil
		}
	}
	return errors.New("another server answers on " + s.Addr)
}

// Etcd starts a cluster of one member. It does not wait for the disk, but acknowledged
// changes survive its Kill. args are arguments of etcd, for example
// "--quota-backend-bytes=16777216".
func Etcd(t TB, args ...string) *EtcdServer {
	t.Helper()
	return etcdMembers(t, 1, nil, nil, args)[0]
}

// EtcdTLS is Etcd with TLS, for clients that have the same certificate.
func EtcdTLS(t TB, certFile, keyFile string, args ...string) *EtcdServer {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatalf("start etcd: %v", err)
	}
	own := &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true} // it is our child
	return etcdMembers(t, 1, own, nil, append([]string{
		"--cert-file=" + certFile, "--key-file=" + keyFile, "--trusted-ca-file=" + certFile, "--client-cert-auth",
	}, args...))[0]
}

var sharedEtcd shared[*EtcdServer]

// SharedEtcd returns the single etcd that the tests of this binary share. They touch only
// their own keys and do not stop it.
func SharedEtcd(t TB) *EtcdServer {
	t.Helper()
	return sharedEtcd.get(t, func(t TB) *EtcdServer { return Etcd(t) })
}

// EtcdCluster is a cluster of three members.
type EtcdCluster struct {
	Members []*EtcdServer
}

// EtcdThree starts a cluster of three members.
func EtcdThree(t TB, args ...string) *EtcdCluster {
	t.Helper()
	return &EtcdCluster{etcdMembers(t, 3, nil, nil, args)}
}

// EtcdThreeBehind is EtcdThree whose members reach each other at the address that behind
// returns for each one's own.
func EtcdThreeBehind(t TB, behind func(addr string) string, args ...string) *EtcdCluster {
	t.Helper()
	return &EtcdCluster{etcdMembers(t, 3, nil, behind, args)}
}

// MemberID returns this server's number of a member, which may be down.
func (s *EtcdServer) MemberID(of *EtcdServer) (uint64, error) {
	answer, err := s.Do("/v3/cluster/member/list", nil)
	if err != nil {
		return 0, err
	}
	list, _ := answer["members"].([]any)
	for _, m := range list {
		m, _ := m.(map[string]any)
		urls, _ := m["peerURLs"].([]any)
		if id, ok := m["ID"].(string); ok && len(urls) == 1 && urls[0] == of.peerURL {
			return strconv.ParseUint(id, 10, 64)
		}
	}
	return 0, errors.New("there is no member at " + of.peerURL)
}

// Expel ends another server's membership and kills that server.
func (s *EtcdServer) Expel(other *EtcdServer) error {
	id, err := s.MemberID(other)
	if err == nil {
		_, err = s.Do("/v3/cluster/member/remove", map[string]any{"ID": strconv.FormatUint(id, 10)})
	}
	if err == nil {
		other.Kill()
	}
	return err
}

// Admit makes an expelled server a new member without data.
func (s *EtcdServer) Admit(other *EtcdServer) error {
	if err := os.RemoveAll(filepath.Join(other.dir, "data")); err != nil {
		return err
	}
	if _, err := s.Do("/v3/cluster/member/add", map[string]any{"peerURLs": []string{other.peerURL}}); err != nil {
		return err
	}
	other.args = append(other.args, "--initial-cluster-state=existing") // ignored once it has data
	return other.start()
}

var sharedEtcdThree shared[*EtcdCluster]

// SharedEtcdThree returns the cluster that the tests of this binary share. They touch
// only their own keys and do not stop it.
func SharedEtcdThree(t TB) *EtcdCluster {
	t.Helper()
	return sharedEtcdThree.get(t, func(t TB) *EtcdCluster { return EtcdThree(t) })
}

// Addrs returns the members' addresses for clients.
func (c *EtcdCluster) Addrs() []string {
	var addrs []string
	for _, m := range c.Members {
		addrs = append(addrs, m.Addr)
	}
	return addrs
}

// Leader waits until the members that answer agree on one of them as the leader, and
// returns it.
func (c *EtcdCluster) Leader(t TB) *EtcdServer {
	t.Helper()
	var leader *EtcdServer
	poll(t, "a leader", func() error {
		leader = nil
		named := map[string]bool{}
		var self []*EtcdServer
		for _, m := range c.Members {
			status, err := m.Do("/v3/maintenance/status", nil)
			if err != nil {
				continue // it is down
			}
			header, _ := status["header"].(map[string]any)
			id, _ := status["leader"].(string)
			named[id] = true
			if id != "" && id == header["member_id"] {
				self = append(self, m)
			}
		}
		if len(named) != 1 || len(self) != 1 {
			return fmt.Errorf("the members name %d leaders, and %d of them lead", len(named), len(self))
		}
		leader = self[0]
		return nil
	})
	return leader
}

// NeedEtcd skips the test if it may not start etcd.
func NeedEtcd(t TB) {
	t.Helper()
	etcdBinary(t)
}

// EtcdMembers starts a cluster of n members.
func EtcdMembers(t TB, n int, args ...string) *EtcdCluster {
	t.Helper()
	return &EtcdCluster{etcdMembers(t, n, nil, nil, args)}
}

// EtcdLearner adds a non-voting member to the server's cluster.
func EtcdLearner(t TB, s *EtcdServer) *EtcdServer {
	t.Helper()
	path := etcdBinary(t)
	clientAddr, peerAddr := FreeAddr(t), FreeAddr(t)
	if _, err := s.Do("/v3/cluster/member/add", map[string]any{
		"peerURLs": []string{"http://" + peerAddr}, "isLearner": true,
	}); err != nil {
		t.Fatalf("add a learner: %v", err)
	}
	l := &EtcdServer{Addr: clientAddr, PeerAddr: peerAddr, Name: fmt.Sprintf("m%016x", rand.Uint64()), peerURL: "http://" + peerAddr}
	l.prepare(t, path, []string{
		"--initial-cluster=" + s.Name + "=http://" + s.PeerAddr + "," + l.Name + "=http://" + peerAddr,
		"--initial-cluster-state=existing",
	})
	l.ready = func(int) error { // a learner refuses most requests
		_, err := l.Do("/v3/maintenance/status", nil)
		return err
	}
	if err := l.start(); err != nil {
		t.Fatalf("start a learner: %v", err)
	}
	t.Cleanup(l.Kill)
	return l
}

// EtcdCtl returns the path of etcdctl, for a long test.
func EtcdCtl(t TB) string {
	t.Helper()
	Long(t)
	return require(t, "etcdctl", "etcd-client")
}

// etcdBinary returns the server that .ci/install has put at the root of the repository,
// or the one in PATH.
func etcdBinary(t TB) string {
	t.Helper()
	return find(t, "etcd", "etcd-server", func() (string, error) {
		for dir, err := os.Getwd(); err == nil; dir = filepath.Dir(dir) {
			path := filepath.Join(dir, ".servers", "etcd")
			// Other users may write above the directory of a Site, such as /tmp.
			if info, err := os.Stat(path); err == nil && trusted(info) {
				return path, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
		return exec.LookPath("etcd")
	})
}

// etcdMembers starts the members of one cluster. If another program took a port
// meanwhile, it tries other ports.
func etcdMembers(t TB, n int, secure *tls.Config, behind func(addr string) string, args []string) []*EtcdServer {
	t.Helper()
	path := etcdBinary(t)
	for attempt := 1; ; attempt++ {
		members, err := newEtcdMembers(t, path, n, secure, behind, args)
		if err == nil {
			err = startAll(members)
		}
		if err == nil {
			for _, m := range members {
				t.Cleanup(m.Kill)
			}
			return members
		}
		for _, m := range members {
			m.Kill()
		}
		if !errors.Is(err, errExited) || attempt == 5 {
			t.Fatalf("start etcd: %v", err)
		}
	}
}

func newEtcdMembers(t TB, path string, n int, secure *tls.Config, behind func(addr string) string, args []string) ([]*EtcdServer, error) {
	t.Helper()
	var members []*EtcdServer
	var cluster []string
	for range n {
		client, err := freePort()
		if err != nil {
			return members, err
		}
		peer, err := freePort()
		if err != nil {
			return members, err
		}
		m := &EtcdServer{Addr: addr(client), PeerAddr: addr(peer), Name: fmt.Sprintf("m%016x", rand.Uint64()), tls: secure}
		m.peerURL = "http://" + m.PeerAddr
		if behind != nil {
			m.peerURL = "http://" + behind(m.PeerAddr)
		}
		members = append(members, m)
		cluster = append(cluster, m.Name+"="+m.peerURL)
	}
	for _, m := range members {
		m.prepare(t, path, append([]string{
			"--initial-cluster=" + strings.Join(cluster, ","),
			"--initial-cluster-token=" + members[0].Name,
		}, args...))
	}
	return members, nil
}

func (s *EtcdServer) prepare(t TB, path string, args []string) {
	t.Helper()
	dir := freshDir(t)
	durable := stalls(t) // otherwise there is nothing to stall
	s.Process = Process{
		t: t, path: path, dir: dir, ready: func(int) error { return s.serves() },
		args: append([]string{ // the caller's arguments come last, and win
			"--unsafe-no-fsync=" + strconv.FormatBool(!durable),
			"--name=" + s.Name,
			"--data-dir=" + filepath.Join(dir, "data"),
			"--listen-client-urls=" + s.url(),
			"--advertise-client-urls=" + s.url(),
			"--listen-peer-urls=http://" + s.PeerAddr,
			"--initial-advertise-peer-urls=" + s.peerURL,
			"--log-level=error",
		}, args...),
	}
}

// RestartEtcd restarts members together: one alone may never be ready.
func RestartEtcd(t TB, members ...*EtcdServer) {
	t.Helper()
	for _, m := range members {
		m.Kill()
	}
	if err := startAll(members); err != nil {
		t.Fatalf("restart etcd: %v", err)
	}
}

// startAll starts the members together: none is ready before a majority runs.
func startAll(members []*EtcdServer) error {
	var work sync.WaitGroup
	errs := make([]error, len(members))
	for i, m := range members {
		work.Go(func() { errs[i] = m.start() })
	}
	work.Wait()
	return errors.Join(errs...)
}
