package batoncertmagic_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/batonhq/baton"
	batoncertmagic "github.com/batonhq/baton/adapters/certmagic"
	"github.com/batonhq/baton/batontest"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
)

const (
	domain = "example.com"
	lock   = "issue_cert_" + domain // what certmagic calls the lock of the domain
	key    = "certs/" + lock
	ttl    = 3 * time.Second // of the child that is killed
)

// newLocks has the default TTL: the machine may be too busy to keep a short one.
func newLocks(t *testing.T, url string) *baton.Locker {
	t.Helper()
	store, err := open.Store(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return lockerOf(t, store)
}

func lockerOf(t *testing.T, store driver.Locks) *baton.Locker {
	t.Helper()
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return locks
}

func newStorage(t *testing.T, store driver.Locks) *batoncertmagic.Storage {
	t.Helper()
	return batoncertmagic.New(files(t.TempDir()), lockerOf(t, store), "certs/")
}

func files(folder string) certmagic.Storage { return &certmagic.FileStorage{Path: folder} }

// A ca is a certmagic.Issuer.
type ca struct {
	key  *ecdsa.PrivateKey
	root *x509.Certificate

	issued atomic.Int64
	// before is called before the certificate of a serial number is made. Its time is how
	// long the certificate is good for from now; it has been good for ten hours.
	before func(ctx context.Context, serial int64) (time.Duration, error)
}

func newCA(before func(context.Context, int64) (time.Duration, error)) (*ca, error) {
	c := &ca{before: before}
	var err error
	if c.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	c.root = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	return c, nil
}

func (c *ca) IssuerKey() string { return "test" }

func (c *ca) Issue(ctx context.Context, request *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	serial := c.issued.Add(1)
	left, err := c.before(ctx, serial)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial), DNSNames: request.DNSNames,
		NotBefore: time.Now().Add(-10 * time.Hour), NotAfter: time.Now().Add(left),
	}, c.root, request.PublicKey, c.key)
	if err != nil {
		return nil, err
	}
	return &certmagic.IssuedCertificate{Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// instance returns certmagic as a process of its own has it, and what ends it.
func instance(storage certmagic.Storage, issuer certmagic.Issuer, logger *zap.Logger) (config *certmagic.Config, stop func()) {
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return config, nil },
		Logger:           logger,
	})
	return certmagic.New(cache, certmagic.Config{Storage: storage, Issuers: []certmagic.Issuer{issuer}, Logger: logger}), cache.Stop
}

func newInstance(t *testing.T, storage certmagic.Storage, issuer certmagic.Issuer) *certmagic.Config {
	t.Helper()
	config, stop := instance(storage, issuer, zap.NewNop())
	t.Cleanup(stop)
	return config
}

// full is a storage with all that certmagic looks for.
type full interface {
	certmagic.Storage
	certmagic.TryLocker
	certmagic.LockLeaseRenewer
}

// asking tells when a lock is asked for.
type asking struct {
	full
	asked *sync.WaitGroup
}

func (a asking) Lock(ctx context.Context, name string) error {
	a.asked.Done()
	return a.full.Lock(ctx, name)
}

// unlocked is a storage without exclusion.
type unlocked struct{ certmagic.Storage }

func (unlocked) Lock(context.Context, string) error                          { return nil }
func (unlocked) TryLock(context.Context, string) (bool, error)               { return true, nil }
func (unlocked) Unlock(context.Context, string) error                        { return nil }
func (unlocked) RenewLockLease(context.Context, string, time.Duration) error { return nil }

