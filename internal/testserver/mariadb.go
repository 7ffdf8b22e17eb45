package testserver

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// MariaDBServer is one mariadbd process, or one mysqld if BATON_SERVER_MARIADB names it,
// with a database "baton". Its user root has no password.
type MariaDBServer struct {
	Process

	// Addr is where it listens: "127.0.0.1:port". It survives Restart.
	Addr string
}

// NeedMariaDB skips the test if it may not start MariaDB.
func NeedMariaDB(t TB) {
	t.Helper()
	require(t, "mariadbd", "mariadb-server")
}

// IsMySQL reports whether MariaDB starts a MySQL. It skips the test as NeedMariaDB does.
func IsMySQL(t TB) bool {
	t.Helper()
	NeedMariaDB(t)
	is, err := isMySQL()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return is
}

var isMySQL = sync.OnceValues(func() (bool, error) {
	version, err := exec.Command(cmp.Or(os.Getenv(variables["mariadbd"]), "mariadbd"), "--no-defaults", "--version").Output()
	if err != nil {
		return false, fmt.Errorf("ask the server for its version: %w", err)
	}
	return !strings.Contains(string(version), "MariaDB"), nil
})

// MariaDB starts a server that makes every commit durable. args are arguments of
// mariadbd, for example "--log-bin". Those that only one of the two servers knows begin
// with "--loose-".
func MariaDB(t TB, args ...string) *MariaDBServer {
	t.Helper()
	return mariadb(t, nil, args)
}

func mariadb(t TB, env, args []string) *MariaDBServer {
	t.Helper()
	path := require(t, "mariadbd", "mariadb-server")
	template, err := mariadbTemplate()
	if err != nil {
		t.Fatalf("make a database directory: %v", err)
	}
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			t.Fatalf("start mariadb: %v", err)
		}
		s, err := startMariaDB(t, path, template, freshDir(t), port, env, args)
		if err == nil {
			return s
		}
		if !errors.Is(err, errExited) || attempt == 5 {
			t.Fatalf("start mariadb: %v", err)
		}
	}
}

var sharedMariaDB shared[*MariaDBServer]

// SharedMariaDB returns the server that the tests of this binary share. They use only
// their own databases and do not stop it.
func SharedMariaDB(t TB) *MariaDBServer {
	t.Helper()
	return sharedMariaDB.get(t, func(t TB) *MariaDBServer { return MariaDB(t) })
}

// smallMariaDB keeps the files of a server small: they are copied and recovered fast.
var smallMariaDB = []string{
	"--loose-innodb-log-file-size=8M", "--loose-innodb-redo-log-capacity=32M", "--innodb-buffer-pool-size=32M",
	"--loose-aria-log-file-size=8M", "--loose-aria-pagecache-buffer-size=8M", "--key-buffer-size=1M",
}

// mariadbTemplate is a fresh database directory, which each server copies.
var mariadbTemplate = sync.OnceValues(func() (string, error) {
	other := os.Getenv(variables["mariadbd"])
	root, err := rootDir()
	if err != nil {
		return "", err
	}
	mysql, err := isMySQL()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root.path, "mariadb")
	program, args := "mariadb-install-db", slices.Concat([]string{"--no-defaults", "--datadir=" + dir}, smallMariaDB, mariadbUser())
	if mysql {
		program = other
		users := filepath.Join(root.path, "mysql-users.sql") // it has made root for localhost only
		if err := os.WriteFile(users, []byte("RENAME USER root@localhost TO root@'%';\n"), 0o600); err != nil {
			return "", err
		}
		args = append(args, "--initialize-insecure", "--init-file="+users, "--secure-file-priv="+root.path)
	} else {
		if other != "" {
			base := filepath.Dir(filepath.Dir(other))
			program = filepath.Join(base, "bin", program)
			args = append(args, "--basedir="+base)
		}
		args = append(args, "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")
	}
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", program, err, out)
	}
	return dir, nil
})

// mariadbUser is the argument that lets the server run as root if the tests do.
func mariadbUser() []string {
	if os.Getuid() == 0 {
		return []string{"--user=root"}
	}
	return nil
}

func startMariaDB(t TB, path, template, dir string, port int, env, more []string) (*MariaDBServer, error) {
	data := filepath.Join(dir, "data")
	if err := os.CopyFS(data, os.DirFS(template)); err != nil {
		return nil, err
	}
	first := filepath.Join(dir, "init.sql")
	if err := os.WriteFile(first, []byte("CREATE DATABASE IF NOT EXISTS baton;\n"), 0o600); err != nil {
		return nil, err
	}
	s := &MariaDBServer{Addr: addr(port)}
	pidFile := filepath.Join(dir, "pid")
	args := append([]string{
		"--no-defaults", "--datadir=" + data, "--port=" + strconv.Itoa(port), "--bind-address=127.0.0.1",
		"--socket=" + filepath.Join(dir, "my.sock"), "--tmpdir=" + dir, "--pid-file=" + pidFile, "--init-file=" + first,
		"--skip-name-resolve", "--max-connections=600", "--innodb-flush-log-at-trx-commit=1",
		"--innodb-fast-shutdown=2", "--performance-schema=OFF", "--secure-file-priv=" + dir, "--loose-mysqlx=OFF",
	}, smallMariaDB...)
	args = append(append(args, mariadbUser()...), more...)
	s.Process = Process{t: t, path: path, args: args, env: env, dir: dir, ready: func(pid int) error {
		// Another server may have taken the port first.
		text, err := os.ReadFile(pidFile)
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(text)) != strconv.Itoa(pid) {
			return errors.New("the pid file is that of an earlier run")
		}
		return greets(s.Addr)
	}}
	if err := s.start(); err != nil {
		return nil, err
	}
	t.Cleanup(s.Kill)
	return s, nil
}

// greets returns nil once the server begins the handshake of a connection.
func greets(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	head := make([]byte, 5)
	if _, err := io.ReadFull(bufio.NewReader(conn), head); err != nil {
		return err
	}
	if head[4] != 10 { // the version of the protocol; anything else is an error
		return errors.New("it does not accept connections yet")
	}
	return nil
}
