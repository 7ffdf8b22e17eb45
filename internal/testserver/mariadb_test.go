package testserver

import (
	"database/sql"
	"sync"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
)

func TestMariaDBRestarts(t *testing.T) {
	t.Parallel()
	s := MariaDB(t)
	before := s.Pid()
	s.Restart()
	if s.Pid() == before {
		t.Error("the process is the same after the restart")
	}
	if err := greets(s.Addr); err != nil {
		t.Error(err)
	}
}

// A clock is what it was set to, for all threads of a server that ask at once.
func TestClockOfManyThreads(t *testing.T) {
	t.Parallel()
	const ahead = 5 * time.Hour
	clock := NewClock(t)
	clock.Set(ahead)
	db, err := sql.Open("mysql", "root@tcp("+clock.MariaDB().Addr+")/")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	end := time.Now().Add(3 * time.Second)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for time.Now().Before(end) {
				var us int64
				if err := db.QueryRow("SELECT TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))").Scan(&us); err != nil {
					t.Error(err)
					return
				}
				if off := time.UnixMicro(us).Sub(time.Now().Add(ahead)); off.Abs() > time.Hour {
					t.Errorf("it is off by %v", off)
					return
				}
			}
		})
	}
	wg.Wait()
}