// Many instances, with a Storage of their own or a shared one, need the same certificate at
// once: one obtains it, and later one renews it. Without a lock all do.
func TestTogether(t *testing.T) {
	const instances = 8
	for name, c := range map[string]struct {
		url  func(*testing.T) string
		want int64
	}{
		"sqlite":  {func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "locks.db") }, 1},
		"redis":   {func(t *testing.T) string { return "redis://" + testserver.SharedRedis(t).Addr }, 1},
		"no lock": {nil, instances},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			var asked *sync.WaitGroup
			left := time.Hour // to be renewed soon
			issuer, err := newCA(func(context.Context, int64) (time.Duration, error) {
				asked.Wait() // all have seen that there is no certificate
				return left, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			url := ""
			if c.url != nil {
				url = c.url(t)
			}
			prefix := t.Name() + "/" // the server is shared
			storages := make([]full, instances)
			for i := range storages {
				switch {
				case url == "":
					storages[i] = unlocked{files(folder)}
				case i > 0 && i%2 == 0:
					storages[i] = storages[i-1]
				default:
					storages[i] = batoncertmagic.New(files(folder), newLocks(t, url), prefix)
				}
			}
			together := func(obtain func(i int, config *certmagic.Config) error) {
				asked = new(sync.WaitGroup)
				asked.Add(instances)
				issuer.issued.Store(0)
				var all sync.WaitGroup
				for i, s := range storages {
					config := newInstance(t, asking{s, asked}, issuer)
					all.Go(func() {
						if err := obtain(i, config); err != nil {
							t.Error(err)
						}
						if c.want == 1 {
							if _, err := config.CacheManagedCertificate(t.Context(), domain); err != nil {
								t.Error("certificate and key in the storage do not fit:", err)
							}
						}
					})
				}
				all.Wait()
				if n := issuer.issued.Load(); n != c.want {
					t.Errorf("%d certificates were issued, want %d", n, c.want)
				}
			}
			together(func(i int, config *certmagic.Config) error {
				if i%2 == 0 {
					return config.ObtainCertAsync(t.Context(), domain) // renews the lease of the lock
				}
				return config.ObtainCertSync(t.Context(), domain)
			})
			if c.want != 1 {
				return // what is in the storage now may be of several issues
			}
			left = 1000 * time.Hour
			together(func(_ int, config *certmagic.Config) error { return config.RenewCertAsync(t.Context(), domain, false) })
		})
	}
}

// The child of TestKilled: it begins to obtain a certificate, says so, and never ends.
func TestMain(m *testing.M) {
	if folder := os.Getenv("BATONCERTMAGIC_FOLDER"); folder != "" {
		fmt.Println(hang(folder))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func hang(folder string) error {
	ctx := context.Background()
	store, err := open.Store(ctx, "sqlite:"+filepath.Join(folder, "locks.db"))
	if err != nil {
		return err
	}
	locks, err := baton.New(store, baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	issuer, err := newCA(func(context.Context, int64) (time.Duration, error) {
		fmt.Println("issuing")
		select {}
	})
	if err != nil {
		return err
	}
	config, _ := instance(batoncertmagic.New(files(folder), locks, "certs/"), issuer, zap.NewNop())
	return config.ObtainCertSync(ctx, domain)
}

// An instance that is killed while it obtains a certificate holds up the others for the TTL
// at most.
func TestKilled(t *testing.T) {
	testserver.Long(t)
	folder := t.TempDir()
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), "BATONCERTMAGIC_FOLDER="+folder)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := testserver.Start(child); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "issuing\n" {
		t.Fatal(line, err)
	}
	storage := batoncertmagic.New(files(folder), newLocks(t, "sqlite:"+filepath.Join(folder, "locks.db")), "certs/")
	if ok, err := storage.TryLock(t.Context(), lock); ok || err != nil {
		t.Fatal("the child does not hold the lock:", ok, err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	_ = child.Wait()
	var waited time.Duration
	issuer, err := newCA(func(context.Context, int64) (time.Duration, error) {
		waited = time.Since(killed)
		return 1000 * time.Hour, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := newInstance(t, storage, issuer).ObtainCertSync(t.Context(), domain); err != nil {
		t.Error(err)
	}
	if waited == 0 || waited > ttl+5*time.Second { // on a machine that may be busy
		t.Error("waited for", waited)
	}
}

// tellsLoss is about the text: certmagic keeps no more of an error.
func tellsLoss(entry observer.LoggedEntry) bool {
	return strings.Contains(fmt.Sprint(entry.ContextMap()), `lease on "`+key+`" (token`)
}

// certmagic retries for 30 days with one lock. A lease that is lost between two attempts is
// told, and attempts go on: when the lock is free again, with it.
func TestLostBetweenAttempts(t *testing.T) {
	testserver.Long(t)
	synctest.Test(t, func(t *testing.T) {
		store := batontest.New(t)
		storage := newStorage(t, store)
		other := batoncertmagic.New(storage.Storage, lockerOf(t, store), "certs/")
		var failed error
		issuer, err := newCA(func(_ context.Context, serial int64) (time.Duration, error) {
			if serial == 1 {
				failed = errors.New("the CA is out of order")
				return 0, failed
			}
			return 1000 * time.Hour, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		core, logs := observer.New(zapcore.ErrorLevel)
		config, stop := instance(storage, issuer, zap.New(core))
		defer stop()
		done := make(chan error, 1)
		go func() { done <- config.ObtainCertAsync(t.Context(), domain) }()
		synctest.Wait() // it waits for a minute
		if failed == nil {
			t.Fatal("there was no first attempt")
		}
		store.Lose(key)
		if err := other.Lock(t.Context(), lock); err != nil {
			t.Fatal(err)
		}
		time.Sleep(90 * time.Second) // fake time, past the second attempt
		synctest.Wait()
		told := func() (told int) {
			for _, entry := range logs.All() {
				if tellsLoss(entry) {
					told++
				}
			}
			return told
		}
		if told() == 0 || issuer.issued.Load() != 1 {
			t.Error("certmagic does not know that the lock was lost:", logs.All())
		}
		// The other instance obtains the certificate, and is found to have done so.
		second, stopSecond := instance(unlocked{storage.Storage}, issuer, zap.NewNop())
		defer stopSecond()
		if err := errors.Join(second.ObtainCertSync(t.Context(), domain), other.Unlock(t.Context(), lock)); err != nil {
			t.Fatal(err)
		}
		before := told()
		if err := <-done; err != nil || issuer.issued.Load() != 2 || told() != before {
			t.Error(err, issuer.issued.Load(), logs.All())
		}
		if storage.Names() != 0 {
			t.Error("names are left in memory")
		}
	})
}

// If the lease is lost while the issuer works, certmagic logs what Unlock tells. The same
// Unlock at the end of the process is no error.
func TestLostWhileIssuing(t *testing.T) {
	testserver.Long(t)
	store := batontest.New(t)
	storage := newStorage(t, store)
	issuer, err := newCA(func(context.Context, int64) (time.Duration, error) {
		store.Lose(key)
		return 1000 * time.Hour, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zapcore.ErrorLevel)
	config, stop := instance(storage, issuer, zap.New(core))
	defer stop()
	if err := config.ObtainCertSync(t.Context(), domain); err != nil {
		t.Fatal(err)
	}
	all := logs.TakeAll()
	if len(all) != 1 || !tellsLoss(all[0]) {
		t.Error("certmagic logged", all)
	}
	certmagic.CleanUpOwnLocks(t.Context(), zap.New(core))
	if all := logs.TakeAll(); len(all) != 0 {
		t.Error("certmagic logged", all)
	}
}

func TestRenew(t *testing.T) {
	store := batontest.New(t)
	s := newStorage(t, store)
	if err := s.RenewLockLease(t.Context(), lock, time.Hour); err == nil {
		t.Error("renewed what is not locked")
	}
	if err := s.Lock(t.Context(), lock); err != nil {
		t.Fatal(err)
	}
	if err := s.RenewLockLease(t.Context(), lock, time.Hour); err != nil || len(store.Grants()) != 1 {
		t.Error(err, store.Grants())
	}
	store.Lose(key)
	release := store.Hold(key, "another")
	for range 2 {
		var lost *baton.LostError
		err := s.RenewLockLease(t.Context(), lock, time.Hour)
		if !errors.As(err, &lost) || lost.Key != key || !errors.Is(err, baton.ErrHeld) {
			t.Error(err)
		}
	}
	release()
	if err := s.RenewLockLease(t.Context(), lock, time.Hour); err != nil || len(store.Holders(key)) != 1 {
		t.Error(err, store.Holders(key))
	}
	if err := s.Unlock(t.Context(), lock); err != nil || len(store.Holders(key)) != 0 {
		t.Error(err, store.Holders(key))
	}
}

// The lock that is unlocked is that of the caller, also if it was lost: a caller that comes
// after it waits for its Unlock.
func TestOneProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := batontest.New(t)
		s := newStorage(t, store)
		if err := s.Lock(t.Context(), lock); err != nil {
			t.Fatal(err)
		}
		store.Lose(key)
		done := make(chan error)
		go func() { done <- s.Lock(t.Context(), lock) }()
		time.Sleep(10 * ttl)
		synctest.Wait()
		if len(store.Holders(key)) != 0 {
			t.Error("two callers of a process have one name")
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Unlock(ended, lock); !errors.Is(err, baton.ErrLost) {
			t.Error(err)
		}
		if err := <-done; err != nil || len(store.Holders(key)) != 1 {
			t.Error(err, store.Holders(key))
		}
		if err := s.Unlock(ended, lock); err != nil || len(store.Holders(key)) != 0 || s.Names() != 0 {
			t.Error(err, store.Holders(key), s.Names())
		}
	})
}

func TestGivesUp(t *testing.T) {
	store := batontest.New(t)
	s := newStorage(t, store)
	if err := s.Lock(t.Context(), lock); err != nil {
		t.Fatal(err)
	}
	for name, waits := range map[string]*batoncertmagic.Storage{"this process": s, "another": newStorage(t, store)} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := waits.Lock(ctx, lock); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), key) {
			t.Error(name, err)
		}
		cancel()
		if ok, err := waits.TryLock(t.Context(), lock); ok || err != nil {
			t.Error(name, ok, err)
		}
	}
	if err := s.Unlock(t.Context(), lock); err != nil || s.Names() != 0 {
		t.Error(err, s.Names())
	}
	fault := store.Fail(batontest.Acquire, driver.ErrUnavailable)
	if ok, err := s.TryLock(t.Context(), lock); ok || !errors.Is(err, driver.ErrUnavailable) {
		t.Error(ok, err)
	}
	fault.Stop()
	if ok, err := s.TryLock(t.Context(), lock); !ok || err != nil {
		t.Error(ok, err)
	}
	if err := s.Unlock(t.Context(), lock); err != nil || s.Names() != 0 {
		t.Error(err, s.Names())
	}
}

// certmagic looks for no interface of a storage that a Storage hides: this fails when a
// version of certmagic looks for another one.
func TestInterfaces(t *testing.T) {
	its, _ := runtime.FuncForPC(reflect.ValueOf(certmagic.CleanUpOwnLocks).Pointer()).FileLine(0)
	if !filepath.IsAbs(its) { // with -trimpath
		cache, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE").Output()
		if err != nil {
			t.Fatal(err)
		}
		its = filepath.Join(strings.TrimSpace(string(cache)), its)
	}
	sources, err := filepath.Glob(filepath.Join(filepath.Dir(its), "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	asked := make(map[string]bool)
	for _, name := range sources {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if a, ok := n.(*ast.TypeAssertExpr); ok && a.Type != nil && strings.HasSuffix(strings.ToLower(types.ExprString(a.X)), "storage") {
				asked[types.ExprString(a.Type)] = true
			}
			return true
		})
	}
	want := []string{"LockLeaseRenewer", "TryLocker", "localCacheStorage"} // the last one is certmagic's own
	if got := slices.Sorted(maps.Keys(asked)); !slices.Equal(got, want) {
		t.Errorf("certmagic looks for %q, want %q", got, want)
	}
}

func TestString(t *testing.T) {
	locks := lockerOf(t, batontest.New(t))
	for want, wrapped := range map[string]certmagic.Storage{
		"FileStorage:/shared":          files("/shared"),
		"batoncertmagic_test.unlocked": unlocked{},
	} {
		if got := batoncertmagic.New(wrapped, locks, "").String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
